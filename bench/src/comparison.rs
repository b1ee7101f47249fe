//! Turns of several contenders (A B, then B A, and so on), and comparisons of their figures.

use crate::claim::median;
use crate::contender::{Contender, Missing};
use crate::flame::Flame;
use crate::measure::{Better, Measure};
use crate::readings::Readings;
use crate::suite::{self, News, Plan};

/// All turns of a run of the bench. The first contender is the one that the bars judge.
#[derive(Default)]
pub struct Comparison {
    /// The contenders of the run.
    pub contenders: Vec<Contender>,
    /// The turns of each round, in the order of the contenders whatever the order of the turns.
    pub rounds: Vec<Vec<Readings>>,
    /// Requested contenders that cannot be measured on this machine.
    pub missing: Vec<Missing>,
    /// Whether the contenders are the rungs of a ladder, with the lowest rung first.
    pub is_ladder: bool,
    /// Flame graphs of the first contender's daemons.
    pub flames: Vec<Flame>,
}

/// What the first contender is compared with: a peer with all its settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Rival {
    /// The peer's name.
    pub name: String,
    /// Indexes of its contenders.
    pub members: Vec<usize>,
}

/// Values of one figure over several turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The middle value. A failed turn counts as the worst value.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// The value of each turn; NaN if absent.
    pub values: Vec<f64>,
    /// Number of failed turns.
    pub failed: usize,
}

/// Result of one turn for a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Figure(f64),
    Failed,
    Nothing,
}

impl Comparison {
    /// Runs `rounds` rounds, each contender by its plan. `notify` gets the round, the contender and
    /// the event.
    pub fn run(
        contenders: Vec<Contender>,
        plan: impl Fn(&Contender) -> Plan,
        rounds: u32,
        notify: impl Fn(u32, &Contender, News<'_>),
    ) -> Self {
        let turn = |round, contender: &Contender| {
            suite::run(contender, &plan(contender), &|news| notify(round, contender, news))
        };
        let round = |round| {
            let order = order(round, contenders.len());
            let turns = order.into_iter().map(|one| (one, turn(round, &contenders[one])));
            let mut turns: Vec<(usize, Readings)> = turns.collect();
            turns.sort_by_key(|(one, _)| *one);
            turns.into_iter().map(|(_, readings)| readings).collect()
        };
        let rounds = (1..=rounds).map(round).collect();
        Self { contenders, rounds, ..Self::default() }
    }

    /// Number of failed tests in all turns.
    pub fn failed(&self) -> usize {
        self.rounds.iter().flatten().map(|readings| readings.failed().len()).sum()
    }

    /// Whether any turn has this measure.
    pub fn has(&self, measure: &Measure) -> bool {
        self.rounds.iter().flatten().any(|readings| readings.has(measure))
    }

    /// The test that measures the figure.
    pub fn test_of(&self, measure: &Measure) -> Option<&'static str> {
        self.rounds.iter().flatten().find_map(|readings| readings.test_of(measure))
    }

    /// Whether a contender has a figure of the measure in any round.
    pub fn has_figure(&self, contender: usize, measure: &Measure) -> bool {
        self.rounds.iter().any(|round| round[contender].of(measure).is_finite())
    }

    /// A contender's figures. If every turn failed, the median is NaN; a ratio still counts these
    /// turns as losses.
    pub fn of(&self, contender: usize, measure: &Measure) -> Spread {
        let outcomes: Vec<Outcome> =
            self.rounds.iter().map(|round| self.outcome(round, contender, measure)).collect();
        let spread = Spread::of_outcomes(&outcomes, measure.better());
        match spread.is_lost() {
            true => Spread::from_counted(Vec::new(), spread.values, spread.failed),
            false => spread,
        }
    }

    /// All round trips of one of [`PINGS`] in all turns, sorted.
    ///
    /// [`PINGS`]: crate::measure::PINGS
    pub fn round_trips(&self, contender: usize, what: &str) -> Vec<f64> {
        let turns = self.rounds.iter().flat_map(|round| round[contender].round_trips(what));
        let mut times: Vec<f64> = turns.copied().collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Tests that the contender did not run, and why.
    pub fn skipped(&self, contender: usize) -> &[(&'static str, &'static str)] {
        self.rounds.first().map_or(&[], |round| round[contender].skipped())
    }

    /// The first contender's figure divided by that of another, round by round. A failed turn of
    /// the first contender is a loss. A round in which only the other one failed is left out.
    pub fn ratio(&self, other: usize, measure: &Measure) -> Spread {
        let ratio = |round: &Vec<Readings>| match (
            self.outcome(round, 0, measure),
            self.outcome(round, other, measure),
        ) {
            (Outcome::Figure(own), Outcome::Figure(other)) => Outcome::Figure(own / other),
            (Outcome::Failed, Outcome::Figure(_) | Outcome::Failed) => Outcome::Failed,
            _ => Outcome::Nothing,
        };
        let outcomes: Vec<Outcome> = self.rounds.iter().map(ratio).collect();
        Spread::of_outcomes(&outcomes, measure.better())
    }

    /// The peers that the first contender is compared with.
    pub fn rivals(&self) -> Vec<Rival> {
        let mut rivals: Vec<Rival> = Vec::new();
        for (at, one) in self.contenders.iter().enumerate().skip(1) {
            let is_setting = |rival: &&mut Rival| one.setting.is_some() && rival.name == one.peer();
            match rivals.last_mut().filter(is_setting) {
                Some(rival) => rival.members.push(at),
                None => rivals.push(Rival { name: one.peer().to_owned(), members: vec![at] }),
            }
        }
        rivals
    }

    /// The index of the peer's setting with the best median. If a part of a figure has no better
    /// direction, the whole figure decides.
    pub fn best(&self, rival: &Rival, measure: &'static Measure) -> usize {
        let whole = if measure.better().is_some() { measure } else { measure.of() };
        let is_made = |one: &usize| self.has_figure(*one, whole);
        let rank = |one: &usize| {
            let median = self.of(*one, whole).median;
            if whole.better() == Some(Better::Less) { median } else { -median }
        };
        let made = rival.members.iter().copied().filter(is_made);
        let best = made.min_by(|a, b| rank(a).total_cmp(&rank(b)));
        best.unwrap_or(rival.members[0])
    }

    fn outcome(&self, round: &[Readings], contender: usize, measure: &Measure) -> Outcome {
        let readings = &round[contender];
        let test = self.test_of(measure);
        let does_without =
            || self.rounds.iter().any(|round| round[contender].does_without(measure, test));
        match readings.of(measure) {
            figure if figure.is_finite() => Outcome::Figure(figure),
            _ if readings.has_failed(measure, test) && !does_without() => Outcome::Failed,
            _ => Outcome::Nothing,
        }
    }
}

/// The order of a round's turns. Every other round runs in reverse, so that changes within a round
/// (heat, other load) do not always favour the same contender.
fn order(round: u32, contenders: usize) -> Vec<usize> {
    match round % 2 {
        1 => (0..contenders).collect(),
        _ => (0..contenders).rev().collect(),
    }
}

impl Spread {
    /// Ignores values that are not finite. The statistics are NaN if no value is left.
    pub fn of(values: Vec<f64>) -> Self {
        let sorted: Vec<f64> = values.iter().copied().filter(|one| one.is_finite()).collect();
        Self::from_counted(sorted, values, 0)
    }

    fn of_outcomes(outcomes: &[Outcome], better: Option<Better>) -> Self {
        let values = |outcomes: &Outcome| match outcomes {
            Outcome::Figure(value) => *value,
            Outcome::Failed | Outcome::Nothing => f64::NAN,
        };
        let counted = |outcomes: &Outcome| match outcomes {
            Outcome::Figure(value) => Some(*value),
            Outcome::Failed => better.map(Better::worst),
            Outcome::Nothing => None,
        };
        let failed = outcomes.iter().filter(|one| **one == Outcome::Failed).count();
        Self::from_counted(
            outcomes.iter().filter_map(counted).filter(|one| !one.is_nan()).collect(),
            outcomes.iter().map(values).collect(),
            failed,
        )
    }

    fn from_counted(mut counted: Vec<f64>, values: Vec<f64>, failed: usize) -> Self {
        counted.sort_by(f64::total_cmp);
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        let (least, most) = (end(counted.first()), end(counted.last()));
        Self { median: median(&counted), least, most, values, failed }
    }

    /// Whether turns failed and none has a figure.
    pub fn is_lost(&self) -> bool {
        self.failed > 0 && self.values.iter().all(|one| !one.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Rival, Spread, order};
    use crate::contender::{Carrier, Contender, Setting};
    use crate::measure::{BUSY_P99, Bar, CPU, MEMORY_TCP, Measure, TCP_BACK, TCP_FORTH, UDP_64};
    use crate::readings::Readings;

    fn turn(gbps: f64) -> Readings {
        let mut readings = Readings::default();
        readings.begin("tcp");
        readings.push(&TCP_FORTH, gbps);
        readings.finish();
        readings
    }

    fn failed() -> Readings {
        let mut readings = Readings::default();
        readings.begin("tcp");
        readings.fail();
        readings
    }

    fn of(rounds: Vec<Vec<Readings>>) -> Comparison {
        let contenders = ["a", "b"].map(|name| Contender::new(name, Carrier::Bare)).to_vec();
        Comparison { contenders, rounds, ..Comparison::default() }
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Spread::of(Vec::new()).median.is_nan());
    }

    #[test]
    fn a_ratio_is_taken_pair_by_pair() {
        let rounds = vec![
            vec![turn(6.0), turn(2.0)],
            vec![turn(2.0), turn(1.0)],
            vec![turn(8.0), turn(8.0)],
        ];
        let comparison = of(rounds);
        let ratio = comparison.ratio(1, &TCP_FORTH);
        assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 1.0, 3.0));
        assert_eq!(ratio.values, [3.0, 2.0, 1.0]);
        assert!(comparison.has(&TCP_FORTH) && !comparison.has(&TCP_BACK));
    }

    #[test]
    fn missing_figures_are_ignored_by_the_median() {
        let spread = Spread::of(vec![f64::NAN, 1.0, f64::INFINITY]);
        assert_eq!((spread.median, spread.least, spread.most), (1.0, 1.0, 1.0));
    }

    #[test]
    fn every_other_round_runs_in_reverse() {
        assert_eq!([order(1, 2), order(2, 2), order(3, 2)], [[0, 1], [1, 0], [0, 1]]);
        assert_eq!(order(4, 4), [3, 2, 1, 0]);
    }

    #[test]
    fn a_failed_turn_is_a_loss() {
        let rounds =
            vec![vec![turn(6.0), turn(2.0)], vec![failed(), turn(2.0)], vec![failed(), turn(2.0)]];
        let comparison = of(rounds);
        let (own, ratio) = (comparison.of(0, &TCP_FORTH), comparison.ratio(1, &TCP_FORTH));
        assert_eq!((own.median, own.failed, own.is_lost()), (0.0, 2, false));
        assert_eq!((ratio.median, ratio.least, ratio.most, ratio.failed), (0.0, 0.0, 3.0, 2));
        assert!(!TCP_FORTH.bar.is_some_and(|bar| bar.is_met(ratio.median)));
        assert_eq!(comparison.failed(), 2);
    }

    /// If less is better, a failed turn counts as infinity.
    #[test]
    fn a_failed_turn_has_infinite_time_and_cost() {
        let turn = |ms: Option<f64>| {
            let mut readings = Readings::default();
            readings.begin("ping");
            for measure in [&BUSY_P99, &CPU] {
                ms.into_iter().for_each(|ms| readings.push(measure, ms));
            }
            if ms.is_some() {
                readings.finish();
            } else {
                readings.fail();
            }
            readings
        };
        let rounds =
            vec![vec![turn(Some(1.0)), turn(Some(4.0))], vec![turn(None), turn(Some(4.0))]];
        let comparison = of(rounds);
        for measure in [&BUSY_P99, &CPU] {
            let ratio = comparison.ratio(1, measure);
            assert_eq!((ratio.least, ratio.median), (0.25, f64::INFINITY));
            assert!(!measure.bar.is_some_and(|bar: Bar| bar.is_met(ratio.median)));
        }
    }

    #[test]
    fn a_round_in_which_only_the_other_failed_is_left_out() {
        let rounds = vec![vec![turn(6.0), turn(2.0)], vec![turn(9.0), failed()]];
        let comparison = of(rounds);
        let ratio = comparison.ratio(1, &TCP_FORTH);
        assert_eq!((ratio.median, ratio.most, ratio.failed), (3.0, 3.0, 0));
        assert_eq!(comparison.of(1, &TCP_FORTH).median, 1.0);
        let lost = of(vec![vec![turn(6.0), failed()]]);
        assert!(lost.of(1, &TCP_FORTH).is_lost() && lost.ratio(1, &TCP_FORTH).median.is_nan());
        let lost = of(vec![vec![failed(), turn(6.0)], vec![failed(), turn(6.0)]]);
        assert!(lost.of(0, &TCP_FORTH).median.is_nan());
        assert_eq!(lost.ratio(1, &TCP_FORTH).median, 0.0, "and still a loss");
    }

    #[test]
    fn a_figure_that_a_contender_never_has_is_not_a_failure() {
        let mut makes = turn(6.0);
        makes.begin("tcp");
        makes.push(&CPU, 1.0);
        makes.finish();
        let comparison = of(vec![vec![makes, turn(2.0)], vec![turn(6.0), failed()]]);
        assert_eq!(comparison.of(1, &CPU).failed, 0);
        assert_eq!(comparison.of(1, &TCP_FORTH).failed, 1);
    }

    #[test]
    fn the_better_setting_of_a_peer_is_compared() {
        let turn = |gbps, megabytes, kpps| {
            let mut readings = Readings::default();
            let figures: [(&'static Measure, f64); 3] =
                [(&TCP_FORTH, gbps), (&MEMORY_TCP, megabytes), (&UDP_64, kpps)];
            figures.into_iter().for_each(|(measure, figure)| readings.push(measure, figure));
            readings
        };
        let names = ["own", "peer-1x", "peer-4x", "other"];
        let mut contenders = names.map(|name| Contender::new(name, Carrier::Bare)).to_vec();
        for (at, name) in [(1, "1x"), (2, "4x")] {
            contenders[at].setting = Some(Setting { peer: "peer", name });
        }
        let round = vec![
            turn(6.0, 8.0, 9.0),
            turn(3.0, 10.0, 2.0),
            turn(4.0, 40.0, f64::NAN),
            turn(1.0, 1.0, 1.0),
        ];
        let comparison = Comparison { contenders, rounds: vec![round], ..Comparison::default() };
        let rivals = comparison.rivals();
        let rival = |name: &str, members: &[usize]| Rival {
            name: name.to_owned(),
            members: members.to_vec(),
        };
        assert_eq!(rivals, [rival("peer", &[1, 2]), rival("other", &[3])]);
        let best = |measure| comparison.best(&rivals[0], measure);
        assert_eq!([best(&TCP_FORTH), best(&MEMORY_TCP), best(&UDP_64)], [2, 1, 1]);
    }
}
