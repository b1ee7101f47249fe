//! Notices about peers from one thread to another. A mailbox contains a peer at most once, whatever
//! the number of notices for it, so the number of peers bounds its size.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use packet::Waker;

use crate::peer::Peer;

/// Work for the control half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlNotice {
    /// Start a handshake.
    Handshake = 1,
    /// Replan the peer's timers.
    Replan = 2,
    /// The peer confirmed a session.
    SessionConfirmed = 4,
    /// The peer sent messages about the path MTU.
    ProbeReceived = 8,
    /// The peer sent messages of the post-quantum exchange.
    ExchangeReceived = 16,
}

/// Work for the outbound half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutboundNotice {
    /// Send the staged packets.
    Flush = 1,
    /// Send the staged packets. Without any, send a keepalive.
    Keepalive = 2,
    /// Drop the staged packets.
    Purge = 4,
    /// Send path MTU probes and replies.
    Probe = 8,
    /// Send messages of the post-quantum exchange.
    Exchange = 16,
    /// Drop the staged packets: data requires a post-quantum secret, and the peer does not agree on
    /// one.
    Refuse = 32,
}

impl From<ControlNotice> for u8 {
    fn from(notice: ControlNotice) -> Self {
        notice as Self
    }
}

impl From<OutboundNotice> for u8 {
    fn from(notice: OutboundNotice) -> Self {
        notice as Self
    }
}

/// The pending notices of one peer.
#[derive(Debug)]
pub struct Notices<N> {
    bits: u8,
    kind: PhantomData<N>,
}

impl<N: Into<u8>> Notices<N> {
    /// Whether `notice` is pending.
    pub fn has(&self, notice: N) -> bool {
        self.bits & notice.into() != 0
    }
}

/// Peers with notices of kind `N`.
pub struct Mailbox<N> {
    bits: fn(&Peer) -> &AtomicU8,
    peers: Mutex<Vec<Arc<Peer>>>,
    waker: OnceLock<Waker>,
    kind: PhantomData<fn(N)>,
}

impl<N: Into<u8>> Mailbox<N> {
    pub(super) fn new(bits: fn(&Peer) -> &AtomicU8) -> Self {
        Self { bits, peers: Mutex::default(), waker: OnceLock::new(), kind: PhantomData }
    }

    /// Sets the waker of the reader. Only the first call has an effect.
    pub fn set_waker(&self, waker: Waker) {
        // A second waker could only come from a second reader, which would take the first reader's
        // notices.
        let _ = self.waker.set(waker);
    }

    pub(crate) fn post(&self, peer: &Arc<Peer>, notice: N) {
        if (self.bits)(peer).fetch_or(notice.into(), Ordering::AcqRel) != 0 {
            return;
        }
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer.clone());
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    /// Removes and returns all peers with notices.
    pub fn take(&self) -> impl Iterator<Item = (Arc<Peer>, Notices<N>)> + use<N> {
        let peers = std::mem::take(&mut *self.peers.lock().unwrap_or_else(PoisonError::into_inner));
        let bits = self.bits;
        peers.into_iter().map(move |peer| {
            let bits = bits(&peer).swap(0, Ordering::AcqRel);
            (peer, Notices { bits, kind: PhantomData })
        })
    }
}

impl<N> fmt::Debug for Mailbox<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}
