//! Makes the socket shed most of a flood of unexpected datagrams that are not WireGuard messages.
//!
//! ```text
//!   unexpected datagrams received + shed ── FloodDetector ── a share ── FloodShedder ── the socket
//! ```

use std::{net::IpAddr, time::Duration};

use packet::Flood;
use wg::Time;

/// Datagrams a second at which a flood begins. Fewer cost one or two percent of a core.
const START_RATE: f64 = 4_000.0;
/// Datagrams a second below which the flood is over.
const END_RATE: f64 = 2_000.0;
/// Datagrams a second that are still received during a flood. Each may be from an unexpected peer,
/// and each wakes the reading threads.
const RECEIVED_RATE: f64 = 250.0;
/// Measuring time before a flood, and during one, when fewer datagrams are counted.
const MEASURE_BEFORE: Duration = Duration::from_millis(100);
const MEASURE_DURING: Duration = Duration::from_secs(1);
/// The share is set again if it changes by this factor.
const CHANGE_FACTOR: f64 = 1.5;
/// The share of all datagrams.
const ALL_DATAGRAMS: f64 = (1_u64 << 32) as f64;

/// The least time between two changes at the socket. A change costs up to a millisecond.
const SET_INTERVAL: Duration = Duration::from_millis(100);
/// The same after a refused change.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Measures the rate of unexpected datagrams, received or shed.
#[derive(Debug, Default)]
struct FloodDetector {
    since: Option<Time>,
    counted: u64,
    /// The share to receive, in units of 2^-32; `None` without a flood.
    share: Option<u32>,
}

impl FloodDetector {
    /// Takes the number of datagrams so far.
    fn handle(&mut self, arrived: u64, now: Time) {
        let elapsed = now.since(*self.since.get_or_insert(now));
        if elapsed < if self.share.is_some() { MEASURE_DURING } else { MEASURE_BEFORE } {
            return;
        }
        let rate = (arrived - self.counted) as f64 / elapsed.as_secs_f64();
        (self.since, self.counted) = (Some(now), arrived);
        let is_flood = rate >= if self.share.is_some() { END_RATE } else { START_RATE };
        let share = is_flood.then(|| (RECEIVED_RATE / rate * ALL_DATAGRAMS) as u32);
        let alike = |before: u32, share: u32| {
            let ratio = f64::from(share) / f64::from(before);
            (1.0 / CHANGE_FACTOR..=CHANGE_FACTOR).contains(&ratio)
        };
        if self.share.zip(share).is_none_or(|(before, share)| !alike(before, share)) {
            self.share = share;
        }
    }
}

/// Controls shedding at the inbound half's socket.
#[derive(Debug, Default)]
pub(super) struct FloodShedder {
    detector: FloodDetector,
    left_out: u64,
    /// The share at the socket, and the number of changes of expected senders that it includes.
    has: Option<(u32, u64)>,
    /// Time of the last change, and whether it was refused.
    set: Option<(Time, bool)>,
}

impl FloodShedder {
    /// Takes the number of unexpected datagrams received so far, the number that the socket has
    /// shed since the last call, and the number of changes of `expected`. `set` starts or stops
    /// shedding at the socket and returns whether that succeeded.
    pub(super) fn handle(
        &mut self,
        (received, left_out): (u64, u64),
        changes: u64,
        now: Time,
        expected: impl FnOnce() -> Vec<IpAddr>,
        set: impl FnOnce(Option<&Flood>) -> bool,
    ) {
        self.left_out += left_out;
        self.detector.handle(received + self.left_out, now);
        let Some(share) = self.detector.share else {
            if self.has.take().is_some() {
                set(None);
            }
            return;
        };
        let wanted = Some((share, changes));
        let pause = |refused| if refused { RETRY_INTERVAL } else { SET_INTERVAL };
        let is_due = self.set.is_none_or(|(at, refused)| now.since(at) >= pause(refused));
        if self.has == wanted || !is_due {
            return;
        }
        let sheds = set(Some(&Flood { expected: expected(), share }));
        self.has = wanted.filter(|_| sheds);
        self.set = Some((now, !sheds));
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// A socket that sheds as requested, unless it refuses.
    #[derive(Default)]
    struct Socket {
        shedder: FloodShedder,
        refuses: bool,
        has: Option<Flood>,
        /// Number of changes.
        sets: usize,
        received: f64,
        left_out: f64,
        /// Datagrams a second that are received although they should be shed.
        leaks: f64,
        changes: u64,
    }

    impl Socket {
        /// Simulates a second with this rate of datagrams, in a thousand steps. Returns the number
        /// of changes.
        fn second(&mut self, number: u64, rate: f64) -> usize {
            let before = self.sets;
            for step in 0..1000 {
                let arrived = rate / 1000.0;
                let thinned = self.has.as_ref().map_or(arrived, |flood| {
                    let leaks = (self.leaks / 1000.0).min(arrived);
                    leaks + (arrived - leaks) * f64::from(flood.share) / ALL_DATAGRAMS
                });
                self.received += thinned;
                self.left_out += arrived - thinned;
                let counted = self.left_out as u64;
                self.left_out -= counted as f64;
                self.take(counted, Time::from_nanos((number * 1000 + step) * 1_000_000));
            }
            self.sets - before
        }

        fn seconds(&mut self, numbers: Range<u64>, rate: f64) -> usize {
            numbers.map(|number| self.second(number, rate)).sum()
        }

        fn take(&mut self, left_out: u64, now: Time) {
            let Self { shedder, refuses, has, sets, .. } = self;
            let set = |flood: Option<&Flood>| {
                *sets += 1;
                *has = flood.filter(|_| !*refuses).cloned();
                has.is_some() == flood.is_some()
            };
            let expected = || vec![IpAddr::from([192, 0, 2, 1])];
            shedder.handle((self.received as u64, left_out), self.changes, now, expected, set);
        }

        fn share(&self) -> f64 {
            f64::from(self.has.as_ref().unwrap().share) / ALL_DATAGRAMS
        }
    }

    #[test]
    fn a_flood_is_detected_followed_and_its_end_detected() {
        let mut socket = Socket::default();
        assert_eq!(socket.second(1, 3_000.0), 0, "not a flood");
        assert_eq!(socket.second(2, 100_000.0), 1);
        let share = socket.share();
        assert!((0.002..0.005).contains(&share), "{share}");
        let before = socket.received;
        for number in 3..9 {
            assert_eq!(socket.second(number, 100_000.0), 0);
        }
        assert!(socket.received - before < 6.0 * 400.0, "{}", socket.received - before);
        assert!(socket.seconds(9..13, 1e6) > 0);
        assert!(socket.share() < share / 5.0, "{}", socket.share());
        (13..15).for_each(|number| assert!(socket.second(number, 100.0) < 2));
        assert_eq!(socket.has, None);
    }

    #[test]
    fn silence_ends_a_flood() {
        let mut socket = Socket::default();
        socket.second(1, 50_000.0);
        assert!(socket.has.is_some());
        socket.take(0, Time::from_nanos(60_000_000_000));
        assert_eq!(socket.has, None);
    }

    /// As if datagrams were coalesced behind an admitted one.
    #[test]
    fn datagrams_that_leak_through_shedding_do_not_reduce_the_share() {
        let mut socket = Socket { leaks: 6_000.0, ..Socket::default() };
        socket.seconds(1..20, 20_000.0);
        assert!((0.01..0.02).contains(&socket.share()), "{}", socket.share());
        socket.seconds(20..23, 1_000.0);
        assert_eq!(socket.has, None);
    }

    #[test]
    fn changed_senders_reach_the_socket_soon_but_not_each_alone() {
        let mut socket = Socket::default();
        socket.second(1, 100_000.0);
        for milliseconds in 0..1000 {
            socket.changes += 1;
            socket.take(100, Time::from_nanos((2_000 + milliseconds) * 1_000_000));
        }
        assert!((10..14).contains(&socket.sets), "{}", socket.sets);
        assert_eq!(socket.has.unwrap().expected, [IpAddr::from([192, 0, 2, 1])]);
    }

    #[test]
    fn shedding_is_requested_again_after_a_refusal() {
        let mut socket = Socket { refuses: true, ..Socket::default() };
        assert_eq!((socket.seconds(1..10, 50_000.0), &socket.has), (1, &None));
        socket.refuses = false;
        socket.seconds(10..13, 50_000.0);
        assert!(socket.has.is_some());
    }
}
