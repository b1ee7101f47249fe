//! Who is measured.

use std::fs;
use std::path::{Path, PathBuf};

use netns::{Host, Implementation, Program};

use crate::machine;

/// Something that carries packets from one host to the other, under its name in the report.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub name: String,
    /// What carries.
    pub carrier: Carrier,
    /// The offloads that linerate may use, if not all.
    pub offloads: Option<Vec<&'static str>>,
}

/// What carries the packets of a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The cable, without any tunnel.
    Bare,
    /// The kernel's module.
    Kernel,
    /// A daemon at both ends.
    Daemon(Program),
    /// tailscaled, whose near end has no interface.
    Tailscaled(Tailscaled),
}

/// The programs of tailscaled: each is a peer of the rig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tailscaled {
    daemon: PathBuf,
    client: PathBuf,
    control: PathBuf,
}

impl Tailscaled {
    /// Those that are installed, if all are.
    fn installed() -> Option<Tailscaled> {
        Some(Tailscaled {
            daemon: netns::peer("tailscaled")?,
            client: netns::peer("tailscale")?,
            control: netns::peer("testcontrol")?,
        })
    }

    /// The daemon.
    pub fn tailscaled(&self) -> &Path {
        &self.daemon
    }

    /// What speaks to it.
    pub fn tailscale(&self) -> &Path {
        &self.client
    }

    /// What introduces the daemons to each other.
    pub fn testcontrol(&self) -> &Path {
        &self.control
    }
}

/// The names of those that are no program.
const BARE: &str = "bare";
const KERNEL: &str = "kernel";

/// The name of tailscaled.
pub const TAILSCALED: &str = "tailscaled";

impl Contender {
    /// The installed one of this implementation.
    ///
    /// # Panics
    /// When it is not installed.
    pub fn installed(implementation: Implementation) -> Contender {
        Contender::new(implementation.name(), Carrier::Daemon(implementation.into()))
    }

    /// The ones of these names, separated by commas, but for those that this machine does not have:
    /// it is told of them.
    pub fn named(names: &str) -> Result<Vec<Contender>, String> {
        let named: Result<Vec<Option<Contender>>, String> =
            names.split(',').filter(|name| *name != "none").map(Contender::find).collect();
        Ok(named?.into_iter().flatten().collect())
    }

    fn find(name: &str) -> Result<Option<Contender>, String> {
        let carrier = match name {
            BARE => Carrier::Bare,
            KERNEL if !has_module() => {
                netns::announce(
                    "SKIPPED: kernel: it has no WireGuard (ip link add type wireguard)",
                );
                return Ok(None);
            }
            KERNEL => Carrier::Kernel,
            TAILSCALED => {
                let Some(programs) = Tailscaled::installed() else {
                    netns::announce("SKIPPED: tailscaled is not installed (make peers)");
                    return Ok(None);
                };
                Carrier::Tailscaled(programs)
            }
            _ => {
                let implementation = Implementation::named(name)
                    .ok_or_else(|| format!("unknown implementation {name}"))?;
                if implementation.is_skipped() {
                    return Ok(None);
                }
                Carrier::Daemon(implementation.into())
            }
        };
        Ok(Some(Contender::new(name, carrier)))
    }

    /// A build of linerate, from `PATH` or `NAME=PATH`. The path is made absolute, for the hosts
    /// have a working directory of their own.
    pub fn build(text: &str) -> Result<Contender, String> {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        let path = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
        let implementation = Implementation::Linerate;
        let program = Program { implementation, path, environment: Vec::new() };
        Ok(Contender::new(name, Carrier::Daemon(program)))
    }

    /// One that uses all that it can.
    pub fn new(name: &str, carrier: Carrier) -> Contender {
        Contender { name: name.to_owned(), carrier, offloads: None }
    }

    /// The program that it runs, if it runs any.
    pub fn program(&self) -> Option<&Program> {
        match &self.carrier {
            Carrier::Daemon(program) => Some(program),
            Carrier::Bare | Carrier::Kernel | Carrier::Tailscaled(_) => None,
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
        }
    }
}

/// Whether the kernel makes an interface of WireGuard.
fn has_module() -> bool {
    Host::new("probe").attempt("ip link add wg0 type wireguard").ok
}
