//! Who is served when more arrives than can be opened.
//!
//! The socket's queue is one for all peers: where it overflows, a peer that floods
//! takes the place of all others. So while it does, and more than one peer sends,
//! the queue is emptied faster than packets can be opened, and of what came each
//! peer has the same share opened; the rest is dropped before anything was spent
//! on it. With one peer alone the kernel drops for less.
//!
//! Nothing is authenticated yet: whoever sees a session's index can use up its share,
//! as without shares he can fill the socket.

use std::time::Duration;

use wg::Time;

/// For how long an overflow counts.
const LOST_MEMORY: Duration = Duration::from_millis(20);
/// For how long it counts that there is more than one peer: one that hardly comes
/// through is seldom seen.
const MIXED_MEMORY: Duration = Duration::from_secs(10);
/// What is opened of one batch in the meantime, in bytes.
const BUDGET: usize = 512 * 1024;
/// What a datagram costs beside its bytes, in bytes.
const OVERHEAD: usize = 256;

/// Whether the socket overflows, and with the datagrams of how many peers.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// When datagrams were last lost.
    lost: Option<Time>,
    /// When datagrams of several peers last came in one batch.
    mixed: Option<Time>,
}

impl Contention {
    /// Notes of a batch whether datagrams were lost before it, and whether it came
    /// from several peers, as it does where somebody shakes hands.
    pub fn note(&mut self, lost: bool, several: bool, now: Time) {
        if lost {
            self.lost = Some(now);
        }
        if several {
            self.mixed = Some(now);
        }
    }

    /// Whether peers are in each other's way.
    pub fn is_contended(&self, now: Time) -> bool {
        let within = |then: Option<Time>, memory| then.is_some_and(|then| now.since(then) < memory);
        within(self.lost, LOST_MEMORY) && within(self.mixed, MIXED_MEMORY)
    }
}

/// What a datagram of `len` bytes costs.
pub(super) fn cost(len: usize) -> usize {
    len + OVERHEAD
}

/// How much each peer may cost, where each wants what stands in `wants`: as much
/// as it wants where all fits the budget, else the same for all that want more
/// (max-min fairness).
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
    fn whoever_wants_little_has_it_and_the_others_the_same() {
        assert_eq!(share(&mut []), usize::MAX);
        assert_eq!(share(&mut [BUDGET / 2, BUDGET / 2]), usize::MAX);
        assert_eq!(share(&mut [4 * BUDGET]), BUDGET);
        assert_eq!(share(&mut [8 * BUDGET, 10_000, 8 * BUDGET]), (BUDGET - 10_000) / 2);
        assert_eq!(share(&mut [BUDGET, BUDGET, BUDGET, BUDGET]), BUDGET / 4);
    }

    #[test]
    fn it_takes_a_loss_and_several_peers_and_is_over_soon() {
        let at = |ms: u64| Time::from_nanos(1 + ms * 1_000_000);
        let mut contention = Contention::default();
        contention.note(true, false, at(0));
        assert!(!contention.is_contended(at(0)), "one peer alone");
        contention.note(false, true, at(10));
        assert!(contention.is_contended(at(19)));
        assert!(!contention.is_contended(at(20)), "nothing is lost any more");
        contention.note(true, false, at(9_995));
        assert!(contention.is_contended(at(10_009)));
        assert!(!contention.is_contended(at(10_010)), "the others are gone");
    }
}
