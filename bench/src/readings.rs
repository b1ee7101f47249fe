//! What one turn read, and which of its tests failed.

use crate::measure::Measure;

/// What one turn read.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    figures: Vec<Figure>,
    round_trips: Vec<(&'static str, Vec<f64>)>,
    lacks: Vec<(&'static str, &'static str)>,
    /// The measures of the plan, if not all.
    only: Option<&'static [&'static Measure]>,
    /// The test under way.
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
    /// Of a plan with these measures, or with all.
    pub fn new(only: Option<&'static [&'static Measure]>) -> Readings {
        Readings { only, ..Readings::default() }
    }

    /// A test begins: figures are of it until it is finished or has failed.
    pub fn begin(&mut self, test: &'static str) {
        self.test = Some(test);
    }

    /// The test under way has made its figures.
    pub fn finish(&mut self) {
        self.finished.extend(self.test.take());
    }

    /// The test under way has failed: a figure that it did not make is a loss.
    pub fn fail(&mut self) {
        self.failed.extend(self.test.take());
    }

    /// The tests that failed.
    pub fn failed(&self) -> &[&'static str] {
        &self.failed
    }

    /// Notes a figure; one that is not finite says that the measurement failed.
    pub fn push(&mut self, measure: &'static Measure, value: f64) {
        self.figures.push(Figure { measure, value, test: self.test });
    }

    /// Notes a figure instead of what it was.
    pub fn set(&mut self, measure: &'static Measure, value: f64) {
        self.figures.retain(|one| one.measure.key != measure.key);
        self.push(measure, value);
    }

    /// The figure of a measure; not a number if it was not made or failed.
    pub fn of(&self, measure: &Measure) -> f64 {
        self.figure(measure).map_or(f64::NAN, |one| one.value)
    }

    /// Whether the measure was tried.
    pub fn has(&self, measure: &Measure) -> bool {
        self.figure(measure).is_some()
    }

    /// The test that made this figure.
    pub fn test_of(&self, measure: &Measure) -> Option<&'static str> {
        self.figure(measure)?.test
    }

    /// Whether the figure of this test failed: tried without a result, or never reached. `test` is
    /// the one that makes it.
    pub fn has_failed(&self, measure: &Measure, test: Option<&str>) -> bool {
        let is_wanted = self.only.is_none_or(|only| only.iter().any(|one| one.key == measure.key));
        match self.figure(measure) {
            Some(one) => !one.value.is_finite(),
            None => is_wanted && test.is_some_and(|test| self.failed.contains(&test)),
        }
    }

    /// Whether this test ended well and made no such figure.
    pub fn does_without(&self, measure: &Measure, test: Option<&str>) -> bool {
        !self.has(measure) && test.is_some_and(|test| self.finished.contains(&test))
    }

    fn figure(&self, measure: &Measure) -> Option<&Figure> {
        self.figures.iter().find(|one| one.measure.key == measure.key)
    }

    /// Notes that a test was left out, and why.
    pub fn push_lack(&mut self, test: &'static str, reason: &'static str) {
        self.lacks.push((test, reason));
    }

    /// The tests that were left out, and why.
    pub fn lacks(&self) -> &[(&'static str, &'static str)] {
        &self.lacks
    }

    /// Keeps all round trips of a ping, in milliseconds, or what all joins took, in seconds.
    pub fn push_round_trips(&mut self, what: &'static str, times: Vec<f64>) {
        self.round_trips.push((what, times));
    }

    /// All round trips of that ping.
    pub fn round_trips(&self, what: &str) -> &[f64] {
        let found = self.round_trips.iter().find(|(one, _)| *one == what);
        found.map_or(&[], |(_, times)| times)
    }

    /// Notes which congestion control TCP had over links with loss, as the kernel named it.
    pub fn set_congestion(&mut self, name: &str) {
        self.congestion = Some(name.to_uppercase());
    }

    /// Which congestion control TCP had over links with loss.
    pub fn congestion(&self) -> Option<&str> {
        self.congestion.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::Readings;
    use crate::measure::{CPU, Measure, TCP_4, TCP_BACK, TCP_FORTH};

    #[test]
    fn what_a_failed_test_did_not_make_has_failed() {
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
    fn a_test_that_ended_well_may_do_without_a_figure() {
        let mut readings = Readings::default();
        readings.begin("tcp");
        readings.push(&TCP_FORTH, 4.0);
        readings.finish();
        assert!(readings.does_without(&CPU, Some("tcp")));
        assert!(!readings.does_without(&TCP_FORTH, Some("tcp")));
        assert!(!readings.has_failed(&CPU, Some("tcp")));
    }
}
