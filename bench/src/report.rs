//! What a comparison says, as tables; as JSON and as a page of HTML in the modules below.

mod chart;
mod html;
mod json;

pub use html::page;
pub use json::json;

use crate::again::RATIO_DIGITS;
use crate::claim::{self, Claim};
use crate::comparison::{Comparison, Spread};
use crate::contender::Carrier;
use crate::ladder;
use crate::measure::{ALL, Bar, Measure, OTHERS};
use crate::table::{Style, Table};

/// Percent of all cores that an idle machine's own programs may take.
const QUIET: f64 = 10.0;

/// A table for each other contender, or one of the figures of a lone one.
pub fn tables(comparison: &Comparison, style: Style) -> String {
    let tables: Vec<String> =
        each_table(comparison).iter().map(|table| table.render(style)).collect();
    tables.join("\n")
}

fn each_table(comparison: &Comparison) -> Vec<Table> {
    if comparison.is_ladder {
        return vec![ladder::table(comparison)];
    }
    match comparison.contenders.len() {
        1 => vec![table(comparison, None)],
        all => (1..all).map(|other| table(comparison, Some(other))).collect(),
    }
}

fn table(comparison: &Comparison, other: Option<usize>) -> Table {
    let name = |contender: usize| comparison.contenders[contender].name.as_str();
    let mut headings = vec![heading(comparison), "", name(0)];
    if let Some(other) = other {
        headings.extend([name(other), "ratio, pair by pair", "bar", ""]);
    }
    let mut table = Table::new(headings);
    for measure in ALL.iter().copied().filter(|one| comparison.has(one) && !one.is_fine()) {
        let own = figure(measure, &comparison.of(0, measure));
        let mut cells = vec![measure.title.to_owned(), measure.unit.to_owned(), own];
        if let Some(other) = other {
            cells.push(figure(measure, &comparison.of(other, measure)));
            let ratio = comparison.ratio(other, measure);
            cells.push(text(&ratio, RATIO_DIGITS));
            let met =
                bar(comparison, other, measure).map(|bar| (words(bar), verdict(bar, ratio.median)));
            let (bar, verdict) = met.unwrap_or_default();
            cells.extend([bar, verdict.to_owned()]);
        }
        table.row(cells);
    }
    table
}

/// What the measure has to clear beside this contender: nothing beside a cable without a tunnel.
fn bar(comparison: &Comparison, other: usize, measure: &Measure) -> Option<Bar> {
    measure.bar.filter(|_| comparison.contenders[other].carrier != Carrier::Bare)
}

fn figure(measure: &Measure, spread: &Spread) -> String {
    text(spread, measure.digits)
}

fn text(spread: &Spread, digits: usize) -> String {
    if !spread.median.is_finite() {
        return "-".to_owned();
    }
    let format = |value: f64| format!("{value:.digits$}");
    let median = format(spread.median);
    match reach(spread, digits) {
        Some((low, high)) => format!("{median} ({} - {})", format(low), format(high)),
        None => median,
    }
}

/// What stands beside a median: where a second run's lies, and of a run that is too short to claim
/// that, the least and the most. Nothing of one round, and of what was nothing in each.
fn reach(spread: &Spread, digits: usize) -> Option<(f64, f64)> {
    match spread.values.len() {
        ..2 => None,
        2..claim::ROUNDS => Some((spread.least, spread.most)),
        _ => Claim::of(&spread.values, digits).map(|claim| (claim.low, claim.high)),
    }
}

/// What [`reach`] gives.
fn heading(comparison: &Comparison) -> &'static str {
    match comparison.rounds.len() {
        ..2 => "",
        2..claim::ROUNDS => "median (least - most)",
        _ => "median (where a second run's lies)",
    }
}

fn words(bar: Bar) -> String {
    match bar {
        Bar::AtLeast(least) => format!(">= {least}"),
        Bar::AtMost(most) => format!("<= {most}"),
    }
}

fn verdict(bar: Bar, ratio: f64) -> &'static str {
    if bar.is_met(ratio) { "met" } else { "NOT MET" }
}

/// A line for each test that a contender was not measured by, with why.
pub fn left_out(comparison: &Comparison) -> Vec<String> {
    let all = comparison.contenders.iter().enumerate();
    let lines = all.flat_map(|(at, one)| {
        let line =
            |(test, why): &(&str, &str)| format!("Not measured: {}, {test}: {why}.", one.name);
        comparison.lacks(at).iter().map(line).collect::<Vec<String>>()
    });
    lines.collect()
}

/// A warning, if the machine had other work.
pub fn warning(comparison: &Comparison) -> Option<String> {
    let all = 0..comparison.contenders.len();
    let most = all.map(|one| comparison.of(one, &OTHERS).most).fold(0.0, f64::max);
    (most > QUIET).then(|| {
        format!("Other programs used up to {most:.0} % of the machine: trust no small difference.")
    })
}

#[cfg(test)]
mod tests {
    use super::{left_out, tables};
    use crate::comparison::Comparison;
    use crate::contender::{Carrier, Contender};
    use crate::measure::{Readings, TCP_FORTH, UDP_64, UDP_64_CPU};
    use crate::table::Style;

    fn comparison(carriers: [Carrier; 2]) -> Comparison {
        let mut readings = Readings::default();
        readings.push(&TCP_FORTH, 4.0);
        readings.push(&UDP_64, 100.0);
        readings.push(&UDP_64_CPU, 3.0);
        let mut lacking = readings.clone();
        lacking.push_lack("peers", "it has none");
        let contenders = carriers.map(|carrier| Contender::new("one", carrier)).to_vec();
        let rounds = vec![vec![readings, lacking]];
        Comparison { contenders, rounds, is_ladder: false, failed: 0, flames: Vec::new() }
    }

    #[test]
    fn nobody_is_judged_beside_a_bare_cable() {
        let beside = |carrier| tables(&comparison([Carrier::Kernel, carrier]), Style::plain());
        assert!(beside(Carrier::Kernel).contains("NOT MET"));
        let bare = beside(Carrier::Bare);
        assert!(bare.contains("1.00") && !bare.contains("MET"), "{bare}");
    }

    #[test]
    fn tables_leave_out_what_is_fine_and_say_what_was_not_measured() {
        let comparison = comparison([Carrier::Kernel, Carrier::Bare]);
        let table = tables(&comparison, Style::plain());
        assert!(table.contains(UDP_64.title) && !table.contains(UDP_64_CPU.title), "{table}");
        assert_eq!(left_out(&comparison), ["Not measured: one, peers: it has none."]);
    }
}
