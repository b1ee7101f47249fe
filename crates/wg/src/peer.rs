//! A peer as the data path sees it: its session, its endpoint, its counters, and
//! the marks from which the control half reads its timers.

mod activity;
mod keypairs;
mod path;

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use packet::Endpoint;

pub(crate) use activity::Activity;
pub(crate) use keypairs::Keypairs;
pub(crate) use path::{Heard, Path};

use crate::{PublicKey, keypair::Keypair, path_mtu::PathLimit, time::Time};

/// One peer, shared by both directions of the data path and the control half.
/// Every lock in it is held for a copy or a swap, never across crypto.
#[derive(Debug)]
pub struct Peer {
    public_key: PublicKey,
    pub(crate) keypairs: RwLock<Keypairs>,
    endpoint: RwLock<Option<Endpoint>>,
    pub(crate) activity: Activity,
    pub(crate) path: Path,
    rx_bytes: AtomicU64,
    tx_bytes: AtomicU64,
    /// What stands in each mailbox for this peer.
    pub(crate) for_control: AtomicU8,
    pub(crate) for_outbound: AtomicU8,
}

impl Peer {
    pub(crate) fn new(public_key: PublicKey) -> Arc<Self> {
        Arc::new(Self {
            public_key,
            keypairs: RwLock::default(),
            endpoint: RwLock::default(),
            activity: Activity::default(),
            path: Path::default(),
            rx_bytes: AtomicU64::new(0),
            tx_bytes: AtomicU64::new(0),
            for_control: AtomicU8::new(0),
            for_outbound: AtomicU8::new(0),
        })
    }

    /// The peer's name.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Where the peer is reached.
    pub fn endpoint(&self) -> Option<Endpoint> {
        *self.endpoint.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where the peer is reached. Data that a peer authenticated may move it
    /// (roaming, paper 2.1); nothing else that came from the network may.
    pub fn set_endpoint(&self, endpoint: Endpoint) {
        if self.endpoint() != Some(endpoint) {
            *self.endpoint.write().unwrap_or_else(PoisonError::into_inner) = Some(endpoint);
        }
    }

    /// Leaves the choice of the source address to the routing table, until the
    /// peer is heard again.
    pub fn forget_source(&self) {
        let mut endpoint = self.endpoint.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoint.as_mut() {
            endpoint.local = None;
        }
    }

    /// What the path to the peer carries; `None` where that is all that the interface
    /// sends, or nobody knows.
    pub fn path_limit(&self) -> Option<PathLimit> {
        self.path.limit()
    }

    /// Whether a sender may be told now that its packet was too long: rate-limited, for
    /// all senders of the peer together (RFC 4443 section 2.4 f).
    pub fn may_return(&self, now: Time) -> bool {
        self.path.may_return(now)
    }

    pub(crate) fn current_keypair(&self) -> Option<Arc<Keypair>> {
        self.keypairs.read().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    pub(crate) fn with_keypairs<T>(&self, change: impl FnOnce(&mut Keypairs) -> T) -> T {
        change(&mut self.keypairs.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count_rx(&self, bytes: usize) {
        self.rx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_tx(&self, bytes: usize) {
        self.tx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of authenticated datagrams received, and of datagrams sent.
    pub fn bytes(&self) -> (u64, u64) {
        (self.rx_bytes.load(Ordering::Relaxed), self.tx_bytes.load(Ordering::Relaxed))
    }
}
