//! The control half: handshakes, timers and configuration. It owns every secret
//! but session keys, and changes what the data path sees only by short swaps.
//!
//! Call order: the verbs of configuration, [`Control::handle_datagrams`],
//! [`Control::handle_notices`] and [`Control::handle_timeout`] in any order;
//! after each, [`Control::poll_transmit`] until it is empty, then
//! [`Control::poll_timeout`] for the next time to call.

mod commands;
mod config;
mod entry;
mod handshake;
mod initiations;
mod nets;
mod newcomers;
mod quantum;
mod timers;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use packet::Endpoint;
use rand_core::CryptoRng;

use crate::{
    PublicKey,
    constants::{REKEY_TIMEOUT_JITTER, UNDER_LOAD_AFTER},
    cookie::CookieChecker,
    device::{ControlNotice, Device, OutboundNotice},
    message::Handshake,
    noise::Identity,
    path_mtu::Reach,
    peer::Peer,
    post_quantum::PostQuantum,
    ratelimiter::RateLimiter,
    time::{Now, Time},
};
pub use commands::{AllowedIpMove, CommandError};
pub use config::ConfigError;
use entry::Entry;
use newcomers::Newcomers;

/// Our own key and what is made of it.
struct OwnKey {
    identity: Identity,
    checker: CookieChecker,
}

/// The control half of a device.
pub struct Control<R> {
    device: Arc<Device>,
    own: Option<OwnKey>,
    running: bool,
    /// How far the MTU of paths is searched for.
    reach: Reach,
    /// Whether secrets are agreed with peers against quantum computers.
    post_quantum: PostQuantum,
    peers: HashMap<PublicKey, Box<Entry>>,
    /// When which peer's timers are looked at.
    deadlines: BTreeSet<(Time, PublicKey)>,
    limiter: RateLimiter,
    newcomers: Newcomers,
    loaded_until: Option<Time>,
    transmits: VecDeque<(Handshake, Endpoint)>,
    rng: R,
}

impl<R: CryptoRng> Control<R> {
    /// A device without key and peers, which is down. All randomness comes from
    /// `rng`.
    pub fn new(rng: R) -> Self {
        Self {
            device: Device::new(),
            own: None,
            running: false,
            reach: Reach::default(),
            post_quantum: PostQuantum::Off,
            peers: HashMap::new(),
            deadlines: BTreeSet::new(),
            limiter: RateLimiter::default(),
            newcomers: Newcomers::default(),
            loaded_until: None,
            transmits: VecDeque::new(),
            rng,
        }
    }

    /// What the data path works with.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The interface came up: what is staged asks for its handshakes, persistent
    /// keepalives begin.
    pub fn up(&mut self) {
        if std::mem::replace(&mut self.running, true) {
            return;
        }
        for entry in self.peers.values() {
            let notice = match entry.persistent_keepalive {
                0 => OutboundNotice::Flush,
                _ => OutboundNotice::Keepalive,
            };
            self.device.outbound_mailbox.post(&entry.peer, notice);
        }
    }

    /// The interface went down: sessions, handshakes and timers end, what is
    /// staged is dropped.
    pub fn down(&mut self) {
        self.running = false;
        self.deadlines.clear();
        self.transmits.clear();
        self.newcomers = Newcomers::default();
        for entry in self.peers.values_mut() {
            entry.reset(&self.device);
        }
    }

    /// The peers that are answered from the address they reached us at, and their endpoints.
    pub fn peers_with_source(&self) -> impl Iterator<Item = (&PublicKey, Endpoint)> {
        let endpoints =
            self.peers.iter().filter_map(|(key, entry)| Some((key, entry.peer.endpoint()?)));
        endpoints.filter(|(_, endpoint)| endpoint.local.is_some())
    }

    /// That source serves no more: answers leave by the routing table's choice until the peer is
    /// heard again.
    pub fn clear_source(&self, key: &PublicKey) {
        self.peers.get(key).inspect(|entry| entry.peer.clear_source());
    }

    /// Says that more handshake messages wait than a calm device has.
    pub fn set_under_load(&mut self, now: Time) {
        self.loaded_until = Some(now + UNDER_LOAD_AFTER);
    }

    /// Searches for the path MTU of each peer that answers, up to the interface's `mtu`,
    /// from its next session on; or, with `None`, of no peer any more.
    pub fn probe_paths(&mut self, mtu: Option<u16>, now: Time) {
        self.reach = Reach::new(mtu);
        let keys: Vec<PublicKey> = self.peers.keys().copied().collect();
        for key in keys {
            let Some(entry) = self.peers.get_mut(&key) else { continue };
            if entry.path.handle_reach(self.reach, &self.device, now) {
                self.plan(&key, now);
            }
        }
    }

    /// Works on what the data path asks for.
    pub fn handle_notices(&mut self, now: Now) {
        let device = self.device.clone();
        self.handle_admitted(now);
        for (peer, notices) in device.control_mailbox.take() {
            if !self.owns(&peer) {
                continue;
            }
            let key = *peer.public_key();
            if notices.has(ControlNotice::SessionConfirmed) {
                self.handshake_completed(&key, now);
                self.agree_after_handshake(&key, now);
            }
            if notices.has(ControlNotice::Handshake) {
                self.initiate(&key, now);
            }
            if notices.has(ControlNotice::ProbeReceived)
                && let Some(entry) = self.peers.get_mut(&key)
            {
                entry.path.handle_probes(self.reach, &device, now.time);
            }
            if notices.has(ControlNotice::ExchangeReceived) {
                self.handle_exchange(&key, now);
            }
            self.agree_after_data(&key, now);
            self.plan(&key, now.time);
        }
    }

    /// The next message to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(Handshake, Endpoint)> {
        self.transmits.pop_front()
    }

    /// When [`Control::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Whether the peer is still one of ours: it may have been removed, and even
    /// added again, since it was noticed.
    fn owns(&self, peer: &Arc<Peer>) -> bool {
        self.peers.get(peer.public_key()).is_some_and(|entry| Arc::ptr_eq(&entry.peer, peer))
    }

    fn jitter(&mut self) -> Duration {
        let most = REKEY_TIMEOUT_JITTER.as_nanos() as u64;
        Duration::from_nanos(self.rng.next_u64() % (most + 1))
    }
}
