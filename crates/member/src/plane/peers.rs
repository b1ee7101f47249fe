//! The peers as the agent wants them, and the change from those that there are.

use std::collections::{HashMap, HashSet};

use config::uapi::Change;
use engine::{PrefixedAddr, RelayPeer};
use ipnet::IpNet;
use packet::Endpoint;
use tailnet::{keys::NodePublic, line::Peer};
use wg::config::{AllowedIpChange, DeviceChange, PeerChange};

use super::{places::Places, public};

/// The most peers: what a relay's table has room for.
const MOST: usize = 1 << 16;
/// Places behind other nodes that are kept of a peer.
const PLACES: usize = 4;

/// The peers that the data plane has.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<NodePublic, Box<Known>>);

#[derive(Debug, Default)]
struct Known {
    nets: Box<[IpNet]>,
    /// The relays that it was sought or heard at.
    regions: Vec<u16>,
    /// Where it was behind other nodes, the last one last.
    passed: Vec<PrefixedAddr>,
}

/// A change of peers.
#[derive(Debug)]
pub(super) struct Changed {
    /// What is to be changed.
    pub change: Change,
    /// Who is at no relay any more, once that is done.
    gone: Vec<RelayPeer>,
    passed: Vec<PrefixedAddr>,
}

impl Changed {
    /// After the change.
    pub fn forget(self, places: &Places) {
        self.gone.iter().for_each(|peer| places.relay.remove(peer));
        self.passed.iter().for_each(|place| places.prefixes.remove(place));
    }
}

impl Peers {
    pub fn has(&self, key: &NodePublic) -> bool {
        self.0.contains_key(key)
    }

    /// The endpoint of a peer at a relay; `None` if there is no such peer, or no room.
    pub fn at_relay(&mut self, key: NodePublic, region: u16, places: &Places) -> Option<Endpoint> {
        let known = self.0.get_mut(&key)?;
        let endpoint = places.relay.endpoint(RelayPeer { region, key: key.0 })?;
        if !known.regions.contains(&region) {
            known.regions.push(region);
        }
        Some(endpoint)
    }

    /// The endpoint of a peer behind another node; `None` if there is no such peer, or no room. What
    /// comes from where it was before is still taken.
    pub fn passed(
        &mut self,
        key: NodePublic,
        place: PrefixedAddr,
        places: &Places,
    ) -> Option<Endpoint> {
        let known = self.0.get_mut(&key)?;
        let endpoint = places.prefixes.endpoint(place)?;
        known.passed.retain(|one| *one != place);
        known.passed.push(place);
        if known.passed.len() > PLACES {
            places.prefixes.remove(&known.passed.remove(0));
        }
        Some(endpoint)
    }

    /// What is to be changed. Networks are taken away before they are given, and a peer keeps those
    /// that it has: no packet of theirs is lost.
    pub fn change(&mut self, complete: bool, changed: &[Peer], removed: &[NodePublic]) -> Changed {
        let (mut peers, mut at_relays, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        let stay: HashSet<NodePublic> = changed.iter().map(|peer| peer.key).collect();
        let removed: HashSet<NodePublic> = removed.iter().copied().collect();
        let is_gone = |key: &NodePublic, _: &mut Box<Known>| {
            removed.contains(key) || complete && !stay.contains(key)
        };
        for (key, known) in self.0.extract_if(is_gone) {
            let gone = known.regions.into_iter().map(|region| RelayPeer { region, key: key.0 });
            at_relays.extend(gone);
            passed.extend(known.passed);
            peers.push(PeerChange { remove: true, ..PeerChange::new(public(key)) });
        }
        for peer in changed {
            if !self.has(&peer.key) && self.0.len() >= MOST {
                tracing::warn!("a peer is left out: there are {MOST}");
                continue;
            }
            let nets: Box<[IpNet]> = peer.allowed_ips.iter().map(IpNet::trunc).collect();
            let known = self.0.entry(peer.key).or_default();
            let former = std::mem::replace(&mut known.nets, nets);
            let less = former.iter().filter(|net| !known.nets.contains(net));
            let more = known.nets.iter().filter(|net| !former.contains(net));
            let less = less.map(|&net| AllowedIpChange { net, remove: true });
            let more = more.map(|&net| AllowedIpChange { net, remove: false });
            peers.push(PeerChange {
                roaming: Some(false),
                persistent_keepalive: Some(peer.keepalive),
                allowed_ips: less.chain(more).collect(),
                ..PeerChange::new(public(peer.key))
            });
        }
        let device = DeviceChange { peers, ..DeviceChange::default() };
        Changed { change: Change { device, ..Change::default() }, gone: at_relays, passed }
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
        let first = peers.change(true, &[peer(1, &["100.64.0.1/32", "10.0.0.0/8"])], &[]).change;
        let [change] = &first.device.peers[..] else { panic!("{first:?}") };
        assert_eq!((nets(change).len(), change.roaming), (2, Some(false)));
        let second = peers.change(false, &[peer(1, &["100.64.0.1/32", "10.1.0.0/16"])], &[]).change;
        let expected = [("10.0.0.0/8".to_owned(), true), ("10.1.0.0/16".to_owned(), false)];
        assert_eq!(nets(&second.device.peers[0]), expected);
    }

    #[test]
    fn peers_go_where_they_are_named_or_where_the_list_is_complete() {
        let mut peers = Peers::default();
        peers.change(true, &[peer(1, &[]), peer(2, &[]), peer(3, &[])], &[]);
        let named = peers.change(false, &[], &[NodePublic([1; 32]), NodePublic([9; 32])]).change;
        assert_eq!(named.device.peers.len(), 1);
        assert!(named.device.peers[0].remove && !peers.has(&NodePublic([1; 32])));
        let complete = peers.change(true, &[peer(3, &[])], &[]).change;
        let gone: Vec<_> = complete.device.peers.iter().filter(|peer| peer.remove).collect();
        assert_eq!(gone.len(), 1);
        assert!(peers.has(&NodePublic([3; 32])) && !peers.has(&NodePublic([2; 32])));
    }

    #[test]
    fn peers_that_come_and_go_leave_nothing_at_relays() {
        let (mut peers, places) = (Peers::default(), Places::new(std::sync::Arc::new(|| {})));
        assert_eq!(peers.at_relay(NodePublic([1; 32]), 1, &places), None, "there is no such peer");
        let mut endpoints = HashSet::new();
        for round in 1..=100 {
            peers.change(true, &[peer(round, &[])], &[]).forget(&places);
            for region in [1, 2, 1] {
                let at = peers.at_relay(NodePublic([round; 32]), region, &places).unwrap();
                endpoints.insert(at.remote);
            }
        }
        assert!(endpoints.len() <= 4, "{}", endpoints.len());
    }
}
