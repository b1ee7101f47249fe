//! Updates that nodes send about themselves.

use std::time::Duration;

use super::State;
use crate::{
    change_log::Parts,
    hostinfo::Hostinfo,
    names,
    object::{Node, NodeId},
    request::MapRequest,
    time::Time,
    timers::Timer,
};

/// How long peers keep the endpoints of a node that reports none. A restarted client reports none before it has
/// found its own; peers that lost them at once would leave a working path.
const WITHOUT_ENDPOINTS: Duration = Duration::from_secs(5);

impl State {
    /// Applies a node's map request.
    pub fn apply_map_request(&mut self, id: NodeId, request: &MapRequest, now: Time) {
        if let Some(hostinfo) = &request.hostinfo
            && request.updates_node()
        {
            self.apply_hostinfo(id, hostinfo, now);
        }
        self.change_node(id, now, |node| apply_paths(node, request));
        if request.updates_node()
            && let Some(entry) = self.nodes.get(id)
        {
            let has_lost_all = request.endpoints.is_empty() && !entry.node.endpoints.is_empty();
            let since = entry.without_endpoints.unwrap_or(now);
            self.nodes.set_without_endpoints(id, has_lost_all.then_some(since));
            if has_lost_all {
                self.timers.set(Timer::Endpoints(id), since.after(WITHOUT_ENDPOINTS));
            }
        }
    }

    /// Sets the timer of a node without endpoints again.
    pub(super) fn restore_endpoint_timer(&mut self, id: NodeId) {
        let entry = self.nodes.get(id);
        if let Some(since) = entry.and_then(|entry| entry.without_endpoints) {
            self.timers.set(Timer::Endpoints(id), since.after(WITHOUT_ENDPOINTS));
        }
    }

    /// Clears the endpoints of a node that has reported none for long enough.
    pub(super) fn clear_endpoints(&mut self, id: NodeId, now: Time) {
        let Some(entry) = self.nodes.get(id) else { return };
        if entry.without_endpoints.is_some_and(|at| now.since(at) >= WITHOUT_ENDPOINTS) {
            self.change_node(id, now, |node| {
                node.endpoints.clear();
                Parts::ENDPOINTS
            });
        }
    }

    /// Applies the host information of a machine.
    pub(super) fn apply_hostinfo(&mut self, id: NodeId, hostinfo: &Hostinfo, now: Time) {
        let Some(entry) = self.nodes.get(id) else { return };
        let node = &entry.node;
        // A name with a number stays while the host name is the same.
        let is_same = node.hostinfo.hostname == hostinfo.hostname;
        let name = if node.renamed || is_same {
            node.name.clone()
        } else {
            self.free_name(names::label(&hostinfo.hostname), Some(&node.name))
        };
        self.change_node(id, now, |node| {
            let mut parts = Parts::empty();
            let peer_fields = |of: &Hostinfo| {
                (of.os.clone(), of.hostname.clone(), of.services.clone(), of.ssh_keys.clone())
            };
            if node.name != name || node.hostinfo.routable != hostinfo.routable {
                parts = Parts::WHOLE;
            } else if peer_fields(&node.hostinfo) != peer_fields(hostinfo) {
                parts = Parts::PEER_VIEW;
            }
            let home = hostinfo.net_info.home_relay;
            if home != 0 && node.home_relay != home {
                node.home_relay = home;
                parts = parts.and(Parts::HOME_RELAY);
            }
            node.name = name;
            node.hostinfo = hostinfo.clone();
            node.hostinfo.net_info = Default::default();
            parts
        });
        self.approve_routes_of(id, now);
    }
}

fn apply_paths(node: &mut Node, request: &MapRequest) -> Parts {
    let mut parts = Parts::empty();
    let has_new_disco = !request.disco_key.is_zero() && request.disco_key != node.disco;
    // A stream request may have an older key than an update: it does not replace a key.
    if has_new_disco && (request.updates_node() || node.disco.is_zero()) {
        let is_first = node.disco.is_zero();
        node.disco = request.disco_key;
        parts = parts.and(if is_first { Parts::PEER_VIEW } else { Parts::DISCO });
    }
    if request.version != 0 && request.version != node.version {
        node.version = request.version;
        parts = parts.and(Parts::VERSION);
    }
    if request.updates_node()
        && !request.endpoints.is_empty()
        && request.endpoints != node.endpoints
    {
        node.endpoints.clone_from(&request.endpoints);
        parts = parts.and(Parts::ENDPOINTS);
    }
    parts
}
