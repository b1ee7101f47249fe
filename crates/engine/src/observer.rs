//! Shows the packets inside the tunnel to an observer.
//!
//! ```text
//!   IP side -> outbound -----> network
//!                 `-- show --> Observer
//!   IP side <- inbound <------ network
//!                 `-- show -----^
//! ```
//!
//! Each direction checks once a batch whether the observer wants to see packets, which is one
//! relaxed load. Only then is the observer itself called.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use packet::pcapng::Direction;
use wg::PublicKey;

use crate::Clock;

/// Sees the packets of a data plane. The data plane's threads call it, and wait until it returns.
pub trait Observer: Send + Sync {
    /// Whether it wants to see packets.
    fn wanted(&self) -> &Arc<AtomicBool>;

    /// Called with packets. They are valid during the call only.
    fn observe(&self, shown: ObservedPackets<'_>);
}

/// Consecutive packets of one peer.
#[derive(Clone, Copy, Debug)]
pub struct ObservedPackets<'a> {
    /// When their batch was handled, since the Unix epoch.
    pub at: Duration,
    /// Which way they went.
    pub direction: Direction,
    /// The peer that sent them or receives them; `None` for messages of the data plane to the host.
    pub peer: Option<&'a PublicKey>,
    /// From the IP header on.
    pub packets: &'a [&'a [u8]],
}

/// An observer, and whether it wants to see anything.
pub(crate) struct Watch {
    wanted: Arc<AtomicBool>,
    observer: Arc<dyn Observer>,
    clock: Clock,
}

/// An observer that wants to see a batch.
pub(crate) struct View<'a> {
    observer: &'a dyn Observer,
    at: Duration,
}

impl Watch {
    pub fn new(observer: Arc<dyn Observer>, clock: Clock) -> Self {
        Self { wanted: observer.wanted().clone(), observer, clock }
    }

    /// `None` if the observer does not want to see packets.
    pub fn look(&self) -> Option<View<'_>> {
        if self.wanted.load(Ordering::Relaxed) { Some(self.open()) } else { None }
    }

    #[cold]
    fn open(&self) -> View<'_> {
        View { observer: &*self.observer, at: (self.clock)().wall }
    }
}

impl View<'_> {
    /// Shows consecutive packets of one peer.
    pub fn show<'p>(
        &self,
        direction: Direction,
        peer: Option<&PublicKey>,
        packets: impl Iterator<Item = &'p [u8]>,
    ) {
        let packets: Vec<_> = packets.collect();
        self.observer.observe(ObservedPackets { at: self.at, direction, peer, packets: &packets });
    }
}
