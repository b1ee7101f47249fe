//! The primary router of each network, if several nodes may route it: a connected one that responds. It changes only
//! when necessary.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::{log::Parts, object::NodeId, state::State};

/// Whether a network is a default route. Such a network is without a primary router: nodes choose an exit themselves.
pub(crate) fn is_exit(net: &IpNet) -> bool {
    net.prefix_len() == 0
}

impl State {
    /// Updates the routers of networks after the routes of a node changed.
    pub(crate) fn update_routes(&mut self, id: NodeId, before: &[IpNet]) {
        for net in self.index_routes(id, before) {
            self.choose_primary(net);
        }
    }

    /// Updates the table of routers for a node with these previous routes. Returns the added and removed networks.
    pub(crate) fn index_routes(&mut self, id: NodeId, before: &[IpNet]) -> Vec<IpNet> {
        let now: Vec<IpNet> = match self.nodes.get(&id) {
            Some(entry) => entry.node.routes().filter(|net| !is_exit(net)).collect(),
            None => Vec::new(),
        };
        let mut changed = Vec::new();
        for net in before.iter().filter(|net| !now.contains(net)) {
            if let Some(routers) = self.routers.get_mut(net) {
                routers.remove(&id);
                changed.push(*net);
            }
        }
        for net in now {
            if self.routers.entry(net).or_default().insert(id) {
                changed.push(net);
            }
        }
        changed
    }

    /// Chooses the primary routers of all networks.
    pub(crate) fn choose_primaries(&mut self) {
        for net in self.routers.keys().copied().collect::<Vec<_>>() {
            self.choose_primary(net);
        }
    }

    /// Chooses the primary routers of a node's networks.
    pub(crate) fn choose_primaries_of(&mut self, id: NodeId) {
        let Some(entry) = self.nodes.get(&id) else { return };
        for net in entry.node.routes().filter(|net| !is_exit(net)).collect::<Vec<_>>() {
            self.choose_primary(net);
        }
    }

    /// The connected routers with a connected standby for one of their networks. Only these are probed.
    pub fn contested_routers(&self) -> BTreeSet<NodeId> {
        let is_online = |id: &&NodeId| self.nodes.get(id).is_some_and(|entry| entry.online);
        let online = |routers: &BTreeSet<NodeId>| {
            routers.iter().filter(is_online).copied().collect::<Vec<_>>()
        };
        self.routers.values().map(online).filter(|routers| routers.len() > 1).flatten().collect()
    }

    /// Whether a node responded to the last probe.
    pub fn responds(&self, id: NodeId) -> Option<bool> {
        self.nodes.get(&id).map(|entry| entry.responds)
    }

    /// Records the results of probes. All are recorded before primary routers are chosen, so that no network moves to
    /// a router that did not respond either.
    pub fn record_responses(&mut self, answers: &[(NodeId, bool)]) {
        for (id, answers) in answers {
            if let Some(entry) = self.nodes.get_mut(id) {
                entry.responds = *answers;
            }
        }
        for (id, _) in answers {
            self.choose_primaries_of(*id);
        }
    }

    /// Chooses the primary router of a network, and records the change.
    pub(crate) fn choose_primary(&mut self, net: IpNet) {
        let current = self.primaries.get(&net).copied();
        let chosen = self.best_router(&net, current);
        if self.routers.get(&net).is_some_and(|routers| routers.is_empty()) {
            self.routers.remove(&net);
        }
        if chosen == current {
            return;
        }
        match chosen {
            Some(id) => self.primaries.insert(net, id),
            None => self.primaries.remove(&net),
        };
        for (id, has) in [(current, false), (chosen, true)] {
            let Some(entry) = id.and_then(|id| self.nodes.get_mut(&id)) else { continue };
            self.undo.node(&entry.node, entry.index);
            entry.node.primaries.retain(|own| *own != net);
            if has {
                entry.node.primaries.push(net);
                entry.node.primaries.sort_unstable();
            }
            let node = entry.node.clone();
            self.write(&node);
            self.note_parts(node.id, Parts::PEER_VIEW);
        }
    }

    fn best_router(&self, net: &IpNet, current: Option<NodeId>) -> Option<NodeId> {
        let routers = self.routers.get(net)?;
        let current = current.filter(|id| routers.contains(id));
        let entry = |id: &NodeId| self.nodes.get(id);
        let is_online = |id: &NodeId| entry(id).is_some_and(|entry| entry.online);
        let is_sound = |id: &NodeId| is_online(id) && entry(id).is_some_and(|entry| entry.responds);
        let first = |is_good: &dyn Fn(&NodeId) -> bool| {
            current.filter(|id| is_good(id)).or_else(|| routers.iter().copied().find(is_good))
        };
        first(&is_sound).or_else(|| first(&is_online)).or_else(|| first(&|_| true))
    }
}
