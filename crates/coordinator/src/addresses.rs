//! Allocation of addresses. A node has one address of each family, at the same offset in both networks if both are
//! free.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Addresses of Tailscale's services in every network (`net/tsaddr`).
const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 100);
const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0x53);
/// The part of the shared address space that ChromeOS uses (`net/tsaddr`, `ChromeOSVMRange`).
const CHROME_OS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 115, 92, 0), 23);

/// The networks from which addresses are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    pub v4: Ipv4Net,
    pub v6: Ipv6Net,
}

impl Default for Prefixes {
    /// The networks of Tailscale.
    fn default() -> Self {
        Self {
            v4: Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
            v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0), 48),
        }
    }
}

/// The order in which free addresses are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// The first free address after the last allocated one.
    #[default]
    Sequential,
    /// A pseudorandom address, by this seed. A carrier's network may have the same prefix, and its gateways usually
    /// have the first addresses.
    Random(u64),
}

/// Used addresses, and the position of the next search.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    prefixes: Prefixes,
    used: HashSet<IpAddr>,
    /// The offset after the last allocated address, so that released addresses are reused as late as possible.
    next: u32,
    allocation: Allocation,
}

impl Addresses {
    /// Returns networks without used addresses.
    pub(crate) fn new(prefixes: Prefixes, allocation: Allocation) -> Self {
        Self { prefixes, used: HashSet::new(), next: 1, allocation }
    }

    /// Marks addresses as used.
    pub(crate) fn reserve(&mut self, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.used.extend([IpAddr::V4(v4), IpAddr::V6(v6)]);
        let offset = u32::from(v4).wrapping_sub(u32::from(self.prefixes.v4.network()));
        if self.prefixes.v4.contains(&v4) && offset >= self.next {
            self.next = offset.wrapping_add(1);
        }
    }

    /// Marks addresses as free.
    pub(crate) fn release(&mut self, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.used.remove(&IpAddr::V4(v4));
        self.used.remove(&IpAddr::V6(v6));
    }

    /// Finds a pair of free addresses, with the IPv4 address outside the excluded networks. Does not reserve them.
    pub(crate) fn find_free(&self, excluded: &[IpNet]) -> Option<(Ipv4Addr, Ipv6Addr)> {
        // The first address is the network's, and the last one is the broadcast address.
        let size = self.size();
        let begin = match self.allocation {
            Allocation::Sequential => self.next.into(),
            Allocation::Random(seed) => {
                let count = (self.used.len() as u64) << 32 | u64::from(self.next);
                scramble(seed.wrapping_add(count)) % u64::from(size.max(1))
            }
        };
        let begin =
            u32::try_from(begin).ok().filter(|begin| (1..size).contains(begin)).unwrap_or(1);
        let offsets = (begin..size).chain(1..begin);
        let is_excluded = |v4| excluded.iter().any(|net| net.contains(&IpAddr::V4(v4)));
        let mut free = offsets.map(|offset| self.at(offset));
        free.find(|&(v4, v6)| self.is_free(v4, v6) && !is_excluded(v4))
    }

    /// Finds a pair of free addresses, with the IPv4 address in one of the pools.
    pub(crate) fn find_free_in(&self, pools: &[IpNet]) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let begin = u32::from(self.prefixes.v4.network());
        let offsets = pools.iter().filter_map(|pool| match pool {
            IpNet::V4(pool) => {
                let offset = |end: Ipv4Addr| u32::from(end).checked_sub(begin);
                let last = offset(pool.broadcast())?.min(self.size().saturating_sub(1));
                Some(offset(pool.network()).unwrap_or(0).max(1)..=last)
            }
            IpNet::V6(_) => None,
        });
        offsets.flatten().map(|offset| self.at(offset)).find(|&(v4, v6)| self.is_free(v4, v6))
    }

    fn size(&self) -> u32 {
        u32::from(self.prefixes.v4.broadcast()) - u32::from(self.prefixes.v4.network())
    }

    fn at(&self, offset: u32) -> (Ipv4Addr, Ipv6Addr) {
        let v4 = u32::from(self.prefixes.v4.network()) + offset;
        let v6 = u128::from(self.prefixes.v6.network()) + u128::from(offset);
        (v4.into(), v6.into())
    }

    fn is_free(&self, v4: Ipv4Addr, v6: Ipv6Addr) -> bool {
        let is_reserved = v4 == SERVICE_V4 || v6 == SERVICE_V6 || CHROME_OS.contains(&v4);
        let is_used = self.used.contains(&IpAddr::V4(v4)) || self.used.contains(&IpAddr::V6(v6));
        !is_reserved && !is_used && self.prefixes.v6.contains(&v6)
    }
}

/// Hashes a number (the finalizer of SplitMix64).
fn scramble(number: u64) -> u64 {
    let mut number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give(addresses: &mut Addresses) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let (v4, v6) = addresses.find_free(&[])?;
        addresses.reserve(v4, v6);
        Some((v4, v6))
    }

    #[test]
    fn sequential_addresses_skip_reserved_ones_in_both_families() {
        let mut addresses = Addresses::new(Prefixes::default(), Allocation::Sequential);
        let given: Vec<_> = (0..100).map(|_| give(&mut addresses).unwrap()).collect();
        assert_eq!(given[0].0, Ipv4Addr::new(100, 64, 0, 1));
        assert_eq!(given[0].1, "fd7a:115c:a1e0::1".parse::<Ipv6Addr>().unwrap());
        assert!(given.iter().all(|(_, v6)| *v6 != SERVICE_V6));
        assert_eq!(given[99].0, Ipv4Addr::new(100, 64, 0, 101));
        addresses.reserve(Ipv4Addr::new(100, 115, 91, 255), Ipv6Addr::LOCALHOST);
        assert_eq!(give(&mut addresses).unwrap().0, Ipv4Addr::new(100, 115, 94, 0));
    }

    #[test]
    fn a_released_address_is_reused_after_all_others() {
        let v4 = "100.64.0.0/29".parse().unwrap();
        let mut addresses =
            Addresses::new(Prefixes { v4, ..Prefixes::default() }, Allocation::Sequential);
        let given: Vec<_> = std::iter::from_fn(|| give(&mut addresses)).collect();
        assert_eq!(given.len(), 6);
        addresses.release(given[2].0, given[2].1);
        assert_eq!(give(&mut addresses), Some(given[2]));
        assert_eq!(addresses.find_free(&[]), None);
    }

    #[test]
    fn random_addresses_are_spread_over_the_network_and_unique() {
        let given = |v4: &str, seed: u64| -> Vec<Ipv4Addr> {
            let v4 = v4.parse().unwrap();
            let prefixes = Prefixes { v4, ..Prefixes::default() };
            let mut addresses = Addresses::new(prefixes, Allocation::Random(seed));
            let all = std::iter::from_fn(|| give(&mut addresses)).take(100);
            all.map(|(v4, _)| v4).collect()
        };
        let small: HashSet<Ipv4Addr> = given("100.64.0.0/29", 1).into_iter().collect();
        assert_eq!(small.len(), 6, "all except the network and broadcast addresses");
        let large = given("100.64.0.0/10", 1);
        let first = large.iter().filter(|at| at.octets()[1..3] == [64, 0]).count();
        assert!(large.len() == 100 && first < 5, "{first} of 100 are in the first 256");
        assert_ne!(given("100.64.0.0/10", 2), large, "another seed gives other addresses");
        assert_eq!(given("100.64.0.0/10", 1), large);
    }

    #[test]
    fn pool_addresses_are_allocated_from_the_pool_only() {
        let v4 = "100.64.0.0/24".parse().unwrap();
        let mut addresses =
            Addresses::new(Prefixes { v4, ..Prefixes::default() }, Allocation::Sequential);
        let pool: IpNet = "100.64.0.8/30".parse().unwrap();
        let elsewhere = ["10.0.0.0/8".parse().unwrap(), "fd00::/64".parse().unwrap()];
        for last in 8..12 {
            let (v4, v6) = addresses.find_free_in(&[elsewhere[0], elsewhere[1], pool]).unwrap();
            assert_eq!(v4.octets()[3], last);
            addresses.reserve(v4, v6);
        }
        assert_eq!(addresses.find_free_in(&[pool]), None);
        assert_eq!(addresses.find_free_in(&elsewhere), None);
        let whole: IpNet = "0.0.0.0/0".parse().unwrap();
        assert_eq!(addresses.find_free_in(&[whole]).unwrap().0, Ipv4Addr::new(100, 64, 0, 1));
        for _ in 0..300 {
            let Some((v4, v6)) = addresses.find_free(&[pool]) else { return };
            assert!(!pool.contains(&IpAddr::V4(v4)));
            addresses.reserve(v4, v6);
        }
        panic!("a /24 has fewer");
    }
}
