//! Events for a subscriber, such as a program that chooses the paths to the peers. No event is
//! recorded before there is a subscriber.
//!
//! ```text
//!   data path, control  --- events of a peer -----> one entry a peer -------+
//!                       --- unknown peers --------> lookups, bounded -------+--> Events::poll
//! ```
//!
//! No thread waits for the subscriber, and memory is bounded: a peer's event is recorded once until
//! it is polled, and the number of lookups is limited.

mod lookups;

use std::{
    collections::VecDeque,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) use lookups::{LookupState, Lookups};
use packet::{Endpoint, Waker};

use crate::{PublicKey, constants::MAX_LOOKUPS, peer::Peer, time::Time};

/// An event. The peer may have been removed since.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A handshake with the peer completed.
    HandshakeDone(PublicKey),
    /// A handshake is wanted, to send data or to renew a session. It starts at once, unless the
    /// peer has no endpoint or the last handshake started too recently.
    HandshakeWanted(PublicKey),
    /// The first authentic packet, data or handshake, arrived from an endpoint other than the
    /// previous one. A peer that roams has moved there.
    NewPath {
        /// The peer.
        peer: PublicKey,
        /// The source of the packet.
        from: Endpoint,
    },
    /// Data or an initiation was sent, and nothing authentic was received for
    /// [`STALE_AFTER`](crate::constants::STALE_AFTER). This is only a hint: a peer without data to
    /// send answers after [`KEEPALIVE_TIMEOUT`](crate::constants::KEEPALIVE_TIMEOUT), which is
    /// longer. The event occurs once until something is received again.
    Stale(PublicKey),
    /// A sender that is not a peer, and has the private key of `key`, started a handshake. If it
    /// becomes a peer within [`LOOKUP_TIMEOUT`](crate::constants::LOOKUP_TIMEOUT), its initiation
    /// is answered then. The event occurs once in that time.
    UnknownPeer {
        /// Its public key.
        key: PublicKey,
        /// The source of the initiation.
        from: Endpoint,
    },
    /// A packet to an address in no peer's allowed IPs was dropped. The event occurs once in
    /// [`LOOKUP_TIMEOUT`](crate::constants::LOOKUP_TIMEOUT).
    UnknownAddress(IpAddr),
}

/// An event of a peer, as a bit in the set of its unpolled events.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum PeerEvent {
    HandshakeDone = 1,
    NewPath = 2,
    Stale = 4,
    HandshakeWanted = 8,
}

/// Events that wait for the subscriber.
#[derive(Default)]
pub struct Events {
    on: AtomicBool,
    is_lookup_enabled: AtomicBool,
    queue: Mutex<Queue>,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct Queue {
    /// Peers with unpolled events, each at most once.
    peers: VecDeque<Arc<Peer>>,
    lookups: VecDeque<Event>,
    addresses: Lookups<IpAddr, ()>,
}

impl Events {
    /// Returns the next event.
    pub fn poll(&self) -> Option<Event> {
        let mut queue = self.lock();
        while let Some(peer) = queue.peers.pop_front() {
            let (event, more) = next_event(&peer);
            if more {
                queue.peers.push_back(peer);
            }
            if event.is_some() {
                return event;
            }
        }
        queue.lookups.pop_front()
    }

    pub(crate) fn enable(&self, waker: Waker) {
        // A second waker could only come from a second subscriber, which would take the first one's
        // events.
        let _ = self.waker.set(waker);
        self.on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lookup(&self, on: bool) {
        self.is_lookup_enabled.store(on, Ordering::Relaxed);
        let mut queue = self.lock();
        queue.addresses = Lookups::default();
        queue.lookups.clear();
    }

    pub(crate) fn is_lookup_enabled(&self) -> bool {
        self.is_lookup_enabled.load(Ordering::Relaxed)
    }

    pub(crate) fn post(&self, peer: &Arc<Peer>, event: PeerEvent) {
        if self.is_enabled() && peer.events.fetch_or(event as u8, Ordering::AcqRel) == 0 {
            self.lock().peers.push_back(peer.clone());
            self.wake();
        }
    }

    /// Handles an authentic packet of a peer from this endpoint.
    pub(crate) fn handle_received(&self, peer: &Arc<Peer>, from: Endpoint) {
        if self.is_enabled() && peer.update_received_from(from) {
            self.post(peer, PeerEvent::NewPath);
        }
    }

    pub(crate) fn post_unknown_peer(&self, key: PublicKey, from: Endpoint) {
        self.lock().push_lookup(Event::UnknownPeer { key, from });
        self.wake();
    }

    pub(crate) fn post_unknown_address(&self, address: IpAddr, now: Time) {
        let mut queue = self.lock();
        if queue.addresses.request(address, (), now) != LookupState::New {
            return;
        }
        queue.push_lookup(Event::UnknownAddress(address));
        drop(queue);
        self.wake();
    }

    /// Discards the events of a removed peer.
    pub(crate) fn remove_peer(&self, peer: &Arc<Peer>) {
        if peer.events.swap(0, Ordering::AcqRel) != 0 {
            self.lock().peers.retain(|other| !Arc::ptr_eq(other, peer));
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Adds a lookup event. If the subscriber is too slow, the oldest one is lost and will be
    /// posted again.
    fn push_lookup(&mut self, event: Event) {
        if self.lookups.len() >= 2 * MAX_LOOKUPS {
            self.lookups.pop_front();
        }
        self.lookups.push_back(event);
    }
}

/// Takes one event of a peer. Also returns whether there are more.
fn next_event(peer: &Peer) -> (Option<Event>, bool) {
    let all = [
        PeerEvent::HandshakeWanted,
        PeerEvent::HandshakeDone,
        PeerEvent::NewPath,
        PeerEvent::Stale,
    ];
    let waiting = peer.events.load(Ordering::Acquire);
    let Some(next) = all.into_iter().find(|event| waiting & *event as u8 != 0) else {
        return (None, false);
    };
    let bit = next as u8;
    let more = peer.events.fetch_and(!bit, Ordering::AcqRel) & !bit != 0;
    let key = *peer.public_key();
    let event = match next {
        PeerEvent::HandshakeDone => Some(Event::HandshakeDone(key)),
        PeerEvent::NewPath => peer.received_from().map(|from| Event::NewPath { peer: key, from }),
        PeerEvent::Stale => Some(Event::Stale(key)),
        PeerEvent::HandshakeWanted => Some(Event::HandshakeWanted(key)),
    };
    (event, more)
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("on", &self.on).finish_non_exhaustive()
    }
}
