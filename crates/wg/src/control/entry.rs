//! What the control half keeps of one peer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ipnet::IpNet;

use super::{probing::Probing, timers::Timers};
use crate::{
    PresharedKey,
    cookie::CookieJar,
    device::{Device, OutboundNotice},
    noise::{Identity, Initiator, Secret},
    peer::Peer,
    tai64n::Tai64N,
    time::Time,
};

pub(super) struct Entry {
    pub peer: Arc<Peer>,
    pub psk: PresharedKey,
    pub persistent_keepalive: u16,
    pub allowed_ips: BTreeSet<IpNet>,
    pub cookies: CookieJar,
    pub handshake: HandshakeState,
    pub timers: Timers,
    /// Only while paths are searched, and from the peer's first session on.
    pub probing: Option<Box<Probing>>,
    /// When the last handshake completed, since the Unix epoch.
    pub last_handshake: Option<Duration>,
}

/// A peer's handshakes, in both roles. They do not disturb each other: of two
/// that cross, both complete. Its secrets are boxed: what a map moves or removes it leaves behind.
#[derive(Default)]
pub(super) struct HandshakeState {
    /// The result of both static keys, computed when first needed: thousands of
    /// peers that are configured at once cost nothing.
    static_static: Option<Box<Secret>>,
    /// Our initiation that is not answered yet.
    pub pending: Option<Box<Pending>>,
    pub last_sent_timestamp: Tai64N,
    pub greatest_received_timestamp: Tai64N,
    pub last_consumed: Option<Time>,
}

/// An initiation of ours on its way.
pub(super) struct Pending {
    /// The index that we gave it.
    pub index: u32,
    pub initiator: Initiator,
    pub since: Time,
}

impl Entry {
    pub fn new(peer: Arc<Peer>) -> Self {
        Self {
            psk: PresharedKey::default(),
            persistent_keepalive: 0,
            allowed_ips: BTreeSet::new(),
            cookies: CookieJar::new(peer.public_key()),
            handshake: HandshakeState::default(),
            timers: Timers::default(),
            probing: None,
            last_handshake: None,
            peer,
        }
    }

    /// Whether persistent keepalives are wanted, and have somewhere to go.
    pub fn keeps_alive(&self) -> bool {
        self.persistent_keepalive != 0 && self.peer.endpoint().is_some()
    }

    /// Ends sessions, handshake and timers, and drops what is staged.
    pub fn reset(&mut self, device: &Device) {
        self.forget_secrets(device);
        self.timers = Timers::default();
        self.peer.activity.reset();
        self.peer.path.set_limit(None);
        self.probing = None;
        device.for_outbound.post(&self.peer, OutboundNotice::Purge);
    }

    /// Wipes what could still open or seal anything.
    pub fn forget_secrets(&mut self, device: &Device) {
        if let Some(pending) = self.handshake.pending.take() {
            device.indices_mut().remove(pending.index);
        }
        device.retire(self.peer.with_keypairs(crate::peer::Keypairs::clear));
    }
}

impl HandshakeState {
    /// `None` where the peer's key is of low order.
    pub fn static_static(&mut self, identity: &Identity, peer: &Peer) -> Option<Secret> {
        if self.static_static.is_none() {
            self.static_static = identity.private.diffie_hellman(peer.public_key()).map(Box::new);
        }
        self.static_static.as_deref().cloned()
    }

    /// Our own key changed.
    pub fn forget_identity(&mut self) {
        self.static_static = None;
    }
}
