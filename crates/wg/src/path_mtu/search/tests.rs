//! A search against a path that drops by length, on virtual time.

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::*;
use crate::path_mtu::constants::{PROBE_CONFIRM_AFTER, PROBE_PAIRS_LEAST};

/// A path and its far end.
struct Path {
    search: Search,
    now: Time,
    /// The longest plaintext that it carries.
    carries: u16,
    rtt: Duration,
    /// Whether anything at all passes.
    dead: bool,
    /// Which share of questions is lost, and of answers.
    loss: f64,
    rng: ChaCha20Rng,
    /// Answers on their way.
    answers: Vec<(Time, u32)>,
    asked: Vec<u16>,
    /// Since when long data is sent that was not asked about yet.
    marked: Option<Time>,
}

const MS: Duration = Duration::from_millis(1);

impl Path {
    fn new(mtu: u16, carries: u16, rtt: Duration) -> Self {
        let now = Time::from_nanos(1);
        let search = Search::new(mtu);
        let (answers, asked) = (Vec::new(), Vec::new());
        let rng = ChaCha20Rng::seed_from_u64(0);
        let (dead, loss, marked) = (false, 0.0, None);
        Self { search, now, carries, rtt, dead, loss, rng, answers, asked, marked }
    }

    /// A path whose search is over.
    fn found(mtu: u16, carries: u16) -> Self {
        let mut path = Self::new(mtu, carries, 20 * MS);
        path.search.handle_long_data(path.now);
        path.run(Duration::from_secs(10));
        assert!(path.search.wants_long_data());
        path
    }

    /// Lets time pass, in which long data is sent all the time where `busy`.
    fn pass(&mut self, duration: Duration, busy: bool) {
        let end = self.now + duration;
        while self.now < end {
            while let Some(question) = self.search.poll_question() {
                self.asked.push(question.len);
                let passes = question.len <= self.carries && !self.dead;
                if passes && !self.loses() && !self.loses() {
                    self.answers.push((self.now + self.rtt, question.token));
                }
            }
            self.now = self.next(end, busy);
            let now = self.now;
            let (came, coming) = self.answers.iter().partition(|(at, _)| *at <= now);
            self.answers = coming;
            let came: Vec<(Time, u32)> = came;
            came.iter().for_each(|(_, token)| self.search.handle_answer(*token, now));
            self.search.handle_timeout(now);
            match self.marked {
                None if busy && self.search.wants_long_data() => self.marked = Some(now),
                Some(at) if now.since(at) >= PROBE_CONFIRM_AFTER => {
                    self.marked = None;
                    self.search.handle_long_data(now);
                }
                _ => {}
            }
        }
    }

    /// When something happens, to the millisecond.
    fn next(&self, end: Time, busy: bool) -> Time {
        let long_data = match self.marked {
            Some(at) => Some(at + PROBE_CONFIRM_AFTER),
            None => (busy && self.search.wants_long_data()).then_some(self.now),
        };
        let answer = self.answers.iter().map(|(at, _)| *at).min();
        let events = [answer, self.search.poll_timeout(), long_data];
        events.into_iter().flatten().fold(end, Time::min).max(self.now + MS)
    }

    /// Whether a datagram is lost that could pass.
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
fn a_path_that_carries_all_is_found_with_two_questions_and_asked_no_more_while_idle() {
    let mut path = Path::found(1420, 9000);
    assert_eq!(path.asked, [PROBE_LEN as u16, 1420]);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
    path.run(Duration::from_secs(10_000));
    assert_eq!(path.asked.len(), 2);
}

#[test]
fn every_length_of_path_is_found_to_within_a_step() {
    for carries in (PROBE_FLOOR..8_930).step_by(7) {
        let path = Path::found(8_920, carries);
        let found = path.search.limit().map_or(8_920, |limit| limit.bytes);
        let missed = carries.min(8_920).checked_sub(found);
        assert!(missed.is_some_and(|missed| missed < PROBE_STEP), "{carries}: {found}");
        assert_eq!(path.limit().map(|(_, settled)| settled), (found < 8_920).then_some(true));
        let lost = path.asked.iter().filter(|len| **len > carries).count();
        // Those of the verdict, and those that are sent while it is waited for.
        assert!(lost <= (1 + PROBE_PAIRS_LEAST + 10) * 11, "{carries}: {lost} lost");
    }
}

#[test]
fn common_paths_are_found_to_the_byte() {
    for mtu in COMMON {
        let carries = mtu - OVERHEAD;
        let path = Path::found(8_920, carries);
        let expected = (carries < 8_920).then_some((carries, true));
        assert_eq!(path.limit(), expected, "{mtu}");
    }
}

#[test]
fn a_peer_that_never_answers_is_asked_three_times_and_never_again() {
    let mut path = Path::new(1420, 9000, 20 * MS);
    path.dead = true;
    path.run(Duration::from_secs(1_000));
    assert!(path.asked.is_empty(), "nothing long was sent");
    path.pass(Duration::from_secs(1_000), true);
    assert_eq!(path.asked, [PROBE_LEN as u16; 3]);
    assert_eq!((path.limit(), path.search.found()), (None, None));
    // Until it asks, as one that was replaced does.
    path.dead = false;
    path.search.handle_question(path.now);
    path.run(Duration::from_secs(10));
    assert_eq!(path.asked.len(), 3, "nothing long was sent since");
    path.pass(Duration::from_secs(2), true);
    assert_eq!(path.search.found(), Some(1420));
}

#[test]
fn a_path_that_shrinks_under_load_is_lowered_within_700_ms_and_found_again_soon() {
    for carries in [1200, 1250, 1340, 1400] {
        let mut path = Path::found(1420, 1420);
        path.pass(Duration::from_secs(3), true);
        path.carries = carries;
        path.pass(Duration::from_millis(700), true);
        let (bytes, _) = path.limit().expect("it was noticed");
        assert!(bytes <= carries, "{bytes} do not pass {carries}");
        path.pass(Duration::from_secs(5), true);
        let (bytes, settled) = path.limit().unwrap();
        assert!(settled && bytes <= carries && carries - bytes < PROBE_STEP, "{carries}: {bytes}");
    }
}

#[test]
fn while_all_is_lost_no_length_is_blamed_and_later_all_is_as_before() {
    let mut path = Path::found(1420, 1420);
    path.dead = true;
    path.pass(Duration::from_secs(20), true);
    assert_eq!(path.limit(), None);
    path.dead = false;
    path.pass(Duration::from_secs(70), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn a_peer_that_answers_no_more_is_given_up_and_limits_nothing() {
    let mut path = Path::found(1420, 1300);
    assert_eq!(path.limit().map(|(_, settled)| settled), Some(true));
    path.dead = true;
    path.pass(Duration::from_secs(300), true);
    assert_eq!((path.limit(), path.search.found()), (None, None));
    let asked = path.asked.len();
    path.pass(Duration::from_secs(1_000), true);
    assert_eq!(path.asked.len(), asked);
}

#[test]
fn a_path_that_dies_in_the_search_is_searched_on_when_it_lives_again() {
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
fn a_path_that_carries_more_again_is_found_after_the_raise_time_and_not_before() {
    let mut path = Path::found(1420, 1300);
    path.carries = 1420;
    path.pass(PROBE_RAISE_AFTER - Duration::from_secs(15), true);
    assert!(path.limit().is_some());
    path.pass(Duration::from_secs(30), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn a_look_for_more_that_finds_nothing_unsettles_nothing() {
    let mut path = Path::found(1420, 1340);
    let asked = path.asked.len();
    for _ in 0..7_000 {
        path.pass(100 * MS, true);
        assert_eq!(path.limit(), Some((1340, true)));
    }
    assert!(path.asked[asked..].contains(&1420), "it was looked for");
}

#[test]
fn a_peer_elsewhere_is_searched_anew_and_the_old_limit_kept_meanwhile() {
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
fn of_a_narrower_path_elsewhere_nobody_is_told_before_the_search_is_over() {
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
fn who_answered_once_is_asked_again_in_the_next_session_and_nobody_else() {
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
    let asked = path.asked.len();
    path.search.handle_session();
    path.pass(Duration::from_secs(60), true);
    assert_eq!(path.asked.len(), asked);
}

#[test]
fn a_refusal_by_our_own_link_needs_no_wait_and_an_old_one_does_nothing() {
    let mut path = Path::new(1420, 1420, 20 * MS);
    path.search.handle_question(path.now);
    path.search.handle_long_data(path.now);
    let question = path.search.poll_question().unwrap();
    path.search.handle_refusal(question.token, path.now);
    assert_eq!(path.limit(), Some((PROBE_BASE, false)));
    let next = path.search.poll_question().unwrap();
    path.search.handle_refusal(question.token, path.now);
    assert_eq!(path.search.poll_question(), None);
    path.search.handle_answer(next.token, path.now);
    assert_eq!(path.limit(), Some((next.len, false)));
}

#[test]
fn a_long_round_trip_is_waited_for() {
    let mut path = Path::new(1420, 1420, 900 * MS);
    path.pass(Duration::from_secs(30), true);
    assert_eq!((path.limit(), path.search.found()), (None, Some(1420)));
}

#[test]
fn forged_tokens_move_nothing() {
    let mut path = Path::new(1420, 1420, 20 * MS);
    path.search.handle_question(path.now);
    path.search.handle_long_data(path.now);
    let token = path.search.poll_question().unwrap().token;
    for forged in [token.wrapping_sub(1), token + 1, token + 2, token + 1_000_000] {
        path.search.handle_answer(forged, path.now);
        assert_eq!(path.search.found(), None);
    }
    path.search.handle_answer(token, path.now);
    assert_eq!(path.search.found(), Some(1420));
}

/// Paths that lose at random, each after a while of long data, and how long it takes them then
/// to notice that they carry less, in milliseconds.
fn losing_paths(loss: f64, (paths, seconds): (u64, u64)) -> Vec<(Path, u128)> {
    let losing = |seed| {
        let mut path = Path::new(1420, 9000, 20 * MS);
        (path.loss, path.rng) = (loss, ChaCha20Rng::seed_from_u64(seed));
        // One that never answered would not be asked.
        path.search.handle_question(path.now);
        for _ in 0..seconds {
            path.pass(Duration::from_secs(1), true);
            assert_eq!(path.limit(), None, "a loss of {loss}, seed {seed}");
        }
        // At any time between two questions.
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

/// Ten hours of each loss are long ones, and ten are the first seconds of paths.
#[test]
fn in_20_hours_no_path_that_loses_at_random_is_narrowed_and_one_that_shrinks_is_within_2_s() {
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
fn of_a_path_elsewhere_it_is_not_known_that_it_loses_nothing() {
    let verdict_takes = |elsewhere: bool| {
        let mut path = Path::found(1420, 1420);
        path.pass(Duration::from_secs(60), true);
        path.carries = 1340;
        if elsewhere {
            path.search.handle_change(1420, path.now);
        }
        path.asked.clear();
        while path.limit().is_none() {
            path.pass(MS, true);
        }
        path.asked.iter().filter(|len| **len == 1420).count()
    };
    assert!(verdict_takes(true) >= verdict_takes(false) + 3);
}

/// How long the verdict takes: for who changes the numbers.
#[test]
#[ignore = "a measurement"]
fn how_long_the_verdict_takes() {
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
