//! Effects of a link on datagrams.

use std::{net::SocketAddr, time::Duration};

use packet::Ecn;
use rand_chacha::{ChaCha20Rng, rand_core::Rng};

/// A datagram in flight: UDP, or the unit of another protocol under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub ttl: u8,
    pub ecn: Ecn,
    pub bytes: Vec<u8>,
}

impl Datagram {
    /// The default TTL of Linux.
    pub const TTL: u8 = 64;

    pub fn new(from: SocketAddr, to: SocketAddr, bytes: impl Into<Vec<u8>>) -> Self {
        Self { from, to, ttl: Self::TTL, ecn: Ecn::NotEct, bytes: bytes.into() }
    }
}

/// The effects of a link on each datagram. Probabilities are in units of 1/10,000.
///
/// ```text
///   -> longest -> queue, rate -> loss, corruption -> delay, jitter, late -> one or two copies
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The minimum delay.
    pub delay: Duration,
    /// The maximum of an additional, uniformly distributed delay. Datagrams are reordered if it
    /// exceeds the time between them.
    pub jitter: Duration,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// The longest wait for the rate. Datagrams that would wait longer are lost.
    pub queue: Duration,
    /// Bytes of headers per datagram that count for the rate.
    pub overhead: usize,
    pub loss: u32,
    /// The probability of the additional delay `late`.
    pub reordering: u32,
    pub late: Duration,
    pub duplication: u32,
    /// The probability of a flipped bit.
    pub corruption: u32,
    /// Whether every ECN-capable datagram is marked.
    pub congested: bool,
    /// Longer datagrams are lost.
    pub longest: usize,
}

impl Link {
    /// A delay of a millisecond without other effects.
    pub const CLEAN: Self = Self {
        delay: Duration::from_millis(1),
        jitter: Duration::ZERO,
        rate: None,
        queue: Duration::MAX,
        overhead: 0,
        loss: 0,
        reordering: 0,
        late: Duration::ZERO,
        duplication: 0,
        corruption: 0,
        congested: false,
        longest: usize::MAX,
    };
}

/// A link in one direction, with its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub link: Link,
    /// The time at which the queue is empty.
    idle_at: Duration,
}

impl Wire {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, idle_at: Duration::ZERO }
    }

    /// The wait of a datagram that is sent now.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        self.idle_at.saturating_sub(now)
    }

    /// The arrival times of a datagram that is sent now, and of its duplicate.
    pub(crate) fn cross(
        &mut self,
        datagram: &mut Datagram,
        now: Duration,
        rng: &mut ChaCha20Rng,
    ) -> [Option<Duration>; 2] {
        let link = self.link;
        if datagram.bytes.len() > link.longest || self.wait(now) > link.queue {
            return [None; 2];
        }
        let mut leaves = now;
        if let Some(rate) = link.rate {
            let nanos = (datagram.bytes.len() + link.overhead) as u64 * 1_000_000_000 / rate;
            self.idle_at = self.idle_at.max(now) + Duration::from_nanos(nanos);
            leaves = self.idle_at;
        }
        if happens(rng, link.loss) {
            return [None; 2];
        }
        if link.congested && datagram.ecn != Ecn::NotEct {
            datagram.ecn = Ecn::Ce;
        }
        if happens(rng, link.corruption) {
            flip_a_bit(&mut datagram.bytes, rng);
        }
        let is_duplicated = happens(rng, link.duplication);
        let mut arrival = || leaves + link.delay + link.extra_delay(rng);
        [Some(arrival()), is_duplicated.then(arrival)]
    }
}

impl Link {
    fn extra_delay(&self, rng: &mut ChaCha20Rng) -> Duration {
        let late = if happens(rng, self.reordering) { self.late } else { Duration::ZERO };
        if self.jitter.is_zero() {
            return late;
        }
        late + self.jitter.mul_f64(f64::from(rng.next_u32()) / 2f64.powi(32))
    }
}

fn flip_a_bit(bytes: &mut [u8], rng: &mut ChaCha20Rng) {
    if !bytes.is_empty() {
        let bit = rng.next_u32() as usize % (8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn happens(rng: &mut ChaCha20Rng, of_ten_thousand: u32) -> bool {
    of_ten_thousand > 0 && rng.next_u32() % 10_000 < of_ten_thousand
}
