//! The search on a simulated path that drops long datagrams, on virtual time.

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::*;
use crate::path_mtu::constants::{CONFIRM_INTERVAL, MIN_PROBE_PAIRS};

/// A path and the peer at its end.
struct Path {
    search: Search,
    now: Time,
    /// The longest plaintext that the path carries.
    carries: u16,
    rtt: Duration,
    /// Whether all datagrams are lost.
    dead: bool,
    /// Share of probes that are lost, and of replies.
    loss: f64,
    rng: ChaCha20Rng,
    /// Replies in flight.
    answers: Vec<(Time, u32)>,
    probed: Vec<u16>,
    /// Time of the first long data since its length was last probed.
    marked: Option<Time>,
}

const MS: Duration = Duration::from_millis(1);

impl Path {
    fn new(mtu: u16, carries: u16, rtt: Duration) -> Self {
        let now = Time::from_nanos(1);
        let search = Search::new(mtu);
        let (answers, probed) = (Vec::new(), Vec::new());
        let rng = ChaCha20Rng::seed_from_u64(0);
        let (dead, loss, marked) = (false, 0.0, None);
        Self { search, now, carries, rtt, dead, loss, rng, answers, probed, marked }
    }

    /// A path after its search has ended.
    fn found(mtu: u16, carries: u16) -> Self {
        let mut path = Self::new(mtu, carries, 20 * MS);
        path.search.handle_long_data(path.now);
        path.run(Duration::from_secs(10));
        assert!(path.search.needs_long_data());
        path
    }

    /// Advances the time. With `busy`, long data is sent all the time.
    fn pass(&mut self, duration: Duration, busy: bool) {
        let end = self.now + duration;
        while self.now < end {
            while let Some(probe) = self.search.poll_probe() {
                self.probed.push(probe.len);
                let passes = probe.len <= self.carries && !self.dead;
                if passes && !self.loses() && !self.loses() {
                    self.answers.push((self.now + self.rtt, probe.token));
                }
            }
            self.now = self.next(end, busy);
            let now = self.now;
            let (came, coming) = self.answers.iter().partition(|(at, _)| *at <= now);
            self.answers = coming;
            let came: Vec<(Time, u32)> = came;
            came.iter().for_each(|(_, token)| self.search.handle_reply(*token, now));
            self.search.handle_timeout(now);
            match self.marked {
                None if busy && self.search.needs_long_data() => self.marked = Some(now),
                Some(at) if now.since(at) >= CONFIRM_INTERVAL => {
                    self.marked = None;
                    self.search.handle_long_data(now);
                }
                _ => {}
            }
        }
    }

    /// Time of the next event, to the millisecond.
    fn next(&self, end: Time, busy: bool) -> Time {
        let long_data = match self.marked {
            Some(at) => Some(at + CONFIRM_INTERVAL),
            None => (busy && self.search.needs_long_data()).then_some(self.now),
        };
        let answer = self.answers.iter().map(|(at, _)| *at).min();
        let events = [answer, self.search.poll_timeout(), long_data];
        events.into_iter().flatten().fold(end, Time::min).max(self.now + MS)
    }

    /// Whether a datagram that fits the path is lost.
    fn loses(&mut self) -> bool {
        self.loss > 0.0 && f64::from(self.rng.next_u32()) < self.loss * f64::from(u32::MAX)
    }

    fn run(&mut self, duration: Duration) {
        self.pass(duration, false);
    }

    fn limit(&self) -> Option<(u16, bool)> {
        self.search.limit().map(|limit| (limit.bytes, limit.settled))
    }
}

#[test]
fn full_mtu_path_is_found_with_two_probes_and_not_probed_while_idle() {
    let mut path = Path::found(1420, 9000);
    assert_eq!(path.probed, [PROBE_LEN as u16, 1420]);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
    path.run(Duration::from_secs(10_000));
    assert_eq!(path.probed.len(), 2);
}

#[test]
fn every_path_mtu_is_found_to_within_a_step() {
    for carries in (MIN_PLPMTU..8_930).step_by(7) {
        let path = Path::found(8_920, carries);
        let found = path.search.limit().map_or(8_920, |limit| limit.bytes);
        let missed = carries.min(8_920).checked_sub(found);
        assert!(missed.is_some_and(|missed| missed < SEARCH_STEP), "{carries}: {found}");
        assert_eq!(path.limit().map(|(_, settled)| settled), (found < 8_920).then_some(true));
        let lost = path.probed.iter().filter(|len| **len > carries).count();
        // The lost probes of the verdict, and those sent before the verdict.
        assert!(lost <= (1 + MIN_PROBE_PAIRS + 10) * 11, "{carries}: {lost} lost");
    }
}

#[test]
fn common_path_mtus_are_found_exactly() {
    for mtu in COMMON {
        let carries = mtu - OVERHEAD;
        let path = Path::found(8_920, carries);
        let expected = (carries < 8_920).then_some((carries, true));
        assert_eq!(path.limit(), expected, "{mtu}");
    }
}

#[test]
fn peer_that_never_replies_is_probed_three_times_only() {
    let mut path = Path::new(1420, 9000, 20 * MS);
    path.dead = true;
    path.run(Duration::from_secs(1_000));
    assert!(path.probed.is_empty(), "no long data was sent");
    path.pass(Duration::from_secs(1_000), true);
    assert_eq!(path.probed, [PROBE_LEN as u16; 3]);
    assert_eq!((path.limit(), path.search.found()), (None, None));
    // A probe of the peer, as after its replacement, restarts the search.
    path.dead = false;
    path.search.handle_probe_request(path.now);
    path.run(Duration::from_secs(10));
    assert_eq!(path.probed.len(), 3, "no long data was sent since");
    path.pass(Duration::from_secs(2), true);
    assert_eq!(path.search.found(), Some(1420));
}

#[test]
fn narrowed_path_under_load_is_limited_within_700_ms_and_then_found() {
    for carries in [1200, 1250, 1340, 1400] {
        let mut path = Path::found(1420, 1420);
        path.pass(Duration::from_secs(3), true);
        path.carries = carries;
        path.pass(Duration::from_millis(700), true);
        let (bytes, _) = path.limit().expect("it was noticed");
        assert!(bytes <= carries, "{bytes} do not pass {carries}");
        path.pass(Duration::from_secs(5), true);
        let (bytes, settled) = path.limit().unwrap();
        assert!(settled && bytes <= carries && carries - bytes < SEARCH_STEP, "{carries}: {bytes}");
    }
}

#[test]
fn total_loss_changes_no_limit() {
    let mut path = Path::found(1420, 1420);
    path.dead = true;
    path.pass(Duration::from_secs(20), true);
    assert_eq!(path.limit(), None);
    path.dead = false;
    path.pass(Duration::from_secs(70), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn peer_that_stops_replying_is_not_probed_and_its_limit_is_cleared() {
    let mut path = Path::found(1420, 1300);
    assert_eq!(path.limit().map(|(_, settled)| settled), Some(true));
    path.dead = true;
    path.pass(Duration::from_secs(300), true);
    assert_eq!((path.limit(), path.search.found()), (None, None));
    let probed = path.probed.len();
    path.pass(Duration::from_secs(1_000), true);
    assert_eq!(path.probed.len(), probed);
}

#[test]
fn search_continues_after_an_outage() {
    let mut path = Path::new(1420, 1340, 20 * MS);
    path.search.handle_long_data(path.now);
    path.run(500 * MS);
    path.dead = true;
    path.pass(Duration::from_secs(5), true);
    path.dead = false;
    path.pass(Duration::from_secs(30), true);
    assert_eq!(path.limit(), Some((1340, true)));
}

#[test]
fn widened_path_is_found_only_after_the_raise_interval() {
    let mut path = Path::found(1420, 1300);
    path.carries = 1420;
    path.pass(PMTU_RAISE_INTERVAL - Duration::from_secs(15), true);
    assert!(path.limit().is_some());
    path.pass(Duration::from_secs(30), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn unsuccessful_raise_leaves_the_limit_settled() {
    let mut path = Path::found(1420, 1340);
    let probed = path.probed.len();
    for _ in 0..7_000 {
        path.pass(100 * MS, true);
        assert_eq!(path.limit(), Some((1340, true)));
    }
    assert!(path.probed[probed..].contains(&1420), "a longer length was probed");
}

#[test]
fn new_endpoint_restarts_the_search_and_the_old_limit_applies_meanwhile() {
    let mut path = Path::found(1420, 1300);
    let old = path.limit().map(|(bytes, _)| (bytes, false));
    path.carries = 1420;
    path.search.handle_change(1420, path.now);
    path.run(Duration::from_secs(10));
    assert_eq!((path.limit(), path.search.found()), (old, None));
    path.pass(500 * MS, true);
    assert_eq!(path.limit(), None);
    path.search.handle_change(8_920, path.now);
    path.pass(Duration::from_secs(10), true);
    assert_eq!(path.limit(), Some((1420, true)));
}

#[test]
fn limit_of_a_narrower_path_is_not_settled_before_the_search_ends() {
    let mut path = Path::found(1420, 1400);
    path.carries = 1300;
    path.search.handle_change(1420, path.now);
    for _ in 0..10_000 {
        path.pass(MS, true);
        assert!(path.limit().is_none_or(|(bytes, settled)| !settled || bytes > 1284));
    }
    assert_eq!(path.limit().map(|(_, settled)| settled), Some(true));
}

#[test]
fn new_session_resumes_probing_only_of_a_peer_that_replied_before() {
    let mut path = Path::found(1420, 1300);
    let found = path.limit();
    path.dead = true;
    path.pass(Duration::from_secs(300), true);
    path.dead = false;
    path.search.handle_session();
    path.pass(Duration::from_secs(10), true);
    assert_eq!(path.limit(), found);

    let mut path = Path::new(1420, 1300, 20 * MS);
    path.dead = true;
    path.pass(Duration::from_secs(60), true);
    let probed = path.probed.len();
    path.search.handle_session();
    path.pass(Duration::from_secs(60), true);
    assert_eq!(path.probed.len(), probed);
}

#[test]
fn refusal_by_our_link_is_immediate_and_a_stale_one_is_ignored() {
    let mut path = Path::new(1420, 1420, 20 * MS);
    path.search.handle_probe_request(path.now);
    path.search.handle_long_data(path.now);
    let probe = path.search.poll_probe().unwrap();
    path.search.handle_refusal(probe.token, path.now);
    assert_eq!(path.limit(), Some((BASE_PLPMTU, false)));
    let next = path.search.poll_probe().unwrap();
    path.search.handle_refusal(probe.token, path.now);
    assert_eq!(path.search.poll_probe(), None);
    path.search.handle_reply(next.token, path.now);
    assert_eq!(path.limit(), Some((next.len, false)));
}

#[test]
fn search_works_with_a_long_round_trip() {
    let mut path = Path::new(1420, 1420, 900 * MS);
    path.pass(Duration::from_secs(30), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn replies_with_forged_tokens_are_ignored() {
    let mut path = Path::new(1420, 1420, 20 * MS);
    path.search.handle_probe_request(path.now);
    path.search.handle_long_data(path.now);
    let token = path.search.poll_probe().unwrap().token;
    for forged in [token.wrapping_sub(1), token + 1, token + 2, token + 1_000_000] {
        path.search.handle_reply(forged, path.now);
        assert_eq!(path.search.found(), None);
    }
    path.search.handle_reply(token, path.now);
    assert_eq!(path.search.found(), Some(1420));
}

/// Runs paths with random loss under long data for some time, then narrows them. Returns each path
/// and the time in milliseconds until it noticed.
fn losing_paths(loss: f64, (paths, seconds): (u64, u64)) -> Vec<(Path, u128)> {
    let losing = |seed| {
        let mut path = Path::new(1420, 9000, 20 * MS);
        (path.loss, path.rng) = (loss, ChaCha20Rng::seed_from_u64(seed));
        // A peer that never replied would not be probed.
        path.search.handle_probe_request(path.now);
        for _ in 0..seconds {
            path.pass(Duration::from_secs(1), true);
            assert_eq!(path.limit(), None, "a loss of {loss}, seed {seed}");
        }
        // At a random time between two probes.
        path.pass(Duration::from_millis(seed % 300), true);
        path.carries = 1340;
        let before = path.now;
        while path.limit().is_none() && path.now.since(before) < Duration::from_secs(10) {
            path.pass(10 * MS, true);
        }
        let took = path.now.since(before).as_millis();
        (path, took)
    };
    (0..paths).map(losing).collect()
}

/// For each loss rate, ten hours are on long-lived paths, and ten are the first seconds of new
/// paths.
#[test]
fn random_loss_narrows_no_path_in_20_hours_and_a_narrowed_one_is_found_in_2_s() {
    for loss in [0.1, 0.2, 0.3] {
        for lengths in [(10, 3_600), (3_600, 10)] {
            for (mut path, took) in losing_paths(loss, lengths) {
                let (bytes, _) = path.limit().expect("it was noticed");
                assert!(bytes <= 1340 && took <= 2_000, "{bytes} bytes after {took} ms of {loss}");
                path.loss = 0.0;
                path.pass(Duration::from_secs(10), true);
                assert_eq!(path.limit(), Some((1340, true)));
            }
        }
    }
}

#[test]
fn new_endpoint_resets_the_loss_rate() {
    let verdict_takes = |elsewhere: bool| {
        let mut path = Path::found(1420, 1420);
        path.pass(Duration::from_secs(60), true);
        path.carries = 1340;
        if elsewhere {
            path.search.handle_change(1420, path.now);
        }
        path.probed.clear();
        while path.limit().is_none() {
            path.pass(MS, true);
        }
        path.probed.iter().filter(|len| **len == 1420).count()
    };
    assert!(verdict_takes(true) >= verdict_takes(false) + 3);
}

/// Prints the time that a verdict takes, for work on the constants.
#[test]
#[ignore = "a measurement"]
fn print_time_until_a_verdict() {
    for lengths in [(20, 3_600), (7_200, 10)] {
        for loss in [0.0, 0.1, 0.2, 0.3] {
            let mut took: Vec<_> =
                losing_paths(loss, lengths).into_iter().map(|(_, took)| took).collect();
            took.sort_unstable();
            let [median, most] = [took.len() / 2, took.len() * 99 / 100].map(|at| took[at]);
            let last = took.last().unwrap();
            println!("{lengths:?}, {loss}: {median} ms, 99 of 100 {most} ms, all {last} ms");
        }
    }
}
