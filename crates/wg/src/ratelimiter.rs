//! How many handshake messages of one source are worked on while the device is
//! under load: a token bucket for each source, never one for all.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use packet::{RelayId, Remote, host_prefix};

use crate::{
    constants::{HANDSHAKE_BURST, HANDSHAKES_PER_SECOND_AND_SOURCE},
    time::Time,
};

/// What one message costs of a bucket's time.
const COST: Duration =
    Duration::from_nanos(1_000_000_000 / HANDSHAKES_PER_SECOND_AND_SOURCE as u64);
/// What a full bucket holds.
const FULL: Duration = Duration::from_nanos(COST.as_nanos() as u64 * HANDSHAKE_BURST as u64);
/// The most sources remembered: about 4 MiB (kernel: 64 Ki at most too).
const MAX_SOURCES: usize = 1 << 16;

/// A bucket for each source that was seen of late.
#[derive(Debug, Default)]
pub struct RateLimiter {
    buckets: HashMap<Source, Bucket>,
}

/// What has a bucket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An IPv4 address, or the /64 of an IPv6 address, since a host has all of it.
    Site(IpAddr),
    /// A peer behind a relay, which the relay has authenticated.
    Relayed(RelayId),
}

#[derive(Debug)]
struct Bucket {
    tokens: Duration,
    filled: Time,
}

impl RateLimiter {
    /// Whether one more message of `source` may be worked on now.
    pub fn allow(&mut self, source: impl Into<Source>, now: Time) -> bool {
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

    /// Forgets buckets that are full again once the table is full.
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
    fn a_source_gets_its_burst_then_its_rate_and_no_other_source_pays() {
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
    fn a_source_that_was_idle_for_an_hour_has_one_burst() {
        let mut limiter = RateLimiter::default();
        let source: IpAddr = "192.0.2.1".parse().unwrap();
        for hour in 0..3 {
            let allowed = (0..1000).filter(|_| limiter.allow(source, at(hour * 3_600_000))).count();
            assert_eq!(allowed, HANDSHAKE_BURST as usize, "hour {hour}");
        }
    }

    #[test]
    fn the_addresses_of_one_ipv6_site_share_a_bucket() {
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
    fn memory_is_bounded_and_full_buckets_make_room() {
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
