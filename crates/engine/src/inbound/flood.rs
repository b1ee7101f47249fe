//! Has the socket leave out most of a flood of what is not WireGuard's and not expected, as long as
//! there is one.
//!
//! ```text
//!   strangers received + what the socket left out ── FloodDetector ── a share ── FloodShedder ── the socket
//! ```

use std::{net::IpAddr, time::Duration};

use packet::Flood;
use wg::Time;

/// A flood has so many datagrams a second. What comes below costs a percent of a core or two.
const BEGINS: f64 = 4_000.0;
/// Below it is over.
const ENDS: f64 = 2_000.0;
/// Of a flood so many datagrams a second are received: each may be from a peer that is not
/// expected, and wakes all who look at it.
const RECEIVED: f64 = 250.0;
/// For how long is counted, before a flood and in one, where there is less to count.
const BEFORE: Duration = Duration::from_millis(100);
const WITHIN: Duration = Duration::from_secs(1);
/// What is received is set anew where the flood is larger or smaller by this factor.
const OTHER: f64 = 1.5;
/// All datagrams.
const ALL: f64 = (1_u64 << 32) as f64;

/// What the socket has is set anew no sooner: it costs up to a millisecond.
const PAUSE: Duration = Duration::from_millis(100);
/// The same where it was refused.
const REFUSED: Duration = Duration::from_secs(10);

/// Counts strangers' datagrams, received or left out.
#[derive(Debug, Default)]
struct FloodDetector {
    since: Option<Time>,
    counted: u64,
    /// Which share of them, in 2^32, is to be received; all without a flood.
    share: Option<u32>,
}

impl FloodDetector {
    /// Takes how many came so far.
    fn handle(&mut self, came: u64, now: Time) {
        let elapsed = now.since(*self.since.get_or_insert(now));
        if elapsed < if self.share.is_some() { WITHIN } else { BEFORE } {
            return;
        }
        let rate = (came - self.counted) as f64 / elapsed.as_secs_f64();
        (self.since, self.counted) = (Some(now), came);
        let is_flood = rate >= if self.share.is_some() { ENDS } else { BEGINS };
        let share = is_flood.then(|| (RECEIVED / rate * ALL) as u32);
        let alike = |before: u32, share: u32| {
            let ratio = f64::from(share) / f64::from(before);
            (1.0 / OTHER..=OTHER).contains(&ratio)
        };
        if self.share.zip(share).is_none_or(|(before, share)| !alike(before, share)) {
            self.share = share;
        }
    }
}

/// What the inbound half has left out at its socket.
#[derive(Debug, Default)]
pub struct FloodShedder {
    detector: FloodDetector,
    left_out: u64,
    /// What the socket has: the share, and the changes of who is expected up to then.
    has: Option<(u32, u64)>,
    /// When it was set, and whether that was refused.
    set: Option<(Time, bool)>,
}

impl FloodShedder {
    /// Takes how many strangers' datagrams were received so far, how many more the socket has left
    /// out, and how often `expected` changed. `set` has the socket leave out a flood or nothing; whether
    /// it does.
    pub fn handle(
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
        let pause = |refused| if refused { REFUSED } else { PAUSE };
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

    /// A socket that leaves out what it is told, unless it refuses to.
    #[derive(Default)]
    struct Socket {
        shedder: FloodShedder,
        refuses: bool,
        has: Option<Flood>,
        /// How often it was set.
        sets: usize,
        received: f64,
        left_out: f64,
        /// Of what it is told to leave out it receives so many a second all the same.
        leaks: f64,
        changes: u64,
    }

    impl Socket {
        /// A second of so many datagrams, in a thousand steps. How often it was set.
        fn second(&mut self, number: u64, rate: f64) -> usize {
            let before = self.sets;
            for step in 0..1000 {
                let came = rate / 1000.0;
                let thinned = self.has.as_ref().map_or(came, |flood| {
                    let leaks = (self.leaks / 1000.0).min(came);
                    leaks + (came - leaks) * f64::from(flood.share) / ALL
                });
                self.received += thinned;
                self.left_out += came - thinned;
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
            f64::from(self.has.as_ref().unwrap().share) / ALL
        }
    }

    #[test]
    fn a_flood_is_seen_within_moments_followed_and_left_when_it_ends() {
        let mut socket = Socket::default();
        assert_eq!(socket.second(1, 3_000.0), 0, "it is none");
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
    fn silence_ends_it() {
        let mut socket = Socket::default();
        socket.second(1, 50_000.0);
        assert!(socket.has.is_some());
        socket.take(0, Time::from_nanos(60_000_000_000));
        assert_eq!(socket.has, None);
    }

    /// As where datagrams are joined behind one that passes.
    #[test]
    fn what_passes_a_filter_all_the_same_makes_it_no_narrower() {
        let mut socket = Socket { leaks: 6_000.0, ..Socket::default() };
        socket.seconds(1..20, 20_000.0);
        assert!((0.01..0.02).contains(&socket.share()), "{}", socket.share());
        socket.seconds(20..23, 1_000.0);
        assert_eq!(socket.has, None);
    }

    #[test]
    fn who_is_expected_is_told_within_moments_and_not_at_each_change() {
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
    fn a_socket_that_refuses_is_asked_again_later() {
        let mut socket = Socket { refuses: true, ..Socket::default() };
        assert_eq!((socket.seconds(1..10, 50_000.0), &socket.has), (1, &None));
        socket.refuses = false;
        socket.seconds(10..13, 50_000.0);
        assert!(socket.has.is_some());
    }
}
