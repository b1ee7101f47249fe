//! The `linerate` binary. `linerate [-f] IFACE` works like wireguard-go; the subcommands are additions.
//! It is a library so that `packaging` can generate manual pages and completions from its
//! arguments.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod child_process;
mod client;
mod doctor;
mod interface;
mod keys;
mod log;
mod mistaken_name;
mod offloads;
mod ping;
mod proxy;
mod reload;
mod resource_args;
mod server;
mod show;
mod tailnet;
#[cfg(test)]
mod tests;
mod top;
mod units;

use std::{
    env,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use bench::Bench;
use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};
use client::{Client, Outcome};
use config::conf::{Conf, InterfaceName, NameError};
use interface::InterfaceSelector;
use log::Log;
use process::{
    Child, LeftoversResult, Source,
    interface::{self as life, Options},
};
use resource_args::ResourceArgs;
use sys::{
    helper_server,
    process::{
        Fork, Helper, background, close_argument_files, discard_inherited, end_on_broken_pipe,
        pin_mmap_threshold,
    },
};

/// The folder of configurations that are given by an interface's name.
const CONF_FOLDER: &str = "/etc/wireguard";

/// A fast userspace WireGuard for Linux.
///
/// `linerate IFACE` creates an interface that `wg` configures, as wireguard-go does. WireGuard is a
/// registered trademark of Jason A. Donenfeld; linerate is not sponsored or endorsed by him.
#[derive(Parser)]
#[command(
    name = "linerate",
    version,
    long_version = sys::long_version!(),
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
    /// Switch to this user once the interface exists; port and mark can still be changed.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    #[command(flatten)]
    sandbox: Sandbox,
    #[command(flatten)]
    resource_args: ResourceArgs,
    #[command(flatten)]
    log: Log,
    /// The interface to create.
    #[arg(required = true, value_name = "IFACE")]
    interface: Option<String>,
}

#[derive(Args)]
struct Up {
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
    #[command(flatten)]
    sandbox: Sandbox,
    #[command(flatten)]
    resource_args: ResourceArgs,
    #[command(flatten)]
    log: Log,
    /// Run hooks even if the user with this number owns the configuration or its folder. That user
    /// then decides which commands run as root. May be repeated.
    #[arg(long, value_name = "UID")]
    allow_hooks_of: Vec<u32>,
    #[command(flatten)]
    conf: ConfFile,
}

/// A configuration, and the name of its interface.
#[derive(Args)]
struct ConfFile {
    /// The name of the interface or proxy. An interface needs it if the file is not called NAME.conf,
    /// such as /dev/stdin; a proxy is named after its file by default.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A file NAME.conf, or NAME for /etc/wireguard/NAME.conf; linerate.conf(5) describes its keys.
    /// If it is a symbolic link, the name of the interface is the name of the link.
    conf: PathBuf,
}

#[derive(Args)]
struct Sandbox {
    /// Whether to confine the running process to the files, system calls and capabilities that it
    /// needs.
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
    /// Bring up an interface from a wg-quick file, in the background.
    Up(Up),
    /// Remove an interface that linerate created, and revert the changes to this host.
    Down {
        /// The interface, or its configuration file.
        interface: PathBuf,
    },
    /// Apply the keys and peers of the changed file to a running interface or proxy. Unchanged peers
    /// keep their sessions. Addresses, routes, mark, DNS, hooks, and the listeners of a proxy do not
    /// change.
    Reload {
        #[command(flatten)]
        conf: ConfFile,
    },
    /// Run a peer without an interface and without root: programs reach the tunnel through
    /// proxies and port forwards, and peers reach the services that are exposed to them.
    Proxy(proxy::Proxy),
    /// Join a tailnet: a network of a Tailscale-compatible coordinator, such as headscale. Returns
    /// once the node is connected; the node continues in the background. Without a URL, starts the node
    /// that joined before. linerate is independent of Tailscale Inc.
    Join(Box<tailnet::Join>),
    /// Host a network: runs the separate program `linerate-server`. Without arguments it serves a
    /// network, and prints the command by which machines join.
    #[command(disable_help_flag = true)]
    Server(server::Server),
    /// Show the peers of a node of a tailnet, and the path to each.
    Status(tailnet::Status),
    /// Show the node and user of an address of a tailnet.
    Whois(tailnet::Whois),
    /// Show how this node reaches the network: addresses, relays and their latency.
    Netcheck(tailnet::Netcheck),
    /// Explain step by step why another node is reachable, or why it is not.
    Why(tailnet::Why),
    /// Tailnet lock: show the trusted keys, sign a node's key, turn tailnet lock on and off.
    Lock(tailnet::Tka),
    /// Log a node out of its tailnet. It must join again.
    Logout(tailnet::NodeSelector),
    /// Log a node out, stop it, and remove its keys and state.
    Leave(tailnet::NodeSelector),
    /// Ping a node of a tailnet until the path to it is direct; or send ICMP echo requests through
    /// the tunnel of a running proxy.
    Ping(ping::Ping),
    /// Show interfaces, their peers, and the numbers of dropped packets by reason.
    Show(show::Show),
    /// Find settings of this host that break tunnels or make them slow, and fix them on request. The
    /// exit status is 0 without problems, 1 with problems, and 2 if the checks failed.
    Doctor(doctor::Doctor),
    /// Capture the packets inside a tunnel as pcapng, for tcpdump and Wireshark. Also works for a proxy,
    /// which runs without an interface.
    Capture(capture::Capture),
    /// Watch the rates, batch sizes and drops of interfaces, updated every second.
    Top(top::Top),
    /// Change settings of a running interface that `wg set` does not support, or of a node of a
    /// tailnet.
    #[command(args_conflicts_with_subcommands = false, subcommand_negates_reqs = true)]
    Set {
        #[command(flatten)]
        selector: InterfaceSelector,
        #[command(flatten)]
        flags: Box<tailnet::Flags>,
        #[command(subcommand)]
        what: Option<Setting>,
    },
    /// Measure the throughput of a tunnel between two network namespaces on this machine.
    Bench(Bench),
    /// Print a new private key.
    Genkey,
    /// Print a new preshared key.
    Genpsk,
    /// Read a private key from standard input and print its public key.
    Pubkey,
    /// Print the version, the commit and the target.
    Version,
}

impl Command {
    /// Whether the command only prints, and may end when its reader is gone.
    fn only_prints(&self) -> bool {
        matches!(
            self,
            Self::Status(_)
                | Self::Whois(_)
                | Self::Netcheck(_)
                | Self::Why(_)
                | Self::Ping(_)
                | Self::Show(_)
                | Self::Doctor(_)
                | Self::Genkey
                | Self::Genpsk
                | Self::Pubkey
                | Self::Version
        )
    }
}

#[derive(Subcommand)]
enum Setting {
    /// Switch an offload on or off. An offload that the kernel refuses stays unused.
    Offload {
        /// Which offload.
        #[arg(value_parser = offloads::names())]
        name: String,
        /// `on` or `off`.
        #[arg(value_parser = ["on", "off"])]
        wanted: String,
    },
}

/// The definition of the command line, for `--help` and the manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let key = tailnet::take_key_argument();
    let left = discard_inherited(tailnet::is_auth_key_variable)
        .context("inherited file descriptors and variables");
    if Helper::is_requested(env::args_os()) {
        // It reports errors to the other end.
        let served = left.and_then(|()| Ok(helper_server::serve_standard_input()?));
        return served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    pin_mmap_threshold();
    let (log, done) = match Child::from_arguments(env::args_os()) {
        Some(child) => {
            let log = Log::of(child.log_style);
            (log, left.and_then(|()| child_process::run(child)).map(|()| ExitCode::SUCCESS))
        }
        None => {
            let mut cli = Cli::parse();
            if let Some(Command::Join(join)) = &mut cli.command {
                join.set_key(key);
            }
            // A command that only prints also works without /proc, as in the build of an image.
            let only_prints = cli.command.as_ref().is_some_and(Command::only_prints);
            let left = if only_prints { Ok(()) } else { left };
            (cli.log(), left.and_then(|()| execute(cli)))
        }
    };
    done.unwrap_or_else(|error| {
        log.print_failure(&error);
        ExitCode::FAILURE
    })
}

impl Cli {
    /// The log of the command, which also reports its failure.
    fn log(&self) -> Log {
        match &self.command {
            None => self.run.log,
            Some(Command::Up(up)) => up.log,
            Some(Command::Proxy(proxy)) => proxy.log(),
            Some(Command::Join(join)) => join.log(),
            Some(_) => Log::default(),
        }
    }
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    if cli.command.as_ref().is_some_and(Command::only_prints) {
        end_on_broken_pipe();
    }
    let done = match cli.command {
        None => {
            let name = cli.run.interface.context("an interface is required")?;
            let resources = cli.run.resource_args.resources()?;
            let sandbox = cli.run.sandbox.is_on();
            let user = cli.run.user;
            let by_wg_quick = process::runs_under_wg_quick(&name);
            if !by_wg_quick && !mistaken_name::is_unambiguous(env::args_os()) {
                refuse_command_name(&name);
            }
            let options =
                Options { name, user, resources, sandbox, by_wg_quick, ..Options::default() };
            start(options, cli.run.log, cli.run.foreground).map(drop)
        }
        Some(Command::Up(up)) => up.run(),
        Some(Command::Proxy(proxy)) => proxy.run(),
        Some(Command::Ping(ping)) => ping.run(),
        Some(Command::Join(join)) => join.run(),
        Some(Command::Server(server)) => server.run(),
        Some(Command::Status(status)) => status.run(),
        Some(Command::Whois(whois)) => whois.run(),
        Some(Command::Netcheck(netcheck)) => netcheck.run(),
        Some(Command::Why(why)) => why.run(),
        Some(Command::Lock(lock)) => lock.run(),
        Some(Command::Logout(selector)) => tailnet::logout(&selector),
        // An error was printed when it occurred.
        Some(Command::Leave(selector)) => return tailnet::leave(&selector).map(ExitCode::from),
        Some(Command::Down { interface }) => return down(&interface).map(ExitCode::from),
        Some(Command::Reload { conf }) => reload::reload(&conf),
        Some(Command::Show(show)) => show.run(),
        Some(Command::Capture(capture)) => capture.run(),
        Some(Command::Top(top)) => top.run(),
        // Its exit status has more than two values.
        Some(Command::Doctor(doctor)) => return Ok(doctor.run()),
        Some(Command::Set { selector, flags, what }) => set(&selector, &flags, what),
        Some(Command::Bench(bench)) => bench.run(),
        Some(Command::Genkey) => keys::genkey(),
        Some(Command::Genpsk) => keys::genpsk(),
        Some(Command::Pubkey) => keys::pubkey(),
        Some(Command::Version) => {
            println!("linerate {}", sys::long_version!());
            Ok(())
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Exits with a usage error if a name of an interface is probably meant as a command.
fn refuse_command_name(name: &str) {
    let mut command = command();
    let commands = command.get_subcommands().map(clap::Command::get_name);
    if let Some(meant) = mistaken_name::meant_command(name, commands) {
        let reason = format!(
            "'{name}' is no command. For the command, use '{meant}'; for an interface of that name, \
             'linerate -- {name}'"
        );
        command.error(ErrorKind::InvalidSubcommand, reason).exit();
    }
}

fn set(
    selector: &InterfaceSelector,
    flags: &tailnet::Flags,
    what: Option<Setting>,
) -> anyhow::Result<()> {
    if what.is_none() && !flags.any_is_set() {
        anyhow::bail!("no setting given: see `linerate set --help`");
    }
    if let Some(Setting::Offload { name, wanted }) = &what {
        let interface = selector.name()?;
        Client::connect(&interface)?.send("linerate-offload", &format!("{name}={wanted}\n"))?;
    }
    match flags.any_is_set() {
        true => tailnet::set(selector.given(), flags),
        false => Ok(()),
    }
}

/// The process in which [`start`] returned.
enum Started {
    /// The peer runs in the background.
    InBackground,
    /// This process was the peer.
    Ended,
}

/// Runs a peer in the foreground, or in the background. In the background it returns twice: in this
/// process once the peer is ready, and in the peer's process once the peer has ended.
fn start(options: Options, log: Log, foreground: bool) -> anyhow::Result<Started> {
    let options = Options { log_style: log.style(!foreground), ..options };
    start_with(log, foreground, None, |ready| life::run(options, ready))
}

/// Like [`start`], for any peer that `run` runs. If it runs in the background, this process runs the
/// hooks that it receives over `hooks`.
fn start_with(
    log: Log,
    foreground: bool,
    hooks: Option<UnixStream>,
    run: impl FnOnce(&mut dyn FnMut()) -> anyhow::Result<()>,
) -> anyhow::Result<Started> {
    close_argument_files();
    if foreground {
        log.start();
        return run(&mut || {}).map(|()| Started::Ended);
    }
    match background().context("cannot start in the background")? {
        Fork::Parent(starting) => {
            // Drops the other end of `hooks`, which only the child must hold.
            drop(run);
            if let Some(hooks) = hooks {
                process::serve_background(&hooks, print)?;
            }
            starting.wait()?;
            Ok(Started::InBackground)
        }
        Fork::Child(readiness) => {
            drop(hooks);
            log.start();
            // The sandbox does not allow connecting to syslog later.
            let terminal = log::TerminalDetachment::prepare_confined();
            let mut readiness = Some(readiness);
            let ended = run(&mut || {
                if let Some(readiness) = readiness.take() {
                    terminal.detach();
                    readiness.ready();
                }
            });
            match (readiness, ended) {
                // The parent prints the error.
                (Some(readiness), Err(error)) => {
                    readiness.failed(&format!("{error:#}"));
                    std::process::exit(1)
                }
                (_, ended) => ended.map(|()| Started::Ended),
            }
        }
    }
}

impl Up {
    fn run(self) -> anyhow::Result<()> {
        let resources = self.resource_args.resources()?;
        let (name, path, mut conf) = self.conf.read()?;
        conf.without_proxy()?;
        conf.allow_hooks_of(&self.allow_hooks_of);
        conf.without_writable_hooks()?;
        let sandbox = self.sandbox.is_on();
        let (ours, caller) = (!self.foreground).then(UnixStream::pair).transpose()?.unzip();
        let conf = Some(Source { path, conf, caller });
        let options = Options { name, conf, resources, sandbox, ..Options::default() };
        let options = Options { log_style: self.log.style(!self.foreground), ..options };
        start_with(self.log, self.foreground, ours, |ready| life::run(options, ready)).map(drop)
    }
}

impl ConfFile {
    /// Reads the file of an interface, which is named after the file. Also returns the name, and the
    /// path without symbolic links.
    fn read(&self) -> anyhow::Result<(String, PathBuf, Conf)> {
        self.read_named(InterfaceName::from_path)
    }

    /// Reads the file of a proxy like [`Self::read`]. The file may have any name.
    fn read_any(&self) -> anyhow::Result<(String, PathBuf, Conf)> {
        self.read_named(|path| Ok(InterfaceName::of_any_file(path)))
    }

    fn read_named(
        &self,
        name_of: impl Fn(&Path) -> Result<InterfaceName, NameError>,
    ) -> anyhow::Result<(String, PathBuf, Conf)> {
        let given = conf_path(&self.conf);
        let (path, conf) = wg::stack::run_and_wipe(|| process::read_conf(&given))?;
        // The name of a descriptor is a number.
        let named = if is_descriptor(&given) { &path } else { &given };
        let name = match &self.name {
            Some(name) => InterfaceName::new(name).context("--name")?,
            None => name_of(named).map_err(|error| match is_descriptor(named) {
                true => anyhow::anyhow!(
                    "{}: a pipe does not name the interface: use `--name NAME`",
                    named.display()
                ),
                false => anyhow::Error::new(error).context(named.display().to_string()),
            })?,
        };
        Ok((name.as_str().to_owned(), path, conf))
    }
}

/// Whether a path is that of an open file of this process.
fn is_descriptor(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"];
    path == Path::new("/dev/stdin") || folders.iter().any(|folder| path.starts_with(folder))
}

fn down(interface: &Path) -> anyhow::Result<Outcome> {
    let name = match is_file_name(interface) {
        true => InterfaceName::of_any_file(interface).as_str().to_owned(),
        false => interface.display().to_string(),
    };
    Log::default().start();
    host::ensure_outside_hooks(&name)?;
    if let Some(outcome) = client::down_running(&name)? {
        return Ok(outcome);
    }
    match process::undo_leftovers(&name)? {
        LeftoversResult::Nothing => client::down(&name),
        LeftoversResult::ByAnother => Ok(Outcome::Done),
        LeftoversResult::Undone => {
            eprintln!("linerate: {name}: reverted the changes of a killed process");
            Ok(Outcome::Done)
        }
    }
}

/// The path of a configuration.
fn conf_path(conf: &Path) -> PathBuf {
    let in_folder = || Path::new(CONF_FOLDER).join(format!("{}.conf", conf.display()));
    // A proxy's file may have any name.
    let is_proxys = || conf.is_file() && !in_folder().exists();
    if is_file_name(conf) || is_proxys() { conf.to_owned() } else { in_folder() }
}

/// Prints a line that another process sent.
fn print(text: &str) {
    eprintln!("linerate: {text}");
}

/// Whether an argument is a file and not an interface.
fn is_file_name(argument: &Path) -> bool {
    let text = argument.as_os_str().to_string_lossy();
    text.contains('/') || text.ends_with(".conf")
}
