//! What the control half keeps of one peer.

use std::{sync::Arc, time::Duration};

use super::{nets::Nets, timers::Timers};
use crate::{
    PresharedKey,
    constants::{REKEY_TIMEOUT, STALE_AFTER},
    cookie::CookieJar,
    device::{Device, OutboundNotice},
    drops::DropReason,
    events::PeerEvent,
    noise::{Identity, Initiator, Secret},
    path_mtu::PathSearch,
    peer::Peer,
    post_quantum::Agreement,
    tai64n::Tai64N,
    time::Time,
};

pub(super) struct Entry {
    pub peer: Arc<Peer>,
    pub psk: PresharedKey,
    pub persistent_keepalive: u16,
    pub allowed_ips: Nets,
    pub cookies: CookieJar,
    pub handshake: HandshakeState,
    pub timers: Timers,
    pub path: PathSearch,
    pub quantum: Agreement,
    /// What had been received when it was last told that the peer is stale.
    stale_at: Option<u64>,
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
    /// What had been received by then.
    pub rx_bytes: u64,
    pub reading: Reading,
}

/// Whether responses to an initiation were read. One that is not may be by a secret that we lost,
/// or forged, so it costs one more initiation and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// None came, or they were read.
    Open,
    /// One came that could not be read.
    Unreadable,
    /// This is the initiation that followed.
    Again,
}

impl Reading {
    /// The drop reason of the response that could not be read, if there was one. `read` is the next
    /// response that could be read, if one came, with the number of the secret in it.
    pub fn unread(self, read: Option<Option<u32>>) -> Option<DropReason> {
        match (self, read) {
            (Self::Open, _) => None,
            (Self::Again, Some(None)) => Some(DropReason::HandshakeLostSecret),
            (Self::Unreadable | Self::Again, _) => Some(DropReason::HandshakeForged),
        }
    }
}

impl Entry {
    pub fn new(peer: Arc<Peer>) -> Self {
        Self {
            psk: PresharedKey::default(),
            persistent_keepalive: 0,
            allowed_ips: Nets::default(),
            cookies: CookieJar::default(),
            handshake: HandshakeState::default(),
            timers: Timers::default(),
            path: PathSearch::new(peer.clone()),
            quantum: Agreement::default(),
            stale_at: None,
            last_handshake: None,
            peer,
        }
    }

    /// Whether persistent keepalives are wanted, and have somewhere to go.
    pub fn keeps_alive(&self) -> bool {
        self.persistent_keepalive != 0 && self.peer.endpoint().is_some()
    }

    /// What the data path is told of a change of endpoint or interval.
    pub fn notice_after(&self, kept_alive: bool) -> OutboundNotice {
        match self.keeps_alive() && !kept_alive {
            true => OutboundNotice::Keepalive,
            false => OutboundNotice::Flush,
        }
    }

    /// When the peer is stale, if nothing comes before and it was not told.
    pub fn stale_deadline(&self) -> Option<Time> {
        let is_told = self.stale_at == Some(self.rx_bytes());
        self.peer.activity.stale_deadline().filter(|_| !is_told)
    }

    /// Tells that the peer is stale, once until it is heard again.
    pub fn tell_stale(&mut self, device: &Device) {
        let heard = Some(self.rx_bytes());
        if device.events.are_on() && self.stale_at != heard {
            self.stale_at = heard;
            device.events.post(&self.peer, PeerEvent::Stale);
        }
    }

    /// Whether an initiation of ours was not answered, and nothing else came either.
    pub fn is_handshake_stale(&self, now: Time) -> bool {
        self.handshake.pending.as_ref().is_some_and(|pending| {
            pending.rx_bytes == self.rx_bytes() && now.since(pending.since) >= STALE_AFTER
        })
    }

    pub fn rx_bytes(&self) -> u64 {
        self.peer.bytes().0
    }

    /// Ends sessions, handshake and timers, and drops what is staged.
    pub fn reset(&mut self, device: &Device) {
        self.forget_secrets(device);
        self.timers = Timers::default();
        self.peer.activity.reset();
        self.path.reset();
        self.quantum.reset();
        device.outbound_mailbox.post(&self.peer, OutboundNotice::Purge);
    }

    /// Wipes what could still open or seal anything.
    pub fn forget_secrets(&mut self, device: &Device) {
        if let Some(pending) = self.handshake.pending.take() {
            device.indices_mut().remove(pending.index);
            pending.reading.unread(None).iter().for_each(|reason| device.drops.count(*reason, 1));
        }
        device.retire(self.peer.with_keypairs(crate::peer::Keypairs::clear));
    }
}

impl HandshakeState {
    pub fn has_static_static(&self) -> bool {
        self.static_static.is_some()
    }

    /// Keeps what was computed elsewhere.
    pub fn keep_static_static(&mut self, shared: &Secret) {
        self.static_static = Some(Box::new(shared.clone()));
    }

    /// `None` where the peer's key is of low order.
    pub fn static_static(&mut self, identity: &Identity, peer: &Peer) -> Option<Secret> {
        if self.static_static.is_none() {
            self.static_static = identity.private.diffie_hellman(peer.public_key()).map(Box::new);
        }
        self.static_static.as_deref().cloned()
    }

    /// Whether our initiation had no answer for as long as one takes.
    pub fn is_unanswered(&self, now: Time) -> bool {
        self.pending.as_ref().is_some_and(|pending| now.since(pending.since) >= REKEY_TIMEOUT)
    }

    /// Our own key changed.
    pub fn forget_identity(&mut self) {
        self.static_static = None;
    }
}
