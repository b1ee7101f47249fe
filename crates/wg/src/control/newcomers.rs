//! Initiations from senders that are not peers, if peers are looked up on demand.
//!
//! ```text
//!   mac1 -> key -> (not a peer) -> budget -> private key proved -> kept, and the subscriber asked
//!                                    |                              |  becomes a peer in time
//!                                    `-> cookie reply               `-> response
//! ```
//!
//! Any initiation with a valid mac1 costs one Diffie-Hellman operation; these cost a second one, but
//! only within a budget for all unknown senders together. Beyond it a sender must prove its address
//! by a cookie, and then has a share of its own, as under load. So a flood from forged addresses
//! does not keep out a newcomer that uses its own address, and does not affect peers. Only cookie
//! replies are sent, which are shorter than an initiation.

use std::{mem, time::Duration};

use packet::Endpoint;
use rand_core::CryptoRng;

use super::{Control, initiations::Arrived};
use crate::{
    PublicKey,
    constants::LOOKUPS_PER_SECOND,
    drops::DropReason,
    events::{Asked, Lookups},
    message::{Handshake, Initiation},
    noise::{Claim, Opened},
    tai64n::Tai64N,
    time::{Now, Time},
};

/// What one lookup costs of the budget.
const COST: Duration = Duration::from_nanos(1_000_000_000 / LOOKUPS_PER_SECOND as u64);
/// How many lookups there may be at once.
const BURST: u32 = 20;

/// Senders that may become peers.
#[derive(Default)]
pub(super) struct Newcomers {
    kept: Lookups<PublicKey, Kept>,
    /// Those that have become peers.
    admitted: Vec<PublicKey>,
    /// When the next lookup would be due if they came evenly.
    next_look: Option<Time>,
}

/// An initiation that waits.
#[derive(Debug)]
struct Kept {
    message: Handshake,
    from: Endpoint,
    timestamp: Tai64N,
}

impl Newcomers {
    /// A peer was added.
    pub fn admit(&mut self, key: PublicKey) {
        if self.kept.get(&key).is_some() {
            self.admitted.push(key);
        }
    }

    /// Whether the budget allows one more sender without a cookie.
    fn may_look(&mut self, now: Time) -> bool {
        let next = self.next_look.map_or(now, |next| next.max(now));
        let may = next.since(now) < COST * BURST;
        if may {
            self.next_look = Some(next + COST);
        }
        may
    }
}

impl<R: CryptoRng> Control<R> {
    /// Handles an initiation from a sender that is not a peer. It is not answered, but may be kept.
    pub(super) fn handle_newcomer(
        &mut self,
        opened: &Opened,
        arrived: &Arrived<'_>,
        now: Time,
    ) -> DropReason {
        if !self.device.events.looks_up() {
            return DropReason::HandshakeUnknownPeer;
        }
        let from = arrived.from;
        if arrived.has_cookie {
            if !self.limiter.allow(from.remote, now) {
                return DropReason::HandshakeRateLimited;
            }
        } else if !self.newcomers.may_look(now) {
            self.send_cookie(arrived.datagram, from, now);
            return DropReason::HandshakeCookieSent;
        }
        let key = opened.remote;
        let Some(timestamp) = self.timestamp_of(opened, arrived.message.timestamp) else {
            return DropReason::HandshakeForged;
        };
        // A replay of an older one must not replace the newest.
        if self.newcomers.kept.get(&key).is_some_and(|kept| timestamp <= kept.timestamp) {
            return DropReason::HandshakeReplayed;
        }
        let Some(message) = Handshake::copy_of(arrived.datagram) else {
            return DropReason::InMalformed;
        };
        let kept = Kept { message, from, timestamp };
        if self.newcomers.kept.ask(key, kept, now) == Asked::Anew {
            self.device.events.post_unknown_peer(key, from);
        }
        DropReason::HandshakeUnknownPeer
    }

    /// Answers the kept initiations of senders that are peers now.
    pub(super) fn handle_admitted(&mut self, now: Now) {
        for key in mem::take(&mut self.newcomers.admitted) {
            let Some(kept) = self.newcomers.kept.take(&key, now.time) else { continue };
            let datagram = kept.message.as_bytes();
            let Some(message) = Initiation::parse(datagram) else { continue };
            let arrived = Arrived { datagram, message, from: kept.from, has_cookie: true };
            self.handle_initiations(&[arrived], now);
        }
    }

    /// The timestamp of an initiation. Only the owner of the sender's private key can have sealed
    /// it, though anybody can send it again. `None` where it is forged, or the key is our own.
    fn timestamp_of(&self, opened: &Opened, sealed: &[u8]) -> Option<Tai64N> {
        let own = self.own.as_ref()?;
        if opened.remote == own.identity.public {
            return None;
        }
        let static_static = &own.identity.private.diffie_hellman(&opened.remote)?;
        Claim { opened, static_static, sealed }.prove().map(Tai64N::from)
    }
}
