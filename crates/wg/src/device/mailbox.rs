//! Notices about peers from one thread to another. A peer stands in a mailbox
//! once however many notices there are for it, so a mailbox is bounded by the
//! number of peers.

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

/// What the control half is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlNotice {
    /// A handshake.
    Handshake = 1,
    /// To plan the peer's timers anew.
    Replan = 2,
    /// To note that the peer confirmed a session.
    SessionConfirmed = 4,
    /// To read what the peer says of its path.
    ProbeReceived = 8,
    /// To read what the peer says of a secret against quantum computers.
    ExchangeReceived = 16,
}

/// What the outbound half is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutboundNotice {
    /// To send what is staged.
    Flush = 1,
    /// To send what is staged, or a keepalive where nothing is.
    Keepalive = 2,
    /// To drop what is staged.
    Purge = 4,
    /// To send questions about the path, or answers.
    Probe = 8,
    /// To send messages by which a secret is agreed on.
    Exchange = 16,
    /// To drop what is staged: data needs a secret that the peer does not agree on.
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

/// The notices of a peer, taken together.
#[derive(Debug)]
pub struct Notices<N> {
    bits: u8,
    kind: PhantomData<N>,
}

impl<N: Into<u8>> Notices<N> {
    /// Whether `notice` is among them.
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

    /// Says how to wake the reader. Only the first call counts.
    pub fn set_waker(&self, waker: Waker) {
        // A second waker could only come from a second reader, which would steal
        // the first one's notices.
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

    /// Takes all peers with notices.
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
