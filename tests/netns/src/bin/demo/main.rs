//! `make demo`: a real tunnel between two hosts on this machine, and its throughput.
//!
//! ```text
//!   left                                               right
//!   wg0  10.9.0.1   . . . . . . tunnel . . . . . . .   wg0  10.9.0.2
//!   eth0 10.1.0.1  ------------ cable --------------   eth0 10.1.0.2
//! ```

#![forbid(unsafe_code)]

mod run;

use std::env;
use std::process::ExitCode;

use netns::{Implementation, Style, Table};

use self::run::{Bare, Run, Sample, Samples};

const USAGE: &str = "\
usage: demo [--seconds N] [--rounds N] [--beside NAME,NAME...]

  --seconds N   length of each TCP measurement (3)
  --beside ...  compare with wireguard-go, boringtun or gotatun, in turn with linerate
  --rounds N    turns of that comparison (3)
";

struct Arguments {
    seconds: u32,
    rounds: u32,
    beside: Vec<Implementation>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprint!("demo: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if Implementation::Linerate.program().is_none() {
        eprintln!("demo: linerate is not built (make build, or set LINERATE_BIN)");
        return ExitCode::FAILURE;
    }
    let style = Style::of_stdout();
    show(&arguments, style);
    if !arguments.beside.is_empty() {
        compare(&arguments, style);
    }
    ExitCode::SUCCESS
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self { seconds: 3, rounds: 3, beside: Vec::new() };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => arguments.seconds = count(&value?)?,
                "--rounds" => arguments.rounds = count(&value?)?,
                "--beside" => arguments.beside = implementations(&value?)?,
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        Ok(arguments)
    }
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or(format!("not a count: {text}"))
}

/// The named implementations that are installed; the others are announced as skipped.
fn implementations(names: &str) -> Result<Vec<Implementation>, String> {
    let named = |name| Implementation::named(name).ok_or(format!("unknown implementation {name}"));
    let all: Result<Vec<Implementation>, String> = names.split(',').map(named).collect();
    Ok(all?.into_iter().filter(|one| !one.is_skipped()).collect())
}

/// linerate alone, step by step.
fn show(arguments: &Arguments, style: Style) {
    println!("{}", style.strong("linerate: two hosts in network namespaces, one tunnel"));
    println!();
    println!("  left                                         right");
    println!("  wg0  10.9.0.1  . . . . . tunnel . . . . . .  wg0  10.9.0.2");
    println!("  eth0 10.1.0.1  ---------- cable -----------  eth0 10.1.0.2");
    println!();

    let report = |what: &str, figure: f64, unit: &str| {
        println!("  {what:<40} {} {unit}", style.strong(format!("{figure:7.2}")));
    };
    let bare = Bare::start().tcp(arguments.seconds).gbps();
    report("TCP over the bare cable", bare, "Gbit/s");
    let run = Run::start(Implementation::Linerate, arguments.seconds);
    let sample = run.measure(report);

    println!("\n{}\n", style.faint("  $ wg show"));
    for line in run.wg_show(style.has_colour()).lines() {
        println!("  {line}");
    }

    println!();
    let mut table = Table::new(["TCP", "Gbit/s", "of the bare cable", "CPU s per GB", "memory MB"]);
    let dash = || "-".to_owned();
    table.row(["bare cable".to_owned(), format!("{bare:.2}"), "100 %".to_owned(), dash(), dash()]);
    for (way, rate) in
        [("tunnel, left to right", sample.forth), ("tunnel, right to left", sample.back)]
    {
        table.row([
            way.to_owned(),
            format!("{:.2}", rate.gbps),
            format!("{:.0} %", 100.0 * rate.gbps / bare),
            format!("{:.2}", rate.cpu_per_gigabyte),
            format!("{:.0}", sample.memory / 1e6),
        ]);
    }
    print!("{}", table.render(style));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let note = format!(
        "  Both ends and iperf3 share {cores} cores. CPU and peak private memory are those of both daemons."
    );
    println!("\n{}", style.faint(note));
}

/// Measures linerate and others in turn (A B C A B C ...), so that changes of the machine's load
/// affect each.
fn compare(arguments: &Arguments, style: Style) {
    let mut all = vec![Implementation::Linerate];
    all.extend(&arguments.beside);
    let mut samples: Vec<Samples> = all.iter().map(|_| Samples::default()).collect();
    let heading = format!("In turn, {} rounds", arguments.rounds);
    println!("\n{}\n", style.strong(heading));
    for round in 1..=arguments.rounds {
        for (one, samples) in all.iter().zip(&mut samples) {
            let run = Run::start(*one, arguments.seconds);
            let sample = run.measure(|_, _, _| ());
            println!(
                "  round {round}  {one:<14} {:6.2} Gbit/s forth {:6.2} back",
                sample.forth.gbps, sample.back.gbps
            );
            samples.push(sample);
        }
    }

    let mut table = Table::new([
        "median of rounds",
        "TCP forth",
        "TCP back",
        "to linerate",
        "CPU s/GB",
        "ping idle ms",
        "ping busy ms",
        "memory MB",
    ]);
    let both =
        |samples: &Samples| samples.median(|sample| (sample.forth.gbps + sample.back.gbps) / 2.0);
    let cost =
        |sample: &Sample| (sample.forth.cpu_per_gigabyte + sample.back.cpu_per_gigabyte) / 2.0;
    for (one, of_one) in all.iter().zip(&samples) {
        table.row([
            one.to_string(),
            format!("{:.2}", of_one.median(|sample| sample.forth.gbps)),
            format!("{:.2}", of_one.median(|sample| sample.back.gbps)),
            format!("{:.2}", both(of_one) / both(&samples[0])),
            format!("{:.2}", of_one.median(cost)),
            format!("{:.2}", of_one.median(|sample| sample.idle_ping)),
            format!("{:.2}", of_one.median(|sample| sample.busy_ping)),
            format!("{:.0}", of_one.median(|sample| sample.memory) / 1e6),
        ]);
    }
    print!("\n{}", table.render(style));
}
