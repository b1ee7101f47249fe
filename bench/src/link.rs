//! An emulated link for the outer UDP: delay, jitter, loss, reordering, rate and a queue, with a
//! seed. Many machines lack netem, and netem cannot be seeded equally for each contender.
//!
//! ```text
//!   left                      link                       right
//!   eth0 10.1.0.1 ---- 10.1.0.254 | 10.2.0.254 ---- 10.2.0.2 eth0
//! ```
//!
//! The daemons have the link's addresses as their endpoints. `relay` receives datagrams on one
//! side and sends them from the other at the time that this module decides. ECN marks are kept.

mod relay;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use relay::{Dropped, relay};

/// Bytes of the IPv4 and UDP headers, which count for the rate.
const HEADERS: usize = 28;

/// Delay of a reordered datagram.
const LATE: Duration = Duration::from_millis(1);

/// Properties of a link, for each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// One-way delay.
    pub delay: Duration,
    /// The largest random addition to the delay. It does not reorder: a late datagram delays those
    /// behind it.
    pub jitter: Duration,
    /// Fraction that is lost, 0 to 1.
    pub loss: f64,
    /// Fraction that is delayed by a millisecond, so that others overtake it.
    pub reorder: f64,
    /// Bits a second; unlimited if `None`.
    pub rate: Option<f64>,
    /// The longest time that a datagram waits for the rate; later ones are dropped.
    pub queue: Duration,
    /// Seed of all random decisions.
    pub seed: u64,
}

/// A datagram on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Payload of UDP.
    pub bytes: Bytes,
    /// The ECN bits of its IP header.
    pub ecn: u8,
}

/// One direction of a link.
pub struct Link {
    shape: Shape,
    rng: ChaCha8Rng,
    /// When the transmission of the previous datagrams ends.
    free: Duration,
    /// Arrival of the last datagram that was not reordered.
    last: Duration,
    serial: u64,
    /// Datagrams in flight, by arrival time.
    in_flight: BTreeMap<(Duration, u64), Datagram>,
    /// Datagrams lost at random.
    pub lost: u64,
    /// Datagrams dropped because the queue was full.
    pub queue_drops: u64,
}

impl Shape {
    /// Parses `rtt=MS,jitter=MS,loss=PERCENT,reorder=PERCENT,rate=MBIT,queue=MS,seed=N`, each of
    /// them optional. The delay is half of the round trip.
    pub fn parse(text: &str) -> Result<Self, String> {
        let queue = Duration::from_millis(50);
        let zero = Duration::ZERO;
        let mut shape =
            Self { delay: zero, jitter: zero, loss: 0.0, reorder: 0.0, rate: None, queue, seed: 1 };
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').ok_or(format!("no value: {word}"))?;
            let number: f64 = value.parse().map_err(|_| format!("not a number: {word}"))?;
            if !(0.0..=1e9).contains(&number) {
                return Err(format!("out of range: {word}"));
            }
            let milliseconds = || Duration::from_secs_f64(number / 1e3);
            match name {
                "rtt" => shape.delay = milliseconds() / 2,
                "jitter" => shape.jitter = milliseconds(),
                "loss" => shape.loss = number / 100.0,
                "reorder" => shape.reorder = number / 100.0,
                "rate" => shape.rate = Some(number * 1e6),
                "queue" => shape.queue = milliseconds(),
                "seed" => shape.seed = number as u64,
                _ => return Err(format!("unknown: {name}")),
            }
        }
        Ok(shape)
    }
}

impl Link {
    /// The same seed gives the same behaviour.
    pub fn new(shape: Shape) -> Self {
        let zero = Duration::ZERO;
        let rng = ChaCha8Rng::seed_from_u64(shape.seed);
        let in_flight = BTreeMap::new();
        Self { shape, rng, free: zero, last: zero, serial: 0, in_flight, lost: 0, queue_drops: 0 }
    }

    /// Takes a datagram at the near end.
    pub fn handle_datagram(&mut self, now: Duration, datagram: Datagram) {
        let Some(sent) = self.transmit(now, datagram.bytes.len()) else {
            self.queue_drops += 1;
            return;
        };
        if self.chance(self.shape.loss) {
            self.lost += 1;
            return;
        }
        let jitter = self.shape.jitter.mul_f64(self.random());
        let arrival = sent + self.shape.delay + jitter;
        let arrival = if self.chance(self.shape.reorder) {
            arrival + LATE
        } else {
            self.last = self.last.max(arrival);
            self.last
        };
        self.serial += 1;
        self.in_flight.insert((arrival, self.serial), datagram);
    }

    /// Returns a datagram that has arrived at the far end.
    pub fn poll_datagram(&mut self, now: Duration) -> Option<Datagram> {
        let first = self.in_flight.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next datagram arrives.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.in_flight.first_key_value().map(|((arrival, _), _)| *arrival)
    }

    /// When the last bit is transmitted; `None` if it would wait too long.
    fn transmit(&mut self, now: Duration, len: usize) -> Option<Duration> {
        let Some(rate) = self.shape.rate else { return Some(now) };
        let start = self.free.max(now);
        if start - now > self.shape.queue {
            return None;
        }
        self.free = start + Duration::from_secs_f64((len + HEADERS) as f64 * 8.0 / rate);
        Some(self.free)
    }

    fn chance(&mut self, part: f64) -> bool {
        part > 0.0 && self.random() < part
    }

    /// Uniform from 0 to 1.
    fn random(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / 2f64.powi(32)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::{Datagram, Link, Shape};

    const MS: Duration = Duration::from_millis(1);

    fn link(text: &str) -> Link {
        Link::new(Shape::parse(text).unwrap())
    }

    /// Sends `count` datagrams of 972 bytes, `gap` apart. Returns the numbers and times of those
    /// that arrive.
    fn journey(link: &mut Link, count: u16, gap: Duration) -> Vec<(u16, Duration)> {
        for number in 0..count {
            let mut bytes = vec![0; 972];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            let datagram = Datagram { bytes: Bytes::from(bytes), ecn: (number % 4) as u8 };
            link.handle_datagram(gap * u32::from(number), datagram);
        }
        let mut arrived = Vec::new();
        while let Some(when) = link.poll_timeout() {
            let before = when.checked_sub(Duration::from_nanos(1));
            assert!(before.is_none_or(|before| link.poll_datagram(before).is_none()));
            let datagram = link.poll_datagram(when).unwrap();
            let number = u16::from_be_bytes([datagram.bytes[0], datagram.bytes[1]]);
            assert_eq!(u16::from(datagram.ecn), number % 4);
            arrived.push((number, when));
        }
        arrived
    }

    #[test]
    fn delay_is_half_of_the_round_trip_and_keeps_order() {
        let arrived = journey(&mut link("rtt=20"), 3, MS);
        assert_eq!(arrived, [(0, 10 * MS), (1, 11 * MS), (2, 12 * MS)]);
    }

    #[test]
    fn jitter_delays_and_keeps_order() {
        let arrived = journey(&mut link("rtt=20,jitter=5"), 1000, MS / 10);
        assert!(arrived.iter().map(|(number, _)| *number).eq(0..1000));
        let extra: Vec<Duration> =
            arrived.iter().map(|(n, when)| *when - 10 * MS - MS / 10 * u32::from(*n)).collect();
        assert!(extra.iter().all(|extra| *extra <= 5 * MS));
        assert!(extra.iter().any(|extra| *extra > 4 * MS));
    }

    #[test]
    fn the_configured_share_is_lost_and_the_same_datagrams_with_the_same_seed() {
        let kept = |text| journey(&mut link(text), 10_000, MS);
        let first = kept("loss=1,seed=7");
        assert!((9_800..9_980).contains(&first.len()), "{}", first.len());
        assert_eq!(first, kept("loss=1,seed=7"));
        assert_ne!(first, kept("loss=1,seed=8"));
    }

    #[test]
    fn a_reordered_datagram_is_overtaken_and_delays_no_other() {
        let arrived = journey(&mut link("rtt=20,reorder=10"), 1000, MS / 10);
        assert_eq!(arrived.len(), 1000);
        let late =
            |(number, when): &&(u16, Duration)| *when != 10 * MS + MS / 10 * u32::from(*number);
        let late: Vec<_> = arrived.iter().filter(late).collect();
        assert!((60..150).contains(&late.len()), "{}", late.len());
        let is_behind =
            |(number, when): &&(u16, Duration)| *when == 11 * MS + MS / 10 * u32::from(*number);
        assert!(late.iter().all(is_behind));
        assert!(arrived.windows(2).any(|pair| pair[0].0 > pair[1].0));
    }

    #[test]
    fn a_rate_spaces_out_a_burst_and_drops_beyond_the_queue() {
        // 1000 bytes with headers are 1 ms at 8 Mbit/s; the 12th would wait more than 10 ms.
        let arrived = journey(&mut link("rate=8,queue=10"), 100, Duration::ZERO);
        let expected: Vec<(u16, Duration)> = (0..11).map(|n| (n, MS * u32::from(n + 1))).collect();
        assert_eq!(arrived, expected);
    }

    #[test]
    fn lost_datagrams_are_counted_by_cause() {
        let mut link = link("rate=8,queue=10,loss=20");
        let arrived = journey(&mut link, 1000, MS / 2).len() as u64;
        assert!(link.lost > 50 && link.queue_drops > 300, "{} {}", link.lost, link.queue_drops);
        assert_eq!(arrived + link.lost + link.queue_drops, 1000);
    }

    #[test]
    fn an_invalid_shape_is_refused() {
        for text in ["rtt", "rtt=x", "rtt=-1", "speed=3", "loss=nan"] {
            assert!(Shape::parse(text).is_err(), "{text}");
        }
    }
}
