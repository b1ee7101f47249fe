//! Limits the rate of datagrams that are passed on. A flood is dropped early, and one sender gets
//! only a share.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use wg::Time;

/// For all senders: 1,000 datagrams a second, and the same as a burst. That is more than a thousand
/// active peers send, and costs the reader a few percent of a core.
const ALL: Limit = Limit { interval: Duration::from_micros(1000), burst: 1024 };
/// For one address, or the few addresses in its bucket.
const ONE: Limit = Limit { interval: Duration::from_micros(4000), burst: 256 };
/// Number of buckets for addresses.
const BUCKETS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Limit {
    interval: Duration,
    burst: u32,
}

/// Token buckets, for all senders and by address.
#[derive(Debug)]
pub(super) struct RateLimit {
    all: Bucket,
    buckets: [Bucket; BUCKETS],
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { all: Bucket::default(), buckets: std::array::from_fn(|_| Bucket::default()) }
    }
}

impl RateLimit {
    /// Whether a datagram from this address is admitted.
    pub(super) fn admits(&self, from: Option<IpAddr>, at: Time) -> bool {
        let bucket = from.map_or(0, bucket_of);
        self.buckets[bucket].admits(ONE, at) && self.all.admits(ALL, at)
    }
}

/// The bucket of an address. Senders that choose their address freely are limited by [`ALL`].
fn bucket_of(ip: IpAddr) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        // A host is assumed to own a /64.
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    };
    // Fibonacci hashing: the upper six bits of the product are distributed evenly.
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

/// A token bucket in one word: the time at which it will be empty (GCRA, ITU-T I.371).
#[derive(Debug, Default)]
struct Bucket(AtomicU64);

impl Bucket {
    fn admits(&self, limit: Limit, at: Time) -> bool {
        let (now, interval) = (at.as_nanos(), limit.interval.as_nanos() as u64);
        let taken = |empty: u64| {
            let next = empty.max(now) + interval;
            (next - now <= interval * u64::from(limit.burst)).then_some(next)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u64) -> Option<IpAddr> {
        Some(IpAddr::from((number as u32).to_be_bytes()))
    }

    /// Number of datagrams that are admitted in one second, of `pace` datagrams from these
    /// addresses.
    fn admitted(share: &RateLimit, second: u64, pace: u64, from: impl Fn(u64) -> u64) -> u64 {
        let all = (0..pace).filter(|number| {
            let at = Time::from_nanos(second * 1_000_000_000 + number * 1_000_000_000 / pace);
            share.admits(ip(from(*number)), at)
        });
        all.count() as u64
    }

    #[test]
    fn a_flood_is_limited_for_any_source_addresses() {
        let one = RateLimit::default();
        let many = RateLimit::default();
        for second in 0..3 {
            let once = u64::from(second == 0);
            let of_one = admitted(&one, second, 100_000, |_| 7);
            assert!((240..=251 + 256 * once).contains(&of_one), "{of_one}");
            let of_many = admitted(&many, second, 100_000, |number| number);
            assert!((950..=1_001 + 1_024 * once).contains(&of_many), "{of_many}");
        }
    }

    #[test]
    fn a_slow_sender_is_admitted_during_a_flood_of_another() {
        let share = RateLimit::default();
        for number in 0..300_000_u64 {
            let at = Time::from_nanos(number * 10_000);
            share.admits(ip(7), at);
            assert!(!number.is_multiple_of(10_000) || share.admits(ip(8), at), "{number}");
        }
    }

    #[test]
    fn datagrams_of_a_thousand_peers_are_all_admitted() {
        let share = RateLimit::default();
        for second in 0..5 {
            assert_eq!(admitted(&share, second, 700, |number| number), 700);
        }
    }
}
