//! A simulated network: machines register, and follow it like clients.

use std::{collections::BTreeMap, time::Duration};

use coordinator::{
    MapRequest, NewKey, PollResult, RegisterCommand, RegisterRequest, RegisterResponse, Session,
    Settings, State, StreamId, Time,
    object::{NodeId, Stored, User, UserId},
    secret,
};
use serde_json::{Value, json};
use tailnet::{
    keys::{DiscoPublic, MachinePublic, NodePublic},
    map_messages::MapResponse,
};

/// The prefix of the URLs of pending registrations.
pub(crate) const URL: &str = "https://net.test/register/";

pub(crate) struct World {
    pub state: State,
    pub now: Time,
    pub user: UserId,
    /// The content of the store.
    pub store: BTreeMap<(&'static str, i64), Stored>,
    /// The version that wrote each object.
    pub written: BTreeMap<(&'static str, i64), i64>,
    pub version: i64,
    keys: u8,
}

/// A machine, and the map of its client.
pub(crate) struct Machine {
    pub machine: MachinePublic,
    pub key: NodePublic,
    pub disco: DiscoPublic,
    pub hostinfo: Value,
    pub id: NodeId,
    session: Option<(Session, StreamId)>,
    /// The peers of the map.
    pub peers: BTreeMap<i64, Value>,
    pub own: Value,
    /// The packet filter.
    pub filter: Value,
    /// The SSH rules.
    pub ssh: Value,
    /// The DNS configuration.
    pub dns: Value,
    /// Whether the stream has ended.
    pub has_ended: bool,
    /// The field names of all received frames.
    pub frames: Vec<Vec<String>>,
    /// The handle of the stream, and the number of the last frame.
    pub position: (String, i64),
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let (state, now) = (State::new(settings), Time(1_800_000_000_000));
        let (store, written, version, keys) = (BTreeMap::new(), BTreeMap::new(), 0, 0);
        let mut world = Self { state, now, user: UserId(0), store, written, version, keys };
        world.user = world.add_user("anna");
        world
    }

    pub(crate) fn add_user(&mut self, name: &str) -> UserId {
        let user = User { name: name.into(), ..User::default() };
        let id = self.state.create_user(user, self.now).unwrap().id;
        self.commit();
        id
    }

    /// Stores and publishes the changes, as the server does after each batch.
    pub(crate) fn commit(&mut self) {
        let writes = self.state.take_writes();
        self.version += i64::from(!writes.is_empty());
        for stored in writes {
            self.written.insert((stored.kind.name(), stored.id), self.version);
            self.store.insert((stored.kind.name(), stored.id), stored);
        }
        self.state.publish(self.version, self.now);
        assert_eq!(
            stored_objects(&self.loaded()),
            stored_objects(&self.state),
            "the store and the served state differ"
        );
    }

    /// The objects that were written after this version.
    pub(crate) fn since(&self, version: i64) -> Vec<Stored> {
        let new = self.store.iter().filter(|(which, _)| self.written[*which] > version);
        new.map(|(_, stored)| stored.clone()).collect()
    }

    /// The server restarts from the store.
    pub(crate) fn restart(&mut self) {
        self.state = self.loaded();
    }

    /// The state that a server loads from the store.
    fn loaded(&self) -> State {
        let objects: Vec<Stored> = self.store.values().cloned().collect();
        let settings = self.state.settings().clone();
        State::load(settings, &objects, (self.version, 0), self.now).unwrap()
    }

    /// Advances the time, and handles due timers.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.state.next_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.state.handle_timeout(self.now);
            self.commit();
        }
        self.now = end;
    }

    pub(crate) fn auth_key(&mut self, new: NewKey) -> String {
        self.keys += 1;
        let text = secret::write(&[self.keys; 38]);
        self.state.create_key(new, &text, self.now).unwrap();
        self.commit();
        text
    }

    /// A reusable key of the first user.
    pub(crate) fn reusable(&mut self) -> String {
        self.auth_key(NewKey { user: Some(self.user), reusable: true, ..NewKey::default() })
    }

    /// The answer to a request to register.
    pub(crate) fn send_register(&mut self, machine: &Machine, fields: Value) -> Value {
        let mut request = json!({
            "Version": 131, "NodeKey": machine.key, "Hostinfo": machine.hostinfo,
        });
        let of_request = request.as_object_mut().unwrap();
        of_request.extend(fields.as_object().unwrap().clone());
        let request = RegisterRequest::read(request.to_string().as_bytes()).unwrap();
        let (machine, number) = (machine.machine, format!("{:024x}", machine.machine.0[0]));
        let command =
            RegisterCommand { machine, request: &request, number: &number, url: URL, from: None };
        let answer = self.state.register(command, self.now);
        self.commit();
        let (RegisterResponse::Immediate(text)
        | RegisterResponse::Refused(text)
        | RegisterResponse::Deferred(text)) = answer;
        serde_json::from_str(&text).unwrap()
    }

    /// Registers with a key. Returns the error, which is empty on success.
    pub(crate) fn register(&mut self, machine: &mut Machine, auth_key: &str) -> String {
        let answer = self.send_register(machine, json!({ "Auth": { "AuthKey": auth_key } }));
        if let Some(id) = self.state.find_machine_node(&machine.machine, &machine.key) {
            machine.id = id;
        }
        answer["Error"].as_str().unwrap().to_owned()
    }

    /// Registers a machine, sends its update and starts its stream.
    pub(crate) fn join(&mut self, number: u8, auth_key: &str) -> Machine {
        let mut machine = Machine::new(number);
        assert_eq!(self.register(&mut machine, auth_key), "");
        self.send_update(&machine, json!({ "Endpoints": [format!("192.0.2.{number}:41641")] }));
        self.follow(&mut machine);
        machine
    }

    /// Sends an update of a machine.
    pub(crate) fn send_update(&mut self, machine: &Machine, fields: Value) {
        self.apply_map_request(machine, fields);
        self.commit();
    }

    /// Applies an update of a machine, without storing it.
    pub(crate) fn apply_map_request(&mut self, machine: &Machine, fields: Value) {
        let mut request = json!({
            "Version": 131, "NodeKey": machine.key, "DiscoKey": machine.disco,
            "Hostinfo": machine.hostinfo, "OmitPeers": true,
        });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = MapRequest::read(request.to_string().as_bytes()).unwrap();
        self.state.apply_map_request(machine.id, &request, self.now);
    }

    /// Starts the stream of a machine.
    pub(crate) fn follow(&mut self, machine: &mut Machine) {
        let stream = self.state.connect(machine.id, self.now);
        self.commit();
        machine.session = Some((Session::new(machine.id, machine.key), stream));
        (machine.peers, machine.has_ended) = (BTreeMap::new(), false);
        self.poll(machine);
    }

    /// Starts a stream that resumes the previous one if the server can. Returns whether it resumed.
    pub(crate) fn resume(&mut self, machine: &mut Machine, server: &str) -> bool {
        let stream = self.state.connect(machine.id, self.now);
        self.commit();
        let before = machine.position.0.clone();
        machine.session = Some((machine.next_session(server), stream));
        machine.has_ended = false;
        self.poll(machine);
        let frame = machine.frames.last().expect("a first frame");
        let resumed = !frame.contains(&"DERPMap".to_owned());
        assert_eq!(resumed, before == machine.position.0, "the handle shows whether it resumed");
        resumed
    }

    /// Ends the stream of a machine.
    pub(crate) fn disconnect(&mut self, machine: &mut Machine) {
        let (_, stream) = machine.session.take().unwrap();
        self.state.disconnect(machine.id, stream, self.now);
        self.commit();
    }

    /// Reads the next frame of a machine. Returns whether there was one.
    pub(crate) fn poll(&mut self, machine: &mut Machine) -> bool {
        let (session, _) = machine.session.as_mut().unwrap();
        let frame = match session.poll(&self.state, self.now) {
            PollResult::Nothing => return false,
            PollResult::Frame(frame) => Some(frame),
            PollResult::End(frame) => {
                machine.has_ended = true;
                frame
            }
        };
        if let Some(frame) = frame {
            let text = frame.text();
            // A JSON tree has only the last of two fields with the same name. Clients refuse such a frame.
            let read = MapResponse::read(text.as_bytes()).expect("a frame is a map");
            assert_eq!(read.bad, []);
            machine.take(&serde_json::from_str(&text).expect("a frame is JSON"));
        }
        true
    }

    pub(crate) fn name(&self, machine: &Machine) -> String {
        self.state.node(machine.id).unwrap().node.name.clone()
    }

    pub(crate) fn address(&self, machine: &Machine) -> String {
        self.state.node(machine.id).unwrap().node.v4.to_string()
    }
}

/// All stored objects of a state.
pub(crate) fn stored_objects(state: &State) -> Vec<String> {
    let users = state.users().map(|user| format!("{user:?}"));
    let nodes = state.nodes().map(|view| format!("{:?}", view.node));
    let keys = state.keys().map(|key| format!("{key:?}"));
    let api_keys = state.api_keys().map(|key| format!("{key:?}"));
    let policies = state.policies().map(|policy| format!("{policy:?}"));
    let audit = state.audit().map(|entry| format!("{entry:?}"));
    let lock = [format!("{:?}", state.tka_status())];
    users
        .chain(nodes)
        .chain(keys)
        .chain(api_keys)
        .chain(policies)
        .chain(audit)
        .chain(lock)
        .collect()
}

impl Machine {
    pub(crate) fn new(number: u8) -> Self {
        Self {
            machine: MachinePublic([number; 32]),
            key: NodePublic([number; 32]),
            disco: DiscoPublic([number; 32]),
            hostinfo: json!({ "OS": "linux", "Hostname": format!("host-{number}") }),
            id: NodeId(0),
            session: None,
            peers: BTreeMap::new(),
            own: Value::Null,
            filter: Value::Null,
            ssh: Value::Null,
            dns: Value::Null,
            has_ended: false,
            frames: Vec::new(),
            position: (String::new(), 0),
        }
    }

    /// Applies a frame, as clients do (tailscale `controlclient/map.go`).
    pub(crate) fn take(&mut self, frame: &Value) {
        self.frames.push(frame.as_object().unwrap().keys().cloned().collect());
        if let Some(own) = frame.get("Node") {
            self.own = own.clone();
        }
        if let Some(filters) = frame.get("PacketFilters") {
            self.filter = filters["base"].clone();
        }
        if let Some(dns) = frame.get("DNSConfig") {
            self.dns = dns.clone();
        }
        if let Some(ssh) = frame.get("SSHPolicy") {
            self.ssh = ssh.clone();
        }
        if let Some(handle) = frame.get("MapSessionHandle") {
            self.position.0 = handle.as_str().unwrap().to_owned();
        }
        self.position.1 = frame["Seq"].as_i64().unwrap_or(self.position.1);
        let list = |name: &str| frame[name].as_array().cloned().unwrap_or_default();
        // A full map. An empty list of peers is absent.
        if frame.get("Debug").is_some() {
            self.peers.clear();
        }
        for id in list("PeersRemoved") {
            self.peers.remove(&id.as_i64().unwrap());
        }
        for peer in list("Peers").into_iter().chain(list("PeersChanged")) {
            self.peers.insert(peer["ID"].as_i64().unwrap(), peer);
        }
        for (id, online) in frame["OnlineChange"].as_object().into_iter().flatten() {
            let peer = self.peers.get_mut(&id.parse().unwrap()).expect("a known peer");
            peer["Online"] = online.clone();
        }
        for patch in list("PeersChangedPatch") {
            let id = patch["NodeID"].as_i64().unwrap();
            let peer = self.peers.get_mut(&id).expect("a known peer");
            for (name, value) in patch.as_object().unwrap() {
                match name.as_str() {
                    "NodeID" => {}
                    "DERPRegion" => peer["HomeDERP"] = value.clone(),
                    name => peer[name] = value.clone(),
                }
            }
        }
    }

    /// A session that resumes the previous stream.
    pub(crate) fn next_session(&self, network: &str) -> Session {
        let (previous_stream, previous_seq) = self.position.clone();
        let request = MapRequest { previous_stream, previous_seq, ..MapRequest::default() };
        Session::new(self.id, self.key).resumable(network, &request)
    }

    /// The entry of a peer in the map, or null.
    pub(crate) fn peer(&self, other: &Self) -> &Value {
        self.peers.get(&other.id.0).unwrap_or(&Value::Null)
    }
}
