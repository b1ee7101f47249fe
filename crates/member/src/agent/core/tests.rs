//! The agent on virtual time. The test sends its events and reads its queues.

mod changes;
mod map;
mod plane;
mod ports;
mod relays;
mod tka;
mod tunnel_pings;

use std::{
    cell::RefCell,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use ipc::relay_process::ToRelayServer;
use mesh::{local_json::Status, prefs::MaskedPrefs};
use serde_json::{Value, json};
use tailnet::{
    disco::Disco,
    keys::{DiscoKey, DiscoPublic, MachinePublic, NodePublic},
    map_messages::MapResponse,
    ts2021::requests::MapHead,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use zeroize::Zeroizing;

use super::*;
use crate::agent::{
    Folder,
    coordinator::Connect,
    local_api::Writers,
    machine::{ReadAddresses, ReadRoutes},
    portmap::{PortMapping, Wanted},
    roots::Roots,
    state_folder::StateFolder,
};

const KEY: NodePublic = NodePublic([1; 32]);
const URL: &str = "https://control.example";

/// An agent and the other ends of its queues.
struct Rig {
    agent: Agent,
    access: Rc<Access>,
    folder: Arc<TempFolder>,
    relays: Received<derp::Command>,
    relay_server: LineSender<ToRelayServer>,
    from_control: mpsc::Receiver<(u32, control::Event)>,
    wanted: watch::Receiver<Wanted>,
    sessions: Arc<Mutex<Vec<Session>>>,
}

/// Replaces the access to the machine and to coordinators.
struct Access {
    addresses: RefCell<ReadAddresses>,
    default_routes: RefCell<ReadRoutes>,
    connect: RefCell<Box<Connect>>,
}

/// A temporary folder, removed on drop.
struct TempFolder(PathBuf);

struct Session {
    server_key: MachinePublic,
    /// Whether the coordinator may be at a loopback address.
    is_local: bool,
    commands: Received<control::Command>,
    events: mpsc::Sender<control::Event>,
}

/// The values that a channel received.
type Received<T> = Arc<Mutex<Vec<T>>>;

fn collect<T: Send + 'static>(mut from: mpsc::Receiver<T>) -> Received<T> {
    let received = Received::<T>::default();
    let taken = received.clone();
    tokio::spawn(async move {
        while let Some(one) = from.recv().await {
            taken.lock().unwrap().push(one);
        }
    });
    received
}

impl Rig {
    /// An agent with an empty folder.
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("linerate-core-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = Arc::new(TempFolder(folder));
        Self::at(
            folder,
            Clock { now: Duration::from_secs(1000), wall: Duration::from_secs(1_800_000_000) },
        )
    }

    fn at(folder: Arc<TempFolder>, clock: Clock) -> Self {
        let (relays, relay_commands) = mpsc::channel(1);
        let (control_events, from_control) = mpsc::channel(64);
        let (check_results, _) = mpsc::channel(64);
        let (want, wanted) = watch::channel(Wanted::default());
        let relay_server = LineSender::new();
        let sessions = Arc::<Mutex<Vec<Session>>>::default();
        let begun = sessions.clone();
        let connect = move |settings: control::Settings, commands, events| {
            let (server_key, here) = (settings.server_key, vec![([127, 0, 0, 1], 80).into()]);
            let is_local = settings.dialer.admit("control.example", here).is_ok();
            let commands = collect(commands);
            begun.lock().unwrap().push(Session { server_key, is_local, commands, events });
        };
        let access = Rc::new(Access {
            addresses: RefCell::new(Box::new(|_| vec!["192.0.2.1/24".parse().unwrap()])),
            default_routes: RefCell::new(Box::new(Default::default)),
            connect: RefCell::new(Box::new(connect)),
        });
        let [addresses, routes, connect] = [0; 3].map(|_| access.clone());
        let agent = Agent::new(Parts {
            has_interface: false,
            address_ranges: Vec::new(),
            state: folder.state(),
            roots: Roots::default(),
            hook: None,
            lines: Lines {
                plane: LineSender::new(),
                steward: None,
                relay_server: Some(relay_server.clone()),
            },
            relays,
            control_events,
            check_results,
            port_mapping: PortMapping::new(want),
            writers: Arc::new(Writers::new(None)),
            machine: Machine::new(
                Box::new(move |interface| (addresses.addresses.borrow())(interface)),
                Box::new(move || (routes.default_routes.borrow())()),
            ),
            connect: Box::new(move |settings, commands, events| {
                (connect.connect.borrow())(settings, commands, events);
            }),
            clock,
        });
        Self {
            agent: agent.unwrap(),
            access,
            folder,
            relays: collect(relay_commands),
            relay_server,
            from_control,
            wanted,
            sessions,
        }
    }

    /// An agent that has joined: its key is registered and its preferences are saved.
    async fn joined(name: &str) -> Self {
        let rig = Self::new(name);
        let prefs = Prefs { control_url: URL.into(), want_running: true, ..Prefs::new() };
        rig.folder.state().save("prefs.json", &prefs).unwrap();
        rig.restarted().await
    }

    /// Replaces the agent by a new one.
    async fn restarted(self) -> Self {
        let mut rig = Self::at(self.folder.clone(), self.agent.clock);
        rig.plane(hello(KEY)).await;
        rig.plane(ToAgent::Activity(Vec::new())).await;
        rig
    }

    async fn handle(&mut self, input: Input) {
        self.agent.handle(input, self.agent.clock).await;
    }

    async fn plane(&mut self, message: ToAgent) {
        self.handle(Input::Plane(message)).await;
    }

    /// Lets time pass and handles each timeout.
    async fn pass(&mut self, time: Duration) {
        let Clock { now, wall } = self.agent.clock;
        let end = now + time;
        while self.agent.clock.now < end {
            let next =
                self.agent.poll_timeout().map_or(end, |due| due.clamp(self.agent.clock.now, end));
            // Repeated timeouts at one time cannot loop forever.
            let next = next.max(self.agent.clock.now + Duration::from_millis(1)).min(end);
            self.agent.handle(Input::Timeout, Clock { now: next, wall: wall + (next - now) }).await;
        }
    }

    /// The messages to the data plane since the last call.
    fn plane_messages(&self) -> Vec<ToDataPlane> {
        std::iter::from_fn(|| self.agent.plane.poll()).collect()
    }

    /// The commands to relays since the last call.
    async fn relay_commands(&self) -> Vec<derp::Command> {
        tokio::task::yield_now().await;
        std::mem::take(&mut self.relays.lock().unwrap())
    }

    /// The commands to the last session since the last call.
    async fn session_commands(&self) -> Vec<control::Command> {
        tokio::task::yield_now().await;
        let sessions = self.sessions.lock().unwrap();
        let session = sessions.last().expect("a session has begun");
        std::mem::take(&mut session.commands.lock().unwrap())
    }

    /// Sends an event in the last session.
    async fn control_event(&mut self, event: control::Event) {
        let events = self.sessions.lock().unwrap().last().expect("a session").events.clone();
        events.send(event).await.unwrap();
        let (number, event) = self.from_control.recv().await.unwrap();
        self.handle(Input::Control(number, event)).await;
    }

    /// Starts a stream with this map.
    async fn stream(&mut self, map: Value) {
        self.control_event(control::Event::Connected { resumed: false }).await;
        self.map(map).await;
    }

    async fn map(&mut self, map: Value) {
        let frame = map.to_string().into_bytes();
        let head = MapHead::read(&frame).unwrap();
        let map = Box::new(MapResponse::read(&frame).unwrap());
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        self.control_event(control::Event::Map { head, map, room }).await;
    }

    async fn request<T>(
        &mut self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Option<T> {
        let (reply, mut answer) = oneshot::channel();
        self.handle(Input::Request(request(reply))).await;
        answer.try_recv().ok()
    }

    async fn status(&mut self) -> Status {
        let status = self.request(|reply| Request::Status { peers: true, reply }).await;
        *status.unwrap().unwrap()
    }

    /// The health messages that contain this text.
    async fn health(&mut self, text: &str) -> Vec<String> {
        let mut health = self.status().await.health;
        health.retain(|line| line.contains(text));
        health
    }

    async fn set(&mut self, name: &str, value: impl Into<Value>) {
        let edits = MaskedPrefs::default().with(name, value);
        let set = self.request(|reply| Request::EditPrefs { edits, reply }).await;
        set.unwrap().unwrap();
    }
}

impl TempFolder {
    fn state(&self) -> StateFolder {
        let path = self.0.clone();
        StateFolder::new(Folder { path: path.clone(), display: path, open: None })
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn disco(byte: u8) -> Disco {
    Disco::new(DiscoKey::new(Box::new(Zeroizing::new([byte; 32]))))
}

fn hello(node_key: NodePublic) -> ToAgent {
    ToAgent::Hello { node_key, port: 41641, interface: String::new(), index: 0 }
}

fn key(id: u8) -> NodePublic {
    NodePublic([id; 32])
}

fn node(id: u8) -> Value {
    json!({
        "ID": id, "StableID": format!("n{id}"), "Name": format!("n{id}.net.example."),
        "Key": key(id), "DiscoKey": DiscoPublic([id; 32]), "HomeDERP": 1,
        "Addresses": [format!("100.64.0.{id}/32")], "AllowedIPs": [format!("100.64.0.{id}/32")],
    })
}

/// A complete map of this node and these peers, with a relay that has an address.
fn map_of(peers: &[u8]) -> Value {
    let relay = json!({"Name": "1", "RegionID": 1, "HostName": "relay.example", "IPv4": "192.0.2.9", "IPv6": "none"});
    json!({
        "Node": node(1),
        "Peers": peers.iter().map(|id| node(*id)).collect::<Vec<_>>(),
        "DERPMap": {"Regions": {"1": {"RegionID": 1, "RegionCode": "one", "Nodes": [relay]}}},
        "PacketFilter": [{"SrcIPs": ["*"], "DstPorts": [{"IP": "*", "Ports": {"First": 0, "Last": 65535}}]}],
        "Domain": "example",
    })
}

/// The keys of the data plane's peers after these messages.
fn peers(messages: &[ToDataPlane]) -> Vec<NodePublic> {
    let mut peers = std::collections::BTreeSet::new();
    for message in messages {
        if let ToDataPlane::Peers { complete, changed, removed } = message {
            if *complete {
                peers.clear();
            }
            peers.retain(|key| !removed.contains(key));
            peers.extend(changed.iter().map(|peer| peer.key));
        }
    }
    peers.into_iter().collect()
}
