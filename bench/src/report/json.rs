//! All figures for other programs.

use serde_json::{Value, json};

use super::verdict::{Verdict, verdict};
use super::{bar, bar_text, joins};
use crate::claim::{Claim, SHARE};
use crate::claim_check::RATIO_DIGITS;
use crate::comparison::{Comparison, Rival, Spread};
use crate::machine::Machine;
use crate::measure::{ALL, Measure, PINGS};

/// All figures, turn by turn.
pub fn json(comparison: &Comparison) -> Value {
    let measures = || ALL.iter().copied().filter(|measure| comparison.has(measure));
    let contender = |at: usize| {
        let figures =
            measures().map(|one| (one.key.to_owned(), spread(&comparison.of(at, one), one.digits)));
        let ratio = |one: &'static Measure| spread(&comparison.ratio(at, one), RATIO_DIGITS);
        let ratios = measures().map(|one| (one.key.to_owned(), ratio(one)));
        let trips = PINGS.map(|what| (what.to_owned(), json!(comparison.round_trips(at, what))));
        let lacks = comparison.skipped(at).iter().map(|(test, why)| (test.to_string(), json!(why)));
        let one = &comparison.contenders[at];
        let mut contender = json!({
            "name": one.name,
            "version": one.version(),
            "left_out": Value::Object(lacks.collect()),
            "figures": Value::Object(figures.collect()),
            "round_trips_ms": Value::Object(trips.into_iter().collect()),
            "joins_s": Value::Object(joins::json_of(comparison, at)),
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
        "peers": comparison.rivals().iter().map(|one| peer(comparison, one)).collect::<Vec<Value>>(),
        "missing": comparison.missing.iter().map(|one| json!([one.name, one.why])).collect::<Vec<Value>>(),
    })
}

/// The first contender compared with the better setting of a peer.
fn peer(comparison: &Comparison, rival: &Rival) -> Value {
    let name = |at: &usize| comparison.contenders[*at].name.as_str();
    let made = ALL.iter().copied().filter(|measure| comparison.has(measure));
    let judged = made.filter_map(|measure| {
        let best = comparison.best(rival, measure);
        let bar = bar(comparison, best, measure)?;
        let verdict = verdict(comparison, rival, measure, bar);
        let met = match &verdict {
            Verdict::Met => json!(true),
            Verdict::Missed => json!(false),
            Verdict::NotMeasured(_) => Value::Null,
        };
        let ratio = comparison.ratio(best, measure).median;
        let value = json!({
            "beside": name(&best), "ratio": ratio, "bar": bar_text(bar), "met": met,
            "verdict": verdict.to_string(),
        });
        Some((measure.key.to_owned(), value))
    });
    json!({
        "name": rival.name,
        "contenders": rival.members.iter().map(name).collect::<Vec<&str>>(),
        "bars": Value::Object(judged.collect()),
    })
}

fn spread(spread: &Spread, digits: usize) -> Value {
    let claim = Claim::of(&spread.values, digits).filter(|_| spread.failed == 0);
    // A value that is not a number is null in JSON.
    json!({
        "median": spread.median,
        "least": spread.least,
        "most": spread.most,
        "claim": claim.map(|claim| [claim.low, claim.high]),
        "values": spread.values,
        "failed": spread.failed,
    })
}
