//! `make bench`: compares linerate with other implementations, test by test, as ratios of one run.
//!
//! Inside the hosts this program is the traffic generator, by subcommands that only the bench calls.

#![forbid(unsafe_code)]

#[path = "bench/arguments.rs"]
mod arguments;
#[path = "bench/figures.rs"]
mod figures;
#[path = "bench/generators.rs"]
mod generators;
#[path = "bench/progress.rs"]
mod progress;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use arguments::{Arguments, Mode, USAGE};
use linerate_bench::claim_check::ClaimCheck;
use linerate_bench::comparison::Comparison;
use linerate_bench::contender::{Contender, Missing};
use linerate_bench::flame::Flame;
use linerate_bench::report;
use linerate_bench::suite::{self, News, Test};
use netns::Style;
use progress::Progress;
use serde_json::Value;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let Some(done) = generators::generate(&words) {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("bench {}: {error}", words[0]);
                ExitCode::FAILURE
            }
        };
    }
    if let [word, first, second] = &words[..]
        && word == "compare"
    {
        return check_claims(Path::new(first), Path::new(second));
    }
    let arguments = match Arguments::parse(words.into_iter()) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprint!("bench: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Compares the medians of a second run with the claims of the first one.
fn check_claims(first: &Path, second: &Path) -> ExitCode {
    let check = read(first).and_then(|first| ClaimCheck::of(&first, &read(second)?));
    match check {
        Ok(check) => {
            print!("{}", check.text(Style::of_stdout()));
            if check.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(message) => {
            eprintln!("bench compare: {message}");
            ExitCode::from(2)
        }
    }
}

fn read(file: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string());
    let value =
        text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    value.map_err(|error| format!("{}: {error}", file.display()))
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let (contenders, missing) = arguments.contenders()?;
    let judged = contenders[0].clone();
    let mut comparison = match arguments.mode {
        Mode::Flame => None,
        Mode::Table => return figures::publish(arguments, contenders, missing),
        Mode::Compare | Mode::Ladder => Some(compare(contenders, missing, arguments)),
    };
    let flames = match arguments.flame {
        Some(test) => draw(&judged, arguments, test)?,
        None => Vec::new(),
    };
    if let Some(folder) = &arguments.svg {
        for flame in &flames {
            let test = arguments.flame.map_or("", Test::name);
            write(&folder.join(format!("flame-{test}-{}.svg", flame.end)), &flame.svg)?;
        }
    }
    let Some(comparison) = &mut comparison else { return Ok(()) };
    comparison.flames = flames;
    print_report(comparison, arguments)?;
    outcome(comparison)
}

fn outcome(comparison: &Comparison) -> Result<(), String> {
    match comparison.failed() {
        0 => Ok(()),
        failed => Err(format!("{failed} tests failed, see above; each counts as a loss")),
    }
}

fn compare(contenders: Vec<Contender>, missing: Vec<Missing>, arguments: &Arguments) -> Comparison {
    let rounds = arguments.rounds;
    let of_round: usize = contenders.iter().map(|one| arguments.plan(one).tests.len()).sum();
    let tests = rounds as usize * of_round;
    let progress = Progress::new(rounds, tests);
    let notify =
        |round, contender: &Contender, news: News<'_>| progress.show(round, contender, news);
    let mut comparison = Comparison::run(contenders, |one| arguments.plan(one), rounds, notify);
    comparison.missing = missing;
    comparison.is_ladder = arguments.mode == Mode::Ladder;
    comparison
}

/// Runs one more turn and draws its flame graphs.
fn draw(contender: &Contender, arguments: &Arguments, test: Test) -> Result<Vec<Flame>, String> {
    eprintln!("{}: {}, with perf at both ends", contender.name, test.name());
    let flames = suite::profile(contender, &arguments.plan, test);
    flames.map_err(|message| format!("no flame graphs: {message}"))
}

fn print_report(comparison: &Comparison, arguments: &Arguments) -> Result<(), String> {
    let style = Style::of_stdout();
    println!("\n{}", report::tables(comparison, style));
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("  Both ends and the generators share {cores} cores. See CONTRIBUTING, Measure.");
    if arguments.plan.is_brief {
        println!("  Brief run: traffic passed, but the figures are not measurements.");
    }
    println!("  {}\n  {}", report::MEMORY, report::FAILED);
    for line in report::left_out(comparison) {
        println!("  {line}");
    }
    if let Some(warning) = report::warning(comparison) {
        println!("  {}", style.strong(warning));
    }
    write_reports(comparison, arguments)
}

/// Writes the requested files.
fn write_reports(comparison: &Comparison, arguments: &Arguments) -> Result<(), String> {
    if let Some(file) = &arguments.json {
        write(file, &format!("{:#}\n", report::json(comparison)))?;
    }
    if let Some(file) = &arguments.html {
        write(file, &report::page(comparison, arguments.plan.seconds))?;
    }
    Ok(())
}

/// Writes a report. Creates its folder if it does not exist.
fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let made = if folder == Path::new("") { Ok(()) } else { fs::create_dir_all(folder) };
    made.and_then(|()| fs::write(file, text))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    println!("  {}", file.display());
    Ok(())
}
