//! The addresses of jailed peers, which may not start connections to this node.

use std::collections::HashMap;

use ipnet::IpNet;

use super::{Peer, address_set::AddressSet, range};

/// Returns the source addresses of jailed peers: their networks without the smaller networks of
/// other peers inside, because the longest prefix decides.
pub(super) fn jailed(peers: &[Peer<'_>]) -> AddressSet {
    let of = |jailed: bool| {
        let peers = peers.iter().filter(move |peer| peer.node.is_jailed == jailed);
        peers.flat_map(|peer| peer.allowed_ips)
    };
    let mut free: Option<HashMap<u8, Vec<&IpNet>>> = None;
    let mut jailed = Vec::new();
    for net in of(true) {
        if net.prefix_len() == net.max_prefix_len() {
            jailed.extend(range(net));
            continue;
        }
        let free = free.get_or_insert_with(|| {
            let mut by_length = HashMap::<u8, Vec<&IpNet>>::new();
            of(false).for_each(|net| by_length.entry(net.prefix_len()).or_default().push(net));
            by_length
        });
        let smaller = free.iter().filter(|(len, _)| **len > net.prefix_len());
        let inside = smaller.flat_map(|(_, nets)| nets).filter(|other| net.contains(**other));
        let inside: AddressSet = inside.filter_map(|net| range(net)).collect();
        jailed.extend(AddressSet::from_iter(range(net)).less(&inside).ranges());
    }
    jailed.into_iter().collect()
}
