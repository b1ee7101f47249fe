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

/// A node with its transient state.
#[derive(Debug)]
pub(crate) struct Entry {
    pub node: Node,
    /// Its index in [`NodeSet`]s.
    pub index: u32,
    /// Whether peers see it as connected.
    pub online: bool,
    /// Whether it responded to the last probe; true if it was never probed.
    pub responds: bool,
    /// The time since which it reports no endpoints although its peers have some.
    pub without_endpoints: Option<Time>,
    /// JSON of the node for its peers; rendered on first use.
    pub peer_json: OnceLock<Arc<str>>,
}

/// A node, and its connection status.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    pub node: &'a Node,
    /// Whether it is connected.
    pub online: bool,
}

/// The state of a network.
///
/// Call order: any commands, then `take_writes`, then `publish` when those are stored, or `undo` if they cannot
/// be stored. In between, `apply` applies objects that other servers wrote.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    /// The number of changes of the relay map since the start.
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
    /// Nodes that may route each network, without the default routes.
    pub(crate) routers: BTreeMap<IpNet, BTreeSet<NodeId>>,
    pub(crate) primaries: BTreeMap<IpNet, NodeId>,
    pub(crate) timers: Timers,
    pub(crate) pending: PendingRegistrations,
    pub(crate) connections: Connections,
    pub(crate) ssh_checks: SshChecks,
    /// The time of the start: no node was connected before.
    pub(crate) started: Time,
    /// Whether the primary routers must be chosen again.
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

    /// Takes the objects that must be stored before the changes are published.
    pub fn take_writes(&mut self) -> Vec<Stored> {
        mem::take(&mut self.writes).into_values().collect()
    }

    /// Publishes the changes, after they were stored with this version of the network. Returns whether there were
    /// any.
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
                // The log has forgotten the removal, so no stream can mistake a new node for the old one.
                self.indexes.release(index);
            }
        }
        any
    }

    /// The end of the log: streams may read up to it.
    pub fn end(&self) -> u64 {
        self.log.end()
    }

    /// The changes in a range of the log. `None` if the log has forgotten some of them.
    pub(crate) fn merged_changes(&self, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        self.merged_cache.between(&self.log, number, end)
    }

    /// The nodes that are visible to a node.
    pub(crate) fn visible_nodes(&self, viewer: &Entry) -> NodeSet {
        let mut seen = match self.access.peers(viewer.index) {
            Some(peers) => peers.intersection(&self.indexes.reachable),
            None => self.indexes.reachable.clone(),
        };
        seen.remove(viewer.index as usize);
        seen
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the relays, as JSON of `tailcfg.DERPMap`. They are not stored.
    pub fn set_relays(&mut self, relays: String) {
        if self.settings.relays != relays {
            self.settings.relays = relays;
            self.relays += 1;
            self.note(Change::Relays);
        }
    }

    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    pub fn keys(&self) -> impl Iterator<Item = &PreAuthKey> {
        self.keys.values()
    }

    pub fn key(&self, id: KeyId) -> Option<&PreAuthKey> {
        self.keys.get(&id)
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.values().map(Entry::view)
    }

    pub fn node(&self, id: NodeId) -> Option<NodeView<'_>> {
        self.nodes.get(&id).map(Entry::view)
    }

    /// Whether there is a node with this key.
    pub fn has_key(&self, key: &NodePublic) -> bool {
        self.by_key.contains_key(key)
    }

    /// Whether there is a node with this key that has not expired. Relays serve these keys only.
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

    /// The node with this key, if it belongs to this machine.
    pub fn find_machine_node(&self, machine: &MachinePublic, key: &NodePublic) -> Option<NodeId> {
        self.by_key.get(key).copied().filter(|id| self.belongs_to_machine(*id, machine))
    }

    /// Whether a node belongs to this machine.
    pub fn belongs_to_machine(&self, id: NodeId, machine: &MachinePublic) -> bool {
        self.nodes.get(&id).is_some_and(|entry| entry.node.machine == *machine)
    }

    /// Allocates a number that no object of this kind ever had.
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

    /// Queues a changed object for the store. The state must still have its previous value, for undo.
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

    /// Queues the removal of an object for the store.
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

    /// Records that parts of a node changed.
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

    /// Adds a new node.
    pub(crate) fn add_node(&mut self, node: Node, now: Time) {
        let id = node.id;
        self.store(&node);
        self.add_entry(node, None, now);
        self.choose_primaries_of(id);
        self.note_parts(id, Parts::WHOLE);
    }

    /// Adds an entry for a node, at its previous index or a new one.
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

    /// Adds a node to the lookup tables.
    pub(crate) fn attach(&mut self, node: &Node) {
        self.by_key.insert(node.key, node.id);
        self.by_machine.entry(node.machine).or_default().insert(node.id);
        self.names.insert(node.name.clone());
        self.addresses.reserve(node.v4, node.v6);
        self.primaries.extend(node.primaries.iter().map(|net| (*net, node.id)));
    }

    /// Removes a node from the lookup tables.
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

    /// Changes a node and queues it for the store. `change` returns the parts that changed for peers.
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

    /// Removes a node.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        self.detach(id);
        let Some(Entry { node, index, .. }) = self.nodes.remove(&id) else { return };
        self.undo.node(&node, index);
        self.store_removal(Kind::Node, id.0);
        let routes: Vec<IpNet> = node.routes().collect();
        self.update_routes(id, &routes);
        self.note_removed(&node, index);
    }

    pub(crate) fn note_removed(&mut self, node: &Node, index: u32) {
        let id = node.id;
        self.access.mark_node_changed(index);
        self.blocks.invalidate(index);
        self.indexes.vacate(index, node);
        self.connections.remove(id);
        self.timers.clear_node(id);
        self.note(Change::Node { id, index, parts: Parts::REMOVED });
    }

    /// A unique name for a node.
    pub(crate) fn free_name(&self, label: String, own: Option<&str>) -> String {
        crate::names::unique(label, |name| own == Some(name) || !self.names.contains(name))
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The entry at an index.
    pub(crate) fn entry_at(&self, index: u32) -> Option<&Entry> {
        self.nodes.get(self.indexes.nodes.get(index as usize)?.as_ref()?)
    }
}

impl Entry {
    fn view(&self) -> NodeView<'_> {
        NodeView { node: &self.node, online: self.online }
    }
}
