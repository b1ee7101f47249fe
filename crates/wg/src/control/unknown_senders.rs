//! Initiations from senders that are not peers, when peer lookup is on.
//!
//! ```text
//!   mac1 -> key -> (not a peer) -> budget -> proof of private key -> stored, event posted
//!                                    |                                   | becomes a peer in time
//!                                    `-> cookie reply                    `-> response
//! ```
//!
//! Any initiation with a valid mac1 costs one Diffie-Hellman operation. These cost a second one,
//! but only within a budget for all unknown senders together. Beyond it, a sender must prove its
//! address by a cookie and then has its own rate limit, as under load. So a flood from forged
//! addresses does not block a new sender that uses its own address, and does not affect peers. The
//! flood gets only cookie replies, which are shorter than an initiation.

use std::{mem, time::Duration};

use crypto::noise::{Claim, OpenedInitiation};
use packet::Endpoint;
use rand_core::CryptoRng;

use super::{Control, initiations::ReceivedInitiation};
use crate::{
    PublicKey,
    constants::LOOKUPS_PER_SECOND,
    drops::DropReason,
    events::{LookupState, Lookups},
    message::{Handshake, Initiation},
    tai64n::Tai64N,
    time::{Now, Time},
};

/// Share of the budget that one lookup takes.
const COST: Duration = Duration::from_nanos(1_000_000_000 / LOOKUPS_PER_SECOND as u64);
/// Maximum number of lookups at once.
const BURST: u32 = 20;

/// Senders that may become peers.
#[derive(Default)]
pub(super) struct UnknownSenders {
    waiting: Lookups<PublicKey, WaitingInitiation>,
    /// Senders that have become peers.
    admitted: Vec<PublicKey>,
    /// Time when the next lookup would be due at a constant rate.
    next_lookup_due: Option<Time>,
}

/// An initiation that waits for its sender to become a peer.
#[derive(Debug)]
struct WaitingInitiation {
    message: Handshake,
    from: Endpoint,
    timestamp: Tai64N,
}

impl UnknownSenders {
    /// Handles a newly added peer.
    pub(super) fn admit(&mut self, key: PublicKey) {
        if self.waiting.get(&key).is_some() {
            self.admitted.push(key);
        }
    }

    /// Whether the budget allows a lookup of one more sender without a cookie. Charges the lookup
    /// to the budget.
    fn can_look_up(&mut self, now: Time) -> bool {
        let next = self.next_lookup_due.map_or(now, |next| next.max(now));
        let may = next.since(now) < COST * BURST;
        if may {
            self.next_lookup_due = Some(next + COST);
        }
        may
    }
}

impl<R: CryptoRng> Control<R> {
    /// Handles an initiation from a sender that is not a peer. It is stored if the lookup is
    /// allowed, and not answered yet.
    pub(super) fn handle_unknown_sender(
        &mut self,
        opened: &OpenedInitiation,
        received: &ReceivedInitiation<'_>,
        now: Time,
    ) -> DropReason {
        if !self.device.events.is_lookup_enabled() {
            return DropReason::HandshakeUnknownPeer;
        }
        let from = received.from;
        if received.has_cookie {
            if !self.limiter.allow(from.remote, now) {
                return DropReason::HandshakeRateLimited;
            }
        } else if !self.unknown_senders.can_look_up(now) {
            self.send_cookie(received.datagram, from, now);
            return DropReason::HandshakeCookieSent;
        }
        let key = opened.remote;
        let Some(timestamp) = self.timestamp_of(opened, received.message.timestamp) else {
            return DropReason::HandshakeForged;
        };
        // The replay of an older initiation must not replace the newest one.
        if self
            .unknown_senders
            .waiting
            .get(&key)
            .is_some_and(|initiation| timestamp <= initiation.timestamp)
        {
            return DropReason::HandshakeReplayed;
        }
        let Some(message) = Handshake::copy_of(received.datagram) else {
            return DropReason::InMalformed;
        };
        let initiation = WaitingInitiation { message, from, timestamp };
        if self.unknown_senders.waiting.request(key, initiation, now) == LookupState::New {
            self.device.events.post_unknown_peer(key, from);
        }
        DropReason::HandshakeUnknownPeer
    }

    /// Answers the stored initiations of senders that are peers now.
    pub(super) fn handle_admitted(&mut self, now: Now) {
        for key in mem::take(&mut self.unknown_senders.admitted) {
            let Some(initiation) = self.unknown_senders.waiting.take(&key, now.time) else {
                continue;
            };
            let datagram = initiation.message.as_bytes();
            let Some(message) = Initiation::parse(datagram) else { continue };
            let received =
                ReceivedInitiation { datagram, message, from: initiation.from, has_cookie: true };
            self.handle_initiations(&[received], now);
        }
    }

    /// Returns the timestamp of an initiation. Only the owner of the sender's private key can have
    /// sealed it, but anyone can replay it. `None` if it is forged, or the key is our own.
    fn timestamp_of(&self, opened: &OpenedInitiation, sealed: &[u8]) -> Option<Tai64N> {
        let own = self.own.as_ref()?;
        if opened.remote == own.identity.public {
            return None;
        }
        let static_static = &own.identity.private.diffie_hellman(&opened.remote)?;
        Claim { opened, static_static, sealed }.prove().map(Tai64N::from)
    }
}
