//! The state of a network.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use policy::NodeSet;
use tailnet::keys::{MachinePublic, NodePublic};

use crate::{
    access::Access,
    addresses::Addresses,
    api_keys::ApiKeys,
    audit::Audit,
    blocks::Blocks,
    connections::Connections,
    frame::FrameCache,
    log::{Change, Log, Parts},
    merged_changes::{MergedCache, MergedChanges},
    node_index::NodeIndexes,
    object::{self, KeyId, Kind, Node, NodeId, Object, PolicyId, PreAuthKey, Stored, User, UserId},
    pending::PendingRegistrations,
    settings::Settings,
    ssh_checks::SshChecks,
    time::Time,
    timers::Timers,
    tka::Tka,
    undo::Undo,
};

/// A node with what is known of it now.
#[derive(Debug)]
pub(crate) struct Entry {
    pub node: Node,
    /// Its place in sets of bits.
    pub index: u32,
    /// Whether others are told that it is connected.
    pub online: bool,
    /// Whether it answered when it was last asked; one that was not asked does.
    pub responds: bool,
    /// Since when it says that it has no endpoints, where its peers know some.
    pub without_endpoints: Option<Time>,
    /// As its peers are told of it; made when first asked for.
    pub peer_json: OnceLock<Arc<str>>,
}

/// A node, and whether it is connected.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// The node.
    pub node: &'a Node,
    /// Whether it is connected.
    pub online: bool,
}

/// The state of a network.
///
/// Call order: any commands; then `take_writes`, and `publish` once those are kept, or `undo` where
/// they cannot be. In between what others have written is taken by `apply`.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    /// How often there were other relays since the start.
    pub(crate) relays: u64,
    pub(crate) access: Access,
    pub(crate) users: BTreeMap<UserId, User>,
    pub(crate) keys: BTreeMap<KeyId, PreAuthKey>,
    pub(crate) by_prefix: HashMap<String, KeyId>,
    pub(crate) api_keys: ApiKeys,
    pub(crate) audit: Audit,
    pub(crate) tka: Tka,
    pub(crate) nodes: BTreeMap<NodeId, Entry>,
    pub(crate) policies: BTreeMap<PolicyId, object::Policy>,
    pub(crate) by_key: HashMap<NodePublic, NodeId>,
    pub(crate) by_machine: HashMap<MachinePublic, BTreeSet<NodeId>>,
    pub(crate) names: HashSet<String>,
    pub(crate) indexes: NodeIndexes,
    pub(crate) blocks: Blocks,
    pub(crate) frames: FrameCache,
    pub(crate) addresses: Addresses,
    /// Who may route each network, exits apart.
    pub(crate) routers: BTreeMap<IpNet, BTreeSet<NodeId>>,
    pub(crate) primaries: BTreeMap<IpNet, NodeId>,
    pub(crate) timers: Timers,
    pub(crate) pending: PendingRegistrations,
    pub(crate) connections: Connections,
    pub(crate) ssh_checks: SshChecks,
    /// Before this nobody could be connected.
    pub(crate) started: Time,
    /// Which routers networks go to is to be looked at again.
    pub(crate) reroutes: bool,
    pub(crate) last: BTreeMap<Kind, i64>,
    pub(crate) log: Log,
    pub(crate) merged_cache: MergedCache,
    pub(crate) unpublished: Vec<Change>,
    pub(crate) undo: Undo,
    pub(crate) writes: BTreeMap<(Kind, i64), Stored>,
}

impl State {
    /// An empty network.
    pub fn new(settings: Settings) -> Self {
        Self {
            addresses: Addresses::new(settings.prefixes, settings.allocation),
            settings,
            relays: 0,
            access: Access::open(),
            users: BTreeMap::new(),
            keys: BTreeMap::new(),
            by_prefix: HashMap::new(),
            api_keys: ApiKeys::default(),
            audit: Audit::default(),
            tka: Tka::default(),
            nodes: BTreeMap::new(),
            policies: BTreeMap::new(),
            by_key: HashMap::new(),
            by_machine: HashMap::new(),
            names: HashSet::new(),
            indexes: NodeIndexes::default(),
            blocks: Blocks::default(),
            frames: FrameCache::default(),
            routers: BTreeMap::new(),
            primaries: BTreeMap::new(),
            timers: Timers::default(),
            pending: PendingRegistrations::default(),
            connections: Connections::default(),
            ssh_checks: SshChecks::default(),
            started: Time::default(),
            reroutes: false,
            last: BTreeMap::new(),
            log: Log::starting_at(0, 0, Time::default()),
            merged_cache: MergedCache::default(),
            unpublished: Vec::new(),
            undo: Undo::default(),
            writes: BTreeMap::new(),
        }
    }

    /// What has to be kept before what happened is told to anybody.
    pub fn take_writes(&mut self) -> Vec<Stored> {
        mem::take(&mut self.writes).into_values().collect()
    }

    /// What happened is kept, and the network's version is this: followers may know. Whether there is
    /// anything that they do not.
    pub fn publish(&mut self, version: i64, now: Time) -> bool {
        self.undo = Undo::default();
        self.audit.trim();
        self.renew_access();
        self.log.begin(version, now);
        let changes = mem::take(&mut self.unpublished);
        let any = !changes.is_empty();
        for change in changes {
            if let Some(Change::Node { index, parts, .. }) = self.log.push(change)
                && parts.has(Parts::REMOVED)
            {
                // Nobody who follows can still take the place for the node that is gone.
                self.indexes.release(index);
            }
        }
        any
    }

    /// How far followers may read on.
    pub fn end(&self) -> u64 {
        self.log.end()
    }

    /// What changed from this number on, and before that one. `None`: some of it is forgotten.
    pub(crate) fn merged_changes(&self, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        self.merged_cache.between(&self.log, number, end)
    }

    /// The nodes that a node is told of.
    pub(crate) fn visible_nodes(&self, viewer: &Entry) -> NodeSet {
        let mut seen = match self.access.peers(viewer.index) {
            Some(peers) => peers.intersection(&self.indexes.reachable),
            None => self.indexes.reachable.clone(),
        };
        seen.remove(viewer.index as usize);
        seen
    }

    /// What the network is set up with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Has clients be told of these relays, as JSON of `tailcfg.DERPMap`. They are not kept.
    pub fn set_relays(&mut self, relays: String) {
        if self.settings.relays != relays {
            self.settings.relays = relays;
            self.relays += 1;
            self.note(Change::Relays);
        }
    }

    /// All users.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// All pre-auth keys.
    pub fn keys(&self) -> impl Iterator<Item = &PreAuthKey> {
        self.keys.values()
    }

    /// A pre-auth key.
    pub fn key(&self, id: KeyId) -> Option<&PreAuthKey> {
        self.keys.get(&id)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.values().map(Entry::view)
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<NodeView<'_>> {
        self.nodes.get(&id).map(Entry::view)
    }

    /// Whether there is a node with this key.
    pub fn has_key(&self, key: &NodePublic) -> bool {
        self.by_key.contains_key(key)
    }

    /// Whether there is a node with this key, which has not expired: relays serve no other.
    pub fn has_valid_key(&self, key: &NodePublic, now: Time) -> bool {
        let node = self.by_key.get(key).and_then(|id| self.nodes.get(id));
        node.is_some_and(|entry| !entry.node.has_expired(now))
    }

    /// Whether a machine has a node.
    pub fn has_machine(&self, machine: &MachinePublic) -> bool {
        self.by_machine.contains_key(machine)
    }

    /// The machine of the node with this key.
    pub fn machine_of(&self, key: &NodePublic) -> Option<MachinePublic> {
        let id = self.by_key.get(key)?;
        self.nodes.get(id).map(|entry| entry.node.machine)
    }

    /// The node with this key, if it is this machine's.
    pub fn find_machine_node(&self, machine: &MachinePublic, key: &NodePublic) -> Option<NodeId> {
        self.by_key.get(key).copied().filter(|id| self.belongs_to_machine(*id, machine))
    }

    /// Whether a node is this machine's.
    pub fn belongs_to_machine(&self, id: NodeId, machine: &MachinePublic) -> bool {
        self.nodes.get(&id).is_some_and(|entry| entry.node.machine == *machine)
    }

    /// A number that no object of this kind ever had.
    pub(crate) fn next_number(&mut self, kind: Kind) -> i64 {
        self.undo.numbers(&self.last);
        let last = self.last.entry(kind).or_default();
        *last += 1;
        *last
    }

    /// The last number that an object of this kind had.
    pub(crate) fn last_number(&self, kind: Kind) -> i64 {
        self.last.get(&kind).copied().unwrap_or_default()
    }

    pub(crate) fn note_number(&mut self, kind: Kind, id: i64) {
        let last = self.last.entry(kind).or_default();
        *last = id.max(*last);
    }

    /// Has an object kept that is another from now on: the state has it as it was.
    pub(crate) fn store<T: Object>(&mut self, object: &T) {
        self.save_for_undo(T::KIND, object.number());
        self.write(object);
    }

    pub(crate) fn write(&mut self, object: &impl Object) {
        let stored = object.stored();
        if stored.kind == Kind::User {
            self.access.mark_users_changed();
        }
        self.writes.insert((stored.kind, stored.id), stored);
    }

    /// Has it kept that an object is gone from now on.
    pub(crate) fn store_removal(&mut self, kind: Kind, id: i64) {
        self.save_for_undo(kind, id);
        if kind == Kind::User {
            self.access.mark_users_changed();
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
            entry.peer_json = OnceLock::new();
            let index = entry.index;
            self.blocks.invalidate(index);
            self.note(Change::Node { id, index, parts });
        }
    }

    /// A node that is new.
    pub(crate) fn add_node(&mut self, node: Node, now: Time) {
        let id = node.id;
        self.store(&node);
        self.add_entry(node, None, now);
        self.choose_primaries_of(id);
        self.note_parts(id, Parts::WHOLE);
    }

    /// A node is there, at this place or any.
    pub(crate) fn add_entry(&mut self, node: Node, index: Option<u32>, now: Time) {
        let id = node.id;
        self.attach(&node);
        let index = match index {
            Some(index) => self.indexes.restore(index, &node),
            None => self.indexes.allocate(&node),
        };
        let entry = Entry {
            node,
            index,
            online: self.connections.has(id),
            responds: true,
            without_endpoints: None,
            peer_json: OnceLock::new(),
        };
        self.nodes.insert(id, entry);
        self.access.mark_node_changed(index);
        self.blocks.invalidate(index);
        self.set_timers(id, now);
        self.index_routes(id, &[]);
    }

    /// A node is found by what it has.
    pub(crate) fn attach(&mut self, node: &Node) {
        self.by_key.insert(node.key, node.id);
        self.by_machine.entry(node.machine).or_default().insert(node.id);
        self.names.insert(node.name.clone());
        self.addresses.reserve(node.v4, node.v6);
        self.primaries.extend(node.primaries.iter().map(|net| (*net, node.id)));
    }

    /// It is not any more.
    pub(crate) fn detach(&mut self, id: NodeId) {
        let Some(Entry { node, .. }) = self.nodes.get(&id) else { return };
        self.by_key.remove(&node.key);
        if let Some(of_machine) = self.by_machine.get_mut(&node.machine) {
            of_machine.remove(&id);
            if of_machine.is_empty() {
                self.by_machine.remove(&node.machine);
            }
        }
        self.names.remove(&node.name);
        self.addresses.release(node.v4, node.v6);
        for net in &node.primaries {
            self.primaries.remove(net);
        }
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
        self.access.mark_node_changed(entry.index);
        if entry.node.key != before.key {
            entry.node.rekeyed = Some(now);
        }
        if !parts.is_empty() {
            entry.node.changes = entry.node.changes.wrapping_add(1);
        }
        let (node, index) = (entry.node.clone(), entry.index);
        self.undo.node(&before, index);
        self.indexes.update_sets(index, Some(&before), Some(&node));
        if node.key != before.key {
            self.by_key.remove(&before.key);
            self.by_key.insert(node.key, id);
        }
        if node.name != before.name {
            self.names.remove(&before.name);
            self.names.insert(node.name.clone());
        }
        self.write(&node);
        if node.expires != before.expires || node.ephemeral != before.ephemeral {
            self.set_timers(id, now);
        }
        let routes: Vec<IpNet> = before.routes().collect();
        self.update_routes(id, &routes);
        self.note_parts(id, parts);
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        self.detach(id);
        let Some(Entry { node, index, .. }) = self.nodes.remove(&id) else { return };
        self.undo.node(&node, index);
        self.store_removal(Kind::Node, id.0);
        let routes: Vec<IpNet> = node.routes().collect();
        self.update_routes(id, &routes);
        self.note_gone(&node, index);
    }

    pub(crate) fn note_gone(&mut self, node: &Node, index: u32) {
        let id = node.id;
        self.access.mark_node_changed(index);
        self.blocks.invalidate(index);
        self.indexes.vacate(index, node);
        self.connections.remove(id);
        self.timers.clear_node(id);
        self.note(Change::Node { id, index, parts: Parts::REMOVED });
    }

    /// A name for a node that no other has.
    pub(crate) fn free_name(&self, label: String, own: Option<&str>) -> String {
        crate::names::unique(label, |name| own == Some(name) || !self.names.contains(name))
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The node at a place.
    pub(crate) fn entry_at(&self, index: u32) -> Option<&Entry> {
        self.nodes.get(self.indexes.nodes.get(index as usize)?.as_ref()?)
    }
}

impl Entry {
    fn view(&self) -> NodeView<'_> {
        NodeView { node: &self.node, online: self.online }
    }
}
