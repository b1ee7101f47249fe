//! Passes copies of the packets inside the tunnel to an observer.
//!
//! ```text
//!   IP side -> outbound -------> network
//!                 `-- observe --> Observer
//!   IP side <- inbound <-------- network
//!                 `-- observe ------^
//! ```
//!
//! Each direction checks once a batch whether the observer wants to see packets, with one relaxed
//! load. Only then is the observer called.

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

/// Receives the packets of a data plane. The data plane's threads call it and wait for its return.
pub trait Observer: Send + Sync {
    /// Whether the observer wants to see packets.
    fn wanted(&self) -> &Arc<AtomicBool>;

    /// Receives packets. They are borrowed for the call.
    fn observe(&self, shown: ObservedPackets<'_>);
}

/// Consecutive packets of one peer.
#[derive(Clone, Copy, Debug)]
pub struct ObservedPackets<'a> {
    /// Time at which their batch was processed, since the Unix epoch.
    pub at: Duration,
    /// Direction of the packets.
    pub direction: Direction,
    /// The sender or receiver; `None` for packets from the data plane to the host.
    pub peer: Option<&'a PublicKey>,
    /// The packets, from the IP header on.
    pub packets: &'a [&'a [u8]],
}

/// An observer with its flag.
pub(crate) struct Watch {
    wanted: Arc<AtomicBool>,
    observer: Arc<dyn Observer>,
    clock: Clock,
}

/// An active observer, with the time of a batch.
pub(crate) struct View<'a> {
    observer: &'a dyn Observer,
    at: Duration,
}

impl Watch {
    pub(crate) fn new(observer: Arc<dyn Observer>, clock: Clock) -> Self {
        Self { wanted: observer.wanted().clone(), observer, clock }
    }

    /// Returns `None` if the observer does not want to see packets.
    pub(crate) fn look(&self) -> Option<View<'_>> {
        if self.wanted.load(Ordering::Relaxed) { Some(self.open()) } else { None }
    }

    #[cold]
    fn open(&self) -> View<'_> {
        View { observer: &*self.observer, at: (self.clock)().wall }
    }
}

impl View<'_> {
    /// Passes consecutive packets of one peer to the observer.
    pub(crate) fn show<'p>(
        &self,
        direction: Direction,
        peer: Option<&PublicKey>,
        packets: impl Iterator<Item = &'p [u8]>,
    ) {
        let packets: Vec<_> = packets.collect();
        self.observer.observe(ObservedPackets { at: self.at, direction, peer, packets: &packets });
    }
}
