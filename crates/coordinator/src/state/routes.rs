//! Commands on the primary routers of networks.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::State;
use crate::{change_log::Parts, object::NodeId};

impl State {
    /// The connected routers with a connected standby for one of their networks. Only these are probed.
    pub fn contested_routers(&self) -> BTreeSet<NodeId> {
        self.nodes.contested_routers()
    }

    /// Whether a node responded to the last probe.
    pub fn responds(&self, id: NodeId) -> Option<bool> {
        self.nodes.get(id).map(|entry| entry.responds)
    }

    /// Records the results of probes. All are recorded before primary routers are chosen, so that no network moves to
    /// a router that did not respond either.
    pub fn record_responses(&mut self, answers: &[(NodeId, bool)]) {
        for (id, responds) in answers {
            self.nodes.set_responds(*id, *responds);
        }
        for (id, _) in answers {
            self.choose_primaries_of(*id);
        }
    }

    /// Chooses the primary routers of all networks.
    pub(super) fn choose_primaries(&mut self) {
        self.choose_primaries_for(self.nodes.networks());
    }

    /// Chooses the primary routers of a node's networks.
    pub(super) fn choose_primaries_of(&mut self, id: NodeId) {
        self.choose_primaries_for(self.nodes.routed_networks(id).collect());
    }

    /// Chooses the primary routers of some networks, and records the changes.
    pub(super) fn choose_primaries_for(&mut self, networks: Vec<IpNet>) {
        for net in networks {
            for (before, index) in self.nodes.choose_primary(net) {
                self.journal.save_node(&before, index);
                self.journal.write(&self.nodes[&before.id].node);
                self.note_parts(before.id, Parts::PEER_VIEW);
            }
        }
    }
}
