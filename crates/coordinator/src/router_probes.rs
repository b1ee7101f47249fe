//! Nodes that can say whether data reaches a router of which another could take a network over.
//!
//! ```text
//!   witness ──── does it reach it? ─────► router
//!      `──────── and these? ────────────► controls: one that reaches neither says nothing of the router
//! ```

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    ops::Bound::{Excluded, Unbounded},
};

use ipnet::IpNet;

use crate::{
    node_updates::is_reachable,
    object::NodeId,
    routes::is_exit,
    state::{Entry, State},
};

/// The most witnesses of one router, and the most controls of one witness.
const MAX_PROBERS: usize = 6;
const MAX_CONTROLS: usize = 2;
/// Systems whose machines sleep in a pocket: to ask one is to wake it (`tailcfg.Hostinfo.OS`).
const MOBILE_SYSTEMS: [&str; 3] = ["android", "iOS", "tvOS"];

/// A router of which another could take a network over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedRouter {
    /// The router.
    pub router: NodeId,
    /// Its address.
    pub address: Ipv4Addr,
    /// Nodes that see it, routers of the same network first; not all, and the same each time while they
    /// are connected.
    pub probers: Vec<Prober>,
}

/// A node that sees a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    /// The node.
    pub id: NodeId,
    /// Addresses of others that it sees, routers of the same network first.
    pub controls: Vec<Ipv4Addr>,
}

impl State {
    /// The routers of which another could take a network over, each with nodes to ask, as far as `is_here`
    /// says that they are connected to this server.
    pub fn probed_routers(&self, is_here: impl Fn(NodeId) -> bool) -> Vec<ProbedRouter> {
        let contested = self.contested_routers();
        let own = contested.iter().filter(|id| is_here(**id));
        let entries = own.filter_map(|id| self.nodes.get(id));
        let probed_routers = |router: &Entry| {
            let (id, address) = (router.node.id, router.node.v4);
            let rivals = self.rivals(router, &contested);
            // Routers do not sleep. Of others those behind it come first, so that no node is everybody's
            // witness.
            let behind = self.nodes.range((Excluded(id), Unbounded));
            let others = behind.chain(self.nodes.range(..id)).map(|(_, entry)| entry);
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

    /// Contested routers that have a network in common with one.
    fn rivals(&self, router: &Entry, contested: &BTreeSet<NodeId>) -> Vec<&Entry> {
        let own: BTreeSet<IpNet> = router.node.routes().filter(|net| !is_exit(net)).collect();
        let others = contested.iter().filter(|id| **id != router.node.id);
        let others = others.filter_map(|id| self.nodes.get(id));
        others.filter(|other| other.node.routes().any(|net| own.contains(&net))).collect()
    }

    /// Whether two connected nodes have each other as peers, and are awake.
    fn see(&self, one: &Entry, other: &Entry) -> bool {
        let is_there = |entry: &Entry| {
            let sleeps =
                MOBILE_SYSTEMS.iter().any(|os| entry.node.hostinfo.os.eq_ignore_ascii_case(os));
            entry.online && is_reachable(&entry.node) && !sleeps
        };
        is_there(one)
            && is_there(other)
            && self.access.is_visible(one.index, other.index)
            && self.access.is_visible(other.index, one.index)
    }
}
