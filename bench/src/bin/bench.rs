//! `make bench`: linerate beside others, test by test, as ratios of one run.
//!
//! Inside the hosts it is its own traffic generator, by subcommands that only the bench calls.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use linerate_bench::comparison::Comparison;
use linerate_bench::contender::Contender;
use linerate_bench::flood::{self, Flood};
use linerate_bench::leash::end_with_stdin;
use linerate_bench::link::{self, Shape};
use linerate_bench::quic::{self, Way};
use linerate_bench::suite::{Plan, Test};
use linerate_bench::{Style, ladder, report};
use netns::Implementation;

const USAGE: &str = "\
usage: bench [ladder] [--seconds N] [--rounds N] [--only TEST,...] [--beside NAME,...]
             [--binary [NAME=]PATH]... [--link SHAPE] [--json FILE] [--html FILE]

  ladder         linerate alone, with ever more of its techniques (--only tcp,quic)

  --seconds N    length of each measurement (2)
  --rounds N     turns of each contender, A B A B ... (5)
  --only ...     of tcp, ping, quic, udp, overload, plain, far
  --beside ...   tailscale-wireguard-go, wireguard-go, boringtun, gotatun, or none
                 (tailscale-wireguard-go)
  --binary ...   a build of linerate to measure instead of the workspace's; given again, further
                 builds to compare it with, and --beside is none unless it is given too
  --link SHAPE   an emulated link instead of the bare cable, of any of
                 rtt=MS,jitter=MS,loss=PERCENT,reorder=PERCENT,rate=MBIT,queue=MS,seed=N
  --json FILE    write all figures there
  --html FILE    write the report there, as one page
";

struct Arguments {
    is_ladder: bool,
    plan: Plan,
    rounds: u32,
    beside: Option<Vec<Implementation>>,
    builds: Vec<Contender>,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let Some(done) = generate(&words) {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("bench {}: {error}", words[0]);
                ExitCode::FAILURE
            }
        };
    }
    match Arguments::parse(words.into_iter()) {
        Ok(arguments) => compare(arguments),
        Err(message) => {
            eprint!("bench: {message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs a generator, if that is what is asked for.
fn generate(words: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Some(match words.as_slice() {
        ["sink", port] => sink(port),
        ["link", shape, ends @ ..] => relay(shape, ends),
        ["flood", to, seconds, size, options @ ..] => send(to, seconds, size, options),
        ["quic-server", at] => serve(at),
        ["quic-client", to, way, seconds] => call(to, way, seconds),
        _ => return None,
    })
}

fn sink(port: &str) -> Result<(), Box<dyn Error>> {
    end_with_stdin()?;
    Ok(flood::sink(port.parse()?)?)
}

fn send(to: &str, seconds: &str, size: &str, options: &[&str]) -> Result<(), Box<dyn Error>> {
    let rate = match options {
        ["--rate", rate] => Some(rate.parse()?),
        _ => None,
    };
    let (to, seconds, size) = (to.parse()?, seconds.parse()?, size.parse()?);
    let flood = Flood { to, seconds, size, rate, segment: options == ["--segment"] };
    println!("{}", flood.send()?);
    Ok(())
}

fn relay(shape: &str, ends: &[&str]) -> Result<(), Box<dyn Error>> {
    end_with_stdin()?;
    let ends: Result<Vec<SocketAddr>, _> = ends.iter().map(|end| end.parse()).collect();
    let ends = <[SocketAddr; 4]>::try_from(ends?).map_err(|_| "a link has four addresses")?;
    let [left, left_daemon, right, right_daemon] = ends;
    link::relay(Shape::parse(shape)?, [(left, left_daemon), (right, right_daemon)])
}

fn serve(at: &str) -> Result<(), Box<dyn Error>> {
    end_with_stdin()?;
    quic::serve(at.parse()?)
}

fn call(to: &str, way: &str, seconds: &str) -> Result<(), Box<dyn Error>> {
    let to: SocketAddr = to.parse()?;
    let way = if way == "up" { Way::Up } else { Way::Down };
    println!("{}", quic::call(to, way, seconds.parse()?)?);
    Ok(())
}

impl Arguments {
    fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut words = words.peekable();
        let is_ladder = words.next_if(|word| word == "ladder").is_some();
        let tests = if is_ladder { ladder::TESTS.to_vec() } else { Test::ALL.to_vec() };
        let plan = Plan { tests, seconds: 2, link: None };
        let mut arguments = Arguments {
            is_ladder,
            plan,
            rounds: 5,
            beside: None,
            builds: Vec::new(),
            json: None,
            html: None,
        };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => arguments.plan.seconds = count(&value?)?,
                "--rounds" => arguments.rounds = count(&value?)?,
                "--only" => arguments.plan.tests = named_tests(&value?)?,
                "--beside" => arguments.beside = Some(implementations(&value?)?),
                "--binary" => arguments.builds.push(Contender::build(&value?)?),
                "--link" => arguments.plan.link = Some(shape(value?)?),
                "--json" => arguments.json = Some(PathBuf::from(value?)),
                "--html" => arguments.html = Some(PathBuf::from(value?)),
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        Ok(arguments)
    }

    /// Who is measured, the one that is judged first.
    fn contenders(&self) -> Result<Vec<Contender>, String> {
        let mut contenders = self.builds.clone();
        if contenders.is_empty() {
            if Implementation::Linerate.program().is_none() {
                return Err("linerate is not built (make build, or set LINERATE_BIN)".to_owned());
            }
            contenders.push(Contender::installed(Implementation::Linerate));
        }
        if self.is_ladder {
            return Ok(ladder::rungs(&contenders[0]));
        }
        let fork = || vec![Implementation::Tailscale];
        let none = if self.builds.len() > 1 { Vec::new } else { fork };
        let beside = self.beside.clone().unwrap_or_else(none);
        let there = beside.into_iter().filter(|one| !one.is_skipped());
        contenders.extend(there.map(Contender::installed));
        Ok(contenders)
    }
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or(format!("not a count: {text}"))
}

/// The words of a link's shape, which the link's own process reads again.
fn shape(words: String) -> Result<String, String> {
    Shape::parse(&words).map(|_| words)
}

fn named_tests(names: &str) -> Result<Vec<Test>, String> {
    let named: Result<Vec<Test>, String> = names
        .split(',')
        .map(|name| Test::named(name).ok_or(format!("unknown test {name}")))
        .collect();
    let named = named?;
    // In the order of a turn, whatever the order of the argument.
    Ok(Test::ALL.into_iter().filter(|test| named.contains(test)).collect())
}

fn implementations(names: &str) -> Result<Vec<Implementation>, String> {
    let named = |name| Implementation::named(name).ok_or(format!("unknown implementation {name}"));
    names.split(',').filter(|name| *name != "none").map(named).collect()
}

fn compare(arguments: Arguments) -> ExitCode {
    let contenders = match arguments.contenders() {
        Ok(contenders) => contenders,
        Err(message) => {
            eprintln!("bench: {message}");
            return ExitCode::FAILURE;
        }
    };
    let rounds = arguments.rounds;
    let mut comparison =
        Comparison::run(contenders, &arguments.plan, rounds, |round, contender, measure, value| {
            let (name, title, unit) = (&contender.name, measure.title.trim(), measure.unit);
            eprintln!(
                "{round}/{rounds} {name:<22} {title:<40} {:>9} {unit}",
                measure.format(value)
            );
        });
    comparison.is_ladder = arguments.is_ladder;
    match tell(&comparison, &arguments) {
        Ok(()) if comparison.failed == 0 => ExitCode::SUCCESS,
        Ok(()) => {
            let failed = comparison.failed;
            eprintln!("bench: {failed} turns ended early, see above; their figures are missing");
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn tell(comparison: &Comparison, arguments: &Arguments) -> Result<(), String> {
    let style = Style::of_stdout();
    println!("\n{}", report::tables(comparison, style));
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("  Both ends and the generators share {cores} cores. See CONTRIBUTING, Measure.");
    if let Some(warning) = report::warning(comparison) {
        println!("  {}", style.strong(warning));
    }
    if let Some(file) = &arguments.json {
        write(file, &format!("{:#}\n", report::json(comparison)))?;
    }
    if let Some(file) = &arguments.html {
        write(file, &report::page(comparison, arguments.plan.seconds))?;
    }
    Ok(())
}

/// Writes a report, in a folder that is made if need be.
fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let made = if folder == Path::new("") { Ok(()) } else { fs::create_dir_all(folder) };
    made.and_then(|()| fs::write(file, text))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    println!("  {}", file.display());
    Ok(())
}
