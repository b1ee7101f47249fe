//! JSON of nodes and of the configuration, as maps have it.

use std::sync::Arc;

use ipnet::IpNet;
use policy::NodeSet;

use super::State;
use crate::{
    blocks::Block,
    node_index::NodeIndexes,
    node_json::{self, SUGGEST_EXIT},
    nodes::Entry,
    object::{Node, NodeId},
    routers::is_exit,
    time::Time,
};

impl State {
    /// The nodes that are visible to a node.
    pub(crate) fn visible_nodes(&self, viewer: &Entry) -> NodeSet {
        let mut seen = match self.policies.access().peers(viewer.index) {
            Some(peers) => peers.intersection(self.nodes.indexes().reachable()),
            None => self.nodes.indexes().reachable().clone(),
        };
        seen.remove(viewer.index as usize);
        seen
    }

    /// JSON of a node for its peers.
    pub(crate) fn peer_json(&self, entry: &Entry) -> Arc<str> {
        entry.peer_json(|| self.render_peer(entry, &[]))
    }

    /// JSON of a node for a peer to which some of its networks are hidden.
    pub(crate) fn peer_json_without(&self, entry: &Entry, hidden: &[IpNet]) -> Arc<str> {
        self.render_peer(entry, hidden).into()
    }

    fn render_peer(&self, entry: &Entry, hidden: &[IpNet]) -> String {
        let is_suggested = self.is_suggested(entry);
        node_json::peer(entry, hidden, is_suggested, &self.settings.base_domain)
    }

    /// Whether clients may suggest a node as an exit: an exit node with the attribute.
    fn is_suggested(&self, entry: &Entry) -> bool {
        let attributes = || self.policies.access().attributes(entry.index);
        entry.node.routes().any(|net| is_exit(&net))
            && attributes().iter().any(|own| own == SUGGEST_EXIT)
    }

    /// The networks of a router that are hidden to a node.
    pub(crate) fn hidden_routes(&self, viewer: &Entry, router: &Entry) -> Vec<IpNet> {
        if router.node.approved.is_empty() {
            return Vec::new();
        }
        let exits = router.node.routes().filter(is_exit);
        let routed: Vec<IpNet> = exits.chain(router.node.primaries.iter().copied()).collect();
        self.policies.access().hidden_routes(viewer.index, router.index, &routed)
    }

    /// JSON of a node for itself.
    pub(crate) fn self_json(&self, entry: &Entry, now: Time) -> String {
        let attributes = self.policies.access().attributes(entry.index);
        node_json::own(&entry.node, &attributes, &self.settings.base_domain, now)
    }

    /// The user ID and the profile of a node's owner.
    pub(crate) fn profile(&self, node: &Node) -> (i64, String) {
        node_json::profile(node, node.user.and_then(|id| self.directory.user(id)))
    }

    /// JSON of the DNS configuration.
    pub(crate) fn dns(&self) -> String {
        node_json::dns(&self.settings)
    }

    /// Splits nodes into whole blocks of JSON and the rest.
    pub(crate) fn cover(&self, nodes: &NodeSet) -> (Vec<Arc<Block>>, NodeSet) {
        self.nodes.cover(nodes, |entry| self.peer_json(entry))
    }

    /// The entry of a node.
    pub(crate) fn entry(&self, id: NodeId) -> Option<&Entry> {
        self.nodes.get(id)
    }

    /// The entry at an index.
    pub(crate) fn entry_at(&self, index: u32) -> Option<&Entry> {
        self.nodes.at(index)
    }

    /// The sets of nodes, by index.
    pub(crate) fn nodes_by_index(&self) -> &NodeIndexes {
        self.nodes.indexes()
    }
}
