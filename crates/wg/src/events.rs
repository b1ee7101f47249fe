//! Events for a subscriber, such as a program that chooses the paths to the peers. Nothing is kept
//! before there is a subscriber.
//!
//! ```text
//!   data path, control  --- events of a peer -----> one place a peer -------+
//!                       --- unknown peers --------> lookups, bounded -------+--> Events::poll
//! ```
//!
//! Nothing waits for the subscriber, and memory is bounded: an event of a peer that was not polled
//! yet is not noted twice, and the number of lookups is limited.

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

pub(crate) use lookups::{Asked, Lookups};
use packet::{Endpoint, Waker};

use crate::{PublicKey, constants::LOOKUPS_MOST, peer::Peer, time::Time};

/// Something that happened. Peers may have been removed since.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A handshake with the peer completed.
    HandshakeDone(PublicKey),
    /// Something is to be sent to the peer, or a session with it to be renewed: a handshake is wanted.
    /// It begins at once, unless there is no endpoint, or the last one began a moment ago.
    HandshakeWanted(PublicKey),
    /// The first authentic packet, data or handshake, came from an endpoint other than the one that
    /// the peer was last heard from. Where the peer roams, it has moved there.
    NewPath {
        /// The peer.
        peer: PublicKey,
        /// The endpoint it was last heard from.
        from: Endpoint,
    },
    /// Data or an initiation was sent, and for
    /// [`STALE_AFTER`](crate::constants::STALE_AFTER) nothing authentic came. It is only a
    /// hint: a peer that has nothing to send answers data after
    /// [`KEEPALIVE_TIMEOUT`](crate::constants::KEEPALIVE_TIMEOUT), which is longer. It is sent once
    /// until something comes again.
    Stale(PublicKey),
    /// A sender that is not a peer, and has the private key of `key`, began a handshake. If it
    /// becomes a peer within [`LOOKUP_TIMEOUT`](crate::constants::LOOKUP_TIMEOUT), its initiation is
    /// answered then. It is sent once in that time.
    UnknownPeer {
        /// Its public key.
        key: PublicKey,
        /// Where the initiation came from.
        from: Endpoint,
    },
    /// A packet to an address that is in no peer's allowed IPs was dropped. It is sent once in
    /// [`LOOKUP_TIMEOUT`](crate::constants::LOOKUP_TIMEOUT).
    UnknownAddress(IpAddr),
}

/// An event of a peer, as a bit in the set of those that were not polled yet.
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
    looks_up: AtomicBool,
    queue: Mutex<Queue>,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct Queue {
    /// Each at most once.
    peers: VecDeque<Arc<Peer>>,
    lookups: VecDeque<Event>,
    addresses: Lookups<IpAddr, ()>,
}

impl Events {
    /// The next event.
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

    pub(crate) fn switch_on(&self, waker: Waker) {
        // A second waker could only come from a second subscriber, which would steal the first
        // one's events.
        let _ = self.waker.set(waker);
        self.on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn are_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn look_up(&self, on: bool) {
        self.looks_up.store(on, Ordering::Relaxed);
        let mut queue = self.lock();
        queue.addresses = Lookups::default();
        queue.lookups.clear();
    }

    pub(crate) fn looks_up(&self) -> bool {
        self.looks_up.load(Ordering::Relaxed)
    }

    pub(crate) fn post(&self, peer: &Arc<Peer>, event: PeerEvent) {
        if self.are_on() && peer.events.fetch_or(event as u8, Ordering::AcqRel) == 0 {
            self.lock().peers.push_back(peer.clone());
            self.wake();
        }
    }

    /// Something authentic came from a peer at this endpoint.
    pub(crate) fn heard(&self, peer: &Arc<Peer>, from: Endpoint) {
        if self.are_on() && peer.is_heard_anew(from) {
            self.post(peer, PeerEvent::NewPath);
        }
    }

    pub(crate) fn post_unknown_peer(&self, key: PublicKey, from: Endpoint) {
        self.lock().push_lookup(Event::UnknownPeer { key, from });
        self.wake();
    }

    pub(crate) fn post_unknown_address(&self, address: IpAddr, now: Time) {
        let mut queue = self.lock();
        if queue.addresses.ask(address, (), now) != Asked::Anew {
            return;
        }
        queue.push_lookup(Event::UnknownAddress(address));
        drop(queue);
        self.wake();
    }

    /// A peer is removed.
    pub(crate) fn forget(&self, peer: &Arc<Peer>) {
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
    /// If the subscriber reads too slowly, the oldest are lost: they will be asked again.
    fn push_lookup(&mut self, event: Event) {
        if self.lookups.len() >= 2 * LOOKUPS_MOST {
            self.lookups.pop_front();
        }
        self.lookups.push_back(event);
    }
}

/// Takes one event of a peer. The second value is whether there are more.
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
