//! Model test: three servers of one network against a single state. Random commands run
//! concurrently, with conflicts, lost answers, delayed commits, and servers that are killed. At the
//! end, the store must equal one state that ran the same commands once and in the same order.
//! Tailnet lock is included, and the audit entries of all servers must form one chain. With some
//! seeds, another database takes over that lacks the last changes, and all servers must then match
//! it.

mod memory;
mod tka;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use coordinator::{
    NewKey, RegisterCommand, RegisterRequest, RegisterResponse, Settings, State, StreamId, Time,
    check_chain,
    object::{AuditEntry, KeyId, Kind, NodeId, Stored, User, UserId},
    secret,
};
use serde_json::{Value, json};
use tailnet::keys::{MachinePublic, NodePublic};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use self::{
    memory::{Connection, Memory},
    tka::TkaAct,
};
use super::NetworkState;

/// `LINERATE_SEEDS=2000` runs more.
const SEEDS: u64 = 200;
const SERVERS: usize = 3;
const CLIENTS: u64 = 8;
const COMMANDS: u64 = 8;
/// Outcomes that must occur with at least one seed, as the audit log has them.
const SEEN: [&str; 10] = [
    "expired key: ()",
    "deleted key: ()",
    "expired API key: ()",
    "deleted API key: ()",
    "deleted user: ()",
    "turn tailnet lock on",
    "updates of tailnet lock",
    "others have changed tailnet lock meanwhile",
    "sign the key of",
    "turn tailnet lock off",
];

/// Reproducible randomness (Vigna's SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// An operation on a network.
#[derive(Clone, Debug)]
enum Act {
    User(u64),
    DeleteUser(i64),
    /// A user's key for one node.
    Key(u8, i64),
    ExpireKey(i64),
    DeleteKey(i64),
    ApiKey(u8),
    ExpireApiKey(u8),
    DeleteApiKey(u8),
    Join(u8, u8),
    Rename(i64, u64),
    Approve(i64),
    Delete(i64),
    Lock(TkaAct),
}

impl Act {
    fn any(dice: &mut Dice, seen: &NetworkState) -> Self {
        let node = 1 + dice.roll(6).cast_signed();
        let user = 1 + dice.roll(2).cast_signed();
        let api_key = 1 + dice.roll(3) as u8;
        match dice.roll(24) {
            0..=1 => Self::User(dice.roll(6)),
            2..=3 => Self::Key(1 + dice.roll(6) as u8, user),
            12 => Self::DeleteUser(user + 1),
            13 => Self::ExpireKey(1 + dice.roll(6).cast_signed()),
            14 => Self::DeleteKey(1 + dice.roll(6).cast_signed()),
            15 => Self::ApiKey(api_key),
            16 => Self::ExpireApiKey(api_key),
            17 => Self::DeleteApiKey(api_key),
            4..=7 => Self::Join(1 + dice.roll(12) as u8, 1 + dice.roll(6) as u8),
            8..=9 => Self::Rename(node, dice.roll(3)),
            10 => Self::Approve(node),
            11 => Self::Delete(node),
            _ => {
                let roll = dice.roll(24);
                Self::Lock(seen.read(|state| TkaAct::any(roll, node, state)))
            }
        }
    }

    /// Runs the operation and describes its outcome.
    fn run(&self, state: &mut State, now: Time) -> String {
        match self {
            Self::User(name) => {
                let user = User { name: format!("user-{name}"), ..User::default() };
                outcome_text(state.create_user(user, now).map(|user| user.id))
            }
            Self::DeleteUser(user) => {
                format!("deleted user: {}", outcome_text(state.delete_user(UserId(*user))))
            }
            Self::Key(number, user) => {
                let text = secret::write(&[*number; 38]);
                let taken = state.keys().any(|key| key.prefix == prefix(*number));
                let new = NewKey { user: Some(UserId(*user)), ..NewKey::default() };
                if taken {
                    "taken".into()
                } else {
                    outcome_text(state.create_key(new, &text, now).map(|key| key.id))
                }
            }
            Self::ExpireKey(id) => {
                format!("expired key: {}", outcome_text(state.expire_key(KeyId(*id), now)))
            }
            Self::DeleteKey(id) => {
                format!("deleted key: {}", outcome_text(state.delete_key(KeyId(*id))))
            }
            Self::ApiKey(number) => {
                let text = secret::write_api(&[*number; 38]);
                match state.find_api_key(&api_prefix(*number)) {
                    Ok(_) => "taken".into(),
                    Err(_) => state.create_api_key(None, &text, now).id.to_string(),
                }
            }
            Self::ExpireApiKey(number) => {
                let expired = state.expire_api_key(&api_prefix(*number), now).map(drop);
                format!("expired API key: {}", outcome_text(expired))
            }
            Self::DeleteApiKey(number) => {
                format!(
                    "deleted API key: {}",
                    outcome_text(state.delete_api_key(&api_prefix(*number)))
                )
            }
            Self::Join(machine, key) => join(state, *machine, *key, now),
            Self::Rename(node, name) => {
                outcome_text(state.rename_node(NodeId(*node), &format!("name-{name}"), now))
            }
            Self::Approve(node) => {
                let nets = ["10.0.0.0/8".parse().unwrap()];
                outcome_text(state.approve_routes(NodeId(*node), &nets, now))
            }
            Self::Delete(node) => outcome_text(state.delete_node(NodeId(*node))),
            Self::Lock(act) => act.run(state, now),
        }
    }
}

fn outcome_text<T: std::fmt::Debug, E: ToString>(outcome: Result<T, E>) -> String {
    match outcome {
        Ok(what) => format!("{what:?}"),
        Err(why) => why.to_string(),
    }
}

fn prefix(number: u8) -> String {
    let text = secret::write(&[number; 38]);
    secret::read(&text).unwrap().prefix.to_owned()
}

fn api_prefix(number: u8) -> String {
    let text = secret::write_api(&[number; 38]);
    secret::read_api(&text).unwrap().prefix.to_owned()
}

/// Joins a machine. All have the same host name and offer the same route.
fn join(state: &mut State, machine: u8, key: u8, now: Time) -> String {
    let node_key = NodePublic([machine; 32]);
    let request = json!({
        "Version": 131, "NodeKey": node_key, "Auth": { "AuthKey": secret::write(&[key; 38]) },
        "Hostinfo": { "OS": "linux", "Hostname": "host", "RoutableIPs": ["10.0.0.0/8"] },
    });
    let request = RegisterRequest::read(request.to_string().as_bytes()).unwrap();
    let machine = MachinePublic([machine; 32]);
    let requests = RegisterCommand { machine, request: &request, number: "0", url: "", from: None };
    let (RegisterResponse::Immediate(text)
    | RegisterResponse::Refused(text)
    | RegisterResponse::Deferred(text)) = state.register(requests, now);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let id = state.find_machine_node(&machine, &node_key);
    format!("{} {id:?}", answer["Error"])
}

struct World {
    memory: Arc<Mutex<Memory>>,
    lock: Arc<tokio::sync::Mutex<()>>,
    servers: Mutex<Vec<Server>>,
    writers: Mutex<u64>,
    /// Whether another database may take over, and whether it did.
    fails_over: bool,
    has_failed_over: AtomicBool,
    /// Requests by their ID, with their answer.
    requests: Mutex<BTreeMap<String, (Act, Option<String>)>>,
}

#[derive(Clone)]
struct Server {
    network: Arc<NetworkState>,
    task: AbortHandle,
    streams: Arc<Mutex<BTreeMap<NodeId, StreamId>>>,
}

impl World {
    async fn new(seed: u64) -> Arc<Self> {
        let memory = Memory::new(Dice(seed));
        let world = Arc::new(Self {
            memory: Arc::new(Mutex::new(memory)),
            lock: Arc::default(),
            servers: Mutex::default(),
            writers: Mutex::default(),
            fails_over: seed % 5 == 4,
            has_failed_over: AtomicBool::default(),
            requests: Mutex::default(),
        });
        for _ in 0..SERVERS {
            let server = world.server().await;
            world.servers.lock().unwrap().push(server);
        }
        // Seeds differ in the rate of faults, which may be zero.
        world.memory.lock().unwrap().faults = [0, 40, 12, 5][usize::try_from(seed % 4).unwrap()];
        world
    }

    async fn server(&self) -> Server {
        loop {
            let writer = {
                let mut writers = self.writers.lock().unwrap();
                *writers += 1;
                *writers
            };
            let (memory, lock) = (Arc::clone(&self.memory), Arc::clone(&self.lock));
            let connection = Connection::new(memory, lock, writer);
            if let Ok((network, writer)) =
                NetworkState::of(connection, Settings::default(), true, None).await
            {
                let task = tokio::spawn(writer).abort_handle();
                return Server { network, task, streams: Arc::default() };
            }
        }
    }

    fn roll(&self, sides: u64) -> u64 {
        self.memory.lock().unwrap().dice.roll(sides)
    }

    fn pick(&self) -> (usize, Server) {
        let at = usize::try_from(self.roll(SERVERS as u64)).unwrap();
        (at, self.servers.lock().unwrap()[at].clone())
    }

    async fn client(self: Arc<Self>, number: u64) {
        for count in 0..COMMANDS {
            sleep(Duration::from_millis(self.roll(20))).await;
            match self.roll(24) {
                0 => self.kill().await,
                1..=4 => self.toggle_stream().await,
                5 if self.fails_over => self.fail_over(),
                _ => self.request_one(format!("{number}-{count}")).await,
            }
        }
    }

    async fn request_one(&self, name: String) {
        let (_, server) = self.pick();
        let act = Act::any(&mut self.memory.lock().unwrap().dice, &server.network);
        self.requests.lock().unwrap().insert(name.clone(), (act.clone(), None));
        sleep(Duration::from_millis(self.roll(10))).await;
        let (_, server) = self.pick();
        let own = name.clone();
        let answer = server.network.run(move |state, now| {
            let outcome = act.run(state, now);
            state.record_audit(&own, &outcome, None, now);
            outcome
        });
        if let Ok(outcome) = answer.await {
            self.requests.lock().unwrap().get_mut(&name).unwrap().1 = Some(outcome);
        }
    }

    /// Starts or ends a stream.
    async fn toggle_stream(&self) {
        let (_, server) = self.pick();
        let id = NodeId(1 + self.roll(6).cast_signed());
        let previous = server.streams.lock().unwrap().remove(&id);
        if let Some(stream) = previous {
            let end = || server.network.run(move |state, now| state.disconnect(id, stream, now));
            while end().await.is_err() && !server.task.is_finished() {}
        } else if let Ok(stream) =
            server.network.run(move |state, now| state.connect(id, now)).await
        {
            let other = server.streams.lock().unwrap().insert(id, stream);
            if let Some(other) = other {
                let end = || server.network.run(move |state, now| state.disconnect(id, other, now));
                while end().await.is_err() && !server.task.is_finished() {}
            }
        }
    }

    /// Kills a server and starts another one in its place.
    async fn kill(&self) {
        let new = self.server().await;
        let at = usize::try_from(self.roll(SERVERS as u64)).unwrap();
        let old = std::mem::replace(&mut self.servers.lock().unwrap()[at], new);
        old.task.abort();
    }

    fn fail_over(&self) {
        self.has_failed_over.store(true, Relaxed);
        let lost = usize::try_from(self.roll(4)).unwrap();
        self.memory.lock().unwrap().fail_over(lost);
    }

    /// Checks all servers against the store. Returns the outcomes in the audit log.
    async fn check(&self, seed: u64) -> Vec<String> {
        self.memory.lock().unwrap().faults = 0;
        let servers = self.servers.lock().unwrap().clone();
        for server in &servers {
            assert!(server.network.refresh().await, "seed {seed}: the refresh failed");
        }
        // A delayed commit may still arrive.
        sleep(Duration::from_secs(1)).await;
        let (version, rows): (i64, Vec<Stored>) = {
            let memory = self.memory.lock().unwrap();
            (memory.version, memory.rows.values().map(|(_, stored)| stored.clone()).collect())
        };
        let committed = State::load(Settings::default(), &rows, (version, 0), Time(0)).unwrap();
        let has_lost = self.has_failed_over.load(Relaxed);
        check_audit(&committed, &rows, has_lost, seed);
        if !has_lost {
            self.check_order(&committed, seed);
        }
        check_unique(&committed, seed);
        for server in servers {
            server.network.catch_up(version).await;
            let streams: BTreeSet<NodeId> =
                server.streams.lock().unwrap().keys().copied().collect();
            server.network.read(|state| {
                assert_eq!(
                    all(state, true),
                    all(&committed, true),
                    "seed {seed}: different from the store"
                );
                let here: BTreeSet<NodeId> = state.connected_here().collect();
                assert_eq!(here, streams, "seed {seed}: streams");
            });
        }
        committed.audit().map(|entry| entry.what.clone()).collect()
    }

    /// Checks that one state gives the same results.
    fn check_order(&self, committed: &State, seed: u64) {
        let requests = self.requests.lock().unwrap();
        let mut one = State::new(Settings::default());
        let mut done = BTreeSet::new();
        for entry in committed.audit().collect::<Vec<_>>().into_iter().rev() {
            // Other entries are those of tailnet lock, written by nodes.
            let Some((act, answer)) = requests.get(&entry.who) else { continue };
            assert!(done.insert(entry.who.clone()), "seed {seed}: {act:?} was done twice");
            let outcome = act.run(&mut one, Time(1));
            assert_eq!(outcome, entry.what, "seed {seed}: {act:?} of {}", entry.who);
            assert!(answer.as_ref().is_none_or(|answer| *answer == outcome), "seed {seed}");
        }
        for (name, (act, answer)) in &*requests {
            let is_lost = answer.is_some() && !done.contains(name);
            assert!(!is_lost, "seed {seed}: {act:?} was acknowledged and is lost");
        }
        assert_eq!(all(committed, false), all(&one, false), "seed {seed}");
    }
}

/// Content of a state without times. Addresses and primary routers are included only on request,
/// because they depend on undone commands.
fn all(state: &State, with_addresses: bool) -> Vec<String> {
    let users = state.users().map(|user| format!("{} {}", user.id, user.name));
    let keys = state.keys().map(|key| {
        let (prefix, has_end) = (&key.prefix, key.expires.is_some());
        format!("{} {prefix} {} {has_end}", key.id, key.used)
    });
    let api_keys = state.api_keys();
    let api_keys =
        api_keys.map(|key| format!("API {} {} {}", key.id, key.prefix, key.expires.is_some()));
    let nodes = state.nodes().map(|view| {
        let node = view.node;
        let addresses = with_addresses.then_some((node.v4, node.v6, &node.primaries));
        let (key, name, approved) = (node.key, &node.name, &node.approved);
        format!("{} {key} {name} {approved:?} {} {addresses:?}", node.id, node.signature)
    });
    // Audit entries contain times.
    let head = with_addresses.then(|| format!("{:?}", state.audit_head()));
    users.chain(keys).chain(api_keys).chain(nodes).chain([tka::all(state)]).chain(head).collect()
}

/// Checks that no server broke or forked the chain, or used an ID for nothing.
fn check_audit(committed: &State, rows: &[Stored], has_lost: bool, seed: u64) {
    let entries = rows.iter().filter(|stored| stored.kind == Kind::AuditEntry);
    let read = |stored: &Stored| serde_json::from_str(stored.body.as_ref().unwrap()).unwrap();
    let entries: Vec<AuditEntry> = entries.map(read).collect();
    let head = (!entries.is_empty()).then(|| committed.audit_head());
    assert_eq!(check_chain(&entries), Ok(head), "seed {seed}");
    let is_dense = entries.iter().zip(1..).all(|(entry, id)| entry.id.0 == id);
    assert!(is_dense || has_lost, "seed {seed}: a gap");
}

fn check_unique(state: &State, seed: u64) {
    let nodes: Vec<_> = state.nodes().map(|view| view.node).collect();
    let count = nodes.len();
    let names: BTreeSet<_> = nodes.iter().map(|node| &node.name).collect();
    let v4: BTreeSet<_> = nodes.iter().map(|node| node.v4).collect();
    let v6: BTreeSet<_> = nodes.iter().map(|node| node.v6).collect();
    assert_eq!([names.len(), v4.len(), v6.len()], [count; 3], "seed {seed}");
    let primaries: usize = nodes.iter().map(|node| node.primaries.len()).sum();
    assert!(primaries <= 1, "seed {seed}: a network goes to {primaries} nodes");
}

#[test]
fn three_servers_are_equivalent_to_one_state() {
    let seeds = std::env::var("LINERATE_SEEDS").ok();
    let mut unseen = BTreeSet::from(SEEN);
    for seed in 0..seeds.map_or(SEEDS, |count| count.parse().unwrap()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let world = World::new(seed).await;
            let mut clients = JoinSet::new();
            for number in 0..CLIENTS {
                clients.spawn(Arc::clone(&world).client(number));
            }
            clients.join_all().await;
            let done = world.check(seed).await;
            unseen.retain(|words| !done.iter().any(|what| what.contains(words)));
        });
    }
    assert!(unseen.is_empty(), "with no seed: {unseen:?}");
}
