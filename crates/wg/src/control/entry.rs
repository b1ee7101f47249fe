//! State of one peer in the control half.

use std::{sync::Arc, time::Duration};

use crypto::noise::{Identity, Initiator, Secret};

use super::{agreement::Agreement, nets::Nets, path_search::PathSearch, timers::Timers};
use crate::{
    PresharedKey,
    constants::{REKEY_TIMEOUT, STALE_AFTER},
    cookie::CookieJar,
    device::{Device, OutboundNotice},
    drops::DropReason,
    events::PeerEvent,
    keypair::Role,
    peer::Peer,
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
    pub agreement: Agreement,
    /// Received bytes when the peer was last reported as stale.
    reported_stale_at: Option<u64>,
    /// Time of the last completed handshake, since the Unix epoch.
    pub last_handshake: Option<Duration>,
}

/// A peer's handshakes in both roles. The roles are independent: if two handshakes cross, both
/// complete. The secrets are boxed, because a map that moves or removes a value leaves a copy
/// behind.
#[derive(Default)]
pub(super) struct HandshakeState {
    /// Diffie-Hellman result of both static keys. It is computed on first use, so that configuring
    /// thousands of peers at once is cheap.
    static_static: Option<Box<Secret>>,
    /// Our unanswered initiation.
    pub pending: Option<Box<Pending>>,
    pub last_sent_timestamp: Tai64N,
    pub greatest_received_timestamp: Tai64N,
    pub last_consumed: Option<Time>,
}

/// An unanswered initiation.
pub(super) struct Pending {
    /// Our index in the initiation.
    pub index: u32,
    pub initiator: Initiator,
    pub since: Time,
    /// Received bytes at that time.
    pub rx_bytes: u64,
    pub response_state: ResponseState,
}

/// Result of reading the responses to an initiation. An unreadable response was forged, or it uses
/// a secret that this side lost. It causes at most one more initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseState {
    /// Every response was readable.
    Normal,
    /// A response was unreadable.
    Unreadable,
    /// This initiation follows one with an unreadable response.
    Retry,
}

impl ResponseState {
    /// Returns the drop reason of the unreadable response, if there was one. `read` is the next
    /// readable response, if any, with the ID of the secret in it.
    pub(super) fn drop_reason(self, read: Option<Option<u32>>) -> Option<DropReason> {
        match (self, read) {
            (Self::Normal, _) => None,
            (Self::Retry, Some(None)) => Some(DropReason::HandshakeLostSecret),
            (Self::Unreadable | Self::Retry, _) => Some(DropReason::HandshakeForged),
        }
    }
}

impl Entry {
    pub(super) fn new(peer: Arc<Peer>) -> Self {
        Self {
            psk: PresharedKey::default(),
            persistent_keepalive: 0,
            allowed_ips: Nets::default(),
            cookies: CookieJar::default(),
            handshake: HandshakeState::default(),
            timers: Timers::default(),
            path: PathSearch::new(peer.clone()),
            agreement: Agreement::default(),
            reported_stale_at: None,
            last_handshake: None,
            peer,
        }
    }

    /// Whether persistent keepalives are configured and the peer has an endpoint.
    pub(super) fn has_keepalive(&self) -> bool {
        self.persistent_keepalive != 0 && self.peer.endpoint().is_some()
    }

    /// Returns the notice for the data path after a change of endpoint or interval.
    pub(super) fn notice_after_change(&self, had_keepalive: bool) -> OutboundNotice {
        match self.has_keepalive() && !had_keepalive {
            true => OutboundNotice::Keepalive,
            false => OutboundNotice::Flush,
        }
    }

    /// Returns the time when the peer becomes stale if nothing is received before. `None` if that
    /// was reported already.
    pub(super) fn stale_deadline(&self) -> Option<Time> {
        let is_reported = self.reported_stale_at == Some(self.rx_bytes());
        self.peer.activity.stale_deadline().filter(|_| !is_reported)
    }

    /// Reports the peer as stale, once until something is received from it.
    pub(super) fn post_stale(&mut self, device: &Device) {
        let rx_bytes = Some(self.rx_bytes());
        if device.events.is_enabled() && self.reported_stale_at != rx_bytes {
            self.reported_stale_at = rx_bytes;
            device.events.post(&self.peer, PeerEvent::Stale);
        }
    }

    /// Whether our initiation is unanswered and nothing else was received since.
    pub(super) fn is_handshake_stale(&self, now: Time) -> bool {
        self.handshake.pending.as_ref().is_some_and(|pending| {
            pending.rx_bytes == self.rx_bytes() && now.since(pending.since) >= STALE_AFTER
        })
    }

    pub(super) fn rx_bytes(&self) -> u64 {
        self.peer.bytes().0
    }

    /// Ends sessions, handshake and timers, and drops staged packets.
    pub(super) fn reset(&mut self, device: &Device) {
        self.wipe_secrets(device);
        self.timers = Timers::default();
        self.peer.activity.reset();
        self.path.reset();
        self.agreement.reset();
        device.outbound_mailbox.post(&self.peer, OutboundNotice::Purge);
    }

    /// Wipes all secrets that could still open or seal a message.
    pub(super) fn wipe_secrets(&mut self, device: &Device) {
        self.give_up_initiation(device);
        device.retire(self.peer.with_keypairs(crate::peer::Keypairs::clear));
    }

    /// Gives up our initiation if the current session answers a later one of the peer. The peer may have
    /// begun further sessions since. It then no longer has the session of a response that arrives late,
    /// and data in that session would be lost until the next handshake.
    pub(super) fn give_up_old_initiation(&mut self, device: &Device) {
        let current = self.peer.current_keypair();
        let is_old =
            self.handshake.pending.as_ref().zip(current).is_some_and(|(pending, current)| {
                current.role == Role::Responder && current.created > pending.since
            });
        if is_old {
            self.give_up_initiation(device);
        }
    }

    fn give_up_initiation(&mut self, device: &Device) {
        if let Some(pending) = self.handshake.pending.take() {
            device.indices_mut().remove(pending.index);
            pending
                .response_state
                .drop_reason(None)
                .iter()
                .for_each(|reason| device.drops.count(*reason, 1));
        }
    }
}

impl HandshakeState {
    pub(super) fn has_static_static(&self) -> bool {
        self.static_static.is_some()
    }

    /// Sets the result that was computed elsewhere.
    pub(super) fn set_static_static(&mut self, shared: &Secret) {
        self.static_static = Some(Box::new(shared.clone()));
    }

    /// Returns the Diffie-Hellman result of both static keys, or `None` if the peer's key is of low
    /// order.
    pub(super) fn static_static(&mut self, identity: &Identity, peer: &Peer) -> Option<Secret> {
        if self.static_static.is_none() {
            self.static_static = identity.private.diffie_hellman(peer.public_key()).map(Box::new);
        }
        self.static_static.as_deref().cloned()
    }

    /// Whether our initiation is older than [`REKEY_TIMEOUT`].
    pub(super) fn is_unanswered(&self, now: Time) -> bool {
        self.pending.as_ref().is_some_and(|pending| now.since(pending.since) >= REKEY_TIMEOUT)
    }

    /// Clears the result, because our own key changed.
    pub(super) fn clear_static_static(&mut self) {
        self.static_static = None;
    }
}
