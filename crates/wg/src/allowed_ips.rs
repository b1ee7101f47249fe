//! Allowed IPs: the peer to send a packet to, and the peer that a packet may come from. One
//! longest-prefix-match table for each address family.

mod trie;

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use trie::Trie;

/// Networks of both families, each with the peer that owns it. A network belongs to at most one
/// peer.
#[derive(Debug)]
pub struct AllowedIps<V> {
    v4: Trie<u32, V>,
    v6: Trie<u128, V>,
}

impl<V> Default for AllowedIps<V> {
    fn default() -> Self {
        Self { v4: Trie::default(), v6: Trie::default() }
    }
}

impl<V> AllowedIps<V> {
    /// Returns the value of the longest network that contains `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<&V> {
        match address {
            IpAddr::V4(ip) => self.v4.lookup(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.lookup(ip.to_bits()),
        }
    }

    /// Sets the value of `net`. Returns the previous value of exactly this network.
    pub fn insert(&mut self, net: IpNet, value: V) -> Option<V> {
        match net {
            IpNet::V4(net) => self.v4.insert(bits4(net), net.prefix_len(), value),
            IpNet::V6(net) => self.v6.insert(bits6(net), net.prefix_len(), value),
        }
    }

    /// Removes `net`. Returns its value.
    pub fn remove(&mut self, net: IpNet) -> Option<V> {
        match net {
            IpNet::V4(net) => self.v4.remove(bits4(net), net.prefix_len()),
            IpNet::V6(net) => self.v6.remove(bits6(net), net.prefix_len()),
        }
    }

    /// Returns the value of exactly this network.
    pub fn get(&self, net: IpNet) -> Option<&V> {
        match net {
            IpNet::V4(net) => self.v4.get(bits4(net), net.prefix_len()),
            IpNet::V6(net) => self.v6.get(bits6(net), net.prefix_len()),
        }
    }
}

fn bits4(net: Ipv4Net) -> u32 {
    net.network().to_bits()
}

fn bits6(net: Ipv6Net) -> u128 {
    net.network().to_bits()
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, net::Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    /// The specification: a linear search of all networks.
    fn naive(nets: &HashMap<IpNet, u8>, address: IpAddr) -> Option<u8> {
        nets.iter()
            .filter(|(net, _)| net.contains(&address))
            .max_by_key(|(net, _)| net.prefix_len())
            .map(|(_, value)| *value)
    }

    /// Close networks, so that they nest and share prefixes.
    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (0u32..4, 0u32..64, 0u8..=32).prop_map(|(high, low, len)| {
            let ip = Ipv4Addr::from_bits(high << 30 | low << 12 | low);
            IpNet::V4(Ipv4Net::new(ip, len).unwrap().trunc())
        });
        let v6 = (0u128..4, 0u128..64, 0u8..=128).prop_map(|(high, low, len)| {
            let ip = (high << 126 | low << 64 | low).into();
            IpNet::V6(Ipv6Net::new(ip, len).unwrap().trunc())
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn lookup_agrees_with_a_linear_search(
            steps in proptest::collection::vec((net(), any::<u8>(), any::<bool>()), 1..120),
            probes in proptest::collection::vec(net(), 40),
        ) {
            let mut table = AllowedIps::default();
            let mut model = HashMap::new();
            for (net, value, remove) in steps {
                if remove {
                    prop_assert_eq!(table.remove(net), model.remove(&net));
                } else {
                    prop_assert_eq!(table.insert(net, value), model.insert(net, value));
                }
            }
            for net in probes.iter().chain(model.keys()) {
                prop_assert_eq!(table.get(*net), model.get(net));
                for address in [net.network(), net.broadcast()] {
                    prop_assert_eq!(table.lookup(address).copied(), naive(&model, address));
                }
            }
            for net in model.keys().copied().collect::<Vec<_>>() {
                prop_assert_eq!(table.remove(net), model.remove(&net));
            }
            prop_assert!(table.v4.is_empty() && table.v6.is_empty(), "no node is left behind");
        }
    }
}
