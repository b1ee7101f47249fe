//! Whether the medians of a second run lie where the first one claimed, by the JSON of both.

use serde_json::Value;

use crate::claim::{Claim, SHARE};
use crate::measure::{ALL, Measure};
use netns::{Style, Table};

/// A claim of the first run, and what came of it.
#[derive(Debug)]
struct Median {
    measure: &'static Measure,
    /// Whose it is, or whose figure the first contender's is divided by.
    of: String,
    digits: usize,
    first: f64,
    claim: Claim,
    second: f64,
}

/// All claims of a run that a second one has figures for.
#[derive(Debug)]
pub struct Again {
    medians: Vec<Median>,
    /// What makes them hard to compare.
    notes: Vec<String>,
}

impl Again {
    /// By what `--json` wrote of each run. An error says why nothing can be said.
    pub fn of(first: &Value, second: &Value) -> Result<Again, String> {
        let mut medians = Vec::new();
        let contenders = first["contenders"].as_array().ok_or("the first is no report")?;
        let others = second["contenders"].as_array().ok_or("the second is no report")?;
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
            return Err("the first claims nothing of what the second measured".to_owned());
        }
        let differ =
            |what: &str| (first[what] != second[what]).then_some((&first[what], &second[what]));
        let note = |what: &&str| {
            Some(format!("{what}: {}, and then {}.", differ(what)?.0, differ(what)?.1))
        };
        Ok(Again { medians, notes: ["machine", "rounds"].iter().filter_map(note).collect() })
    }

    /// Whether as many medians lie within as were claimed to.
    pub fn is_kept(&self) -> bool {
        self.within() as f64 >= SHARE / 100.0 * self.medians.len() as f64
    }

    fn within(&self) -> usize {
        self.medians.iter().filter(|one| one.is_within()).count()
    }

    /// Each median, and what they come to.
    pub fn text(&self, style: Style) -> String {
        let mut table = Table::new(["", "", "of", "claimed", "first", "second", ""]);
        for one in &self.medians {
            table.row(one.cells());
        }
        let (within, all) = (self.within(), self.medians.len());
        let share = 100.0 * within as f64 / all as f64;
        let verdict = if self.is_kept() { "met" } else { "NOT MET" };
        let mut text = table.render(style);
        for note in &self.notes {
            text += &format!("\n  {note}");
        }
        text + &format!(
            "\n  {within} of {all} medians lie within, {share:.0} %; {SHARE} % were claimed: {verdict}\n"
        )
    }
}

/// As tables show a ratio.
pub const RATIO_DIGITS: usize = 2;

impl Median {
    /// Of the same figure in both; nothing where nothing was claimed, or where it was not made again.
    fn of(
        measure: &'static Measure,
        of: &str,
        digits: usize,
        (first, second): (&Value, &Value),
    ) -> Option<Median> {
        let claim = Claim { low: first["claim"][0].as_f64()?, high: first["claim"][1].as_f64()? };
        let (first, second) = (first["median"].as_f64()?, second["median"].as_f64()?);
        Some(Median { measure, of: of.to_owned(), digits, first, claim, second })
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

    use super::Again;
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
    fn each_median_is_held_against_its_own_claim() {
        let again = Again::of(&report(5.0, 3.5, 1.4), &report(6.0, 3.0, 9.0)).unwrap();
        assert!(again.is_kept());
        assert_eq!((again.within(), again.medians.len()), (2, 2), "the ratio claimed nothing");
        let again = Again::of(&report(5.0, 3.5, 1.4), &report(6.0, 2.9, 9.0)).unwrap();
        assert!(!again.is_kept());
        let text = again.text(Style::plain());
        assert!(
            text.contains("1 of 2 medians lie within, 50 %; 95 % were claimed: NOT MET"),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.contains("peer") && line.contains("OUTSIDE")),
            "{text}"
        );
    }

    #[test]
    fn other_machines_and_rounds_are_told_and_what_claims_nothing_is_refused() {
        let mut second = report(5.0, 3.5, 1.4);
        second["rounds"] = 2.into();
        let text = Again::of(&report(5.0, 3.5, 1.4), &second).unwrap().text(Style::plain());
        assert!(text.contains("rounds: 5, and then 2."), "{text}");
        second["contenders"] = json!([]);
        assert!(Again::of(&report(5.0, 3.5, 1.4), &second).is_err());
        assert!(Again::of(&json!({}), &second).is_err());
    }
}
