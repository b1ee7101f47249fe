//! The nodes of the network: their entries, and all tables that follow from them.
//!
//! ```text
//!   add, change, replace, remove ──► entries ──► by_key, by_machine, names, addresses
//!                                        ├─────► indexes    sets of nodes, for streams
//!                                        ├─────► routers    the primary router of each network
//!                                        └─────► JSON of nodes and blocks, made again on use
//! ```
//!
//! Only this module changes an entry, so the tables always agree with the entries.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{Ipv4Addr, Ipv6Addr},
    ops::{
        Bound::{Excluded, Unbounded},
        Index,
    },
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use policy::NodeSet;
use tailnet::keys::{MachinePublic, NodePublic};

use crate::{
    addresses::Addresses,
    blocks::{Block, Blocks},
    change_log::Parts,
    node_index::NodeIndexes,
    object::{Node, NodeId, UserId},
    routers::{Routers, is_exit},
    time::Time,
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
    peer_json: OnceLock<Arc<str>>,
}

/// A node, and its connection status.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    pub node: &'a Node,
    /// Whether it is connected.
    pub online: bool,
}

/// All nodes. Others read the entries, and change them by its methods only.
#[derive(Debug)]
pub(crate) struct Nodes {
    entries: BTreeMap<NodeId, Entry>,
    by_key: HashMap<NodePublic, NodeId>,
    by_machine: HashMap<MachinePublic, BTreeSet<NodeId>>,
    names: HashSet<String>,
    addresses: Addresses,
    indexes: NodeIndexes,
    blocks: Blocks,
    routers: Routers,
}

/// A change of a node.
pub(crate) struct NodeChange {
    pub before: Node,
    pub index: u32,
    /// The parts that changed for peers.
    pub parts: Parts,
    /// The networks that the node began or ceased to route.
    pub networks: Vec<IpNet>,
}

impl Nodes {
    /// Returns an empty table.
    pub(crate) fn new(addresses: Addresses) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_key: HashMap::new(),
            by_machine: HashMap::new(),
            names: HashSet::new(),
            addresses,
            indexes: NodeIndexes::default(),
            blocks: Blocks::default(),
            routers: Routers::default(),
        }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.entries.contains_key(&id)
    }

    /// All nodes, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The numbers of all nodes, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.entries.keys().copied()
    }

    /// The nodes after a number, and then those before it.
    pub(crate) fn all_from(&self, id: NodeId) -> impl Iterator<Item = &Entry> {
        let behind = self.entries.range((Excluded(id), Unbounded));
        behind.chain(self.entries.range(..id)).map(|(_, entry)| entry)
    }

    /// The node with this key.
    pub(crate) fn with_key(&self, key: &NodePublic) -> Option<NodeId> {
        self.by_key.get(key).copied()
    }

    /// The nodes of a machine.
    pub(crate) fn of_machine(&self, machine: &MachinePublic) -> impl Iterator<Item = NodeId> {
        self.by_machine.get(machine).into_iter().flatten().copied()
    }

    /// The nodes of a user.
    pub(crate) fn of_user(&self, user: UserId) -> Vec<NodeId> {
        let indexes = self.indexes.of_owner(Some(user)).into_iter().flat_map(NodeSet::iter);
        indexes.filter_map(|index| self.indexes.node_at(index)).collect()
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Finds free addresses: in these pools if there are any, else outside all pools. Does not reserve them.
    pub(crate) fn find_free_addresses(
        &self,
        pools: &[IpNet],
        all: &[IpNet],
    ) -> Option<(Ipv4Addr, Ipv6Addr)> {
        match pools.is_empty() {
            true => self.addresses.find_free(all),
            false => self.addresses.find_free_in(pools),
        }
    }

    /// The entry at an index.
    pub(crate) fn at(&self, index: u32) -> Option<&Entry> {
        self.entries.get(&self.indexes.node_at(index as usize)?)
    }

    /// The sets of nodes, by index.
    pub(crate) fn indexes(&self) -> &NodeIndexes {
        &self.indexes
    }

    /// Splits indexes into whole blocks and the rest. `json` returns the JSON of a reachable node.
    pub(crate) fn cover(
        &self,
        indexes: &NodeSet,
        json: impl Fn(&Entry) -> Arc<str>,
    ) -> (Vec<Arc<Block>>, NodeSet) {
        self.blocks.cover(indexes, |index| {
            self.at(index).filter(|entry| entry.node.is_reachable()).map(&json)
        })
    }

    /// Adds a node that is stored or new, at its previous index or a new one. Returns the index.
    pub(crate) fn add(&mut self, node: Node, index: Option<u32>, online: bool) -> u32 {
        let id = node.id;
        self.attach(&node);
        let index = match index {
            Some(index) => self.indexes.restore(index, &node),
            None => self.indexes.allocate(&node),
        };
        let entry = Entry {
            node,
            index,
            online,
            responds: true,
            without_endpoints: None,
            peer_json: OnceLock::new(),
        };
        self.entries.insert(id, entry);
        self.blocks.invalidate(index);
        self.index_routes(id, &[]);
        index
    }

    /// Changes a node. `change` returns the parts that changed for peers. `None` if the node stays the same.
    pub(crate) fn change(
        &mut self,
        id: NodeId,
        now: Time,
        change: impl FnOnce(&mut Node) -> Parts,
    ) -> Option<NodeChange> {
        let entry = self.entries.get_mut(&id)?;
        let before = entry.node.clone();
        let parts = change(&mut entry.node);
        let node = &mut entry.node;
        if *node == before {
            return None;
        }
        if node.key != before.key {
            node.rekeyed = Some(now);
            self.by_key.remove(&before.key);
            self.by_key.insert(node.key, id);
        }
        if !parts.is_empty() {
            node.changes = node.changes.wrapping_add(1);
        }
        if node.name != before.name {
            self.names.remove(&before.name);
            self.names.insert(node.name.clone());
        }
        let index = entry.index;
        self.indexes.update_sets(index, Some(&before), Some(node));
        let routes: Vec<IpNet> = before.routes().collect();
        let networks = self.index_routes(id, &routes);
        Some(NodeChange { before, index, parts, networks })
    }

    /// Replaces a detached node by its stored value, and attaches it. Returns the previous value and the index.
    pub(crate) fn replace(&mut self, node: Node) -> Option<(Node, u32)> {
        let id = node.id;
        let entry = self.entries.get_mut(&id)?;
        let before = std::mem::replace(&mut entry.node, node.clone());
        let index = entry.index;
        self.indexes.update_sets(index, Some(&before), Some(&node));
        self.attach(&node);
        let routes: Vec<IpNet> = before.routes().collect();
        self.index_routes(id, &routes);
        Some((before, index))
    }

    /// Removes a detached node. Returns its last value, its index, and the networks that it routed. The index is not
    /// reused before it is released.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<(Node, u32, Vec<IpNet>)> {
        let Entry { node, index, .. } = self.entries.remove(&id)?;
        self.blocks.invalidate(index);
        self.indexes.vacate(index, &node);
        let routes: Vec<IpNet> = node.routes().collect();
        let networks = self.index_routes(id, &routes);
        Some((node, index, networks))
    }

    /// Allows the index of a removed node to be reused.
    pub(crate) fn release_index(&mut self, index: u32) {
        self.indexes.release(index);
    }

    /// Adds a node to the lookup tables.
    fn attach(&mut self, node: &Node) {
        self.by_key.insert(node.key, node.id);
        self.by_machine.entry(node.machine).or_default().insert(node.id);
        self.names.insert(node.name.clone());
        self.addresses.reserve(node.v4, node.v6);
        self.routers.add_primaries(node);
    }

    /// Removes a node from the lookup tables. Names, addresses and keys may move between nodes, so all nodes that
    /// change together are detached first.
    pub(crate) fn detach(&mut self, id: NodeId) {
        let Some(Entry { node, .. }) = self.entries.get(&id) else { return };
        self.by_key.remove(&node.key);
        if let Some(of_machine) = self.by_machine.get_mut(&node.machine) {
            of_machine.remove(&id);
            if of_machine.is_empty() {
                self.by_machine.remove(&node.machine);
            }
        }
        self.names.remove(&node.name);
        self.addresses.release(node.v4, node.v6);
        self.routers.remove_primaries(node);
    }

    /// Updates the table of routers for a node with these previous routes. Returns the added and removed networks.
    fn index_routes(&mut self, id: NodeId, before: &[IpNet]) -> Vec<IpNet> {
        let now: Vec<IpNet> = self.routed_networks(id).collect();
        self.routers.update(id, before, now)
    }

    /// The approved networks of a node, without default routes.
    pub(crate) fn routed_networks(&self, id: NodeId) -> impl Iterator<Item = IpNet> {
        let routes = self.entries.get(&id).into_iter().flat_map(|entry| entry.node.routes());
        routes.filter(|net| !is_exit(net))
    }

    /// The networks with routers.
    pub(crate) fn networks(&self) -> Vec<IpNet> {
        self.routers.networks().collect()
    }

    /// Marks that the primary routers of all networks must be chosen again.
    pub(crate) fn require_choices(&mut self) {
        self.routers.require_choices();
    }

    /// All networks after [`Nodes::require_choices`], and none after that.
    pub(crate) fn take_required_choices(&mut self) -> Vec<IpNet> {
        self.routers.take_required_choices()
    }

    /// The connected routers with a connected standby for one of their networks.
    pub(crate) fn contested_routers(&self) -> BTreeSet<NodeId> {
        let is_online = |id: &NodeId| self.get(*id).is_some_and(|entry| entry.online);
        self.routers.contested(is_online)
    }

    /// Chooses the primary router of a network. Returns the previous values of the changed nodes with their indexes.
    pub(crate) fn choose_primary(&mut self, net: IpNet) -> Vec<(Node, u32)> {
        let is_online = |id: NodeId| self.get(id).is_some_and(|entry| entry.online);
        let is_sound = |id: NodeId| is_online(id) && self.get(id).is_some_and(|of| of.responds);
        let chosen = self.routers.best(&net, is_online, is_sound);
        let current = self.routers.set_primary(net, chosen);
        let mut changed = Vec::new();
        if chosen == current {
            return changed;
        }
        for (id, has) in [(current, false), (chosen, true)] {
            let Some(entry) = id.and_then(|id| self.entries.get_mut(&id)) else { continue };
            changed.push((entry.node.clone(), entry.index));
            entry.node.primaries.retain(|own| *own != net);
            if has {
                entry.node.primaries.push(net);
                entry.node.primaries.sort_unstable();
            }
        }
        changed
    }

    /// Sets whether peers see a node as connected. Returns the previous status.
    pub(crate) fn set_online(&mut self, id: NodeId, online: bool) -> Option<bool> {
        let entry = self.entries.get_mut(&id)?;
        Some(std::mem::replace(&mut entry.online, online))
    }

    /// Sets whether a node responds to probes. Returns the previous status.
    pub(crate) fn set_responds(&mut self, id: NodeId, responds: bool) -> Option<bool> {
        let entry = self.entries.get_mut(&id)?;
        Some(std::mem::replace(&mut entry.responds, responds))
    }

    /// Sets the time since which a node reports no endpoints.
    pub(crate) fn set_without_endpoints(&mut self, id: NodeId, since: Option<Time>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.without_endpoints = since;
        }
    }

    /// Drops the JSON of a node, because a part of it changed. Returns its index.
    pub(crate) fn invalidate_json(&mut self, id: NodeId) -> Option<u32> {
        let entry = self.entries.get_mut(&id)?;
        entry.peer_json = OnceLock::new();
        self.blocks.invalidate(entry.index);
        Some(entry.index)
    }
}

impl Index<&NodeId> for Nodes {
    type Output = Entry;

    fn index(&self, id: &NodeId) -> &Entry {
        &self.entries[id]
    }
}

impl Entry {
    /// JSON of the node for its peers. `render` is called once after each change.
    pub(crate) fn peer_json(&self, render: impl FnOnce() -> String) -> Arc<str> {
        Arc::clone(self.peer_json.get_or_init(|| render().into()))
    }

    /// The node and its status for other crates.
    pub(crate) fn view(&self) -> NodeView<'_> {
        NodeView { node: &self.node, online: self.online }
    }
}
