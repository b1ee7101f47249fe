//! The command line.

use std::path::PathBuf;

use linerate_bench::contender::{Contender, HEADSCALE, Missing, TAILSCALED};
use linerate_bench::link::Shape;
use linerate_bench::suite::{Plan, Test};
use linerate_bench::{ladder, published};
use netns::Implementation;

pub(crate) const USAGE: &str = "\
usage: bench [ladder] [--seconds N] [--rounds N] [--only TEST,... | --all] [--beside NAME,...]
             [--binary [NAME=]PATH]... [--link SHAPE] [--flame TEST]
             [--json FILE] [--html FILE] [--svg FOLDER]
       bench flame TEST [--seconds N] [--binary PATH] [--svg FOLDER]
       bench table [--seconds N] [--rounds N] [--write FOLDER] [--only TEST,...] [--beside NAME,...]
             [--json FILE] [--html FILE]
       bench compare FIRST.json SECOND.json

  ladder         linerate alone, adding one technique after the other (--only tcp,quic)
  flame          only the two flame graphs of one test (--svg target/report)
  table          the published figures as Markdown: linerate, Tailscale's wireguard-go and all
                 others in one run; --write writes them between the marks of README.md and
                 docs/figures.md in this folder, if the binary is the release build of a commit
  compare        whether the medians of a second run lie in the intervals of the first

  --seconds N    length of each measurement (2)
  --rounds N     turns of each contender, A B, B A, A B, ... (5)
  --only ...     tcp, ping, quic, udp, overload, connections, plain, far,
                 and those that only run if named:
                 quic-tls, forward, vxlan, jumbo, peers, handshakes, proxy, tailnet, nat,
                 server, server-10k
  --all          all of these
  --brief        only show that traffic passes: for the bench's own tests
  --beside ...   tailscale-wireguard-go (with each of its two queue lengths, of which the better
                 counts), wireguard-go, boringtun, gotatun, kernel, bare (the cable without a tunnel),
                 tailscaled (joined over TUN, in proxy with userspace networking), headscale (which
                 only coordinates, with derper to relay), or none
                 (tailscale-wireguard-go; for proxy, tailnet and nat, tailscaled; for server, headscale)
  --binary ...   a build of linerate to measure instead of the workspace's; given again, further
                 builds to compare it with, and --beside is none unless it is given too
  --link SHAPE   an emulated link instead of the bare cable, by any of
                 rtt=MS,jitter=MS,loss=PERCENT,reorder=PERCENT,rate=MBIT,queue=MS,seed=N
  --flame TEST   one more turn of this test at the end, for flame graphs of both ends
  --json FILE    write all figures as JSON
  --html FILE    write the report as one page of HTML
  --svg FOLDER   write the flame graphs
";

/// What to do with the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compares contenders.
    Compare,
    /// The rungs of a ladder.
    Ladder,
    /// Only the flame graphs.
    Flame,
    /// The published figures.
    Table,
}

/// The parsed command line.
pub(crate) struct Arguments {
    pub mode: Mode,
    pub plan: Plan,
    pub rounds: u32,
    pub flame: Option<Test>,
    pub json: Option<PathBuf>,
    pub html: Option<PathBuf>,
    pub svg: Option<PathBuf>,
    /// The folder of README.md and docs/figures.md, in which the figures are written.
    pub write: Option<PathBuf>,
    beside: Option<String>,
    builds: Vec<Contender>,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut words = words.peekable();
        let mut arguments = Self::new(Mode::Compare);
        if words.next_if(|word| word == "ladder").is_some() {
            arguments = Self::new(Mode::Ladder);
        } else if words.next_if(|word| word == "flame").is_some() {
            arguments = Self::new(Mode::Flame);
            arguments.flame = Some(test(&words.next().ok_or("flame needs a test")?)?);
        } else if words.next_if(|word| word == "table").is_some() {
            arguments = Self::new(Mode::Table);
        }
        while let Some(word) = words.next() {
            match word.as_str() {
                "--all" => arguments.plan.tests = Test::ALL.to_vec(),
                "--brief" => (arguments.plan.is_brief, arguments.plan.seconds) = (true, 1),
                _ => arguments.take_with(&word, words.next())?,
            }
        }
        if arguments.plan.is_brief && arguments.html.is_some() {
            return Err("--brief measures no figures for a page".to_owned());
        }
        if arguments.write.is_some() && !arguments.is_whole_table() {
            return Err("--write needs the whole table".to_owned());
        }
        Ok(arguments)
    }

    fn new(mode: Mode) -> Self {
        let tests = match mode {
            Mode::Ladder => ladder::TESTS.to_vec(),
            Mode::Table => published::tests(),
            Mode::Compare | Mode::Flame => Test::usual(),
        };
        Self {
            mode,
            plan: Plan { tests, seconds: 2, is_brief: false, only: None, link: None },
            rounds: 5,
            flame: None,
            json: None,
            html: None,
            svg: (mode == Mode::Flame).then(|| PathBuf::from("target/report")),
            write: None,
            beside: None,
            builds: Vec::new(),
        }
    }

    fn take_with(&mut self, word: &str, value: Option<String>) -> Result<(), String> {
        let value = value.ok_or(format!("{word} needs a value"))?;
        match word {
            "--seconds" => self.plan.seconds = count(&value)?,
            "--rounds" => self.rounds = count(&value)?,
            "--only" => self.plan.tests = tests(&value)?,
            "--beside" => self.beside = Some(value),
            "--binary" => self.builds.push(Contender::build(&value)?),
            "--link" => self.plan.link = Some(shape(value)?),
            "--flame" => self.flame = Some(test(&value)?),
            "--json" => self.json = Some(PathBuf::from(value)),
            "--html" => self.html = Some(PathBuf::from(value)),
            "--svg" => self.svg = Some(PathBuf::from(value)),
            "--write" => self.write = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {word}")),
        }
        Ok(())
    }

    /// Whether all contenders and tests of the published figures are measured.
    fn is_whole_table(&self) -> bool {
        let is_usual = self.beside.is_none() && self.builds.is_empty() && self.plan.link.is_none();
        let is_whole = self.plan.tests == published::tests() && !self.plan.is_brief;
        self.mode == Mode::Table && is_usual && is_whole
    }

    /// The contenders, with the one that is judged first, and those that cannot be measured here.
    pub(crate) fn contenders(&self) -> Result<(Vec<Contender>, Vec<Missing>), String> {
        let mut contenders = self.builds.clone();
        if contenders.is_empty() {
            if Implementation::Linerate.program().is_none() {
                return Err("linerate is not built (make build, or set LINERATE_BIN)".to_owned());
            }
            contenders.push(Contender::installed(Implementation::Linerate));
        }
        match self.mode {
            Mode::Flame => return Ok((contenders, Vec::new())),
            Mode::Ladder => return Ok((ladder::rungs(&contenders[0]), Vec::new())),
            Mode::Compare | Mode::Table => {}
        }
        let unsaid = match self.mode {
            Mode::Table => published::peers(),
            _ if self.builds.len() > 1 => "none".to_owned(),
            _ => yardsticks(&self.plan.tests),
        };
        let (others, missing) = Contender::named(self.beside.as_deref().unwrap_or(&unsaid))?;
        contenders.extend(others);
        Ok((contenders, missing))
    }

    /// The part of the plan that a contender runs.
    pub(crate) fn plan(&self, contender: &Contender) -> Plan {
        match self.mode {
            Mode::Table => published::plan(contender, &self.plan),
            // Included only for the bars of these tests, it runs no other test.
            _ if self.is_implied(contender) => {
                let mut plan = self.plan.clone();
                plan.tests.retain(|test| test.yardstick() == Some(&contender.name));
                plan
            }
            _ => self.plan.clone(),
        }
    }

    /// Whether a contender was not named and takes part only as the yardstick of some tests.
    fn is_implied(&self, contender: &Contender) -> bool {
        let is_for_some = Test::ALL.iter().any(|test| test.yardstick() == Some(&contender.name));
        is_for_some && self.beside.is_none()
    }
}

/// The peers that the bars of these tests refer to: Tailscale's wireguard-go; tailscaled for
/// proxies and tailnets; headscale for servers.
fn yardsticks(tests: &[Test]) -> String {
    let fork = tests.iter().any(|test| test.yardstick().is_none());
    let fork = fork.then(|| Implementation::Tailscale.name());
    let others = [TAILSCALED, HEADSCALE].into_iter();
    let others = others.filter(|name| tests.iter().any(|test| test.yardstick() == Some(name)));
    fork.into_iter().chain(others).collect::<Vec<&str>>().join(",")
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or(format!("not a count: {text}"))
}

/// Checks the shape of a link, which the link's process parses again.
fn shape(words: String) -> Result<String, String> {
    Shape::parse(&words).map(|_| words)
}

fn test(name: &str) -> Result<Test, String> {
    Test::named(name).ok_or(format!("unknown test {name}"))
}

fn tests(names: &str) -> Result<Vec<Test>, String> {
    let named: Result<Vec<Test>, String> = names.split(',').map(test).collect();
    let named = named?;
    // In the order of a turn, not of the argument.
    Ok(Test::ALL.into_iter().filter(|test| named.contains(test)).collect())
}
