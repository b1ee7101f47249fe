//! Addresses that datagrams were sent to recently, so that answers are expected from there. Their
//! datagrams have a separate rate limit, like replies at a stateful packet filter.

use std::{
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::lock;

/// Capacity: the most recent destinations.
const CAPACITY: usize = 128;

/// Addresses that datagrams were sent to. Answers are expected from exactly these addresses.
#[derive(Debug, Default)]
pub(crate) struct ExpectedSenders {
    /// In order of use; the most recent is last.
    latest: Mutex<Vec<IpAddr>>,
    changes: AtomicU64,
}

impl ExpectedSenders {
    /// Records that a datagram is sent to this address.
    pub(crate) fn note(&self, to: IpAddr) {
        let (mut latest, address) = (lock(&self.latest), to.to_canonical());
        match latest.iter().rposition(|known| *known == address) {
            Some(at) => latest[at..].rotate_left(1),
            None => {
                if latest.len() == CAPACITY {
                    latest.remove(0);
                }
                latest.push(address);
                self.changes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn has(&self, from: IpAddr) -> bool {
        lock(&self.latest).contains(&from.to_canonical())
    }

    pub(crate) fn latest_first(&self) -> Vec<IpAddr> {
        lock(&self.latest).iter().rev().copied().collect()
    }

    /// Number of addresses that were added.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn answers_are_expected_from_the_latest_destinations() {
        let expected = ExpectedSenders::default();
        assert!(!expected.has(v4(0)));
        for number in 0..CAPACITY as u32 {
            expected.note(v4(number));
        }
        let changes = expected.changes();
        expected.note(v4(0));
        assert_eq!(expected.changes(), changes, "it was known");
        expected.note(v4(1 << 20));
        assert!(expected.has(v4(0)) && !expected.has(v4(1)) && expected.has(v4(2)));
        let all = expected.latest_first();
        assert_eq!((all.len(), all[0], expected.changes()), (CAPACITY, v4(1 << 20), changes + 1));
    }

    #[test]
    fn ipv6_addresses_are_exact_and_ipv4_mapped_ones_are_ipv4() {
        let expected = ExpectedSenders::default();
        expected.note("2001:db8:0:1::7".parse().unwrap());
        assert!(expected.has("2001:db8:0:1::7".parse().unwrap()));
        assert!(!expected.has("2001:db8:0:1::9".parse().unwrap()));
        expected.note("::ffff:192.0.2.1".parse().unwrap());
        assert!(expected.has("192.0.2.1".parse().unwrap()));
    }
}
