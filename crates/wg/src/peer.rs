//! A peer as seen by the data path: its session, its endpoint, its counters, and the marks from
//! which the control half derives its timers.

mod activity;
mod keypairs;

use std::sync::{
    Arc, Mutex, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use packet::Endpoint;

pub(crate) use activity::Activity;
pub(crate) use keypairs::Keypairs;

use crate::{
    PublicKey, constants::REJECT_AFTER_TIME, keypair::Keypair, path_mtu::PeerPath,
    post_quantum::PeerExchange, time::Time,
};

/// One peer, shared by both directions of the data path and the control half. Its locks are held
/// only for a copy or a swap, never across cryptography.
#[derive(Debug)]
pub struct Peer {
    public_key: PublicKey,
    pub(crate) keypairs: RwLock<Keypairs>,
    endpoint: RwLock<Option<Endpoint>>,
    roams: AtomicBool,
    /// Source of the last authentic packet. Recorded only if there is a subscriber, and boxed
    /// because it is read rarely.
    received_from: Mutex<Option<Box<Endpoint>>>,
    pub(crate) activity: Activity,
    pub(crate) path: PeerPath,
    pub(crate) exchange: PeerExchange,
    rx_bytes: AtomicU64,
    tx_bytes: AtomicU64,
    /// Pending notices for this peer in each mailbox.
    pub(crate) control_mailbox: AtomicU8,
    pub(crate) outbound_mailbox: AtomicU8,
    /// Events that the subscriber did not poll yet.
    pub(crate) events: AtomicU8,
}

impl Peer {
    pub(crate) fn new(public_key: PublicKey) -> Arc<Self> {
        Arc::new(Self {
            public_key,
            keypairs: RwLock::default(),
            endpoint: RwLock::default(),
            roams: AtomicBool::new(true),
            received_from: Mutex::default(),
            activity: Activity::default(),
            path: PeerPath::default(),
            exchange: PeerExchange::default(),
            rx_bytes: AtomicU64::new(0),
            tx_bytes: AtomicU64::new(0),
            control_mailbox: AtomicU8::new(0),
            outbound_mailbox: AtomicU8::new(0),
            events: AtomicU8::new(0),
        })
    }

    /// The peer's public key.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// The peer's endpoint.
    pub fn endpoint(&self) -> Option<Endpoint> {
        *self.endpoint.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the peer to the source of an authentic packet (roaming, paper 2.1), unless only
    /// configuration may set its endpoint. Packets that are not authentic never move it.
    pub(crate) fn roam_to(&self, endpoint: Endpoint) {
        if self.roams.load(Ordering::Relaxed) {
            self.set_endpoint(endpoint);
        }
    }

    pub(crate) fn set_roaming(&self, roams: bool) {
        self.roams.store(roams, Ordering::Relaxed);
    }

    pub(crate) fn set_endpoint(&self, endpoint: Endpoint) {
        if self.endpoint() != Some(endpoint) {
            *self.endpoint.write().unwrap_or_else(PoisonError::into_inner) = Some(endpoint);
        }
    }

    /// Records the source of an authentic packet. Returns whether it differs from the previous one.
    pub(crate) fn update_received_from(&self, endpoint: Endpoint) -> bool {
        let mut received_from = self.received_from.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = received_from.as_deref() != Some(&endpoint);
        if is_new {
            *received_from = Some(Box::new(endpoint));
        }
        is_new
    }

    pub(crate) fn received_from(&self) -> Option<Endpoint> {
        self.received_from.lock().unwrap_or_else(PoisonError::into_inner).as_deref().copied()
    }

    /// Clears the local source address. The routing table chooses the source until the next
    /// authentic packet of the peer arrives.
    pub fn clear_source(&self) {
        let mut endpoint = self.endpoint.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoint.as_mut() {
            endpoint.local = None;
        }
    }

    pub(crate) fn current_keypair(&self) -> Option<Arc<Keypair>> {
        self.keypairs.read().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    /// Returns the current keypair if it is young enough to send by.
    pub(crate) fn live_keypair(&self, now: Time) -> Option<Arc<Keypair>> {
        self.current_keypair().filter(|keypair| now.since(keypair.created) < REJECT_AFTER_TIME)
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

    /// Returns the bytes of authentic datagrams received, and of datagrams sent.
    pub fn bytes(&self) -> (u64, u64) {
        (self.rx_bytes.load(Ordering::Relaxed), self.tx_bytes.load(Ordering::Relaxed))
    }
}
