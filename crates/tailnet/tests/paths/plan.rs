//! What a world is made of.

use std::time::Duration;

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::Link;

use crate::world::MS;

/// How a world is made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub link: Link,
    /// By the relay, to each.
    pub relay: [Duration; 2],
    /// Between two datagrams of data.
    pub pace: Duration,
    /// Whether the map has the endpoints that STUN found, as well as the local ones.
    pub map_is_whole: bool,
    /// The second host is a stock one.
    pub stock: bool,
    /// Whether they may meet by chance.
    pub birthday: bool,
    pub start: Start,
}

/// What goes slowly when hosts have just joined; all is from the beginning on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// When each gets to know the other.
    pub knows: [Duration; 2],
    /// When each is connected to its relay, which says until then that it is not there.
    pub connects: [Duration; 2],
    /// Until when relays hold back all they are given.
    pub stall: Duration,
    /// How long at most a datagram takes from the decision to the wire: it is another process that
    /// sends it, and no relay waits for that.
    pub lag: Duration,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
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
