//! `linerate`: the one binary. Without a subcommand it is what wireguard-go is,
//! `linerate [-f] IFACE`; the subcommands are our own. It is a library so that manual
//! pages and completions come from the same arguments (`packaging`).
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod client;
mod doctor;
mod guard;
mod interface;
mod keys;
mod log;
mod machine;
mod offloads;
mod ping;
mod proxy;
mod reload;
mod show;
mod top;
mod units;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use bench::Bench;
use clap::{Args, CommandFactory, Parser, Subcommand};
use client::Client;
use log::Log;
use machine::Machine;
use node::{
    Guard, Swept,
    conf::{Conf, InterfaceName},
    daemon::{self, Means, Options},
};
use sys::process::{Fork, background};

/// Where a configuration is looked for that is given by its interface's name.
const CONF_FOLDER: &str = "/etc/wireguard";

/// A fast userspace WireGuard for Linux.
///
/// `linerate IFACE` makes an interface that `wg` configures, as wireguard-go
/// does. WireGuard is a registered trademark of Jason A. Donenfeld; linerate is
/// not sponsored or endorsed by him.
#[derive(Parser)]
#[command(
    name = "linerate",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Args)]
struct Run {
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
    /// Become this user once the interface is there; port and mark can still
    /// change.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    #[command(flatten)]
    sandbox: Sandbox,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    log: Log,
    /// The interface to make.
    #[arg(required = true, value_name = "IFACE")]
    interface: Option<String>,
}

#[derive(Args)]
struct Sandbox {
    /// Whether the running process keeps only the files, system calls and rights that it needs.
    #[arg(long = "sandbox", value_name = "on|off", default_value = "on",
          value_parser = ["on", "off"], hide_possible_values = true)]
    state: String,
}

impl Sandbox {
    fn is_on(&self) -> bool {
        self.state == "on"
    }
}

#[derive(Subcommand)]
enum Command {
    /// Bring up an interface as a wg-quick file says, in the background.
    Up {
        /// Stay in the foreground.
        #[arg(short, long)]
        foreground: bool,
        #[command(flatten)]
        sandbox: Sandbox,
        #[command(flatten)]
        machine: Machine,
        #[command(flatten)]
        log: Log,
        /// A file NAME.conf, or NAME for /etc/wireguard/NAME.conf; its keys are in
        /// linerate.conf(5).
        conf: PathBuf,
    },
    /// End an interface that linerate made, and all that came with it.
    Down {
        /// The interface, or the file it came from.
        interface: PathBuf,
    },
    /// Give a running interface the keys and peers that its file has by now. Peers that stay keep
    /// their sessions. Addresses, routes, mark, DNS and hooks stay as they are.
    Reload {
        /// A file NAME.conf, or NAME for /etc/wireguard/NAME.conf.
        conf: PathBuf,
    },
    /// Run a peer without an interface and without root: its tunnel is reached through
    /// proxies and forwards, and reaches exposed services.
    Proxy(proxy::Proxy),
    /// Send ICMP echo requests through the tunnel of a running proxy.
    Ping(ping::Ping),
    /// Show interfaces, their peers, and what was dropped and why.
    Show(show::Show),
    /// Look for what of this host keeps tunnels from working or from being fast, and mend
    /// it where asked to. Ends with 0 where nothing is wrong, 1 where something is, 2 where
    /// that could not be seen.
    Doctor(doctor::Doctor),
    /// Capture the packets inside a tunnel as pcapng, for tcpdump and Wireshark; also those of
    /// a proxy, which no interface of this machine shows.
    Capture(capture::Capture),
    /// Watch what interfaces do: rates, batches, drops, each second.
    Top(top::Top),
    /// Change a running interface in what `wg set` does not know.
    Set {
        /// The interface.
        interface: String,
        #[command(subcommand)]
        what: Setting,
    },
    /// Measure what a tunnel between two hosts in namespaces carries on this machine.
    Bench(Bench),
    /// Write a new private key to standard output.
    Genkey,
    /// Write a new preshared key to standard output.
    Genpsk,
    /// Read a private key from standard input and write its public key.
    Pubkey,
}

#[derive(Subcommand)]
enum Setting {
    /// Use an offload or not; what the kernel refuses is not used anyway.
    Offload {
        /// Which one.
        #[arg(value_parser = offloads::names())]
        name: String,
        /// `on` or `off`.
        #[arg(value_parser = ["on", "off"])]
        wanted: String,
    },
}

/// The command line: what `--help` and the manual pages tell.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let (log, done) = match Guard::asked_for(env::args_os()) {
        Some(guard) => (Log::of(guard.voice), guard::run(guard).map(|()| ExitCode::SUCCESS)),
        None => {
            let cli = Cli::parse();
            (cli.log(), execute(cli))
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("{}", log.failure(&error));
        ExitCode::FAILURE
    })
}

impl Cli {
    /// How it logs, and says why it ends.
    fn log(&self) -> Log {
        match &self.command {
            None => self.run.log,
            Some(Command::Up { log, .. }) => *log,
            Some(Command::Proxy(proxy)) => proxy.log(),
            Some(_) => Log::default(),
        }
    }
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        None => {
            let name = cli.run.interface.context("no interface")?;
            let means = cli.run.machine.means()?;
            let sandbox = cli.run.sandbox.is_on();
            let user = cli.run.user;
            let options = Options { name, user, means, sandbox, ..Options::default() };
            start(options, cli.run.log, cli.run.foreground)
        }
        Some(Command::Up { foreground, sandbox, machine, log, conf }) => {
            up(&conf, machine.means()?, sandbox.is_on(), (log, foreground))
        }
        Some(Command::Proxy(proxy)) => proxy.run(),
        Some(Command::Ping(ping)) => ping.run(),
        Some(Command::Down { interface }) => down(&interface),
        Some(Command::Reload { conf }) => reload::reload(&conf),
        Some(Command::Show(show)) => show.run(),
        Some(Command::Capture(capture)) => capture.run(),
        Some(Command::Top(top)) => top.run(),
        // Its exit status says more than whether it worked.
        Some(Command::Doctor(doctor)) => return Ok(doctor.run()),
        Some(Command::Set { interface, what: Setting::Offload { name, wanted } }) => {
            Client::connect(&interface)?.tell("linerate-offload", &format!("{name}={wanted}\n"))?;
            Ok(())
        }
        Some(Command::Bench(bench)) => bench.run(),
        Some(Command::Genkey) => keys::genkey(),
        Some(Command::Genpsk) => keys::genpsk(),
        Some(Command::Pubkey) => keys::pubkey(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs a peer here, or in the background once it is ready.
fn start(options: Options, log: Log, foreground: bool) -> anyhow::Result<()> {
    let options = Options { voice: log.voice(!foreground), ..options };
    if foreground {
        log.start();
        return daemon::run(options, || {});
    }
    match background().context("going to the background")? {
        Fork::Parent(started) => started.map_err(Into::into),
        Fork::Child(readiness) => {
            log.start();
            let mut readiness = Some(readiness);
            let ended = daemon::run(options, || {
                if let Some(readiness) = readiness.take() {
                    log::leave_terminal();
                    readiness.ready();
                }
            });
            match (readiness, ended) {
                // The parent says it.
                (Some(readiness), Err(error)) => {
                    readiness.failed(&format!("{error:#}"));
                    std::process::exit(1)
                }
                (_, ended) => ended,
            }
        }
    }
}

fn up(
    conf: &Path,
    means: Means,
    sandbox: bool,
    (log, foreground): (Log, bool),
) -> anyhow::Result<()> {
    let (name, path, parsed) = read_conf(conf)?;
    parsed.without_proxy()?;
    let conf = Some((path, parsed));
    start(Options { name, conf, means, sandbox, ..Options::default() }, log, foreground)
}

/// Reads a configuration, and tells its interface's name and its path.
fn read_conf(conf: &Path) -> anyhow::Result<(String, PathBuf, Conf)> {
    let path = conf_path(conf)?;
    let name = InterfaceName::from_path(&path)
        .with_context(|| path.display().to_string())?
        .as_str()
        .to_owned();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = zeroize::Zeroizing::new(text);
    let parsed = Conf::parse(&path.display().to_string(), &text)?;
    Ok((name, path, parsed))
}

fn down(interface: &Path) -> anyhow::Result<()> {
    let name = match is_file_name(interface) {
        true => InterfaceName::from_path(interface)?.as_str().to_owned(),
        false => interface.display().to_string(),
    };
    Log::default().start();
    node::outside_hooks(&name)?;
    if client::answers(&name) {
        match client::down(&name) {
            // It was killed just now.
            Err(error) if !error.is::<client::Refused>() && client::ends(&name) => {}
            done => return done,
        }
    }
    match node::sweep(&name)? {
        Swept::Nothing => client::down(&name),
        Swept::ByAnother => Ok(()),
        Swept::TakenBack => {
            eprintln!("linerate: {name}: what a process left that was killed is taken back");
            Ok(())
        }
    }
}

/// The absolute path of a configuration: the process will stand in `/`.
fn conf_path(conf: &Path) -> anyhow::Result<PathBuf> {
    let path = match is_file_name(conf) {
        true => conf.to_owned(),
        false => Path::new(CONF_FOLDER).join(format!("{}.conf", conf.display())),
    };
    fs::canonicalize(&path).with_context(|| path.display().to_string())
}

/// Whether an argument names a file and not an interface.
fn is_file_name(argument: &Path) -> bool {
    let text = argument.as_os_str().to_string_lossy();
    text.contains('/') || text.ends_with(".conf")
}
