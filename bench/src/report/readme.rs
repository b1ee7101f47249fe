//! The published figures in Markdown: eight rows for the README, and for docs/figures.md three tables
//! with introduction and notes.

use std::time::Duration;

use netns::Implementation;

use super::verdict::{Verdict, verdict};
use super::{FAILED, MEMORY, bar, failures, warning};
use crate::claim_check::RATIO_DIGITS;
use crate::comparison::{Comparison, Rival, Spread};
use crate::contender::{Carrier, Contender, TAILSCALED};
use crate::machine::Machine;
use crate::measure::{Bar, Measure, TAILNET_JOIN};
use crate::published::{
    CONGESTION, PAGE, ROWS, ROWS_OF_ALL, ROWS_OF_README, ROWS_OF_TAILNET, Row,
    TAILNET_ROW_OF_README,
};
use crate::tree::Tree;
use netns::Table;

/// Marks around the figures in a file.
const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- /figures -->";

/// Text of an absent figure.
const NONE: &str = "–";

/// How the figures were measured.
pub struct RunInfo {
    /// The command.
    pub command: String,
    /// The day, in UTC.
    pub day: String,
    /// The measured tree.
    pub tree: Tree,
    /// The length of each measurement, in seconds.
    pub seconds: u32,
    /// Duration of the whole run.
    pub took: Duration,
}

/// The text between the marks of the README.
pub fn summary(comparison: &Comparison, making: &RunInfo) -> String {
    let RunInfo { day, tree, .. } = making;
    let mut text = draft_warning(tree);
    text += &format!(
        "Medians of {} on {} that both ends of the tunnel and the traffic programs share, of commit {} \
         on {day}. The column Tailscale has its wireguard-go, and in the last row tailscaled. Only \
         ratios are comparable, and they vary by a tenth from run to run: run `make readme-table` on \
         your machine.",
        rounds(comparison),
        Machine::here(),
        tree.commit,
    );
    if let Some((met, all)) = bars_met(comparison) {
        text += &format!(
            " linerate meets {met} of its {all} targets for such ratios. \
             [All figures]({PAGE}) names the others."
        );
    }
    let mut table = Table::new(["", "linerate", "Tailscale", "ratio, pair by pair"]);
    let (first, tailnet) = tables_of_rivals(comparison);
    let rows = first.map(|(rival, _)| (rival, &ROWS_OF_README[..])).into_iter();
    let rows = rows.chain(tailnet.map(|(rival, _)| (rival, &TAILNET_ROW_OF_README[..])));
    for (rival, rows) in rows {
        for row in measured(comparison, rows) {
            let of = |cell: &dyn Fn(&'static Measure) -> String| join_cells(row.measures, cell);
            table.row([
                title(comparison, row),
                of(&|one| figure(one, &comparison.of(0, one))),
                of(&|one| figure(one, &comparison.of(comparison.best(&rival, one), one))),
                of(&|one| ratio(comparison, comparison.best(&rival, one), one)),
            ]);
        }
    }
    format!("{text}\n\n{}", table.markdown())
}

/// The rivals of the first two tables, with their rows.
type RivalRows = Option<(Rival, &'static [Row])>;

fn tables_of_rivals(comparison: &Comparison) -> (RivalRows, RivalRows) {
    let rival = |name: &str| comparison.rivals().into_iter().find(|one| one.name == name);
    let first = rival(Implementation::Tailscale.name()).map(|rival| (rival, &ROWS[..]));
    let tailnet = rival(TAILSCALED).filter(|_| comparison.has(&TAILNET_JOIN));
    (first, tailnet.map(|rival| (rival, &ROWS_OF_TAILNET[..])))
}

/// Number of bars that are met, and of all bars, in the tables of [`figures`].
fn bars_met(comparison: &Comparison) -> Option<(usize, usize)> {
    let (first, tailnet) = tables_of_rivals(comparison);
    let mut verdicts = Vec::new();
    for (rival, rows) in first.into_iter().chain(tailnet) {
        for measure in measured(comparison, rows).flat_map(|row| row.measures) {
            let bar = bar(comparison, rival.members[0], measure);
            verdicts.extend(bar.map(|bar| verdict(comparison, &rival, measure, bar)));
        }
    }
    let met = verdicts.iter().filter(|one| **one == Verdict::Met).count();
    (!verdicts.is_empty()).then_some((met, verdicts.len()))
}

/// The text between the marks of docs/figures.md.
pub fn figures(comparison: &Comparison, making: &RunInfo) -> String {
    let mut text = introduction(comparison, making);
    let (first, tailnet) = tables_of_rivals(comparison);
    if let Some((rival, rows)) = first {
        text += &format!("\n{}", comparison_table(comparison, &rival, rows).markdown());
    }
    if let Some((rival, rows)) = tailnet {
        let table = comparison_table(comparison, &rival, rows).markdown();
        text += &format!("\nTwo nodes of a tailnet that headscale runs:\n\n{table}");
    }
    if comparison.contenders.len() > 1 {
        text += &format!(
            "\nAll contenders of the same run:\n\n{}",
            table_of_all(comparison).markdown()
        );
    }
    text += "\n";
    text + &notes(comparison)
}

/// Replaces the figures in the text of a file.
pub fn replace(file: &str, figures: &str) -> Result<String, String> {
    let wrong = || format!("the file must have {BEGIN} and then {END}, once each");
    let [before, rest] = parts(file, BEGIN).ok_or_else(wrong)?;
    let [_, after] = parts(rest, END).ok_or_else(wrong)?;
    if before.contains(END) {
        return Err(wrong());
    }
    Ok(format!("{before}{BEGIN}\n{figures}{END}{after}"))
}

/// The text before and after a mark that occurs once.
fn parts<'a>(text: &'a str, mark: &str) -> Option<[&'a str; 2]> {
    let (before, after) = text.split_once(mark)?;
    (!after.contains(mark)).then_some([before, after])
}

fn introduction(comparison: &Comparison, making: &RunInfo) -> String {
    let RunInfo { command, day, tree, seconds, took } = making;
    let minutes = took.as_secs_f64() / 60.0;
    let rounds = rounds(comparison);
    draft_warning(tree)
        + &format!(
            "`{command}` of commit {} on {day}, in {minutes:.0} minutes, on {} that both ends of the \
         tunnel and the traffic programs share: medians of {rounds}, {seconds} s a measurement. Each \
         round has a turn of every contender, every other round in reverse order. MTU 1420. TCP is \
         CUBIC unless another name is given. Only ratios are comparable, and they vary by a tenth from \
         run to run: run it on your machine.\n",
            tree.commit,
            Machine::here(),
        )
}

fn rounds(comparison: &Comparison) -> String {
    match comparison.rounds.len() {
        1 => "one round".to_owned(),
        rounds => format!("{rounds} rounds"),
    }
}

/// A paragraph with the reasons why the figures are not those of a commit, if there are any.
fn draft_warning(tree: &Tree) -> String {
    match &tree.faults[..] {
        [] => String::new(),
        faults => format!(
            "**Not to be published: not the release build of a commit ({}).**\n\n",
            faults.join("; ")
        ),
    }
}

/// The rows of which at least one measure has a figure.
fn measured<'a>(comparison: &Comparison, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|row| row.measures.iter().any(|one| comparison.has(one)))
}

/// linerate compared with one peer, with ratios and bars.
fn comparison_table(comparison: &Comparison, rival: &Rival, rows: &'static [Row]) -> Table {
    let own = comparison.contenders[0].name.as_str();
    let mut table = Table::new(["", own, &rival.name, "ratio, pair by pair", "bar"]);
    for row in measured(comparison, rows) {
        let of = |cell: &dyn Fn(&'static Measure) -> String| join_cells(row.measures, cell);
        table.row([
            title(comparison, row),
            of(&|one| figure(one, &comparison.of(0, one))),
            of(&|one| of_peer(comparison, rival, one)),
            of(&|one| ratio(comparison, comparison.best(rival, one), one)),
            of(&|one| verdict_text(comparison, rival, one)),
        ]);
    }
    table
}

/// A column for each contender, and linerate's ratio to the best of the others.
fn table_of_all(comparison: &Comparison) -> Table {
    let names = comparison.contenders.iter().map(|one| one.name.as_str());
    let mut table = Table::new([""].into_iter().chain(names).chain(["ratio to the best other"]));
    for row in measured(comparison, &ROWS_OF_ALL) {
        for measure in row.measures {
            let figures = (0..comparison.contenders.len())
                .map(|one| figure(measure, &comparison.of(one, measure)));
            let cells = [title(comparison, row)].into_iter().chain(figures);
            table.row(cells.chain([ratio_to_best(comparison, measure)]));
        }
    }
    table
}

fn title(comparison: &Comparison, row: &Row) -> String {
    let mut turns = comparison.rounds.iter().flatten();
    let congestion = turns.find_map(|readings| readings.congestion());
    row.title.replace(CONGESTION, congestion.unwrap_or("CUBIC"))
}

/// Joins the cells of a row's figures; common text appears once.
fn join_cells(
    measures: &'static [&'static Measure],
    cell: &dyn Fn(&'static Measure) -> String,
) -> String {
    let mut cells: Vec<String> = measures.iter().map(|one| cell(one)).collect();
    cells.dedup_by(|one, other| one == other && !one.starts_with(|c: char| c.is_ascii_digit()));
    cells.join(" / ")
}

fn figure(measure: &Measure, spread: &Spread) -> String {
    match (spread.median.is_finite(), spread.failed) {
        (true, 0) => measure.format(spread.median),
        (false, 0) => NONE.to_owned(),
        (_, failed) if spread.is_lost() || !spread.median.is_finite() => {
            format!("failed ({failed} of {})", spread.values.len())
        }
        (_, failed) => {
            let median = measure.format(spread.median);
            format!("{median} ({failed} of {} failed)", spread.values.len())
        }
    }
}

/// The figure of a peer's better setting, with its name.
fn of_peer(comparison: &Comparison, rival: &Rival, measure: &'static Measure) -> String {
    let best = comparison.best(rival, measure);
    let text = figure(measure, &comparison.of(best, measure));
    match comparison.contenders[best].setting {
        Some(setting) if text != NONE => format!("{text} ({})", setting.name),
        _ => text,
    }
}

fn ratio(comparison: &Comparison, other: usize, measure: &Measure) -> String {
    let ratio = comparison.ratio(other, measure);
    match ratio.median.is_finite() {
        true => format!("{:.RATIO_DIGITS$}", ratio.median),
        false if ratio.failed > 0 => "lost".to_owned(),
        false => NONE.to_owned(),
    }
}

fn verdict_text(comparison: &Comparison, rival: &Rival, measure: &'static Measure) -> String {
    let Some(bar) = bar(comparison, rival.members[0], measure) else { return NONE.to_owned() };
    let words = match bar {
        Bar::AtLeast(least) => format!("at least {least}"),
        Bar::AtMost(most) => format!("at most {most}"),
    };
    match verdict(comparison, rival, measure, bar) {
        Verdict::Met => format!("{words}: met"),
        Verdict::Missed => format!("{words}: **missed**"),
        unmeasured @ Verdict::NotMeasured(_) => format!("{words}: {unmeasured}"),
    }
}

/// The ratio to the best of all other contenders, and its name.
fn ratio_to_best(comparison: &Comparison, measure: &'static Measure) -> String {
    let is_tunnel = |one: &usize| comparison.contenders[*one].carrier != Carrier::Bare;
    let members = (1..comparison.contenders.len()).filter(is_tunnel).collect();
    let others = Rival { name: String::new(), members };
    if others.members.is_empty() {
        return NONE.to_owned();
    }
    let best = comparison.best(&others, measure);
    let ratio = ratio(comparison, best, measure);
    match ratio == NONE {
        true => ratio,
        false => format!("{ratio} ({})", comparison.contenders[best].name),
    }
}

fn notes(comparison: &Comparison) -> String {
    let mut lines = vec![format!(
        "QUIC without its own AEAD is quinn with packets that it does not encrypt, so that the tunnel \
         is the limit; `quic-tls` is QUIC as programs run it. Of Tailscale's wireguard-go each row has \
         the better of two queue lengths: one place a core, as in its own program (1x), and four, as in \
         Tailscale's client (4x). tailscaled is the whole client, joined over TUN with an MTU of 1420 \
         instead of its 1280. {MEMORY} {FAILED}"
    )];
    let mut versions: Vec<String> = comparison.contenders.iter().map(Contender::version).collect();
    versions.dedup();
    lines.push(format!("Versions: {}.", versions.join("; ")));
    let missing = &comparison.missing;
    lines.extend(missing.iter().map(|one| format!("Not measured: {} {}.", one.name, one.why)));
    let lacks = comparison.skipped(0).iter();
    lines.extend(lacks.map(|(test, why)| format!("Not measured: {test}: {why}.")));
    lines.extend(failures(comparison));
    lines.extend(warning(comparison));
    lines.join("\n\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netns::Implementation;

    use super::{BEGIN, END, RunInfo, figures, replace, summary};
    use crate::comparison::Comparison;
    use crate::contender::{Carrier, Contender, Missing, Setting, TAILSCALED};
    use crate::measure::{
        BUSY_P50, BUSY_P99, Measure, TAILNET_JOIN, TAILNET_TCP_BACK, TAILNET_TCP_FORTH,
        TCP_66_LOSS, TCP_BACK, TCP_FORTH,
    };
    use crate::readings::Readings;
    use crate::tree::Tree;

    fn making(faults: &[&str]) -> RunInfo {
        let faults = faults.iter().map(std::string::ToString::to_string).collect();
        RunInfo {
            command: "make readme-table".to_owned(),
            day: "2026-11-22".to_owned(),
            tree: Tree { commit: "0123456789ab".to_owned(), faults },
            seconds: 2,
            took: Duration::from_secs(1500),
        }
    }

    fn turn(figures: &[(&'static Measure, f64)]) -> Readings {
        let mut readings = Readings::default();
        readings.begin("tcp");
        figures.iter().for_each(|(measure, figure)| readings.push(measure, *figure));
        readings.finish();
        readings.set_congestion("bbr");
        readings
    }

    fn comparison() -> Comparison {
        let names = ["linerate", "peer-1x", "peer-4x", "slow"];
        let mut contenders = names.map(|name| Contender::new(name, Carrier::Kernel)).to_vec();
        for (at, name) in [(1, "1x"), (2, "4x")] {
            let peer = Implementation::Tailscale.name();
            contenders[at].setting = Some(Setting { peer, name });
        }
        let round = vec![
            turn(&[
                (&TCP_FORTH, 6.0),
                (&TCP_BACK, 5.0),
                (&BUSY_P50, 1.0),
                (&BUSY_P99, 4.0),
                (&TCP_66_LOSS, 1.0),
            ]),
            turn(&[(&TCP_FORTH, 2.0), (&TCP_BACK, 4.0), (&BUSY_P99, 9.0), (&TCP_66_LOSS, 1.0)]),
            turn(&[(&TCP_FORTH, 3.0), (&TCP_BACK, 3.0), (&BUSY_P99, 8.0)]),
            turn(&[(&TCP_FORTH, 1.0)]),
        ];
        let missing = vec![Missing { name: "gotatun".to_owned(), why: "is not built" }];
        Comparison { contenders, rounds: vec![round], missing, ..Comparison::default() }
    }

    #[test]
    fn a_missed_bar_is_shown_as_missed() {
        let text = figures(&comparison(), &making(&[]));
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        has("|  | linerate | tailscale-wireguard-go | ratio, pair by pair | bar |");
        has("| TCP, 1 stream, forth / back, Gbit/s | 6.00 / 5.00 | 3.00 (4x) / 4.00 (1x) | \
             2.00 / 1.25 | at least 1.3: met / at least 1.3: **missed** |");
        has("| ping during full TCP, p50 / p99, ms | 1.00 / 4.00 | – / 8.00 (4x) | – / 0.50 | \
             – / at most 0.35: **missed** |");
        has("| TCP over 66 ms with 0.01 % lost, BBR, Gbit/s | 1.000 | 1.000 (1x) | 1.00 | – |");
        assert!(!text.contains("VXLAN in the tunnel"), "it was not measured: {text}");
    }

    #[test]
    fn summary_has_rows_without_settings_and_the_number_of_bars_that_are_met() {
        let text = summary(&comparison(), &making(&[]));
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        has("|  | linerate | Tailscale | ratio, pair by pair |");
        has("| TCP, 1 stream, forth / back, Gbit/s | 6.00 / 5.00 | 3.00 / 4.00 | 2.00 / 1.25 |");
        has("| TCP over 66 ms with 0.01 % lost, BBR, Gbit/s | 1.000 | 1.000 | 1.00 |");
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 3 + 1, "{text}");
        assert!(text.contains("linerate meets 1 of its 3 targets"), "{text}");
        assert!(text.starts_with("Medians of one round on ") && text.contains("0123456789ab"));
        let draft = summary(&comparison(), &making(&["x.rs is not committed"]));
        assert!(draft.starts_with("**Not to be published"), "{draft}");
    }

    #[test]
    fn summary_ends_with_the_row_of_tailscaled() {
        let mut comparison = comparison();
        comparison.contenders[3] = Contender::new(TAILSCALED, Carrier::Kernel);
        let figures = |join, forth, back| {
            [(&TAILNET_JOIN, join), (&TAILNET_TCP_FORTH, forth), (&TAILNET_TCP_BACK, back)]
        };
        let round = &mut comparison.rounds[0];
        figures(1.0, 6.0, 5.0).iter().for_each(|(one, figure)| round[0].push(one, *figure));
        figures(2.0, 2.0, 4.0).iter().for_each(|(one, figure)| round[3].push(one, *figure));
        let text = summary(&comparison, &making(&[]));
        let last = "| two nodes of a tailnet: TCP, 1 stream, forth / back, Gbit/s | 6.00 / 5.00 | \
                    2.00 / 4.00 | 3.00 / 1.25 |";
        assert_eq!(text.lines().last(), Some(last), "{text}");
        assert!(text.contains("linerate meets 2 of its 5 targets"), "{text}");
    }

    #[test]
    fn every_contender_has_a_column_and_the_best_is_named() {
        let text = figures(&comparison(), &making(&[]));
        let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        has("|  | linerate | peer-1x | peer-4x | slow | ratio to the best other |");
        has("| TCP, 1 stream, forth, Gbit/s | 6.00 | 2.00 | 3.00 | 1.00 | 2.00 (peer-4x) |");
        has("| TCP, 1 stream, back, Gbit/s | 5.00 | 4.00 | 3.00 | – | 1.25 (peer-1x) |");
        has("Not measured: gotatun is not built.");
    }

    #[test]
    fn failed_turns_are_shown_and_count_as_losses() {
        let mut comparison = comparison();
        let mut failed = Readings::default();
        failed.begin("tcp");
        failed.fail();
        comparison.rounds[0][0] = failed;
        let text = figures(&comparison, &making(&[]));
        assert!(
            text.contains("| failed (1 of 1) | 3.00 (4x) / 4.00 (1x) | 0.00 / 0.00 |"),
            "{text}"
        );
        assert!(text.contains("at least 1.3: **missed** |"), "{text}");
        assert!(text.contains("Failed: linerate, tcp, in 1 of 1 rounds."), "{text}");
    }

    #[test]
    fn the_commit_and_uncommitted_files_are_named() {
        let text = figures(&comparison(), &making(&[]));
        assert!(text.starts_with("`make readme-table` of commit 0123456789ab on 2026-11-22"));
        assert!(text.contains("in 25 minutes") && text.contains("medians of one round,"));
        let draft = figures(&comparison(), &making(&["x.rs is not committed"]));
        assert!(
            draft.starts_with("**Not to be published") && draft.contains("x.rs is not committed")
        );
    }

    #[test]
    fn both_files_of_the_tree_have_marks_and_the_readme_eight_rows() {
        let readme = include_str!("../../../README.md");
        let page = include_str!("../../../docs/figures.md");
        for file in [readme, page] {
            assert!(replace(file, "").is_ok_and(|text| text.len() < file.len()));
        }
        let figures = readme.split(BEGIN).nth(1).and_then(|rest| rest.split(END).next()).unwrap();
        let rows = figures.lines().filter(|line| line.starts_with("| "));
        assert_eq!(rows.count(), 1 + 8, "with the headings");
    }

    #[test]
    fn figures_are_replaced_between_their_marks() {
        let readme = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = replace(&readme, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(replace(&once, "new\n"), Ok(once));
        for wrong in ["", BEGIN, END, &format!("{END}{BEGIN}"), &format!("{readme}{readme}")] {
            assert!(replace(wrong, "new").is_err(), "{wrong}");
        }
    }
}
