//! The peers of the data plane, and the changes that the agent requests.

use std::collections::{HashMap, HashSet};

use config::uapi::Change;
use engine::{PrefixedAddr, RelayPeer};
use ipc::Peer;
use ipnet::IpNet;
use packet::Endpoint;
use tailnet::keys::NodePublic;
use wg::config::{AllowedIpChange, DeviceChange, PeerChange};

use super::{endpoint_tables::EndpointTables, public};

/// The most peers, which the table of relays can contain.
const MAX_PEERS: usize = 1 << 16;
/// The most peer relays that are stored for a peer.
const MAX_PEER_RELAYS: usize = 4;

/// The peers of the data plane.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<NodePublic, Box<PeerEntry>>);

#[derive(Debug, Default)]
struct PeerEntry {
    nets: Box<[IpNet]>,
    /// The regions at which it has an endpoint.
    regions: Vec<u16>,
    /// The peer relays at which it has an endpoint; the latest is last.
    peer_relays: Vec<PrefixedAddr>,
}

/// A change of peers.
#[derive(Debug)]
pub(super) struct PeersChange {
    /// The change for the node.
    pub change: Change,
    /// Endpoints at relays to remove after the change.
    relays: Vec<RelayPeer>,
    peer_relays: Vec<PrefixedAddr>,
}

impl PeersChange {
    /// Call it after the change.
    pub(super) fn remove_endpoints(self, tables: &EndpointTables) {
        self.relays.iter().for_each(|peer| tables.relay.remove(peer));
        self.peer_relays.iter().for_each(|relay| tables.prefixes.remove(relay));
    }
}

impl Peers {
    pub(super) fn contains(&self, key: &NodePublic) -> bool {
        self.0.contains_key(key)
    }

    /// The endpoint of a peer at a relay; `None` if the peer is unknown or the table is full.
    pub(super) fn relay_endpoint(
        &mut self,
        key: NodePublic,
        region: u16,
        tables: &EndpointTables,
    ) -> Option<Endpoint> {
        let entry = self.0.get_mut(&key)?;
        let endpoint = tables.relay.endpoint(RelayPeer { region, key: key.0 })?;
        if !entry.regions.contains(&region) {
            entry.regions.push(region);
        }
        Some(endpoint)
    }

    /// The endpoint of a peer behind a peer relay; `None` if the peer is unknown or the table is
    /// full. Data from its previous peer relays is still accepted.
    pub(super) fn peer_relay_endpoint(
        &mut self,
        key: NodePublic,
        relay: PrefixedAddr,
        tables: &EndpointTables,
    ) -> Option<Endpoint> {
        let entry = self.0.get_mut(&key)?;
        let endpoint = tables.prefixes.endpoint(relay)?;
        entry.peer_relays.retain(|one| *one != relay);
        entry.peer_relays.push(relay);
        if entry.peer_relays.len() > MAX_PEER_RELAYS {
            tables.prefixes.remove(&entry.peer_relays.remove(0));
        }
        Some(endpoint)
    }

    /// Computes a change. Networks are removed before they are added, and unchanged networks
    /// remain, so that no packet of theirs is lost.
    pub(super) fn change(
        &mut self,
        complete: bool,
        changed: &[Peer],
        removed: &[NodePublic],
    ) -> PeersChange {
        let (mut peers, mut at_relays, mut peer_relays) = (Vec::new(), Vec::new(), Vec::new());
        let stay: HashSet<NodePublic> = changed.iter().map(|peer| peer.key).collect();
        let removed: HashSet<NodePublic> = removed.iter().copied().collect();
        let is_removed = |key: &NodePublic, _: &mut Box<PeerEntry>| {
            removed.contains(key) || complete && !stay.contains(key)
        };
        for (key, entry) in self.0.extract_if(is_removed) {
            let relays = entry.regions.into_iter().map(|region| RelayPeer { region, key: key.0 });
            at_relays.extend(relays);
            peer_relays.extend(entry.peer_relays);
            peers.push(PeerChange { remove: true, ..PeerChange::new(public(key)) });
        }
        for peer in changed {
            if !self.contains(&peer.key) && self.0.len() >= MAX_PEERS {
                tracing::warn!("a peer is ignored: the limit is {MAX_PEERS}");
                continue;
            }
            let nets: Box<[IpNet]> = peer.allowed_ips.iter().map(IpNet::trunc).collect();
            let entry = self.0.entry(peer.key).or_default();
            let previous = std::mem::replace(&mut entry.nets, nets);
            let removed_nets = previous.iter().filter(|net| !entry.nets.contains(net));
            let added_nets = entry.nets.iter().filter(|net| !previous.contains(net));
            let removed_nets = removed_nets.map(|&net| AllowedIpChange { net, remove: true });
            let added_nets = added_nets.map(|&net| AllowedIpChange { net, remove: false });
            peers.push(PeerChange {
                roaming: Some(false),
                persistent_keepalive: Some(peer.keepalive),
                allowed_ips: removed_nets.chain(added_nets).collect(),
                ..PeerChange::new(public(peer.key))
            });
        }
        let device = DeviceChange { peers, ..DeviceChange::default() };
        PeersChange {
            change: Change { device, ..Change::default() },
            relays: at_relays,
            peer_relays,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(key: u8, nets: &[&str]) -> Peer {
        let allowed_ips = nets.iter().map(|net| net.parse().unwrap()).collect();
        Peer { key: NodePublic([key; 32]), allowed_ips, keepalive: 0 }
    }

    fn nets(change: &PeerChange) -> Vec<(String, bool)> {
        change.allowed_ips.iter().map(|one| (one.net.to_string(), one.remove)).collect()
    }

    #[test]
    fn changed_peer_retains_its_unchanged_networks() {
        let mut peers = Peers::default();
        let first = peers.change(true, &[peer(1, &["100.64.0.1/32", "10.0.0.0/8"])], &[]).change;
        let [change] = &first.device.peers[..] else { panic!("{first:?}") };
        assert_eq!((nets(change).len(), change.roaming), (2, Some(false)));
        let second = peers.change(false, &[peer(1, &["100.64.0.1/32", "10.1.0.0/16"])], &[]).change;
        let expected = [("10.0.0.0/8".to_owned(), true), ("10.1.0.0/16".to_owned(), false)];
        assert_eq!(nets(&second.device.peers[0]), expected);
    }

    #[test]
    fn peers_are_removed_by_name_or_by_a_complete_list() {
        let mut peers = Peers::default();
        peers.change(true, &[peer(1, &[]), peer(2, &[]), peer(3, &[])], &[]);
        let named = peers.change(false, &[], &[NodePublic([1; 32]), NodePublic([9; 32])]).change;
        assert_eq!(named.device.peers.len(), 1);
        assert!(named.device.peers[0].remove && !peers.contains(&NodePublic([1; 32])));
        let complete = peers.change(true, &[peer(3, &[])], &[]).change;
        let relays: Vec<_> = complete.device.peers.iter().filter(|peer| peer.remove).collect();
        assert_eq!(relays.len(), 1);
        assert!(peers.contains(&NodePublic([3; 32])) && !peers.contains(&NodePublic([2; 32])));
    }

    #[test]
    fn removed_peers_leave_no_relay_endpoints() {
        let (mut peers, tables) =
            (Peers::default(), EndpointTables::new(std::sync::Arc::new(|| {})));
        assert_eq!(
            peers.relay_endpoint(NodePublic([1; 32]), 1, &tables),
            None,
            "there is no such peer"
        );
        let mut endpoints = HashSet::new();
        for round in 1..=100 {
            peers.change(true, &[peer(round, &[])], &[]).remove_endpoints(&tables);
            for region in [1, 2, 1] {
                let at = peers.relay_endpoint(NodePublic([round; 32]), region, &tables).unwrap();
                endpoints.insert(at.remote);
            }
        }
        assert!(endpoints.len() <= 4, "{}", endpoints.len());
    }
}
