//! The implementations that are measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use netns::{Host, Implementation, Program};

use crate::machine;

/// An implementation that carries packets from one host to the other.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub name: String,
    /// If several settings of a peer are measured: the peer and the setting. The better one is
    /// compared.
    pub setting: Option<Setting>,
    /// The implementation.
    pub carrier: Carrier,
    /// The offloads that linerate may use, or `None` for all.
    pub offloads: Option<Vec<&'static str>>,
}

/// One of several settings of the same peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The peer.
    pub peer: &'static str,
    /// The setting.
    pub name: &'static str,
}

/// A requested contender that cannot be measured on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// The reason, as a verb phrase that follows the name.
    pub why: &'static str,
}

/// The implementation that carries the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The cable, without any tunnel.
    Bare,
    /// The kernel's module.
    Kernel,
    /// A daemon at both ends.
    Daemon(Program),
    /// tailscaled. The near end runs without an interface.
    Tailscaled(Tailscaled),
    /// Carries nothing: headscale coordinates and Tailscale's derper relays.
    Headscale(Headscale),
}

/// The programs that linerate-server is compared with; `tests/netns/peers` builds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headscale {
    coordinator: PathBuf,
    relay: Option<PathBuf>,
}

impl Headscale {
    /// The installed programs, if the coordinator is installed.
    fn installed() -> Option<Self> {
        let coordinator = netns::peer("headscale")?;
        Some(Self { coordinator, relay: netns::peer("derper") })
    }

    /// The relay, if it is installed.
    pub fn relay(&self) -> Option<&Path> {
        self.relay.as_deref()
    }
}

/// The programs of tailscaled; `tests/netns/peers` builds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tailscaled {
    daemon: PathBuf,
    client: PathBuf,
    control: PathBuf,
}

impl Tailscaled {
    /// The installed programs, if all are installed.
    fn installed() -> Option<Self> {
        Some(Self {
            daemon: netns::peer("tailscaled")?,
            client: netns::peer("tailscale")?,
            control: netns::peer("testcontrol")?,
        })
    }

    /// The daemon.
    pub fn tailscaled(&self) -> &Path {
        &self.daemon
    }

    /// The client, tailscale(1).
    pub fn tailscale(&self) -> &Path {
        &self.client
    }

    /// The control server that introduces the daemons.
    pub fn testcontrol(&self) -> &Path {
        &self.control
    }
}

/// Names of contenders without a program.
const BARE: &str = "bare";
const KERNEL: &str = "kernel";

/// The name of tailscaled.
pub const TAILSCALED: &str = "tailscaled";

/// The name of headscale.
pub const HEADSCALE: &str = "headscale";

/// Reason for peers that `tests/netns/peers` would build.
const NOT_BUILT: &str = "is not built";

/// Tailscale's fork of wireguard-go is measured with two lengths of its queue per peer. Its own
/// program has one entry for each core. Tailscale's client has four, and at most 1024
/// (tailscale.com/wgengine/wgcfg/mem_notios.go, v1.104.5).
const QUEUES: [(&str, usize); 2] = [("1x", 1), ("4x", 4)];
const QUEUE_MOST: usize = 1024;

/// The environment variable of the fork's own program for the queue length.
const QUEUE: &str = "WG_QUEUE_SIZE";

static QUEUE_SIZES: LazyLock<[String; 2]> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    QUEUES.map(|(_, places)| queue_size(cores, places))
});

fn queue_size(cores: usize, places: usize) -> String {
    (cores * places).min(QUEUE_MOST).to_string()
}

impl Contender {
    /// The installed program of this implementation.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn installed(implementation: Implementation) -> Self {
        Self::new(implementation.name(), Carrier::Daemon(implementation.into()))
    }

    /// The contenders of these names, separated by commas, and those that this machine does not
    /// have.
    pub fn named(names: &str) -> Result<(Vec<Self>, Vec<Missing>), String> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names.split(',').filter(|name| *name != "none") {
            match Self::find(name)? {
                Ok(contender) if contender.is(Implementation::Tailscale) => {
                    found.extend(contender.with_queues());
                }
                Ok(contender) => found.push(contender),
                Err(why) => {
                    netns::skip(if name == KERNEL { "kernel WireGuard" } else { name });
                    missing.push(Missing { name: name.to_owned(), why });
                }
            }
        }
        Ok((found, missing))
    }

    /// The contender of this name, or why it is unavailable.
    fn find(name: &str) -> Result<Result<Self, &'static str>, String> {
        let carrier = match name {
            BARE => Ok(Carrier::Bare),
            KERNEL if has_module() => Ok(Carrier::Kernel),
            KERNEL => Err("has no WireGuard"),
            HEADSCALE => Headscale::installed().map(Carrier::Headscale).ok_or(NOT_BUILT),
            TAILSCALED => Tailscaled::installed().map(Carrier::Tailscaled).ok_or(NOT_BUILT),
            _ => {
                let implementation = Implementation::named(name)
                    .ok_or_else(|| format!("unknown implementation {name}"))?;
                let is_there = implementation.program().is_some();
                is_there.then(|| Carrier::Daemon(implementation.into())).ok_or(NOT_BUILT)
            }
        };
        Ok(carrier.map(|carrier| Self::new(name, carrier)))
    }

    fn is(&self, implementation: Implementation) -> bool {
        self.program().is_some_and(|program| program.implementation == implementation)
    }

    /// The same contender with each length of its queue.
    fn with_queues(self) -> [Self; 2] {
        let peer = Implementation::Tailscale.name();
        [0, 1].map(|at| {
            let name = QUEUES[at].0;
            let mut one = Self::new(&format!("{peer}-{name}"), self.carrier.clone());
            one.setting = Some(Setting { peer, name });
            if let Carrier::Daemon(program) = &mut one.carrier {
                program.environment.push((QUEUE, QUEUE_SIZES[at].as_str()));
            }
            one
        })
    }

    /// The peer's name without the setting.
    pub fn peer(&self) -> &str {
        self.setting.map_or(&self.name, |setting| setting.peer)
    }

    /// A build of linerate from `PATH` or `NAME=PATH`. The path is made absolute because the hosts
    /// have another working directory.
    pub fn build(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        let path = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
        let implementation = Implementation::Linerate;
        let program = Program { implementation, path, environment: Vec::new() };
        Ok(Self::new(name, Carrier::Daemon(program)))
    }

    /// A contender with all offloads.
    pub fn new(name: &str, carrier: Carrier) -> Self {
        Self { name: name.to_owned(), setting: None, carrier, offloads: None }
    }

    /// The program of a daemon.
    pub fn program(&self) -> Option<&Program> {
        match &self.carrier {
            Carrier::Daemon(program) => Some(program),
            Carrier::Bare | Carrier::Kernel | Carrier::Tailscaled(_) | Carrier::Headscale(_) => {
                None
            }
        }
    }

    /// Its version.
    pub fn version(&self) -> String {
        match &self.carrier {
            Carrier::Bare => "the cable, without a tunnel".to_owned(),
            Carrier::Kernel => {
                let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
                format!("the module of Linux {}", release.trim())
            }
            Carrier::Daemon(program) => machine::version(&program.path),
            Carrier::Tailscaled(programs) => machine::version(programs.tailscaled()),
            Carrier::Headscale(programs) => {
                let relay = programs.relay().map(machine::version);
                let relay = relay.unwrap_or_else(|| "without a relay".to_owned());
                format!("{}, {relay}", machine::version(&programs.coordinator))
            }
        }
    }
}

/// Whether the kernel can create a WireGuard interface.
fn has_module() -> bool {
    Host::new("probe").attempt("ip link add wg0 type wireguard").ok
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use netns::{Implementation, Program};

    use super::{Carrier, Contender, QUEUE, queue_size};

    #[test]
    fn tailscales_fork_has_the_queue_lengths_of_its_program_and_of_tailscaled() {
        let program = Program {
            implementation: Implementation::Tailscale,
            path: PathBuf::new(),
            environment: Vec::new(),
        };
        let both = Contender::new("x", Carrier::Daemon(program)).with_queues();
        let [own, client] = both.each_ref().map(|one| one.program().unwrap().environment[0]);
        assert_eq!((own.0, client.0), (QUEUE, QUEUE));
        let places = |(_, text): (_, &str)| text.parse::<usize>().unwrap();
        assert_eq!(4 * places(own), places(client), "of fewer than 256 cores");
        assert_eq!(both[0].peer(), both[1].peer());
        assert_ne!(both[0].name, both[1].name);
    }

    #[test]
    fn queue_length_grows_with_cores_up_to_1024() {
        assert_eq!([queue_size(2, 1), queue_size(2, 4), queue_size(512, 4)], ["2", "8", "1024"]);
    }
}
