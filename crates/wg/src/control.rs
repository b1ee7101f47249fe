//! The control half: handshakes, timers and configuration. It owns every secret except session
//! keys, and publishes changes to the data path only by short swaps.
//!
//! Call order: the configuration methods, [`Control::handle_datagrams`],
//! [`Control::handle_notices`] and [`Control::handle_timeout`] in any order; after each,
//! [`Control::poll_transmit`] until it returns `None`, then [`Control::poll_timeout`] for the next
//! deadline.

mod agreement;
mod commands;
mod config;
mod entry;
mod handshake;
mod initiations;
mod nets;
mod path_search;
mod post_quantum;
mod timers;
mod unknown_senders;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crypto::noise::Identity;
use packet::Endpoint;
use rand_core::CryptoRng;

use crate::{
    PublicKey,
    constants::{REKEY_TIMEOUT_JITTER, UNDER_LOAD_AFTER},
    cookie::CookieChecker,
    device::{ControlNotice, Device, OutboundNotice},
    message::Handshake,
    peer::Peer,
    post_quantum::PostQuantum,
    ratelimiter::RateLimiter,
    time::{Now, Time},
};
pub use commands::{AllowedIpMove, CommandError};
pub use config::ConfigError;
use entry::Entry;
use path_search::SearchLimit;
use unknown_senders::UnknownSenders;

/// Our own key and the values derived from it.
struct OwnKey {
    identity: Identity,
    checker: CookieChecker,
}

/// The control half of a device.
pub struct Control<R> {
    device: Arc<Device>,
    own: Option<OwnKey>,
    running: bool,
    /// Upper bound of the path MTU search.
    search_limit: SearchLimit,
    /// Mode of the post-quantum exchange.
    post_quantum: PostQuantum,
    peers: HashMap<PublicKey, Box<Entry>>,
    /// Deadlines of the peers' timers.
    deadlines: BTreeSet<(Time, PublicKey)>,
    limiter: RateLimiter,
    unknown_senders: UnknownSenders,
    under_load_until: Option<Time>,
    transmits: VecDeque<(Handshake, Endpoint)>,
    rng: R,
}

impl<R: CryptoRng> Control<R> {
    /// Creates a device without key and peers. Its interface is down. All randomness comes from
    /// `rng`.
    pub fn new(rng: R) -> Self {
        Self {
            device: Device::new(),
            own: None,
            running: false,
            search_limit: SearchLimit::default(),
            post_quantum: PostQuantum::Off,
            peers: HashMap::new(),
            deadlines: BTreeSet::new(),
            limiter: RateLimiter::default(),
            unknown_senders: UnknownSenders::default(),
            under_load_until: None,
            transmits: VecDeque::new(),
            rng,
        }
    }

    /// The state shared with the data path.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Brings the interface up. Staged packets request handshakes, and persistent keepalives start.
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

    /// Takes the interface down. Ends sessions, handshakes and timers, and drops staged packets.
    pub fn down(&mut self) {
        self.running = false;
        self.deadlines.clear();
        self.transmits.clear();
        self.unknown_senders = UnknownSenders::default();
        for entry in self.peers.values_mut() {
            entry.reset(&self.device);
        }
    }

    /// Returns the peers with a fixed local source address, and their endpoints. Answers to them
    /// leave from the address that they reached.
    pub fn peers_with_source(&self) -> impl Iterator<Item = (&PublicKey, Endpoint)> {
        let endpoints =
            self.peers.iter().filter_map(|(key, entry)| Some((key, entry.peer.endpoint()?)));
        endpoints.filter(|(_, endpoint)| endpoint.local.is_some())
    }

    /// Clears the local source address of a peer. The routing table chooses the source until the
    /// next authentic packet of the peer arrives.
    pub fn clear_source(&self, key: &PublicKey) {
        self.peers.get(key).inspect(|entry| entry.peer.clear_source());
    }

    /// Puts the device under load for [`UNDER_LOAD_AFTER`], because too many handshake messages are
    /// queued.
    pub fn set_under_load(&mut self, now: Time) {
        self.under_load_until = Some(now + UNDER_LOAD_AFTER);
    }

    /// Starts the path MTU search up to the interface's `mtu`, for each peer from its next session
    /// on. `None` stops all searches.
    pub fn probe_paths(&mut self, mtu: Option<u16>, now: Time) {
        self.search_limit = SearchLimit::new(mtu);
        let keys: Vec<PublicKey> = self.peers.keys().copied().collect();
        for key in keys {
            let Some(entry) = self.peers.get_mut(&key) else { continue };
            if entry.path.handle_search_limit(self.search_limit, &self.device, now) {
                self.plan(&key, now);
            }
        }
    }

    /// Handles the notices of the data path.
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
                entry.path.handle_probes(self.search_limit, &device, now.time);
            }
            if notices.has(ControlNotice::ExchangeReceived) {
                self.handle_exchange(&key, now);
            }
            self.agree_after_data(&key, now);
            self.plan(&key, now.time);
        }
    }

    /// Returns the next message to send, and its endpoint.
    pub fn poll_transmit(&mut self) -> Option<(Handshake, Endpoint)> {
        self.transmits.pop_front()
    }

    /// Returns the time of the next call of [`Control::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Whether this is still a peer of the device. Since the notice was posted it may have been
    /// removed, and even added again.
    fn owns(&self, peer: &Arc<Peer>) -> bool {
        self.peers.get(peer.public_key()).is_some_and(|entry| Arc::ptr_eq(&entry.peer, peer))
    }

    fn jitter(&mut self) -> Duration {
        let most = REKEY_TIMEOUT_JITTER.as_nanos() as u64;
        Duration::from_nanos(self.rng.next_u64() % (most + 1))
    }
}
