//! The readings of one turn, and its failed tests.

use crate::measure::Measure;

/// The readings of one turn.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    figures: Vec<Figure>,
    round_trips: Vec<(&'static str, Vec<f64>)>,
    skipped: Vec<(&'static str, &'static str)>,
    /// The measures of the plan; `None` for all.
    only: Option<&'static [&'static Measure]>,
    /// The running test.
    test: Option<&'static str>,
    finished: Vec<&'static str>,
    failed: Vec<&'static str>,
    congestion: Option<String>,
}

#[derive(Clone, Debug)]
struct Figure {
    measure: &'static Measure,
    value: f64,
    test: Option<&'static str>,
}

impl Readings {
    /// `only` are the measures of the plan; `None` for all.
    pub fn new(only: Option<&'static [&'static Measure]>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Starts a test: figures belong to it until `finish` or `fail`.
    pub fn begin(&mut self, test: &'static str) {
        self.test = Some(test);
    }

    /// Ends the running test successfully.
    pub fn finish(&mut self) {
        self.finished.extend(self.test.take());
    }

    /// Ends the running test as failed: its missing figures are losses.
    pub fn fail(&mut self) {
        self.failed.extend(self.test.take());
    }

    /// The tests that failed.
    pub fn failed(&self) -> &[&'static str] {
        &self.failed
    }

    /// Adds a figure. A value that is not finite marks a failed measurement.
    pub fn push(&mut self, measure: &'static Measure, value: f64) {
        self.figures.push(Figure { measure, value, test: self.test });
    }

    /// Replaces a figure.
    pub fn set(&mut self, measure: &'static Measure, value: f64) {
        self.figures.retain(|one| one.measure.key != measure.key);
        self.push(measure, value);
    }

    /// The value of a measure; NaN if absent or failed.
    pub fn of(&self, measure: &Measure) -> f64 {
        self.figure(measure).map_or(f64::NAN, |one| one.value)
    }

    /// Whether a value of the measure exists, finite or not.
    pub fn has(&self, measure: &Measure) -> bool {
        self.figure(measure).is_some()
    }

    /// The test that made this figure.
    pub fn test_of(&self, measure: &Measure) -> Option<&'static str> {
        self.figure(measure)?.test
    }

    /// Whether the figure failed: its measurement failed, or its test did not reach it. `test` is
    /// the test that measures it.
    pub fn has_failed(&self, measure: &Measure, test: Option<&str>) -> bool {
        let is_wanted = self.only.is_none_or(|only| only.iter().any(|one| one.key == measure.key));
        match self.figure(measure) {
            Some(one) => !one.value.is_finite(),
            None => is_wanted && test.is_some_and(|test| self.failed.contains(&test)),
        }
    }

    /// Whether the test succeeded without a value of this measure.
    pub fn does_without(&self, measure: &Measure, test: Option<&str>) -> bool {
        !self.has(measure) && test.is_some_and(|test| self.finished.contains(&test))
    }

    fn figure(&self, measure: &Measure) -> Option<&Figure> {
        self.figures.iter().find(|one| one.measure.key == measure.key)
    }

    /// Adds a skipped test and the reason.
    pub fn push_skipped(&mut self, test: &'static str, reason: &'static str) {
        self.skipped.push((test, reason));
    }

    /// The skipped tests and the reasons.
    pub fn skipped(&self) -> &[(&'static str, &'static str)] {
        &self.skipped
    }

    /// Stores all round trips of a ping in milliseconds, or the times of all joins in seconds.
    pub fn push_round_trips(&mut self, what: &'static str, times: Vec<f64>) {
        self.round_trips.push((what, times));
    }

    /// All round trips of that ping.
    pub fn round_trips(&self, what: &str) -> &[f64] {
        let found = self.round_trips.iter().find(|(one, _)| *one == what);
        found.map_or(&[], |(_, times)| times)
    }

    /// Sets the congestion control of TCP over links with loss, as the kernel names it.
    pub fn set_congestion(&mut self, name: &str) {
        self.congestion = Some(name.to_uppercase());
    }

    /// The congestion control of TCP over links with loss.
    pub fn congestion(&self) -> Option<&str> {
        self.congestion.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::Readings;
    use crate::measure::{CPU, Measure, TCP_4, TCP_BACK, TCP_FORTH};

    #[test]
    fn missing_figures_of_a_failed_test_have_failed() {
        let mut readings = Readings::default();
        readings.begin("tcp");
        readings.push(&TCP_FORTH, 4.0);
        readings.push(&CPU, f64::NAN);
        readings.fail();
        let has_failed = |measure| readings.has_failed(measure, Some("tcp"));
        assert!(!has_failed(&TCP_FORTH) && has_failed(&TCP_BACK) && has_failed(&CPU));
        assert!(!readings.has_failed(&TCP_BACK, Some("ping")));
        assert_eq!((readings.test_of(&TCP_FORTH), readings.failed()), (Some("tcp"), &["tcp"][..]));
    }

    #[test]
    fn a_measure_outside_the_plan_has_not_failed() {
        static ONLY: [&Measure; 1] = [&TCP_FORTH];
        let mut readings = Readings::new(Some(&ONLY));
        readings.begin("tcp");
        readings.fail();
        assert!(readings.has_failed(&TCP_FORTH, Some("tcp")));
        assert!(!readings.has_failed(&TCP_4, Some("tcp")));
    }

    #[test]
    fn a_successful_test_may_lack_a_figure() {
        let mut readings = Readings::default();
        readings.begin("tcp");
        readings.push(&TCP_FORTH, 4.0);
        readings.finish();
        assert!(readings.does_without(&CPU, Some("tcp")));
        assert!(!readings.does_without(&TCP_FORTH, Some("tcp")));
        assert!(!readings.has_failed(&CPU, Some("tcp")));
    }
}
