//! The parameters of a world.

use std::time::Duration;

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::Link;

use crate::world::MS;

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub seed: u64,
    pub link: Link,
    /// The latency through the relay to each host.
    pub relay: [Duration; 2],
    /// The time between two data packets.
    pub pace: Duration,
    /// Whether the map contains the endpoints from STUN in addition to the local ones.
    pub map_is_whole: bool,
    /// Whether the second host is a stock node.
    pub stock: bool,
    /// Whether birthday probing is enabled.
    pub birthday: bool,
    pub start: Start,
}

/// Delays when hosts have just joined; all are zero by default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// The time when each learns of the other.
    pub knows: [Duration; 2],
    /// The time when each is connected to its relay, which reports it as absent until then.
    pub connects: [Duration; 2],
    /// The time until which relays delay all packets.
    pub stall: Duration,
    /// The maximum delay between a decision and the sent datagram, because another process sends
    /// it. Relays are not affected.
    pub lag: Duration,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let mut below = |bound| u64::from(rng.next_u32()) % bound;
        let delay = MS * (1 + below(50) as u32);
        let mut relay = || delay * (100 + below(200) as u32) / 100 + 3 * MS;
        let relay = [relay(), relay()];
        let link = Link { delay, jitter: delay / 4, ..Link::CLEAN };
        Self {
            seed,
            link,
            relay,
            pace: 100 * MS,
            map_is_whole: below(2) == 0,
            stock: false,
            birthday: false,
            start: Start::default(),
        }
    }
}
