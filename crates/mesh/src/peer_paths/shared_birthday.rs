//! The state of birthday probing that all peers share ([`super::peer`]): our public endpoint, and
//! the only active attempt.

use std::{net::SocketAddr, time::Duration};

use tailnet::keys::NodePublic;

use super::timing::BIRTHDAY_TIMEOUT;

/// Lower ports belong to servers. NATs do not assign them to flows, and they are not probed.
pub(super) const FIRST_PORT: u16 = 1024;

/// Our public IPv4 endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicEndpoint {
    /// The address that a STUN server observed.
    pub at: SocketAddr,
    /// Whether the port is different for each destination.
    pub varies: bool,
}

/// The slot for the only active attempt.
#[derive(Debug, Default)]
pub(super) struct BirthdaySlot {
    pub place: Option<PublicEndpoint>,
    with: Option<NodePublic>,
    /// The end of the attempt at the latest, or the earliest start of the next one.
    until: Duration,
}

impl BirthdaySlot {
    /// Returns the peer of the active attempt.
    pub(super) fn with(&self) -> Option<NodePublic> {
        self.with
    }

    /// Starts an attempt for a peer. Returns whether it was possible.
    pub(super) fn begin(&mut self, peer: NodePublic, now: Duration) -> bool {
        let begins = now >= self.until;
        if begins {
            (self.with, self.until) = (Some(peer), now + BIRTHDAY_TIMEOUT);
        }
        begins
    }

    /// Ends the attempt for a peer, if it is active. The next may start at `next`.
    pub(super) fn end(&mut self, peer: NodePublic, next: Duration) {
        if self.with.take_if(|with| *with == peer).is_some() {
            self.until = next;
        }
    }

    /// The peer was removed.
    pub(super) fn release(&mut self, peer: NodePublic) {
        self.with.take_if(|with| *with == peer);
    }

    /// Returns the earliest start of the next attempt.
    pub(super) fn next(&self) -> Duration {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_attempt_is_active_and_the_next_one_waits() {
        let (mut slot, now) = (BirthdaySlot::default(), BIRTHDAY_TIMEOUT);
        let [one, other] = [1, 2].map(|key| NodePublic([key; 32]));
        assert!(slot.begin(one, now) && !slot.begin(other, now));
        slot.end(other, now);
        assert_eq!(slot.with(), Some(one));
        let rest = BIRTHDAY_TIMEOUT / 3;
        slot.end(one, now + rest);
        assert!(!slot.begin(other, now) && slot.begin(other, now + rest));
        slot.release(other);
        assert!(slot.with().is_none() && slot.begin(one, now + rest + BIRTHDAY_TIMEOUT));
    }
}
