//! Turns of several contenders, A B A B ..., and what they say beside each other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::claim::median;
use crate::contender::Contender;
use crate::flame::Flame;
use crate::measure::{Measure, Readings};
use crate::suite::{self, News, Plan};

/// All turns of a run of the bench. The first contender is the one whose bars are judged.
pub struct Comparison {
    /// Who took part.
    pub contenders: Vec<Contender>,
    /// A round is a turn of each contender, in their order.
    pub rounds: Vec<Vec<Readings>>,
    /// Whether the contenders are the rungs of a ladder, of which the first is the lowest.
    pub is_ladder: bool,
    /// Turns that ended early: figures are missing, and it has been told why.
    pub failed: u32,
    /// Pictures of where the first contender's daemons spent their time.
    pub flames: Vec<Flame>,
}

/// What several turns say of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The middle value.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// Turn by turn.
    pub values: Vec<f64>,
}

impl Comparison {
    /// Runs so many rounds; `tell` hears the round, the contender and what is new of it.
    pub fn run(
        contenders: Vec<Contender>,
        plan: &Plan,
        rounds: u32,
        tell: impl Fn(u32, &Contender, News<'_>),
    ) -> Comparison {
        let mut failed = 0;
        let mut turn = |round, contender: &Contender| {
            let mut readings = Readings::default();
            let tell = |news: News<'_>| tell(round, contender, news);
            // The rig says by a panic what does not work, and cleans up on its way. A peer that
            // gives up under a flood must not take the other turns with it.
            let run = AssertUnwindSafe(|| suite::run(contender, plan, &mut readings, &tell));
            failed += u32::from(catch_unwind(run).is_err());
            readings
        };
        let mut round = |round| contenders.iter().map(|one| turn(round, one)).collect();
        let rounds = (1..=rounds).map(&mut round).collect();
        Comparison { contenders, rounds, is_ladder: false, failed, flames: Vec::new() }
    }

    /// Whether any turn tried the measure.
    pub fn has(&self, measure: &Measure) -> bool {
        self.rounds.iter().flatten().any(|readings| readings.has(measure))
    }

    /// A contender's figures, by its place.
    pub fn of(&self, contender: usize, measure: &Measure) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round[contender].of(measure)).collect())
    }

    /// All round trips of one of [`PINGS`], of all turns, the shortest first.
    ///
    /// [`PINGS`]: crate::measure::PINGS
    pub fn round_trips(&self, contender: usize, what: &str) -> Vec<f64> {
        let turns = self.rounds.iter().flat_map(|round| round[contender].round_trips(what));
        let mut times: Vec<f64> = turns.copied().collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// What a contender was not measured by, and why.
    pub fn lacks(&self, contender: usize) -> &[(&'static str, &'static str)] {
        self.rounds.first().map_or(&[], |round| round[contender].lacks())
    }

    /// The first contender's figure for one of another, round by round.
    pub fn ratio(&self, other: usize, measure: &Measure) -> Spread {
        let ratio = |round: &Vec<Readings>| round[0].of(measure) / round[other].of(measure);
        Spread::of(self.rounds.iter().map(ratio).collect())
    }
}

impl Spread {
    /// Of the values that are numbers; not numbers themselves where there are none.
    pub fn of(values: Vec<f64>) -> Spread {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|one| one.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let median = median(&sorted);
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        let (least, most) = (end(sorted.first()), end(sorted.last()));
        Spread { median, least, most, values }
    }
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Spread};
    use crate::contender::{Carrier, Contender};
    use crate::measure::{Readings, TCP_BACK, TCP_FORTH};

    fn turn(gbps: f64) -> Readings {
        let mut readings = Readings::default();
        readings.push(&TCP_FORTH, gbps);
        readings
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
        let contenders = ["a", "b"].map(|name| Contender::new(name, Carrier::Bare)).to_vec();
        let comparison =
            Comparison { contenders, rounds, is_ladder: false, failed: 0, flames: Vec::new() };
        let ratio = comparison.ratio(1, &TCP_FORTH);
        assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 1.0, 3.0));
        assert_eq!(ratio.values, [3.0, 2.0, 1.0]);
        assert!(comparison.has(&TCP_FORTH) && !comparison.has(&TCP_BACK));
    }

    #[test]
    fn a_figure_that_could_not_be_had_leaves_the_others() {
        let spread = Spread::of(vec![f64::NAN, 1.0, f64::INFINITY]);
        assert_eq!((spread.median, spread.least, spread.most), (1.0, 1.0, 1.0));
    }
}
