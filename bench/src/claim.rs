//! A prediction interval for the median of a second run, from the rounds of the first.
//!
//! The range from the least to the most of a run is not such an interval. Even if only chance
//! differed, the median of five further rounds would lie outside the range of five rounds in one
//! case of six, and with three rounds in two cases of five. The noise of a machine multiplies, so
//! the logarithms of the rounds are taken as normal with an unknown variance. Then the medians of
//! two runs differ by Student's t with one degree of freedom less than there are rounds, times the
//! deviation of two such medians (Hahn and Meeker, "Statistical Intervals", chapter 4, with the
//! variance of a median instead of that of a mean). A run takes some ten minutes, so a machine that
//! drifts spreads the rounds of one run as it spreads runs.

use std::f64::consts::PI;

/// Percentage of second medians that lie within the interval.
pub const SHARE: f64 = 95.0;

/// With fewer rounds the interval would be correct but too wide to be useful.
pub const ROUNDS: usize = 3;

/// Intervals with ends that differ by more than this factor are not reported.
const WIDEST: f64 = 100.0;

/// Student's t with 5 % in both tails together, for 1, 2, 3 ... degrees of freedom. The last entry
/// is used for all above, for which it is slightly too large.
const STUDENT: [f64; 11] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201];

/// The interval in which a second run's median lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Lower end, inclusive.
    pub low: f64,
    /// Upper end, inclusive.
    pub high: f64,
}

impl Claim {
    /// `None` with too few rounds, if every round counted 0, or if the interval is too wide.
    /// `digits` is the number of digits behind the point in tables.
    pub fn of(rounds: &[f64], digits: usize) -> Option<Self> {
        let rounds: Vec<f64> = rounds.iter().copied().filter(|one| one.is_finite()).collect();
        if rounds.len() < ROUNDS || rounds.iter().all(|one| *one == 0.0) {
            return None;
        }
        // A zero has no logarithm.
        let has_logarithms = rounds.iter().all(|one| *one > 0.0);
        let (low, high) = if has_logarithms {
            let (low, high) = interval(&rounds.iter().map(|one| one.ln()).collect::<Vec<f64>>());
            if high - low > WIDEST.ln() {
                return None;
            }
            (low.exp(), high.exp())
        } else {
            interval(&rounds)
        };
        // Medians are compared as they are shown.
        let rounding = 0.5 * 10f64.powi(-(digits as i32));
        Some(Self { low: (low - rounding).max(0.0), high: high + rounding })
    }

    /// Whether the median lies within.
    pub fn holds(&self, median: f64) -> bool {
        (self.low..=self.high).contains(&median)
    }
}

/// The interval of the median of as many further samples, if these are normal.
fn interval(samples: &[f64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let variance = samples.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Variance of the median of n samples, in variances of one; within 2 % of the exact value.
    let of_median = PI / (2.0 * count + PI - 2.0);
    let student = STUDENT[samples.len().min(STUDENT.len() + 1) - 2];
    let half = student * (variance * 2.0 * of_median).sqrt();
    let middle = median(samples);
    (middle - half, middle + half)
}

/// The middle value, or the mean of the middle two; NaN for an empty slice.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::{Claim, ROUNDS, SHARE, median};

    /// Rounds of a noisy figure around 5, by Box and Muller.
    fn run(rng: &mut ChaCha20Rng, rounds: usize, noise: f64) -> Vec<f64> {
        let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || {
            let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
            radius * (std::f64::consts::TAU * uniform()).cos()
        };
        (0..rounds).map(|_| 5.0 * (noise * normal()).exp()).collect()
    }

    #[test]
    fn claimed_share_of_second_medians_lies_within() {
        const RUNS: usize = 5_000;
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        for (rounds, noise) in [(3, 0.1), (4, 0.1), (5, 0.02), (5, 0.2), (9, 0.1), (12, 0.1)] {
            let mut within = 0;
            for _ in 0..RUNS {
                let claim = Claim::of(&run(&mut rng, rounds, noise), 9).unwrap();
                within += usize::from(claim.holds(median(&run(&mut rng, rounds, noise))));
            }
            let share = 100.0 * within as f64 / RUNS as f64;
            assert!((SHARE - 1.0..SHARE + 2.5).contains(&share), "{rounds} rounds: {share} %");
        }
    }

    #[test]
    fn range_of_five_rounds_contains_five_sixths_of_second_medians() {
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        let mut within = 0;
        for _ in 0..6000 {
            let mut first = run(&mut rng, 5, 0.1);
            first.sort_by(f64::total_cmp);
            within += usize::from((first[0]..=first[4]).contains(&median(&run(&mut rng, 5, 0.1))));
        }
        // 1 - 2 C(7,2) / C(10,5) = 5/6.
        assert!((4900..5100).contains(&within), "{within}");
    }

    #[test]
    fn too_few_rounds_and_counts_of_zero_give_no_claim() {
        assert_eq!(Claim::of(&[5.0; ROUNDS - 1], 2), None);
        assert_eq!(Claim::of(&[5.0, f64::NAN, 5.0], 2), None);
        assert_eq!(Claim::of(&[0.0; 5], 0), None);
        assert_eq!(Claim::of(&[0.1, 3.0, 4.0], 2), None);
    }

    #[test]
    fn a_constant_figure_may_differ_by_its_rounding() {
        let claim = Claim::of(&[10.9; 5], 1).unwrap();
        assert!(claim.holds(10.94) && claim.holds(10.86));
        assert!(!claim.holds(10.96) && !claim.holds(10.84));
    }

    #[test]
    fn a_count_that_is_sometimes_zero_has_a_claim_from_zero() {
        let claim = Claim::of(&[0.0, 0.0, 4.0, 0.0, 1.0], 0).unwrap();
        assert_eq!(claim.low, 0.0);
        assert!(claim.holds(3.0) && !claim.holds(40.0));
    }
}
