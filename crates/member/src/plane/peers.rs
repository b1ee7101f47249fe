//! The peers as the agent wants them, and the change from those that there are.

use std::collections::HashMap;

use config::uapi::Change;
use ipnet::IpNet;
use tailnet::{keys::NodePublic, line::Peer};
use wg::config::{AllowedIpChange, DeviceChange, PeerChange};

use super::public;

/// The peers that the data plane has, with their networks.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<NodePublic, Box<[IpNet]>>);

impl Peers {
    pub fn has(&self, key: &NodePublic) -> bool {
        self.0.contains_key(key)
    }

    /// What is to be changed. Networks are taken away before they are given, and a peer keeps those
    /// that it has: no packet of theirs is lost.
    pub fn change(&mut self, complete: bool, changed: &[Peer], removed: &[NodePublic]) -> Change {
        let mut peers = Vec::new();
        let is_gone = |key: &NodePublic| {
            removed.contains(key) || complete && !changed.iter().any(|peer| peer.key == *key)
        };
        let gone: Vec<NodePublic> = self.0.keys().filter(|key| is_gone(key)).copied().collect();
        for key in gone {
            self.0.remove(&key);
            peers.push(PeerChange { remove: true, ..PeerChange::new(public(key)) });
        }
        for peer in changed {
            let former = self.0.insert(peer.key, peer.allowed_ips.clone().into());
            let former = former.unwrap_or_default();
            let less = former.iter().filter(|net| !peer.allowed_ips.contains(net));
            let more = peer.allowed_ips.iter().filter(|net| !former.contains(net));
            let less = less.map(|&net| AllowedIpChange { net, remove: true });
            let more = more.map(|&net| AllowedIpChange { net: net.trunc(), remove: false });
            peers.push(PeerChange {
                roaming: Some(false),
                persistent_keepalive: Some(peer.keepalive),
                allowed_ips: less.chain(more).collect(),
                ..PeerChange::new(public(peer.key))
            });
        }
        Change { device: DeviceChange { peers, ..DeviceChange::default() }, ..Change::default() }
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
    fn a_peer_that_changes_keeps_the_networks_that_it_has() {
        let mut peers = Peers::default();
        let first = peers.change(true, &[peer(1, &["100.64.0.1/32", "10.0.0.0/8"])], &[]);
        let [change] = &first.device.peers[..] else { panic!("{first:?}") };
        assert_eq!((nets(change).len(), change.roaming), (2, Some(false)));
        let second = peers.change(false, &[peer(1, &["100.64.0.1/32", "10.1.0.0/16"])], &[]);
        let expected = [("10.0.0.0/8".to_owned(), true), ("10.1.0.0/16".to_owned(), false)];
        assert_eq!(nets(&second.device.peers[0]), expected);
    }

    #[test]
    fn peers_go_where_they_are_named_or_where_the_list_is_complete() {
        let mut peers = Peers::default();
        peers.change(true, &[peer(1, &[]), peer(2, &[]), peer(3, &[])], &[]);
        let named = peers.change(false, &[], &[NodePublic([1; 32]), NodePublic([9; 32])]);
        assert_eq!(named.device.peers.len(), 1);
        assert!(named.device.peers[0].remove && !peers.has(&NodePublic([1; 32])));
        let complete = peers.change(true, &[peer(3, &[])], &[]);
        let gone: Vec<_> = complete.device.peers.iter().filter(|peer| peer.remove).collect();
        assert_eq!(gone.len(), 1);
        assert!(peers.has(&NodePublic([3; 32])) && !peers.has(&NodePublic([2; 32])));
    }
}
