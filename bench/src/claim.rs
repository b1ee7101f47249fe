//! What a run may claim of the next one: where the median of as many further rounds lies.
//!
//! From the least to the most of a run is no such claim: even if nothing but chance differed, the
//! median of five further rounds would lie outside of that of five rounds one time in six, and of
//! three rounds two times in five. So the claim is a prediction interval. The logarithms of the
//! rounds, for a noisy machine multiplies, are taken as normal with a variance that only they tell;
//! then the medians of two runs differ by Student's t with one degree of freedom less than there are
//! rounds, times the deviation of two such medians (Hahn and Meeker, "Statistical Intervals", chapter 4,
//! with the variance of a median instead of that of a mean). A machine that drifts spreads the rounds
//! of a run, which takes some ten minutes, as it spreads runs.

use std::f64::consts::PI;

/// Of a hundred medians of a second run, so many lie within.
pub const SHARE: f64 = 95.0;

/// With fewer rounds the claim would hold and be worth nothing.
pub const ROUNDS: usize = 3;

/// An interval whose ends are further apart than this is not worth telling.
const WORTH: f64 = 100.0;

/// Student's t that both tails past it have 5 %, for 1, 2, 3 ... degrees of freedom; the last one
/// for all above, where it is a little more than it need be.
const STUDENT: [f64; 11] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201];

/// Where a second run's median lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// It is this or more.
    pub low: f64,
    /// And this or less.
    pub high: f64,
}

impl Claim {
    /// By the rounds of a run, in a figure that is shown with so many digits behind the point. There
    /// is none by too few rounds, nor where every round counted nothing, nor of rounds so far apart
    /// that it could be anything.
    pub fn of(rounds: &[f64], digits: usize) -> Option<Claim> {
        let rounds: Vec<f64> = rounds.iter().copied().filter(|one| one.is_finite()).collect();
        if rounds.len() < ROUNDS || rounds.iter().all(|one| *one == 0.0) {
            return None;
        }
        // What counts nothing now and then has no logarithm.
        let has_logarithms = rounds.iter().all(|one| *one > 0.0);
        let (low, high) = if has_logarithms {
            let (low, high) = interval(&rounds.iter().map(|one| one.ln()).collect::<Vec<f64>>());
            if high - low > WORTH.ln() {
                return None;
            }
            (low.exp(), high.exp())
        } else {
            interval(&rounds)
        };
        // It is compared as it is shown.
        let rounding = 0.5 * 10f64.powi(-(digits as i32));
        Some(Claim { low: (low - rounding).max(0.0), high: high + rounding })
    }

    /// Whether it came true.
    pub fn holds(&self, median: f64) -> bool {
        (self.low..=self.high).contains(&median)
    }
}

/// What is normal, by so many samples of it: where the median of as many more lies.
fn interval(samples: &[f64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let variance = samples.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Of the median of so many samples, in variances of one; within 2 % of the exact value.
    let of_median = PI / (2.0 * count + PI - 2.0);
    let student = STUDENT[samples.len().min(STUDENT.len() + 1) - 2];
    let half = student * (variance * 2.0 * of_median).sqrt();
    let middle = median(samples);
    (middle - half, middle + half)
}

/// The middle value, or the mean of the middle two; not a number of none.
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
    fn of_a_hundred_second_runs_as_many_lie_within_as_are_claimed() {
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
    fn least_and_most_are_no_such_claim() {
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
    fn too_few_rounds_and_counts_of_nothing_claim_nothing() {
        assert_eq!(Claim::of(&[5.0; ROUNDS - 1], 2), None);
        assert_eq!(Claim::of(&[5.0, f64::NAN, 5.0], 2), None);
        assert_eq!(Claim::of(&[0.0; 5], 0), None);
        assert_eq!(Claim::of(&[0.1, 3.0, 4.0], 2), None);
    }

    #[test]
    fn a_figure_that_never_changes_may_differ_by_its_rounding() {
        let claim = Claim::of(&[10.9; 5], 1).unwrap();
        assert!(claim.holds(10.94) && claim.holds(10.86));
        assert!(!claim.holds(10.96) && !claim.holds(10.84));
    }

    #[test]
    fn a_count_that_is_nothing_now_and_then_stays_a_count() {
        let claim = Claim::of(&[0.0, 0.0, 4.0, 0.0, 1.0], 0).unwrap();
        assert_eq!(claim.low, 0.0);
        assert!(claim.holds(3.0) && !claim.holds(40.0));
    }
}
