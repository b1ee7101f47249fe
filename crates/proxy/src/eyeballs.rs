//! Decides when each address of a name is tried: happy eyeballs (RFC 8305), without I/O.
//!
//! Call order: `handle_addresses` and `handle_failure` when they happen, then `poll_attempt` until it
//! returns `None`; again at `poll_timeout`.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

/// How long IPv4 addresses wait for IPv6 addresses (section 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// The time between the starts of two attempts (section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The attempts to connect to one name. Times count from its DNS query.
#[derive(Debug, Default)]
pub(super) struct Eyeballs {
    v6: Candidates,
    v4: Candidates,
    /// The family of the last attempt.
    last_was_v6: bool,
    running: usize,
    /// When the next attempt may begin.
    next: Duration,
}

#[derive(Debug, Default)]
struct Candidates {
    addresses: VecDeque<IpAddr>,
    is_resolved: bool,
}

impl Eyeballs {
    /// Takes the addresses of a family; none if the query failed.
    pub(crate) fn handle_addresses(&mut self, is_v6: bool, addresses: Vec<IpAddr>, now: Duration) {
        let candidates = if is_v6 { &mut self.v6 } else { &mut self.v4 };
        candidates.addresses.extend(addresses);
        candidates.is_resolved = true;
        if !is_v6 && !self.v6.is_resolved {
            self.next = now + RESOLUTION_DELAY;
        } else if is_v6 && self.running == 0 {
            self.next = now;
        }
    }

    /// An attempt failed. The next may start at once.
    pub(crate) fn handle_failure(&mut self, now: Duration) {
        self.running -= 1;
        self.next = self.next.min(now);
    }

    /// The address to try now.
    pub(crate) fn poll_attempt(&mut self, now: Duration) -> Option<IpAddr> {
        let due = now >= self.next && (self.v6.is_resolved || self.v4.is_resolved);
        if !due {
            return None;
        }
        let v6_first = !self.last_was_v6;
        let address = if v6_first {
            self.v6.addresses.pop_front().or_else(|| self.v4.addresses.pop_front())
        } else {
            self.v4.addresses.pop_front().or_else(|| self.v6.addresses.pop_front())
        }?;
        self.last_was_v6 = address.is_ipv6();
        self.running += 1;
        self.next = now + ATTEMPT_DELAY;
        Some(address)
    }

    /// When `poll_attempt` will return an address, if one is known.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let any = !self.v6.addresses.is_empty() || !self.v4.addresses.is_empty();
        any.then_some(self.next)
    }

    /// Whether no attempt is running or left.
    pub(crate) fn is_over(&self) -> bool {
        let nothing =
            |candidates: &Candidates| candidates.is_resolved && candidates.addresses.is_empty();
        self.running == 0 && nothing(&self.v6) && nothing(&self.v4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn attempts_alternate_between_families_every_250_ms() {
        let mut eyeballs = Eyeballs::default();
        eyeballs.handle_addresses(true, vec![ip("fd::1"), ip("fd::2")], ms(5));
        assert_eq!(eyeballs.poll_attempt(ms(5)), Some(ip("fd::1")));
        eyeballs.handle_addresses(false, vec![ip("10.0.0.1"), ip("10.0.0.2")], ms(6));
        let mut tried = Vec::new();
        while let Some(at) = eyeballs.poll_timeout() {
            assert_eq!(eyeballs.poll_attempt(at - ms(1)), None);
            tried.push((at, eyeballs.poll_attempt(at).unwrap()));
        }
        let expected =
            [(255, "10.0.0.1"), (505, "fd::2"), (755, "10.0.0.2")].map(|(t, a)| (ms(t), ip(a)));
        assert_eq!(tried, expected);
        assert!(!eyeballs.is_over());
        (0..4).for_each(|_| eyeballs.handle_failure(ms(900)));
        assert!(eyeballs.is_over());
    }

    #[test]
    fn ipv4_addresses_wait_50_ms_for_ipv6_addresses() {
        let mut eyeballs = Eyeballs::default();
        eyeballs.handle_addresses(false, vec![ip("10.0.0.1")], ms(10));
        assert_eq!(eyeballs.poll_attempt(ms(59)), None);
        assert_eq!(eyeballs.poll_timeout(), Some(ms(60)));
        assert_eq!(eyeballs.poll_attempt(ms(60)), Some(ip("10.0.0.1")));
        assert!(!eyeballs.is_over(), "IPv6 may still come");

        let mut eyeballs = Eyeballs::default();
        eyeballs.handle_addresses(false, vec![ip("10.0.0.1")], ms(10));
        eyeballs.handle_addresses(true, vec![ip("fd::1")], ms(20));
        assert_eq!(eyeballs.poll_attempt(ms(20)), Some(ip("fd::1")));
    }

    #[test]
    fn next_attempt_starts_at_once_after_a_failure() {
        let mut eyeballs = Eyeballs::default();
        eyeballs.handle_addresses(true, vec![], ms(0));
        assert_eq!(eyeballs.poll_attempt(ms(0)), None);
        eyeballs.handle_addresses(false, vec![ip("10.0.0.1"), ip("10.0.0.2")], ms(1));
        assert_eq!(eyeballs.poll_attempt(ms(1)), Some(ip("10.0.0.1")));
        eyeballs.handle_failure(ms(3));
        assert_eq!(eyeballs.poll_attempt(ms(3)), Some(ip("10.0.0.2")));
        eyeballs.handle_failure(ms(4));
        assert!(eyeballs.is_over());
    }

    #[test]
    fn attempts_are_over_if_neither_family_has_addresses() {
        let mut eyeballs = Eyeballs::default();
        eyeballs.handle_addresses(true, vec![], ms(0));
        assert!(!eyeballs.is_over());
        eyeballs.handle_addresses(false, vec![], ms(0));
        assert!(eyeballs.is_over());
    }
}
