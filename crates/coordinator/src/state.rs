//! The state of a network.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt, mem,
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use tailnet::keys::{MachinePublic, NodePublic};

use crate::{
    access::Access,
    addresses::Addresses,
    api_keys::ApiKeys,
    audit::Audit,
    blocks::Blocks,
    log::{Change, Log, Parts},
    object::{self, KeyId, Kind, Node, NodeId, Object, PolicyId, PreAuthKey, Stored, User, UserId},
    presence::{StreamId, Timer},
    settings::Settings,
    time::Time,
    waiting::WaitingRoom,
};

/// An object of the store that cannot be read.
#[derive(Debug)]
pub struct LoadError {
    kind: &'static str,
    id: i64,
    why: Unreadable,
}

/// Why it cannot be read.
#[derive(Debug)]
enum Unreadable {
    /// It is no such object.
    Json(serde_json::Error),
    /// It is a policy that is refused.
    Policy(policy::Refusal),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of the store cannot be read: ", self.kind, self.id)?;
        match &self.why {
            Unreadable::Json(why) => why.fmt(f),
            Unreadable::Policy(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

/// A node with what is known of it now.
#[derive(Debug)]
pub(crate) struct Entry {
    pub node: Node,
    /// Its place in sets of bits.
    pub place: u32,
    /// Its streams of maps.
    pub streams: BTreeSet<StreamId>,
    /// Whether others are told that it is connected.
    pub online: bool,
    /// The networks that go to it, of those that several may route.
    pub primaries: Vec<IpNet>,
    /// Since when it says that it has no endpoints, where its peers know some.
    pub without_endpoints: Option<Time>,
    /// As its peers are told of it; made when first asked for.
    pub shown: OnceLock<Arc<str>>,
}

/// A node, and whether it is connected.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// The node.
    pub node: &'a Node,
    /// Whether it is connected.
    pub online: bool,
    /// The networks that go to it, of those that several may route.
    pub primaries: &'a [IpNet],
}

/// The state of a network.
///
/// Call order: any commands; then `take_writes`, and once those are kept `publish`.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) access: Access,
    pub(crate) users: BTreeMap<UserId, User>,
    pub(crate) keys: BTreeMap<KeyId, PreAuthKey>,
    pub(crate) by_prefix: HashMap<String, KeyId>,
    pub(crate) api_keys: ApiKeys,
    pub(crate) audit: Audit,
    pub(crate) nodes: BTreeMap<NodeId, Entry>,
    pub(crate) policies: BTreeMap<PolicyId, object::Policy>,
    pub(crate) by_key: HashMap<NodePublic, NodeId>,
    pub(crate) by_machine: HashMap<MachinePublic, BTreeSet<NodeId>>,
    names: HashSet<String>,
    pub(crate) places: Places,
    pub(crate) blocks: Blocks,
    pub(crate) addresses: Addresses,
    /// Who may route each network, exits apart.
    pub(crate) routers: BTreeMap<IpNet, BTreeSet<NodeId>>,
    pub(crate) primaries: BTreeMap<IpNet, NodeId>,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    pub(crate) waiting: WaitingRoom,
    pub(crate) last_stream: u64,
    /// Before this nobody could be connected.
    pub(crate) started: Time,
    last: BTreeMap<Kind, i64>,
    log: Log,
    unpublished: Vec<Change>,
    writes: BTreeMap<(Kind, i64), Stored>,
}

impl State {
    /// An empty network.
    pub fn new(settings: Settings) -> Self {
        Self {
            addresses: Addresses::new(settings.prefixes),
            settings,
            access: Access::open(),
            users: BTreeMap::new(),
            keys: BTreeMap::new(),
            by_prefix: HashMap::new(),
            api_keys: ApiKeys::default(),
            audit: Audit::default(),
            nodes: BTreeMap::new(),
            policies: BTreeMap::new(),
            by_key: HashMap::new(),
            by_machine: HashMap::new(),
            names: HashSet::new(),
            places: Places::default(),
            blocks: Blocks::default(),
            routers: BTreeMap::new(),
            primaries: BTreeMap::new(),
            timers: BTreeSet::new(),
            waiting: WaitingRoom::default(),
            last_stream: 0,
            started: Time::default(),
            last: BTreeMap::new(),
            log: Log::default(),
            unpublished: Vec::new(),
            writes: BTreeMap::new(),
        }
    }

    /// The network that was kept, at this time. Nobody is connected.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn load(
        settings: Settings,
        objects: impl IntoIterator<Item = Stored>,
        now: Time,
    ) -> Result<Self, LoadError> {
        let mut state = Self { started: now, ..Self::new(settings) };
        for Stored { kind, id, body } in objects {
            state.note_number(kind, id);
            let Some(body) = body else { continue };
            let read = match kind {
                Kind::User => serde_json::from_str(&body).map(|user: User| {
                    state.users.insert(user.id, user);
                }),
                Kind::PreAuthKey => serde_json::from_str(&body).map(|key: PreAuthKey| {
                    state.by_prefix.insert(key.prefix.clone(), key.id);
                    state.keys.insert(key.id, key);
                }),
                Kind::Node => serde_json::from_str(&body).map(|node| state.add_entry(node, now)),
                Kind::Policy => serde_json::from_str(&body).map(|policy: object::Policy| {
                    state.policies.insert(policy.id, policy);
                }),
                Kind::ApiKey => serde_json::from_str(&body).map(|key| state.api_keys.insert(key)),
                Kind::AuditEntry => {
                    serde_json::from_str(&body).map(|entry| state.audit.push(entry))
                }
            };
            let why = |why| LoadError { kind: kind.name(), id, why: Unreadable::Json(why) };
            read.map_err(why)?;
        }
        // A network that had a policy never runs without.
        state.load_policy().map_err(|why| LoadError {
            kind: Kind::Policy.name(),
            id: state.policy().map_or(0, |policy| policy.id.0),
            why: Unreadable::Policy(why),
        })?;
        for net in state.routers.keys().copied().collect::<Vec<_>>() {
            state.choose_primary(net);
        }
        state.unpublished.clear();
        state.writes.clear();
        Ok(state)
    }

    /// What has to be kept before what happened is told to anybody.
    pub fn take_writes(&mut self) -> Vec<Stored> {
        mem::take(&mut self.writes).into_values().collect()
    }

    /// What happened is kept: followers may know. Whether there is anything that they do not.
    pub fn publish(&mut self) -> bool {
        self.renew_access();
        let changes = mem::take(&mut self.unpublished);
        let any = !changes.is_empty();
        for change in changes {
            if let Some(Change::Node { place, parts, .. }) = self.log.push(change)
                && parts.has(Parts::GONE)
            {
                // Nobody who follows can still take the place for the node that is gone.
                self.places.free.push(place);
            }
        }
        any
    }

    /// The same network as others have written it. All streams end: whoever follows begins anew.
    pub fn replace(&mut self, mut loaded: Self) {
        loaded.log = Log::beginning_at(self.log.end() + 1);
        loaded.last_stream = self.last_stream;
        loaded.waiting = mem::take(&mut self.waiting);
        let waiting = |(at, timer): &(Time, Timer)| {
            matches!(timer, Timer::Waiting(_)).then(|| (*at, timer.clone()))
        };
        loaded.timers.extend(self.timers.iter().filter_map(waiting));
        *self = loaded;
    }

    /// How far followers may read on.
    pub fn end(&self) -> u64 {
        self.log.end()
    }

    /// What changed, in order.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// What the network is set up with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All users.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// All pre-auth keys.
    pub fn keys(&self) -> impl Iterator<Item = &PreAuthKey> {
        self.keys.values()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.values().map(Entry::view)
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<NodeView<'_>> {
        self.nodes.get(&id).map(Entry::view)
    }

    /// Whether there is a node with this key: relays serve no other.
    pub fn has_key(&self, key: &NodePublic) -> bool {
        self.by_key.contains_key(key)
    }

    /// Whether a machine has a node.
    pub fn knows(&self, machine: &MachinePublic) -> bool {
        self.by_machine.contains_key(machine)
    }

    /// The machine of the node with this key.
    pub fn machine_of(&self, key: &NodePublic) -> Option<MachinePublic> {
        let id = self.by_key.get(key)?;
        self.nodes.get(id).map(|entry| entry.node.machine)
    }

    /// The node with this key, if it is this machine's.
    pub fn owned_by(&self, machine: &MachinePublic, key: &NodePublic) -> Option<NodeId> {
        let id = *self.by_key.get(key)?;
        (self.nodes.get(&id)?.node.machine == *machine).then_some(id)
    }

    /// A number that no object of this kind ever had.
    pub(crate) fn next_number(&mut self, kind: Kind) -> i64 {
        let last = self.last.entry(kind).or_default();
        *last += 1;
        *last
    }

    /// The last number that an object of this kind had.
    pub(crate) fn last_number(&self, kind: Kind) -> i64 {
        self.last.get(&kind).copied().unwrap_or_default()
    }

    fn note_number(&mut self, kind: Kind, id: i64) {
        let last = self.last.entry(kind).or_default();
        *last = id.max(*last);
    }

    /// Has an object kept.
    pub(crate) fn keep(&mut self, object: &impl Object) {
        let stored = object.stored();
        if stored.kind == Kind::User {
            self.access.touch_users();
        }
        self.writes.insert((stored.kind, stored.id), stored);
    }

    /// Has it kept that an object is gone.
    pub(crate) fn bury(&mut self, kind: Kind, id: i64) {
        if kind == Kind::User {
            self.access.touch_users();
        }
        self.writes.insert((kind, id), Stored { kind, id, body: None });
    }

    pub(crate) fn note(&mut self, change: Change) {
        self.unpublished.push(change);
    }

    /// Notes that parts of a node changed.
    pub(crate) fn note_parts(&mut self, id: NodeId, parts: Parts) {
        if let Some(entry) = self.nodes.get_mut(&id)
            && !parts.is_empty()
        {
            entry.shown = OnceLock::new();
            let place = entry.place;
            self.blocks.touch(place);
            self.note(Change::Node { id, place, parts });
        }
    }

    /// A node that is new.
    pub(crate) fn add_node(&mut self, node: Node, now: Time) {
        let id = node.id;
        self.keep(&node);
        self.add_entry(node, now);
        self.note_parts(id, Parts::WHOLE);
    }

    fn add_entry(&mut self, node: Node, now: Time) {
        let id = node.id;
        self.by_key.insert(node.key, id);
        self.by_machine.entry(node.machine).or_default().insert(id);
        self.names.insert(node.name.clone());
        self.addresses.take(node.v4, node.v6);
        let place = self.places.take(id);
        let (primaries, shown) = (Vec::new(), OnceLock::new());
        let streams = BTreeSet::new();
        let without_endpoints = None;
        let online = false;
        let entry = Entry { node, place, streams, online, primaries, without_endpoints, shown };
        self.nodes.insert(id, entry);
        self.access.touch(place);
        self.blocks.touch(place);
        self.set_timers(id, now);
        self.sort_routes(id, &[]);
    }

    /// Changes a node by `change`, which says what of it others must be told, and has it kept.
    pub(crate) fn change_node(
        &mut self,
        id: NodeId,
        now: Time,
        change: impl FnOnce(&mut Node) -> Parts,
    ) {
        let Some(entry) = self.nodes.get_mut(&id) else { return };
        let before = entry.node.clone();
        let parts = change(&mut entry.node);
        if entry.node == before {
            return;
        }
        self.access.touch(entry.place);
        if entry.node.key != before.key {
            entry.node.rekeyed = Some(now);
        }
        let node = entry.node.clone();
        if node.key != before.key {
            self.by_key.remove(&before.key);
            self.by_key.insert(node.key, id);
        }
        if node.name != before.name {
            self.names.remove(&before.name);
            self.names.insert(node.name.clone());
        }
        self.keep(&node);
        if node.expires != before.expires || node.ephemeral != before.ephemeral {
            self.set_timers(id, now);
        }
        let routes: Vec<IpNet> = before.routes().collect();
        self.sort_routes(id, &routes);
        self.note_parts(id, parts);
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        let Some(entry) = self.nodes.remove(&id) else { return };
        let Entry { node, place, .. } = entry;
        self.access.touch(place);
        self.blocks.touch(place);
        self.by_key.remove(&node.key);
        if let Some(of_machine) = self.by_machine.get_mut(&node.machine) {
            of_machine.remove(&id);
            if of_machine.is_empty() {
                self.by_machine.remove(&node.machine);
            }
        }
        self.names.remove(&node.name);
        self.addresses.give_back(node.v4, node.v6);
        self.places.nodes[place as usize] = None;
        self.bury(Kind::Node, id.0);
        let routes: Vec<IpNet> = node.routes().collect();
        self.sort_routes(id, &routes);
        self.note(Change::Node { id, place, parts: Parts::GONE });
    }

    /// A name for a node that no other has.
    pub(crate) fn free_name(&self, label: String, own: Option<&str>) -> String {
        crate::names::unique(label, |name| own == Some(name) || !self.names.contains(name))
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The node at a place.
    pub(crate) fn at(&self, place: u32) -> Option<&Entry> {
        self.nodes.get(self.places.nodes.get(place as usize)?.as_ref()?)
    }
}

impl Entry {
    fn view(&self) -> NodeView<'_> {
        NodeView { node: &self.node, online: self.online, primaries: &self.primaries }
    }
}

/// Small numbers for nodes.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub nodes: Vec<Option<NodeId>>,
    free: Vec<u32>,
}

impl Places {
    fn take(&mut self, id: NodeId) -> u32 {
        if let Some(place) = self.free.pop() {
            self.nodes[place as usize] = Some(id);
            return place;
        }
        self.nodes.push(Some(id));
        u32::try_from(self.nodes.len() - 1).expect("addresses of IPv4 are fewer")
    }
}
