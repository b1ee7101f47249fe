//! Checks by the JSON of two runs whether the medians of the second lie in the intervals that the
//! first claimed.

use serde_json::Value;

use crate::claim::{Claim, SHARE};
use crate::measure::{ALL, Measure};
use netns::{Style, Table};

/// A claim of the first run and the median of the second.
#[derive(Debug)]
struct Median {
    measure: &'static Measure,
    /// The contender, or both names of a ratio.
    of: String,
    digits: usize,
    first: f64,
    claim: Claim,
    second: f64,
}

/// All claims of a run for which a second run has figures.
#[derive(Debug)]
pub struct ClaimCheck {
    medians: Vec<Median>,
    /// Differences that make the runs hard to compare.
    notes: Vec<String>,
}

impl ClaimCheck {
    /// Reads what `--json` wrote of each run.
    pub fn of(first: &Value, second: &Value) -> Result<Self, String> {
        let mut medians = Vec::new();
        let contenders = first["contenders"].as_array().ok_or("the first file is not a report")?;
        let others = second["contenders"].as_array().ok_or("the second file is not a report")?;
        let leader = contenders.first().and_then(|one| one["name"].as_str()).unwrap_or_default();
        for one in contenders {
            let Some(other) = others.iter().find(|other| other["name"] == one["name"]) else {
                continue;
            };
            let name = one["name"].as_str().unwrap_or_default();
            let ratio = format!("{leader} / {name}");
            for measure in ALL {
                let both = |kind: &str| (&one[kind][measure.key], &other[kind][measure.key]);
                medians.extend(Median::of(measure, name, measure.digits, both("figures")));
                medians.extend(Median::of(measure, &ratio, RATIO_DIGITS, both("ratios")));
            }
        }
        if medians.is_empty() {
            return Err("no figure of the second report has a claim in the first".to_owned());
        }
        let differ =
            |what: &str| (first[what] != second[what]).then_some((&first[what], &second[what]));
        let note = |what: &&str| {
            Some(format!("{what}: {}, and then {}.", differ(what)?.0, differ(what)?.1))
        };
        Ok(Self { medians, notes: ["machine", "rounds"].iter().filter_map(note).collect() })
    }

    /// Whether at least the claimed share of the medians lies within the intervals.
    pub fn is_met(&self) -> bool {
        self.count_within() as f64 >= SHARE / 100.0 * self.medians.len() as f64
    }

    fn count_within(&self) -> usize {
        self.medians.iter().filter(|one| one.is_within()).count()
    }

    /// A table of the medians, and the result.
    pub fn text(&self, style: Style) -> String {
        let mut table = Table::new(["", "", "of", "claimed", "first", "second", ""]);
        for one in &self.medians {
            table.row(one.cells());
        }
        let (within, all) = (self.count_within(), self.medians.len());
        let share = 100.0 * within as f64 / all as f64;
        let verdict = if self.is_met() { "met" } else { "NOT MET" };
        let mut text = table.render(style);
        for note in &self.notes {
            text += &format!("\n  {note}");
        }
        text + &format!(
            "\n  {within} of {all} medians lie within their intervals ({share:.0} %, at least {SHARE} % \
             expected): {verdict}\n"
        )
    }
}

/// Digits of a ratio in tables.
pub const RATIO_DIGITS: usize = 2;

impl Median {
    /// `None` if the first run claims nothing or the second run lacks the figure.
    fn of(
        measure: &'static Measure,
        of: &str,
        digits: usize,
        (first, second): (&Value, &Value),
    ) -> Option<Self> {
        let claim = Claim { low: first["claim"][0].as_f64()?, high: first["claim"][1].as_f64()? };
        let (first, second) = (first["median"].as_f64()?, second["median"].as_f64()?);
        Some(Self { measure, of: of.to_owned(), digits, first, claim, second })
    }

    fn is_within(&self) -> bool {
        self.claim.holds(self.second)
    }

    fn cells(&self) -> [String; 7] {
        let format = |value: f64| format!("{value:.*}", self.digits);
        let unit = if self.of.contains(" / ") { "" } else { self.measure.unit };
        [
            self.measure.title.to_owned(),
            unit.to_owned(),
            self.of.clone(),
            format!("{} - {}", format(self.claim.low), format(self.claim.high)),
            format(self.first),
            format(self.second),
            if self.is_within() { "within" } else { "OUTSIDE" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::ClaimCheck;
    use netns::Style;

    fn report(own: f64, other: f64, ratio: f64) -> Value {
        let figure =
            |median: f64, claim: Value| json!({"tcp_forth": {"median": median, "claim": claim}});
        json!({
            "machine": "m", "rounds": 5,
            "contenders": [
                {"name": "linerate", "figures": figure(own, json!([4.0, 6.0]))},
                {"name": "peer", "figures": figure(other, json!([3.0, 4.0])),
                 "ratios": figure(ratio, json!(null))},
            ],
        })
    }

    #[test]
    fn each_median_is_compared_with_its_own_claim() {
        let again = ClaimCheck::of(&report(5.0, 3.5, 1.4), &report(6.0, 3.0, 9.0)).unwrap();
        assert!(again.is_met());
        assert_eq!(
            (again.count_within(), again.medians.len()),
            (2, 2),
            "the ratio claimed nothing"
        );
        let again = ClaimCheck::of(&report(5.0, 3.5, 1.4), &report(6.0, 2.9, 9.0)).unwrap();
        assert!(!again.is_met());
        let text = again.text(Style::plain());
        assert!(
            text.contains(
                "1 of 2 medians lie within their intervals (50 %, at least 95 % expected): NOT MET"
            ),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.contains("peer") && line.contains("OUTSIDE")),
            "{text}"
        );
    }

    #[test]
    fn a_change_of_rounds_is_noted_and_reports_without_common_claims_are_refused() {
        let mut second = report(5.0, 3.5, 1.4);
        second["rounds"] = 2.into();
        let text = ClaimCheck::of(&report(5.0, 3.5, 1.4), &second).unwrap().text(Style::plain());
        assert!(text.contains("rounds: 5, and then 2."), "{text}");
        second["contenders"] = json!([]);
        assert!(ClaimCheck::of(&report(5.0, 3.5, 1.4), &second).is_err());
        assert!(ClaimCheck::of(&json!({}), &second).is_err());
    }
}
