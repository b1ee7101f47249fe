//! Divides the inbound capacity among peers when more arrives than can be opened.
//!
//! The socket has one queue for all peers. If it overflows, a peer that floods displaces the
//! datagrams of all others. While that happens and several peers send, the queue is emptied faster
//! than datagrams can be opened. Of each batch every peer gets the same share opened, and the rest
//! is dropped before any work on it. With a single peer, drops in the kernel are cheaper.
//!
//! Nothing is authenticated at this point. An attacker that sees a session's index can use up its
//! share, and without shares it could fill the socket.

use std::time::Duration;

use wg::Time;

/// Duration for which a loss counts.
const LOSS_LIFETIME: Duration = Duration::from_millis(20);
/// Duration for which the presence of several peers counts. Datagrams of a displaced peer are
/// seldom seen.
const SEVERAL_PEERS_LIFETIME: Duration = Duration::from_secs(10);
/// Bytes of one batch that are opened under contention.
const BUDGET: usize = 512 * 1024;
/// Overhead of a datagram, in bytes.
const OVERHEAD: usize = 256;

/// Records overflows of the socket and the presence of several peers.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// Time of the last loss.
    lost: Option<Time>,
    /// Time of the last batch with datagrams of several peers.
    several_peers: Option<Time>,
}

impl Contention {
    /// Records whether datagrams were lost before a batch, and whether it has several peers. A
    /// handshake counts as several peers.
    pub(super) fn note(&mut self, lost: bool, several: bool, now: Time) {
        if lost {
            self.lost = Some(now);
        }
        if several {
            self.several_peers = Some(now);
        }
    }

    /// Whether peers compete for the socket.
    pub(super) fn is_contended(&self, now: Time) -> bool {
        let within =
            |then: Option<Time>, lifetime| then.is_some_and(|then| now.since(then) < lifetime);
        within(self.lost, LOSS_LIFETIME) && within(self.several_peers, SEVERAL_PEERS_LIFETIME)
    }
}

/// Cost of a datagram of `len` bytes.
pub(super) fn cost(len: usize) -> usize {
    len + OVERHEAD
}

/// The most that each peer may cost, if the peers request the costs `wants`. All requests are
/// granted if they fit the budget. Otherwise all peers above the limit get the same (max-min
/// fairness).
pub(super) fn share(wants: &mut [usize]) -> usize {
    wants.sort_unstable();
    let (mut left, mut peers) = (BUDGET, wants.len());
    for want in wants {
        let equal = left / peers;
        if *want > equal {
            return equal;
        }
        left -= *want;
        peers -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_are_granted_and_the_others_get_equal_shares() {
        assert_eq!(share(&mut []), usize::MAX);
        assert_eq!(share(&mut [BUDGET / 2, BUDGET / 2]), usize::MAX);
        assert_eq!(share(&mut [4 * BUDGET]), BUDGET);
        assert_eq!(share(&mut [8 * BUDGET, 10_000, 8 * BUDGET]), (BUDGET - 10_000) / 2);
        assert_eq!(share(&mut [BUDGET, BUDGET, BUDGET, BUDGET]), BUDGET / 4);
    }

    #[test]
    fn contention_needs_a_loss_and_several_peers_and_expires() {
        let at = |ms: u64| Time::from_nanos(1 + ms * 1_000_000);
        let mut contention = Contention::default();
        contention.note(true, false, at(0));
        assert!(!contention.is_contended(at(0)), "one peer alone");
        contention.note(false, true, at(10));
        assert!(contention.is_contended(at(19)));
        assert!(!contention.is_contended(at(20)), "nothing is lost any more");
        contention.note(true, false, at(9_995));
        assert!(contention.is_contended(at(10_009)));
        assert!(!contention.is_contended(at(10_010)), "the other peers have expired");
    }
}
