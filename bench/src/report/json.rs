//! All that was measured, for other programs.

use serde_json::{Value, json};

use super::{bar, words};
use crate::again::RATIO_DIGITS;
use crate::claim::{Claim, SHARE};
use crate::comparison::{Comparison, Spread};
use crate::machine::Machine;
use crate::measure::{ALL, Measure, PINGS};

/// All figures, turn by turn.
pub fn json(comparison: &Comparison) -> Value {
    let measures = || ALL.iter().copied().filter(|measure| comparison.has(measure));
    let contender = |at: usize| {
        let figures =
            measures().map(|one| (one.key.to_owned(), spread(&comparison.of(at, one), one.digits)));
        let ratios = measures().map(|one| (one.key.to_owned(), ratio(comparison, at, one)));
        let trips = PINGS.map(|what| (what.to_owned(), json!(comparison.round_trips(at, what))));
        let lacks = comparison.lacks(at).iter().map(|(test, why)| (test.to_string(), json!(why)));
        let one = &comparison.contenders[at];
        let mut contender = json!({
            "name": one.name,
            "version": one.version(),
            "left_out": Value::Object(lacks.collect()),
            "figures": Value::Object(figures.collect()),
            "round_trips_ms": Value::Object(trips.into_iter().collect()),
        });
        if at > 0 {
            contender["ratios"] = Value::Object(ratios.collect());
        }
        contender
    };
    let units = measures().map(|one| (one.key.to_owned(), json!([one.title.trim(), one.unit])));
    json!({
        "machine": Machine::here().to_string(),
        "rounds": comparison.rounds.len(),
        "claimed_percent": SHARE,
        "measures": Value::Object(units.collect()),
        "contenders": (0..comparison.contenders.len()).map(contender).collect::<Vec<Value>>(),
    })
}

fn spread(spread: &Spread, digits: usize) -> Value {
    let claim = Claim::of(&spread.values, digits);
    // What is not a number is null in JSON.
    json!({
        "median": spread.median,
        "least": spread.least,
        "most": spread.most,
        "claim": claim.map(|claim| [claim.low, claim.high]),
        "values": spread.values,
    })
}

fn ratio(comparison: &Comparison, other: usize, measure: &Measure) -> Value {
    let ratio = comparison.ratio(other, measure);
    let mut value = spread(&ratio, RATIO_DIGITS);
    if let Some(bar) = bar(comparison, other, measure) {
        value["bar"] = words(bar).into();
        value["met"] = bar.is_met(ratio.median).into();
    }
    value
}
