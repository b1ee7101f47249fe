//! Limits the handshake messages that are handled under load. Each source has its own token bucket.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use packet::{RelayId, Remote, host_prefix};

use crate::{
    constants::{HANDSHAKE_BURST, HANDSHAKES_PER_SECOND_AND_SOURCE},
    time::Time,
};

/// Time that one message takes from a bucket.
const COST: Duration =
    Duration::from_nanos(1_000_000_000 / HANDSHAKES_PER_SECOND_AND_SOURCE as u64);
/// Time in a full bucket.
const FULL: Duration = Duration::from_nanos(COST.as_nanos() as u64 * HANDSHAKE_BURST as u64);
/// Maximum number of sources: about 4 MiB (the kernel limit is also 64 Ki).
const MAX_SOURCES: usize = 1 << 16;

/// A token bucket for each recent source.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    buckets: HashMap<Source, Bucket>,
}

/// A source with its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An IPv4 address, or the /64 of an IPv6 address, because one host owns all of it.
    Site(IpAddr),
    /// A relayed peer, which the relay has authenticated.
    Relayed(RelayId),
}

#[derive(Debug)]
struct Bucket {
    tokens: Duration,
    filled: Time,
}

impl RateLimiter {
    /// Whether one more message of `source` may be handled now. Charges it to the source's bucket.
    pub(crate) fn allow(&mut self, source: impl Into<Source>, now: Time) -> bool {
        let source = source.into();
        if !self.buckets.contains_key(&source) && !self.make_room(now) {
            return false;
        }
        let bucket = self.buckets.entry(source).or_insert(Bucket { tokens: FULL, filled: now });
        bucket.tokens = (bucket.tokens + now.since(bucket.filled)).min(FULL);
        bucket.filled = now;
        match bucket.tokens.checked_sub(COST) {
            Some(left) => bucket.tokens = left,
            None => return false,
        }
        true
    }

    /// Removes full buckets if the table is full. Returns whether there is room.
    fn make_room(&mut self, now: Time) -> bool {
        if self.buckets.len() >= MAX_SOURCES {
            self.buckets.retain(|_, bucket| bucket.tokens + now.since(bucket.filled) < FULL);
        }
        self.buckets.len() < MAX_SOURCES
    }
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Site(host_prefix(address))
    }
}

impl From<Remote> for Source {
    fn from(remote: Remote) -> Self {
        match remote {
            Remote::Direct(address) => address.ip().into(),
            Remote::Relayed(id) => Self::Relayed(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(1) + Duration::from_millis(millis)
    }

    #[test]
    fn source_gets_its_burst_then_its_rate_and_others_are_unaffected() {
        let mut limiter = RateLimiter::default();
        let flooder: IpAddr = "192.0.2.1".parse().unwrap();
        let allowed = (0..100).filter(|_| limiter.allow(flooder, at(0))).count();
        assert_eq!(allowed, HANDSHAKE_BURST as usize);
        let allowed = (0..10_000).filter(|ms| limiter.allow(flooder, at(*ms))).count();
        assert!((195..=200).contains(&allowed), "20 a second for 10 s, {allowed}");
        assert!(limiter.allow("192.0.2.2".parse::<IpAddr>().unwrap(), at(0)));
        let relayed = |index| Remote::Relayed(RelayId::new(index));
        let allowed = (0..100).filter(|_| limiter.allow(relayed(0), at(0))).count();
        assert_eq!(allowed, HANDSHAKE_BURST as usize);
        assert!(limiter.allow(relayed(1), at(0)));
    }

    #[test]
    fn source_idle_for_an_hour_gets_a_single_burst() {
        let mut limiter = RateLimiter::default();
        let source: IpAddr = "192.0.2.1".parse().unwrap();
        for hour in 0..3 {
            let allowed = (0..1000).filter(|_| limiter.allow(source, at(hour * 3_600_000))).count();
            assert_eq!(allowed, HANDSHAKE_BURST as usize, "hour {hour}");
        }
    }

    #[test]
    fn addresses_of_one_ipv6_site_share_a_bucket() {
        let mut limiter = RateLimiter::default();
        let allowed = (0..100u128)
            .filter(|host| {
                let base: Ipv6Addr = "2001:db8:0:1::".parse().unwrap();
                limiter.allow(IpAddr::from(Ipv6Addr::from_bits(base.to_bits() | host)), at(0))
            })
            .count();
        assert_eq!(allowed, HANDSHAKE_BURST as usize);
        assert!(limiter.allow("2001:db8:0:2::1".parse::<IpAddr>().unwrap(), at(0)));
    }

    #[test]
    fn full_table_refuses_new_sources_until_buckets_are_full_again() {
        let mut limiter = RateLimiter::default();
        for host in 0..MAX_SOURCES as u32 {
            assert!(limiter.allow(IpAddr::V4(host.into()), at(0)));
        }
        let newcomer = IpAddr::V4(u32::MAX.into());
        assert!(!limiter.allow(newcomer, at(0)));
        assert!(limiter.allow(newcomer, at(1000)));
        assert_eq!(limiter.buckets.len(), 1);
    }
}
