//! Decides whether lost probes show that a length is too long, or only that the path has random
//! loss.
//!
//! ```text
//!   long ... not answered
//!        short long   short long   short long   ...       one pair every 15 ms
//!          |   lost     |   lost   lost  lost
//!        counts       counts       shows nothing about the length, only loss of the path
//! ```
//!
//! A lost long probe counts only if the short probe sent with it was answered. Otherwise the same
//! cause may have lost both. The number of lost long probes that are needed, with none arriving,
//! depends on the loss rate of the path: a false verdict by random loss must have a probability of
//! at most one in a million trials. There are about 10,000 trials in an hour. The loss rate is
//! unknown at first and assumed to be one half. Each reply lowers it.

use std::time::Duration;

use crate::{
    path_mtu::constants::{
        INITIAL_PROBE_TIMEOUT, MAX_PROBE_PAIRS, MAX_PROBE_TIMEOUT, MIN_PROBE_PAIRS,
        PROBE_PAIR_INTERVAL, PROBE_SUSPECT_AFTER, PROBE_TIMEOUT,
    },
    time::Time,
};

/// One trial in this many may give a false verdict on a path with random loss.
const TRIALS: f32 = 1e6;
/// Weight of one more probe in the loss rate.
const WEIGHT: f32 = 1.0 / 32.0;
/// Upper bound of the loss rate: a path that loses more does not work. It does not delay a verdict
/// further.
const MAX_LOSS: f32 = 0.5;
/// Maximum number of pairs in flight on a path with a long round trip.
const MAX_PAIRS_IN_FLIGHT: u32 = 32;
/// A trial without any reply ends after this multiple of the time for one loss.
const DEAD_AFTER: u32 = 6;

/// Share of lost probes, or probes with a lost reply, independent of their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossRate(f32);

/// The loss rate of an unknown path.
impl Default for LossRate {
    fn default() -> Self {
        Self(MAX_LOSS)
    }
}

impl LossRate {
    fn note(&mut self, lost: bool) {
        let sample = if lost { 1.0 } else { 0.0 };
        self.0 += (sample - self.0) * WEIGHT;
    }

    /// Number of lost long probes that are needed for a verdict.
    fn needed(self) -> usize {
        let share = self.0.clamp(f32::MIN_POSITIVE, MAX_LOSS);
        let needed = (TRIALS.ln() / -share.ln()).ceil() as usize;
        needed.max(MIN_PROBE_PAIRS)
    }
}

/// Timeouts for a path's round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// Time after which a probe is lost.
    pub lost: Duration,
    /// Time after which a single long probe is suspected lost.
    suspect: Duration,
    /// Interval between two pairs.
    pair: Duration,
}

impl Timeouts {
    /// Computes the timeouts for a round trip, which may be unknown.
    pub(super) fn new(rtt: Option<Duration>) -> Self {
        let beyond = |wait: Duration| rtt.map(|rtt| (wait + 2 * rtt).min(MAX_PROBE_TIMEOUT));
        let lost = beyond(PROBE_TIMEOUT).unwrap_or(INITIAL_PROBE_TIMEOUT);
        let suspect = beyond(PROBE_SUSPECT_AFTER).unwrap_or(INITIAL_PROBE_TIMEOUT);
        Self { lost, suspect, pair: PROBE_PAIR_INTERVAL.max(lost / MAX_PAIRS_IN_FLIGHT) }
    }
}

/// The probes of a trial: first a single long one, then pairs.
#[derive(Debug, Default)]
pub(super) struct TrialProbes {
    rounds: Vec<Round>,
    /// Number of rounds after their timeout.
    expired: usize,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    sent: Time,
    /// Whether its short probe was answered.
    short_replied: bool,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The length does not arrive.
    TooLong,
    /// No probes arrive, or too few to decide.
    Inconclusive,
    /// The trial continues.
    Pending,
}

impl TrialProbes {
    /// Starts a trial with a probe sent at `now`.
    pub(super) fn start(&mut self, now: Time) {
        self.rounds.clear();
        // There are many peers, and few of them have pairs in flight.
        self.rounds.shrink_to(1);
        self.expired = 0;
        self.push(now);
    }

    /// Adds one more probe, or pair, that was sent.
    pub(super) fn push(&mut self, now: Time) {
        self.rounds.push(Round { sent: now, short_replied: false });
    }

    /// Returns the time when a round was sent, if there is such a round.
    pub(super) fn sent(&self, round: usize) -> Option<Time> {
        self.rounds.get(round).map(|round| round.sent)
    }

    /// Handles the reply to the short probe of a round.
    pub(super) fn handle_short_reply(&mut self, round: usize, loss: &mut LossRate) {
        if let Some(round) = self.rounds.get_mut(round).filter(|round| !round.short_replied) {
            round.short_replied = true;
            loss.note(false);
        }
    }

    /// Handles the reply to a long probe. Earlier ones without a reply were lost at random.
    pub(super) fn handle_long_reply(&self, loss: &mut LossRate) {
        (0..self.expired).for_each(|_| loss.note(true));
        loss.note(false);
    }

    /// Handles probes after their timeout. Returns the verdict.
    pub(super) fn judge(&mut self, now: Time, timeouts: Timeouts, loss: &mut LossRate) -> Verdict {
        while let Some(round) = self.rounds.get(self.expired)
            && now.since(round.sent) >= timeouts.lost
        {
            // The first round is a long probe alone.
            if self.expired > 0 && !round.short_replied {
                loss.note(true);
            }
            self.expired += 1;
        }
        let against =
            self.rounds[..self.expired].iter().filter(|round| round.short_replied).count();
        let began = self.rounds.first().map_or(now, |round| round.sent);
        if against >= loss.needed() {
            Verdict::TooLong
        } else if self.expired > MAX_PROBE_PAIRS {
            if against >= MIN_PROBE_PAIRS { Verdict::TooLong } else { Verdict::Inconclusive }
        } else if !self.has_reply() && now.since(began) >= timeouts.lost * DEAD_AFTER {
            Verdict::Inconclusive
        } else {
            Verdict::Pending
        }
    }

    /// Whether any short probe was answered.
    pub(super) fn has_reply(&self) -> bool {
        self.rounds.iter().any(|round| round.short_replied)
    }

    /// Returns the time to send the next pair, or `None` if enough were sent. Until a short probe
    /// is answered, pairs are sent at a lower rate, because the cause may be congestion.
    pub(super) fn next_pair_due(&self, timeouts: Timeouts) -> Option<Time> {
        let last = self.rounds.last()?.sent;
        let pause = match self.sent(1) {
            None => timeouts.suspect,
            Some(first) if !self.has_reply() && last.since(first) >= timeouts.lost => timeouts.lost,
            Some(_) => timeouts.pair,
        };
        (self.rounds.len() <= MAX_PROBE_PAIRS).then_some(last + pause)
    }

    /// Returns the time of the next action.
    pub(super) fn due(&self, timeouts: Timeouts) -> Time {
        let expires = self.rounds.get(self.expired).map(|round| round.sent + timeouts.lost);
        let due = [expires, self.next_pair_due(timeouts)].into_iter().flatten().min();
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

    /// Returns the share of trials that give a false verdict on a path that loses this share of
    /// probes. False verdicts are too rare to simulate directly, so all long probes are lost, and
    /// each trial is weighted with the probability of that.
    fn wrong(
        share: f64,
        rtt: Duration,
        mut known: impl FnMut(&mut ChaCha20Rng) -> LossRate,
    ) -> f64 {
        let mut rng = ChaCha20Rng::seed_from_u64(0);
        let trials = 1_000;
        let of_one = |_| {
            let loss = known(&mut rng);
            wrong_once(share, rtt, loss, &mut rng)
        };
        (0..trials).map(of_one).sum::<f64>() / f64::from(trials)
    }

    fn wrong_once(share: f64, rtt: Duration, mut loss: LossRate, rng: &mut ChaCha20Rng) -> f64 {
        let (timeouts, mut probes) = (Timeouts::new(Some(rtt)), TrialProbes::default());
        let mut answers = Vec::new();
        let mut now = Time::from_nanos(1);
        probes.start(now);
        loop {
            let answered = answers.iter().map(|(at, _)| *at).min();
            now = answered.into_iter().fold(probes.due(timeouts), Time::min).max(now);
            let (came, coming) = answers.into_iter().partition(|(at, _)| *at <= now);
            answers = coming;
            let came: Vec<(Time, usize)> = came;
            came.iter().for_each(|(_, round)| probes.handle_short_reply(*round, &mut loss));
            match probes.judge(now, timeouts, &mut loss) {
                Verdict::TooLong => break,
                Verdict::Inconclusive => return 0.0,
                Verdict::Pending => {}
            }
            if probes.next_pair_due(timeouts).is_some_and(|at| at <= now) {
                probes.push(now);
                if !is_lost(share, rng) {
                    answers.push((now + rtt, probes.rounds.len() - 1));
                }
            }
        }
        // The reply to a later probe would have arrived too late.
        let lost = probes.rounds.iter().filter(|round| now.since(round.sent) >= rtt).count();
        share.powi(lost as i32)
    }

    fn is_lost(share: f64, rng: &mut ChaCha20Rng) -> bool {
        f64::from(rng.next_u32()) < share * f64::from(u32::MAX)
    }

    #[test]
    fn at_most_one_trial_in_a_million_gives_a_false_verdict() {
        for either_way in [0.05, 0.1, 0.2, 0.3, 0.4, 0.5] {
            let share = 1.0 - (1.0 - either_way) * (1.0 - either_way);
            for rtt in [0, 1, 20, 100, 300] {
                let rtt = Duration::from_millis(rtt);
                let first = wrong(share, rtt, |_| LossRate::default());
                let later = wrong(share, rtt, |rng| {
                    let mut loss = LossRate::default();
                    (0..200).for_each(|_| loss.note(is_lost(share, rng)));
                    loss
                });
                assert!(first < 1e-6 && later < 1e-6, "{either_way} {rtt:?}: {first} {later}");
                // No false verdict either if a path starts to lose packets after a time without
                // loss.
                if either_way <= 0.2 {
                    let calm = wrong(share, rtt, |_| LossRate(0.0));
                    assert!(calm < 1e-6, "{either_way} {rtt:?}: {calm}");
                }
            }
        }
    }

    #[test]
    fn lost_long_probe_counts_only_if_its_short_probe_was_answered() {
        for (answered, expected) in
            [(MIN_PROBE_PAIRS - 1, Verdict::Pending), (MIN_PROBE_PAIRS, Verdict::TooLong)]
        {
            let timeouts = Timeouts::new(Some(Duration::from_millis(1)));
            let (mut probes, mut loss) = (TrialProbes::default(), LossRate(0.0));
            let began = Time::from_nanos(1);
            // The single first probe, and three pairs of which both probes were lost.
            (0..1 + answered + 3).for_each(|_| probes.push(began));
            (1..=answered).for_each(|round| probes.handle_short_reply(round, &mut loss));
            let verdict = probes.judge(began + timeouts.lost, timeouts, &mut loss);
            assert_eq!(verdict, expected, "{answered}");
        }
    }

    #[test]
    fn needed_losses_increase_with_the_loss_rate() {
        let needed = |share: f32| LossRate(share).needed();
        assert_eq!([0.0, 0.01, 0.1].map(needed), [MIN_PROBE_PAIRS; 3]);
        assert_eq!([0.19, 0.36, 0.5, 1.0].map(needed), [9, 14, 20, 20]);
        let mut loss = LossRate::default();
        (0..1000).for_each(|number| loss.note(number % 5 == 0));
        assert!((0.15..0.25).contains(&loss.0), "{loss:?}");
    }
}
