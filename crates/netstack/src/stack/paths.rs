//! Path MTUs of datagrams, as reported by routers (RFC 1191, RFC 8201). TCP connections have their
//! own.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use crate::time::Time;

/// Capacity. Each entry has about 50 bytes.
const MAX_PATHS: usize = 1024;
/// Lifetime of an entry. The path MTU may have grown afterwards (RFC 1191 section 6.3, RFC 8201
/// section 4).
const AGE: Duration = Duration::from_mins(10);

/// Paths with a smaller MTU than the local one.
#[derive(Default)]
pub(super) struct Paths(HashMap<IpAddr, (usize, Time)>);

impl Paths {
    /// Lowers the path MTU to an address. A larger value than the present one is ignored.
    pub(super) fn lower(&mut self, to: IpAddr, mtu: usize, now: Time) {
        if self.mtu(to, now).is_some_and(|known| known <= mtu) {
            return;
        }
        if self.0.len() >= MAX_PATHS {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() < MAX_PATHS || self.0.contains_key(&to) {
            self.0.insert(to, (mtu, now + AGE));
        }
    }

    /// The path MTU to an address, in bytes, if one was reported.
    pub(super) fn mtu(&self, to: IpAddr, now: Time) -> Option<usize> {
        self.0.get(&to).filter(|(_, until)| now < *until).map(|(mtu, _)| *mtu)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(number as u32).into()
    }

    #[test]
    fn a_path_mtu_only_decreases_until_it_expires() {
        let (mut paths, now) = (Paths::default(), Time::default());
        for (reported, known) in [(1400, 1400), (1300, 1300), (1350, 1300)] {
            paths.lower(address(1), reported, now);
            assert_eq!(paths.mtu(address(1), now), Some(known));
        }
        let end = now + AGE;
        assert_eq!(paths.mtu(address(1), now + (AGE - Duration::from_millis(1))), Some(1300));
        assert_eq!(paths.mtu(address(1), end), None);
        paths.lower(address(1), 1350, end);
        assert_eq!(paths.mtu(address(1), end), Some(1350));
    }

    #[test]
    fn the_table_of_path_mtus_is_bounded_and_expired_entries_are_replaced() {
        let (mut paths, now) = (Paths::default(), Time::default());
        for number in 0..MAX_PATHS + 10 {
            paths.lower(address(number), 1400, now);
        }
        assert_eq!(paths.0.len(), MAX_PATHS);
        assert_eq!(paths.mtu(address(MAX_PATHS), now), None);
        paths.lower(address(0), 1300, now);
        assert_eq!(paths.mtu(address(0), now), Some(1300), "an existing entry is still updated");
        let later = now + AGE;
        paths.lower(address(MAX_PATHS), 1400, later);
        assert_eq!(paths.mtu(address(MAX_PATHS), later), Some(1400));
        assert_eq!(paths.0.len(), 1);
    }
}
