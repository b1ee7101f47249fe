//! The routers of each network, and the primary one among them. The primary router changes only when necessary.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::object::{Node, NodeId};

/// Whether a network is a default route. Such a network is without a primary router: nodes choose an exit themselves.
pub(crate) fn is_exit(net: &IpNet) -> bool {
    net.prefix_len() == 0
}

/// The routers of networks.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    /// Nodes that may route each network, without the default routes.
    by_network: BTreeMap<IpNet, BTreeSet<NodeId>>,
    primaries: BTreeMap<IpNet, NodeId>,
    /// Whether the primary routers must be chosen again.
    needs_choices: bool,
}

impl Routers {
    /// Records a node as the primary router of its networks.
    pub(crate) fn add_primaries(&mut self, node: &Node) {
        self.primaries.extend(node.primaries.iter().map(|net| (*net, node.id)));
    }

    /// Removes the primary router of the networks of a node.
    pub(crate) fn remove_primaries(&mut self, node: &Node) {
        for net in &node.primaries {
            self.primaries.remove(net);
        }
    }

    /// Updates the networks of a node. Returns the added and removed ones.
    pub(crate) fn update(&mut self, id: NodeId, before: &[IpNet], now: Vec<IpNet>) -> Vec<IpNet> {
        let mut changed = Vec::new();
        for net in before.iter().filter(|net| !now.contains(net)) {
            if let Some(routers) = self.by_network.get_mut(net) {
                routers.remove(&id);
                changed.push(*net);
            }
        }
        for net in now {
            if self.by_network.entry(net).or_default().insert(id) {
                changed.push(net);
            }
        }
        changed
    }

    /// Marks that the primary routers of all networks must be chosen again.
    pub(crate) fn require_choices(&mut self) {
        self.needs_choices = true;
    }

    /// All networks after [`Routers::require_choices`], and none after that.
    pub(crate) fn take_required_choices(&mut self) -> Vec<IpNet> {
        match std::mem::take(&mut self.needs_choices) {
            true => self.networks().collect(),
            false => Vec::new(),
        }
    }

    /// All networks with routers.
    pub(crate) fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.by_network.keys().copied()
    }

    /// The online routers of networks with more than one.
    pub(crate) fn contested(&self, is_online: impl Fn(&NodeId) -> bool) -> BTreeSet<NodeId> {
        let online = |routers: &BTreeSet<NodeId>| {
            routers.iter().copied().filter(&is_online).collect::<Vec<_>>()
        };
        let online = self.by_network.values().map(online);
        online.filter(|routers| routers.len() > 1).flatten().collect()
    }

    /// The best router of a network: a connected one that responds, else a connected one, else any. The current one
    /// is preferred.
    pub(crate) fn best(
        &self,
        net: &IpNet,
        is_online: impl Fn(NodeId) -> bool,
        is_sound: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let routers = self.by_network.get(net)?;
        let current = self.primaries.get(net).copied().filter(|id| routers.contains(id));
        let first = |is_good: &dyn Fn(NodeId) -> bool| {
            let current = current.filter(|id| is_good(*id));
            current.or_else(|| routers.iter().copied().find(|id| is_good(*id)))
        };
        first(&is_sound).or_else(|| first(&is_online)).or_else(|| first(&|_| true))
    }

    /// Sets the primary router of a network. Returns the previous one. A network without routers is removed.
    pub(crate) fn set_primary(&mut self, net: IpNet, chosen: Option<NodeId>) -> Option<NodeId> {
        if self.by_network.get(&net).is_some_and(BTreeSet::is_empty) {
            self.by_network.remove(&net);
        }
        match chosen {
            Some(id) => self.primaries.insert(net, id),
            None => self.primaries.remove(&net),
        }
    }
}
