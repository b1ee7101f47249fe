//! Which node a network goes to, where several may route it: one that is connected, and for as long
//! as it can be the same.

use ipnet::IpNet;

use crate::{log::Parts, object::NodeId, state::State};

/// Whether a network is all of the Internet: an exit, of which members choose one themselves.
pub(crate) fn is_exit(net: &IpNet) -> bool {
    net.prefix_len() == 0
}

impl State {
    /// The networks of a node are others than these were.
    pub(crate) fn sort_routes(&mut self, id: NodeId, before: &[IpNet]) {
        let now: Vec<IpNet> = match self.nodes.get(&id) {
            Some(entry) => entry.node.routes().filter(|net| !is_exit(net)).collect(),
            None => Vec::new(),
        };
        for net in before.iter().filter(|net| !now.contains(net)) {
            if let Some(routers) = self.routers.get_mut(net) {
                routers.remove(&id);
                self.choose_primary(*net);
            }
        }
        for net in now {
            if self.routers.entry(net).or_default().insert(id) {
                self.choose_primary(net);
            }
        }
    }

    /// A node is connected, or is not any more.
    pub(crate) fn choose_primaries_of(&mut self, id: NodeId) {
        let Some(entry) = self.nodes.get(&id) else { return };
        for net in entry.node.routes().filter(|net| !is_exit(net)).collect::<Vec<_>>() {
            self.choose_primary(net);
        }
    }

    /// Chooses whom a network goes to, and tells where that is another.
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
            entry.primaries.retain(|own| *own != net);
            if has {
                entry.primaries.push(net);
                entry.primaries.sort_unstable();
            }
            let id = entry.node.id;
            self.note_parts(id, Parts::SHOWN);
        }
    }

    fn best_router(&self, net: &IpNet, current: Option<NodeId>) -> Option<NodeId> {
        let routers = self.routers.get(net)?;
        let current = current.filter(|id| routers.contains(id));
        let is_online = |id: &NodeId| self.nodes.get(id).is_some_and(|entry| entry.online);
        let online = || routers.iter().copied().find(is_online);
        current.filter(is_online).or_else(online).or(current).or(routers.first().copied())
    }
}
