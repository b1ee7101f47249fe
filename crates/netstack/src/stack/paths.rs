//! What paths let through, as routers said of datagrams (RFC 1191, RFC 8201). A
//! connection knows its own.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use crate::time::Time;

/// Paths that are remembered, each of some 50 bytes.
const REMEMBERED: usize = 1024;
/// For how long: afterwards the path may have become wider (RFC 1191 section 6.3, RFC 8201
/// section 4).
const AGE: Duration = Duration::from_mins(10);

/// The paths that are narrower than our MTU.
#[derive(Default)]
pub(super) struct Paths(HashMap<IpAddr, (usize, Time)>);

impl Paths {
    /// A router let no more than `mtu` bytes through on the way to an address. Who says
    /// more than was said before is not believed.
    pub fn lower(&mut self, to: IpAddr, mtu: usize, now: Time) {
        if self.mtu(to, now).is_some_and(|known| known <= mtu) {
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() < REMEMBERED || self.0.contains_key(&to) {
            self.0.insert(to, (mtu, now + AGE));
        }
    }

    /// The longest packet to an address, in bytes, where it is known.
    pub fn mtu(&self, to: IpAddr, now: Time) -> Option<usize> {
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
    fn a_path_only_becomes_narrower_until_that_is_forgotten() {
        let (mut paths, now) = (Paths::default(), Time::default());
        for (said, known) in [(1400, 1400), (1300, 1300), (1350, 1300)] {
            paths.lower(address(1), said, now);
            assert_eq!(paths.mtu(address(1), now), Some(known));
        }
        let end = now + AGE;
        assert_eq!(paths.mtu(address(1), now + (AGE - Duration::from_millis(1))), Some(1300));
        assert_eq!(paths.mtu(address(1), end), None);
        paths.lower(address(1), 1350, end);
        assert_eq!(paths.mtu(address(1), end), Some(1350));
    }

    #[test]
    fn no_more_paths_are_remembered_than_the_bound_and_old_ones_make_room() {
        let (mut paths, now) = (Paths::default(), Time::default());
        for number in 0..REMEMBERED + 10 {
            paths.lower(address(number), 1400, now);
        }
        assert_eq!(paths.0.len(), REMEMBERED);
        assert_eq!(paths.mtu(address(REMEMBERED), now), None);
        paths.lower(address(0), 1300, now);
        assert_eq!(paths.mtu(address(0), now), Some(1300), "a known one is still heard of");
        let later = now + AGE;
        paths.lower(address(REMEMBERED), 1400, later);
        assert_eq!(paths.mtu(address(REMEMBERED), later), Some(1400));
        assert_eq!(paths.0.len(), 1);
    }
}
