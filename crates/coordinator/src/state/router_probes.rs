//! Selects the nodes that probe whether data reaches a router. Only routers with a standby for one of their
//! networks are probed.
//!
//! ```text
//!   prober ───── probe ─────► router
//!      `──────── probe ─────► controls: if these fail too, the prober itself is offline
//! ```

use std::{collections::BTreeSet, net::Ipv4Addr};

use ipnet::IpNet;

use super::State;
use crate::{nodes::Entry, object::NodeId, routers::is_exit};

/// The maximum number of probers of a router, and of controls of a prober.
const MAX_PROBERS: usize = 6;
const MAX_CONTROLS: usize = 2;
/// Mobile systems (`tailcfg.Hostinfo.OS`). Their machines sleep, and a probe would wake them.
const MOBILE_SYSTEMS: [&str; 3] = ["android", "iOS", "tvOS"];

/// A router with a standby for one of its networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedRouter {
    pub router: NodeId,
    pub address: Ipv4Addr,
    /// Nodes that see the router, at most [`MAX_PROBERS`]; routers of the same network first. The selection is
    /// stable while the nodes are connected.
    pub probers: Vec<Prober>,
}

/// A node that probes a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    pub id: NodeId,
    /// Addresses of other visible nodes; routers of the same network first.
    pub controls: Vec<Ipv4Addr>,
}

impl State {
    /// The routers with a standby, each with its probers. Only nodes that are connected to this server count,
    /// according to `is_here`.
    pub fn probed_routers(&self, is_here: impl Fn(NodeId) -> bool) -> Vec<ProbedRouter> {
        let contested = self.contested_routers();
        let own = contested.iter().filter(|id| is_here(**id));
        let entries = own.filter_map(|id| self.nodes.get(*id));
        let probed_routers = |router: &Entry| {
            let (id, address) = (router.node.id, router.node.v4);
            let rivals = self.rivals(router, &contested);
            // Routers do not sleep. Other nodes follow, beginning after the router's ID, so that the load is
            // spread over them.
            let others = self.nodes.all_from(id);
            let is_rival = |other: &&Entry| rivals.iter().any(|one| one.node.id == other.node.id);
            let others = others.filter(|other| !is_rival(other));
            let can_probe = |other: &&Entry| is_here(other.node.id) && self.see(other, router);
            let all = rivals.iter().copied().chain(others);
            let able: Vec<&Entry> = all.filter(can_probe).take(MAX_PROBERS).collect();
            let prober = |one: &&Entry| {
                let own = one.node.id;
                let others = rivals.iter().chain(&able).filter(|other| other.node.id != own);
                let mut controls: Vec<Ipv4Addr> = Vec::new();
                for other in others.filter(|other| self.see(one, other)) {
                    if controls.len() < MAX_CONTROLS && !controls.contains(&other.node.v4) {
                        controls.push(other.node.v4);
                    }
                }
                Prober { id: own, controls }
            };
            let probers = able.iter().map(prober).collect();
            ProbedRouter { router: id, address, probers }
        };
        entries.map(probed_routers).collect()
    }

    /// Contested routers that share a network with a router.
    fn rivals(&self, router: &Entry, contested: &BTreeSet<NodeId>) -> Vec<&Entry> {
        let own: BTreeSet<IpNet> = router.node.routes().filter(|net| !is_exit(net)).collect();
        let others = contested.iter().filter(|id| **id != router.node.id);
        let others = others.filter_map(|id| self.nodes.get(*id));
        others.filter(|other| other.node.routes().any(|net| own.contains(&net))).collect()
    }

    /// Whether two nodes are connected, awake and peers of each other.
    fn see(&self, one: &Entry, other: &Entry) -> bool {
        let is_there = |entry: &Entry| {
            let sleeps =
                MOBILE_SYSTEMS.iter().any(|os| entry.node.hostinfo.os.eq_ignore_ascii_case(os));
            entry.online && entry.node.is_reachable() && !sleeps
        };
        is_there(one)
            && is_there(other)
            && self.policies.access().is_visible(one.index, other.index)
            && self.policies.access().is_visible(other.index, one.index)
    }
}
