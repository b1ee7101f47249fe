//! The comparison as tables. The modules below write JSON and HTML.

mod chart;
mod html;
mod joins;
mod json;
pub mod readme;
mod verdict;

pub use html::page;
pub use json::json;

use crate::claim::{self, Claim};
use crate::claim_check::RATIO_DIGITS;
use crate::comparison::{Comparison, Rival, Spread};
use crate::contender::{Carrier, Contender};
use crate::ladder;
use crate::measure::{ALL, Bar, Measure, OTHERS};
use crate::report::verdict::verdict;
use netns::{Style, Table};

/// Explains the memory figures.
pub const MEMORY: &str = "Memory is private memory (anonymous and shared pages, including those \
     swapped out), summed over each daemon and its helper processes, at its peak unless stated \
     otherwise. Clean pages of mapped files, which the kernel can drop at any time, are left out for \
     every contender.";

/// Explains failed turns.
pub const FAILED: &str = "A failed turn counts as the worst figure of its contender; a round in which \
     only the peer failed gives no ratio.";

/// Share of all cores in percent that the programs of an idle machine may use.
const QUIET: f64 = 10.0;

/// A table for each other contender, or one table if there is only one contender.
pub fn tables(comparison: &Comparison, style: Style) -> String {
    let all = each_table(comparison).into_iter().chain(joins::joins(comparison));
    let tables: Vec<String> = all.map(|table| table.render(style)).collect();
    tables.join("\n")
}

fn each_table(comparison: &Comparison) -> Vec<Table> {
    if comparison.is_ladder {
        return vec![ladder::table(comparison)];
    }
    if comparison.contenders.len() == 1 {
        return vec![table(comparison, None)];
    }
    comparison.rivals().iter().map(|rival| table(comparison, Some(rival))).collect()
}

fn table(comparison: &Comparison, rival: Option<&Rival>) -> Table {
    let name = |contender: usize| comparison.contenders[contender].name.as_str();
    let mut headings = vec![heading(comparison), "", name(0)];
    if let Some(rival) = rival {
        headings.extend(rival.members.iter().map(|one| name(*one)));
        let ratio = match rival.members.len() {
            1 => "ratio, pair by pair",
            _ => "ratio to the better, pair by pair",
        };
        headings.extend([ratio, "bar", ""]);
    }
    let mut table = Table::new(headings);
    for measure in ALL.iter().copied().filter(|one| comparison.has(one) && !one.is_fine()) {
        let own = figure(measure, &comparison.of(0, measure));
        let mut cells = vec![measure.title.to_owned(), measure.unit.to_owned(), own];
        if let Some(rival) = rival {
            let figures = rival.members.iter().map(|one| comparison.of(*one, measure));
            cells.extend(figures.map(|spread| figure(measure, &spread)));
            let best = comparison.best(rival, measure);
            let ratio = text(&comparison.ratio(best, measure), RATIO_DIGITS);
            cells.push(match comparison.contenders[best].setting {
                Some(setting) if ratio != "-" => format!("{ratio}, {}", setting.name),
                _ => ratio,
            });
            let judged = bar(comparison, best, measure);
            let verdict = judged.map(|bar| verdict(comparison, rival, measure, bar).to_string());
            cells.extend([judged.map(bar_text).unwrap_or_default(), verdict.unwrap_or_default()]);
        }
        table.row(cells);
    }
    table
}

/// The bar compared with this contender; none for a cable without a tunnel.
fn bar(comparison: &Comparison, other: usize, measure: &Measure) -> Option<Bar> {
    measure.bar.filter(|_| comparison.contenders[other].carrier != Carrier::Bare)
}

fn figure(measure: &Measure, spread: &Spread) -> String {
    text(spread, measure.digits)
}

fn text(spread: &Spread, digits: usize) -> String {
    let format = |value: f64| format!("{value:.digits$}");
    let median = match spread.median.is_finite() {
        true => format(spread.median),
        false if spread.failed > 0 => "failed".to_owned(),
        false => return "-".to_owned(),
    };
    match (range(spread, digits), spread.failed) {
        (Some((low, high)), _) => format!("{median} ({} - {})", format(low), format(high)),
        (None, 0) => median,
        (None, failed) if spread.is_lost() => {
            format!("failed ({failed} of {})", spread.values.len())
        }
        (None, failed) => format!("{median} ({failed} of {} failed)", spread.values.len()),
    }
}

/// The interval shown next to a median: that of a second run's median, or for too few rounds the
/// smallest and the largest value. `None` for one round, for zeros in every round, and if turns
/// failed.
fn range(spread: &Spread, digits: usize) -> Option<(f64, f64)> {
    if spread.failed > 0 {
        return None;
    }
    match spread.values.len() {
        ..2 => None,
        2..claim::ROUNDS => Some((spread.least, spread.most)),
        _ => Claim::of(&spread.values, digits).map(|claim| (claim.low, claim.high)),
    }
}

/// Heading of the column with the intervals of [`range`].
fn heading(comparison: &Comparison) -> &'static str {
    match comparison.rounds.len() {
        ..2 => "",
        2..claim::ROUNDS => "median (least - most)",
        _ => "median (interval of a second run's median)",
    }
}

fn bar_text(bar: Bar) -> String {
    match bar {
        Bar::AtLeast(least) => format!(">= {least}"),
        Bar::AtMost(most) => format!("<= {most}"),
    }
}

/// A line for each contender that cannot be measured here, each skipped test and each failed test.
pub fn left_out(comparison: &Comparison) -> Vec<String> {
    let missing =
        comparison.missing.iter().map(|one| format!("Not measured: {} {}.", one.name, one.why));
    let all = comparison.contenders.iter().enumerate();
    let lines = all.flat_map(|(at, one)| {
        let line =
            |(test, why): &(&str, &str)| format!("Not measured: {}, {test}: {why}.", one.name);
        comparison.skipped(at).iter().map(line).collect::<Vec<String>>()
    });
    missing.chain(lines).chain(failures(comparison)).collect()
}

/// A line for each failed test of a contender.
fn failures(comparison: &Comparison) -> Vec<String> {
    let rounds = comparison.rounds.len();
    let of_one = |(at, one): (usize, &Contender)| {
        let turns = comparison.rounds.iter().map(|round| round[at].failed());
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for test in turns.flatten() {
            match counts.iter_mut().find(|(name, _)| name == test) {
                Some((_, count)) => *count += 1,
                None => counts.push((test, 1)),
            }
        }
        let name = one.name.clone();
        let line =
            move |(test, count)| format!("Failed: {name}, {test}, in {count} of {rounds} rounds.");
        counts.into_iter().map(line).collect::<Vec<String>>()
    };
    comparison.contenders.iter().enumerate().flat_map(of_one).collect()
}

/// A warning if the machine had other work.
pub fn warning(comparison: &Comparison) -> Option<String> {
    let all = 0..comparison.contenders.len();
    let most = all.map(|one| comparison.of(one, &OTHERS).most).fold(0.0, f64::max);
    (most > QUIET).then(|| {
        format!("Other programs used up to {most:.0} % of the machine: small differences are not significant.")
    })
}

#[cfg(test)]
mod tests {
    use super::{left_out, tables};
    use crate::comparison::Comparison;
    use crate::contender::{Carrier, Contender};
    use crate::measure::{TCP_FORTH, UDP_64, UDP_64_CPU};
    use crate::readings::Readings;
    use netns::Style;

    fn comparison(carriers: [Carrier; 2]) -> Comparison {
        let mut readings = Readings::default();
        readings.push(&TCP_FORTH, 4.0);
        readings.push(&UDP_64, 100.0);
        readings.push(&UDP_64_CPU, 3.0);
        let mut lacking = readings.clone();
        lacking.push_skipped("peers", "it has none");
        let contenders = carriers.map(|carrier| Contender::new("one", carrier)).to_vec();
        let rounds = vec![vec![readings, lacking]];
        Comparison { contenders, rounds, ..Comparison::default() }
    }

    #[test]
    fn bars_do_not_apply_to_a_bare_cable() {
        let table_with = |carrier| tables(&comparison([Carrier::Kernel, carrier]), Style::plain());
        assert!(table_with(Carrier::Kernel).contains("NOT MET"));
        let bare = table_with(Carrier::Bare);
        assert!(bare.contains("1.00") && !bare.contains("MET"), "{bare}");
    }

    #[test]
    fn tables_omit_fine_figures_and_name_unmeasured_ones() {
        let comparison = comparison([Carrier::Kernel, Carrier::Bare]);
        let table = tables(&comparison, Style::plain());
        assert!(table.contains(UDP_64.title) && !table.contains(UDP_64_CPU.title), "{table}");
        assert_eq!(left_out(&comparison), ["Not measured: one, peers: it has none."]);
    }

    #[test]
    fn failed_tests_are_listed_with_their_counts() {
        let mut comparison = comparison([Carrier::Kernel, Carrier::Kernel]);
        let mut failed = Readings::default();
        failed.begin("udp");
        failed.fail();
        comparison.rounds.push(vec![failed, Readings::default()]);
        comparison.rounds[0][0].begin("udp");
        comparison.rounds[0][0].set(&UDP_64, 100.0);
        comparison.contenders[0].name = "own".to_owned();
        let lines = left_out(&comparison);
        assert!(lines.contains(&"Failed: own, udp, in 1 of 2 rounds.".to_owned()), "{lines:?}");
        let table = tables(&comparison, Style::plain());
        assert!(table.contains("(1 of 2 failed)"), "{table}");
    }
}
