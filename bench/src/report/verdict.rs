//! Whether a bar is met, or why that is unknown.

use std::fmt;

use crate::comparison::{Comparison, Rival};
use crate::measure::{Bar, Measure};
use crate::suite::Test;

/// Result for a bar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// One of the two lacks a figure; the reason.
    NotMeasured(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met => f.write_str("met"),
            Self::Missed => f.write_str("NOT MET"),
            Self::NotMeasured(why) => write!(f, "not measured: {why}"),
        }
    }
}

/// Judges the ratio to the better setting of a peer.
pub(super) fn verdict(
    comparison: &Comparison,
    rival: &Rival,
    measure: &'static Measure,
    bar: Bar,
) -> Verdict {
    let best = comparison.best(rival, measure);
    if let Some(why) = unmeasured(comparison, best, measure) {
        return Verdict::NotMeasured(why);
    }
    if let Some(why) = own_absence(comparison, measure) {
        return Verdict::NotMeasured(why);
    }
    match bar.is_met(comparison.ratio(best, measure).median) {
        true => Verdict::Met,
        false => Verdict::Missed,
    }
}

/// Why a peer has no figure; `None` if it has one.
fn unmeasured(comparison: &Comparison, peer: usize, measure: &Measure) -> Option<String> {
    if comparison.has_figure(peer, measure) {
        return None;
    }
    if comparison.of(peer, measure).is_lost() {
        return Some("each of its turns failed".to_owned());
    }
    let test = comparison.test_of(measure);
    let yardstick = test.and_then(Test::named).and_then(Test::yardstick);
    let is_there = |name| comparison.contenders.iter().any(|one| one.name == name);
    if let Some(name) = yardstick.filter(|name| !is_there(*name)) {
        let missing = comparison.missing.iter().find(|one| one.name == name);
        let why = missing.map_or("is not part of this run", |one| one.why);
        return Some(format!("{name} {why}"));
    }
    Some(lack(comparison, peer, test).unwrap_or("it is not part of this test").to_owned())
}

/// Why the first contender has no figure; `None` if it has one or failed, which is a loss.
fn own_absence(comparison: &Comparison, measure: &Measure) -> Option<String> {
    let is_there = comparison.has_figure(0, measure) || comparison.of(0, measure).is_lost();
    let why = || lack(comparison, 0, comparison.test_of(measure)).unwrap_or("it has no figure");
    (!is_there).then(|| why().to_owned())
}

fn lack(comparison: &Comparison, contender: usize, test: Option<&str>) -> Option<&'static str> {
    let lacks = comparison.skipped(contender).iter();
    lacks.copied().find(|(name, _)| Some(*name) == test).map(|(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::{Verdict, verdict};
    use crate::comparison::Comparison;
    use crate::contender::{Carrier, Contender, Missing};
    use crate::measure::{Measure, NAMESPACE_IN, TCP_FORTH};
    use crate::readings::Readings;

    fn turn(test: &'static str, measure: &'static Measure, figure: Option<f64>) -> Readings {
        let mut readings = Readings::default();
        readings.begin(test);
        match figure {
            Some(figure) => {
                readings.push(measure, figure);
                readings.finish();
            }
            None => readings.fail(),
        }
        readings
    }

    fn judge(round: Vec<Readings>, missing: Vec<Missing>, measure: &'static Measure) -> Verdict {
        let contenders = ["own", "peer"].map(|name| Contender::new(name, Carrier::Kernel));
        let (contenders, rounds) = (contenders.to_vec(), vec![round]);
        let comparison = Comparison { contenders, rounds, missing, ..Comparison::default() };
        verdict(&comparison, &comparison.rivals()[0], measure, measure.bar.unwrap())
    }

    fn not_measured(why: &str) -> Verdict {
        Verdict::NotMeasured(why.to_owned())
    }

    #[test]
    fn a_bar_is_met_or_missed_if_both_have_figures() {
        let judge = |own, peer| {
            let turn = |figure| turn("tcp", &TCP_FORTH, figure);
            judge(vec![turn(own), turn(peer)], Vec::new(), &TCP_FORTH)
        };
        assert_eq!(judge(Some(2.0), Some(1.0)), Verdict::Met);
        assert_eq!(judge(Some(1.1), Some(1.0)), Verdict::Missed);
        assert_eq!(judge(None, Some(1.0)), Verdict::Missed, "a failed turn is a loss");
        assert_eq!(judge(Some(1.0), None), not_measured("each of its turns failed"));
    }

    #[test]
    fn a_bar_of_an_absent_peer_is_not_measured() {
        let mut lacking = Readings::default();
        lacking.push_skipped("proxy", "it has no userspace networking");
        let round = || vec![turn("proxy", &NAMESPACE_IN, Some(4.0)), lacking.clone()];
        let missing = Missing { name: "tailscaled".to_owned(), why: "is not built" };
        let verdict = judge(round(), vec![missing], &NAMESPACE_IN);
        assert_eq!(verdict, not_measured("tailscaled is not built"));
        assert_eq!(verdict.to_string(), "not measured: tailscaled is not built");
        let verdict = judge(round(), Vec::new(), &NAMESPACE_IN);
        assert_eq!(verdict, not_measured("tailscaled is not part of this run"));
    }
}
