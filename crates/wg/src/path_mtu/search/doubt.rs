//! What lost questions say of a length: that it is too long, or only that the path loses some
//! of all.
//!
//! ```text
//!   long ... not answered
//!        short long   short long   short long   ...       a pair each 15 ms
//!          |   lost     |   lost   lost  lost
//!        counts       counts       says nothing of the length, but something of the path
//! ```
//!
//! A long question that was lost counts only where the short one sent beside it was answered,
//! for otherwise whatever took one took both. How many have to count, without one that arrives,
//! depends on how many questions the path loses anyway: as many as it would lose by chance once
//! in a million trials. There are some 10,000 an hour. How many a path loses is not known at
//! first, and taken for half; what arrives brings it down.

use std::time::Duration;

use crate::{
    path_mtu::constants::{
        PROBE_DOUBT_AFTER, PROBE_FIRST_TIMEOUT, PROBE_PAIR_EVERY, PROBE_PAIRS_LEAST,
        PROBE_PAIRS_MOST, PROBE_TIMEOUT, PROBE_TIMEOUT_MOST,
    },
    time::Time,
};

/// A trial in so many may be wrong about a path that only loses.
const TRIALS: f32 = 1e6;
/// The weight of one more question in how many are lost.
const WEIGHT: f32 = 1.0 / 32.0;
/// A path that loses more is one that does not work; nothing is concluded sooner for it.
const LOSS_MOST: f32 = 0.5;
/// Pairs that are on their way at a time, on a path of a long round trip.
const PAIRS_FLYING: u32 = 32;
/// A path from which nothing at all comes is given up after so many times the patience.
const DEAD_AFTER: u32 = 6;

/// The share of questions that a path loses, or their answers, whatever their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss(f32);

/// That of a path of which nothing is known: what arrives brings it down.
impl Default for Loss {
    fn default() -> Self {
        Self(LOSS_MOST)
    }
}

impl Loss {
    fn note(&mut self, lost: bool) {
        let sample = if lost { 1.0 } else { 0.0 };
        self.0 += (sample - self.0) * WEIGHT;
    }

    /// How many long questions have to count against a length.
    fn needed(self) -> usize {
        let share = self.0.clamp(f32::MIN_POSITIVE, LOSS_MOST);
        let needed = (TRIALS.ln() / -share.ln()).ceil() as usize;
        needed.max(PROBE_PAIRS_LEAST)
    }
}

/// How long to wait, on a path of some round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// After this a question is lost.
    pub lost: Duration,
    /// After this a lone question is doubted.
    doubt: Duration,
    /// Between two pairs.
    pair: Duration,
}

impl Waits {
    /// Those of a path whose round trip is known, or not.
    pub fn new(rtt: Option<Duration>) -> Self {
        let beyond = |wait: Duration| rtt.map(|rtt| (wait + 2 * rtt).min(PROBE_TIMEOUT_MOST));
        let lost = beyond(PROBE_TIMEOUT).unwrap_or(PROBE_FIRST_TIMEOUT);
        let doubt = beyond(PROBE_DOUBT_AFTER).unwrap_or(PROBE_FIRST_TIMEOUT);
        Self { lost, doubt, pair: PROBE_PAIR_EVERY.max(lost / PAIRS_FLYING) }
    }
}

/// The questions of a trial: a long one alone, and then pairs.
#[derive(Debug, Default)]
pub(super) struct Questions {
    rounds: Vec<Round>,
    /// How many of them were waited for long enough.
    expired: usize,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    sent: Time,
    /// Whether its short question was answered.
    short: bool,
}

/// What is to be thought of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does not arrive.
    TooLong,
    /// Nothing does, or too little to say.
    Unknown,
    /// There will be more to say.
    Open,
}

impl Questions {
    /// Begins anew, with a question sent at `now`.
    pub fn begin(&mut self, now: Time) {
        self.rounds.clear();
        // Peers are many, and doubts are few.
        self.rounds.shrink_to(1);
        self.expired = 0;
        self.push(now);
    }

    /// One more, or one more pair, was sent.
    pub fn push(&mut self, now: Time) {
        self.rounds.push(Round { sent: now, short: false });
    }

    /// When a round was sent, of which there may be none.
    pub fn sent(&self, round: usize) -> Option<Time> {
        self.rounds.get(round).map(|round| round.sent)
    }

    /// The short question of a round was answered.
    pub fn short_answered(&mut self, round: usize, loss: &mut Loss) {
        if let Some(round) = self.rounds.get_mut(round).filter(|round| !round.short) {
            round.short = true;
            loss.note(false);
        }
    }

    /// A long question was answered, so that those before it that were not were lost by chance.
    pub fn long_answered(&self, loss: &mut Loss) {
        (0..self.expired).for_each(|_| loss.note(true));
        loss.note(false);
    }

    /// Gives up what was waited for so long, and says what that means.
    pub fn judge(&mut self, now: Time, waits: Waits, loss: &mut Loss) -> Verdict {
        while let Some(round) = self.rounds.get(self.expired)
            && now.since(round.sent) >= waits.lost
        {
            // Of the first there was no short one.
            if self.expired > 0 && !round.short {
                loss.note(true);
            }
            self.expired += 1;
        }
        let against = self.rounds[..self.expired].iter().filter(|round| round.short).count();
        let began = self.rounds.first().map_or(now, |round| round.sent);
        if against >= loss.needed() {
            Verdict::TooLong
        } else if self.expired > PROBE_PAIRS_MOST {
            if against >= PROBE_PAIRS_LEAST { Verdict::TooLong } else { Verdict::Unknown }
        } else if !self.is_heard() && now.since(began) >= waits.lost * DEAD_AFTER {
            Verdict::Unknown
        } else {
            Verdict::Open
        }
    }

    /// Whether any short question was answered.
    pub fn is_heard(&self) -> bool {
        self.rounds.iter().any(|round| round.short)
    }

    /// When the next pair is to be sent; `None` where there are enough. While no short question
    /// is answered, which may be congestion, they go seldom.
    pub fn next_pair(&self, waits: Waits) -> Option<Time> {
        let last = self.rounds.last()?.sent;
        let pause = match self.sent(1) {
            None => waits.doubt,
            Some(first) if !self.is_heard() && last.since(first) >= waits.lost => waits.lost,
            Some(_) => waits.pair,
        };
        (self.rounds.len() <= PROBE_PAIRS_MOST).then_some(last + pause)
    }

    /// When there is something to be done or to be thought.
    pub fn due(&self, waits: Waits) -> Time {
        let expires = self.rounds.get(self.expired).map(|round| round.sent + waits.lost);
        let due = [expires, self.next_pair(waits)].into_iter().flatten().min();
        due.unwrap_or(Time::from_nanos(0))
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::{
        ChaCha20Rng,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;

    /// Of trials on a path that loses this share of questions, how many say that a length is too
    /// long. So few would, that all long questions of these are lost, and each counts as often as
    /// that happens by itself.
    fn wrong(share: f64, rtt: Duration, mut known: impl FnMut(&mut ChaCha20Rng) -> Loss) -> f64 {
        let mut rng = ChaCha20Rng::seed_from_u64(0);
        let trials = 1_000;
        let of_one = |_| {
            let loss = known(&mut rng);
            wrong_once(share, rtt, loss, &mut rng)
        };
        (0..trials).map(of_one).sum::<f64>() / f64::from(trials)
    }

    fn wrong_once(share: f64, rtt: Duration, mut loss: Loss, rng: &mut ChaCha20Rng) -> f64 {
        let (waits, mut questions) = (Waits::new(Some(rtt)), Questions::default());
        let mut answers = Vec::new();
        let mut now = Time::from_nanos(1);
        questions.begin(now);
        loop {
            let answered = answers.iter().map(|(at, _)| *at).min();
            now = answered.into_iter().fold(questions.due(waits), Time::min).max(now);
            let (came, coming) = answers.into_iter().partition(|(at, _)| *at <= now);
            answers = coming;
            let came: Vec<(Time, usize)> = came;
            came.iter().for_each(|(_, round)| questions.short_answered(*round, &mut loss));
            match questions.judge(now, waits, &mut loss) {
                Verdict::TooLong => break,
                Verdict::Unknown => return 0.0,
                Verdict::Open => {}
            }
            if questions.next_pair(waits).is_some_and(|at| at <= now) {
                questions.push(now);
                if !is_lost(share, rng) {
                    answers.push((now + rtt, questions.rounds.len() - 1));
                }
            }
        }
        // The answer to a later one would have come too late.
        let lost = questions.rounds.iter().filter(|round| now.since(round.sent) >= rtt).count();
        share.powi(lost as i32)
    }

    fn is_lost(share: f64, rng: &mut ChaCha20Rng) -> bool {
        f64::from(rng.next_u32()) < share * f64::from(u32::MAX)
    }

    #[test]
    fn one_trial_in_a_million_is_wrong_at_most_and_the_first_is_no_exception() {
        for either_way in [0.05, 0.1, 0.2, 0.3, 0.4, 0.5] {
            let share = 1.0 - (1.0 - either_way) * (1.0 - either_way);
            for rtt in [0, 1, 20, 100, 300] {
                let rtt = Duration::from_millis(rtt);
                let first = wrong(share, rtt, |_| Loss::default());
                let later = wrong(share, rtt, |rng| {
                    let mut loss = Loss::default();
                    (0..200).for_each(|_| loss.note(is_lost(share, rng)));
                    loss
                });
                assert!(first < 1e-6 && later < 1e-6, "{either_way} {rtt:?}: {first} {later}");
                // One that begins to lose has to be told from one that does not.
                if either_way <= 0.2 {
                    let calm = wrong(share, rtt, |_| Loss(0.0));
                    assert!(calm < 1e-6, "{either_way} {rtt:?}: {calm}");
                }
            }
        }
    }

    #[test]
    fn a_long_question_counts_only_beside_a_short_one_that_was_answered() {
        for (answered, expected) in
            [(PROBE_PAIRS_LEAST - 1, Verdict::Open), (PROBE_PAIRS_LEAST, Verdict::TooLong)]
        {
            let waits = Waits::new(Some(Duration::from_millis(1)));
            let (mut questions, mut loss) = (Questions::default(), Loss(0.0));
            let began = Time::from_nanos(1);
            // The lone one, and three beside which the short ones were lost, too.
            (0..1 + answered + 3).for_each(|_| questions.push(began));
            (1..=answered).for_each(|round| questions.short_answered(round, &mut loss));
            let verdict = questions.judge(began + waits.lost, waits, &mut loss);
            assert_eq!(verdict, expected, "{answered}");
        }
    }

    #[test]
    fn the_more_a_path_loses_the_more_has_to_be_lost() {
        let needed = |share: f32| Loss(share).needed();
        assert_eq!([0.0, 0.01, 0.1].map(needed), [PROBE_PAIRS_LEAST; 3]);
        assert_eq!([0.19, 0.36, 0.5, 1.0].map(needed), [9, 14, 20, 20]);
        let mut loss = Loss::default();
        (0..1000).for_each(|number| loss.note(number % 5 == 0));
        assert!((0.15..0.25).contains(&loss.0), "{loss:?}");
    }
}
