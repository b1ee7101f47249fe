//! The published figures: measured, printed as Markdown and written to README.md and docs/figures.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_bench::contender::{Contender, Missing};
use linerate_bench::published::{PAGE, README};
use linerate_bench::report::readme::{self, RunInfo};
use linerate_bench::tree::Tree;
use netns::{Implementation, Stopwatch};

use crate::arguments::Arguments;

/// Measures, prints, and writes both files if requested. Nothing is written unless the binary is
/// the release build of a commit, before and after the run.
pub(crate) fn publish(
    arguments: &Arguments,
    contenders: Vec<Contender>,
    missing: Vec<Missing>,
) -> Result<(), String> {
    let before = Tree::now();
    if let Some(folder) = &arguments.write {
        is_of_a_commit(&before)?;
        let peer = Implementation::Tailscale.name();
        if let Some(missing) = missing.iter().find(|one| one.name == peer) {
            return Err(format!("no figures are written: {} {}", missing.name, missing.why));
        }
        // Reports missing marks before the run.
        files_with_figures(folder, "", "")?;
    }
    let watch = Stopwatch::start();
    let comparison = crate::compare(contenders, missing, arguments);
    let took = watch.elapsed();
    let mut tree = Tree::now();
    if tree.commit != before.commit {
        tree.faults.push(format!("the run began at commit {}", before.commit));
    }
    tree.faults.extend(
        before.faults.into_iter().filter(|one| !tree.faults.contains(one)).collect::<Vec<String>>(),
    );
    let making = RunInfo {
        command: command(arguments),
        day: today(),
        seconds: arguments.plan.seconds,
        took,
        tree,
    };
    let figures = readme::figures(&comparison, &making);
    let summary = readme::summary(&comparison, &making);
    println!("{summary}\n{figures}");
    crate::write_reports(&comparison, arguments)?;
    println!("  It took {:.1} minutes.", took.as_secs_f64() / 60.0);
    if let Some(folder) = &arguments.write {
        is_of_a_commit(&making.tree)?;
        // A test that failed is shown in the figures.
        let files = files_with_figures(folder, &summary, &figures)?;
        return files.iter().try_for_each(|(file, text)| crate::write(file, text));
    }
    crate::outcome(&comparison)
}

fn is_of_a_commit(tree: &Tree) -> Result<(), String> {
    match &tree.faults[..] {
        [] => Ok(()),
        faults => Err(format!("no figures are written: {}", faults.join("; "))),
    }
}

/// Returns both files of a tree with their new texts.
fn files_with_figures(
    folder: &Path,
    summary: &str,
    figures: &str,
) -> Result<[(PathBuf, String); 2], String> {
    let [readme, page] = [README, PAGE].map(|file| folder.join(file));
    let texts = [with_figures(&readme, summary)?, with_figures(&page, figures)?];
    let [summary, figures] = texts;
    Ok([(readme, summary), (page, figures)])
}

/// Returns the text of a file with these figures.
fn with_figures(file: &Path, figures: &str) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string());
    let text = text.and_then(|text| readme::replace(&text, figures));
    text.map_err(|error| format!("{}: {error}", file.display()))
}

/// The command that makes the same figures.
fn command(arguments: &Arguments) -> String {
    match arguments.write {
        Some(_) => {
            format!(
                "make readme-table ROUNDS={} SECONDS_EACH={}",
                arguments.rounds, arguments.plan.seconds
            )
        }
        None => std::env::args().skip(1).fold("bench".to_owned(), |line, word| line + " " + &word),
    }
}

fn today() -> String {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "an unknown day".to_owned())
}
