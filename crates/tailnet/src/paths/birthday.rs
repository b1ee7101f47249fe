//! What all peers have in common of meeting by chance ([`super::peer`]): where we are, and that one
//! pair at a time tries.

use std::{net::SocketAddr, time::Duration};

use super::timing::BIRTHDAY_TIMEOUT;
use crate::keys::NodePublic;

/// Ports below belong to servers, are not given to flows by boxes, and are not called.
pub const FIRST_PORT: u16 = 1024;

/// Where others see us in IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicEndpoint {
    /// As a STUN server saw it.
    pub at: SocketAddr,
    /// Whether each destination sees another port.
    pub varies: bool,
}

/// Whether and with whom we try.
#[derive(Debug, Default)]
pub struct BirthdaySlot {
    pub place: Option<PublicEndpoint>,
    with: Option<NodePublic>,
    /// When that has ended, whatever happens, or when the next may begin.
    until: Duration,
}

impl BirthdaySlot {
    /// The peer that is tried for.
    pub fn with(&self) -> Option<NodePublic> {
        self.with
    }

    /// Whether a try for a peer may begin, which then has begun.
    pub fn begin(&mut self, peer: NodePublic, now: Duration) -> bool {
        let begins = now >= self.until;
        if begins {
            (self.with, self.until) = (Some(peer), now + BIRTHDAY_TIMEOUT);
        }
        begins
    }

    /// A try has ended, if there was one for that peer. The next may begin at `next`.
    pub fn end(&mut self, peer: NodePublic, next: Duration) {
        if self.with.take_if(|with| *with == peer).is_some() {
            self.until = next;
        }
    }

    /// The peer is no more.
    pub fn release(&mut self, peer: NodePublic) {
        self.with.take_if(|with| *with == peer);
    }

    /// When one may begin.
    pub fn next(&self) -> Duration {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_at_a_time_tries_and_there_is_a_rest_between() {
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
