//! Which addresses nodes have: one of each family, at the same distance from the beginning of its
//! network where both are free.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Tailscale's own services in every network (`net/tsaddr`).
const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 100);
const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0x53);
/// What ChromeOS uses of the shared address space itself (`net/tsaddr`, `ChromeOSVMRange`).
const CHROME_OS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 115, 92, 0), 23);

/// The networks that addresses are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of IPv4.
    pub v4: Ipv4Net,
    /// Of IPv6.
    pub v6: Ipv6Net,
}

impl Default for Prefixes {
    /// Tailscale's.
    fn default() -> Self {
        Self {
            v4: Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
            v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, 0), 48),
        }
    }
}

/// Which free address a new node is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// The first one behind the last that was given.
    #[default]
    Sequential,
    /// Any one, by numbers that follow from this seed. The first addresses of a network are those of gateways, also in the network of a carrier that
    /// has the same prefix.
    Random(u64),
}

/// Addresses that are had, and where to look for others.
#[derive(Clone, Debug)]
pub struct Addresses {
    prefixes: Prefixes,
    used: HashSet<IpAddr>,
    /// Behind the last that was given, so that what was given back rests for as long as it can.
    next: u32,
    allocation: Allocation,
}

impl Addresses {
    /// With none that is had.
    pub fn new(prefixes: Prefixes, allocation: Allocation) -> Self {
        Self { prefixes, used: HashSet::new(), next: 1, allocation }
    }

    /// A node has these.
    pub fn reserve(&mut self, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.used.extend([IpAddr::V4(v4), IpAddr::V6(v6)]);
        let offset = u32::from(v4).wrapping_sub(u32::from(self.prefixes.v4.network()));
        if self.prefixes.v4.contains(&v4) && offset >= self.next {
            self.next = offset.wrapping_add(1);
        }
    }

    /// A node has them no more.
    pub fn release(&mut self, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.used.remove(&IpAddr::V4(v4));
        self.used.remove(&IpAddr::V6(v6));
    }

    /// Two that nobody has, which are not taken yet, and that of IPv4 in none of these networks.
    /// `None`: there are no more.
    pub fn find_free(&self, excluded: &[IpNet]) -> Option<(Ipv4Addr, Ipv6Addr)> {
        // The first is the network's, and the last its broadcast.
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

    /// The same, with that of IPv4 in one of these networks.
    pub fn find_free_in(&self, pools: &[IpNet]) -> Option<(Ipv4Addr, Ipv6Addr)> {
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

/// A number without a visible relation to this one (the finalizer of SplitMix64).
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
    fn addresses_go_up_in_both_families_and_pass_over_what_others_use() {
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
    fn what_was_given_back_is_given_again_when_all_others_were() {
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
    fn random_addresses_are_spread_over_the_network_and_each_is_given_once() {
        let given = |v4: &str, seed: u64| -> Vec<Ipv4Addr> {
            let v4 = v4.parse().unwrap();
            let prefixes = Prefixes { v4, ..Prefixes::default() };
            let mut addresses = Addresses::new(prefixes, Allocation::Random(seed));
            let all = std::iter::from_fn(|| give(&mut addresses)).take(100);
            all.map(|(v4, _)| v4).collect()
        };
        let small: HashSet<Ipv4Addr> = given("100.64.0.0/29", 1).into_iter().collect();
        assert_eq!(small.len(), 6, "all, but for the network's and the broadcast address");
        let large = given("100.64.0.0/10", 1);
        let first = large.iter().filter(|at| at.octets()[1..3] == [64, 0]).count();
        assert!(large.len() == 100 && first < 5, "{first} of 100 are in the first 256");
        assert_ne!(given("100.64.0.0/10", 2), large, "another start gives others");
        assert_eq!(given("100.64.0.0/10", 1), large);
    }

    #[test]
    fn a_pool_is_for_those_whose_it_is() {
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
