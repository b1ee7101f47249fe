//! The WireGuard implementations of the rig, all configured by wg(8).

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::show::forced_off;

/// A userspace WireGuard with wireguard-go's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Ours: `LINERATE_BIN`, or the build that the running program belongs to.
    Linerate,
    /// The reference implementation in Go.
    WireguardGo,
    /// Tailscale's fork of wireguard-go, the fastest in Go. It does not learn endpoints from
    /// received packets, because Tailscale's client sets them. So both sides of a tunnel with it
    /// need one.
    Tailscale,
    /// Cloudflare's, in Rust.
    Boringtun,
    /// Mullvad's, a fork of boringtun.
    Gotatun,
}

use Implementation::{Boringtun, Gotatun, Linerate, Tailscale, WireguardGo};

impl Implementation {
    /// All implementations, ours first.
    pub const ALL: [Self; 5] = [Linerate, WireguardGo, Tailscale, Boringtun, Gotatun];

    /// The implementation of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Its name in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Linerate => "linerate",
            WireguardGo => "wireguard-go",
            Tailscale => "tailscale-wireguard-go",
            Boringtun => "boringtun",
            Gotatun => "gotatun",
        }
    }

    /// The path of its binary, if it exists.
    pub fn program(self) -> Option<PathBuf> {
        let path = match self {
            Linerate => return linerate(),
            WireguardGo => peers().join("wireguard-go"),
            Tailscale => peers().join("tailscale-wireguard-go"),
            Boringtun => peers().join("boringtun-cli"),
            Gotatun => peers().join("gotatun"),
        };
        path.is_file().then_some(path)
    }

    /// The path of its binary.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn path(self) -> PathBuf {
        let hint = if self == Linerate { "make build, or set LINERATE_BIN" } else { "make peers" };
        self.program().unwrap_or_else(|| panic!("{self} is not installed ({hint})"))
    }

    /// Whether a peer is missing, which is announced as a skipped test. Always false for linerate:
    /// its absence is an error.
    pub fn is_skipped(self) -> bool {
        let is_missing = self != Linerate && self.program().is_none();
        if is_missing {
            skips::skip(self.name());
        }
        is_missing
    }

    /// The arguments to start it. In the background, the command returns once the interface is
    /// usable.
    pub fn arguments(self, interface: &str, foreground: bool) -> Vec<String> {
        let mut arguments = Vec::new();
        if foreground {
            arguments.push("-f".to_owned());
        }
        if matches!(self, Boringtun | Gotatun) {
            arguments.push("--disable-drop-privileges".to_owned());
        }
        if let Some(names) = forced_off().filter(|_| self == Linerate) {
            arguments.push(format!("--offload-off={names}"));
        }
        arguments.push(interface.to_owned());
        arguments
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An implementation with its binary, for example one of two builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The implementation, which determines the command line.
    pub implementation: Implementation,
    /// The binary.
    pub path: PathBuf,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, &'static str)>,
}

impl From<Implementation> for Program {
    /// The installed program.
    ///
    /// # Panics
    /// If it is not installed.
    fn from(implementation: Implementation) -> Self {
        Self { implementation, path: implementation.path(), environment: Vec::new() }
    }
}

fn linerate() -> Option<PathBuf> {
    built("LINERATE_BIN", "linerate")
}

/// A binary of the workspace: from an environment variable, or the build of this program, or a
/// release build, or another.
pub(crate) fn built(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Some(PathBuf::from(path));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or(workspace.join("target"), PathBuf::from);
    let others = ["release", "debug"].map(|build| target.join(build));
    let builds = own_build().into_iter().chain(others);
    builds.into_iter().find_map(|build| build.join(name).canonicalize().ok())
}

/// The example of this name, built with this program.
///
/// # Panics
/// If it is not built.
pub fn example(name: &str) -> PathBuf {
    let path = own_build().map(|build| build.join("examples").join(name));
    let path = path.filter(|path| path.is_file());
    path.unwrap_or_else(|| panic!("the example {name} is not built (make build-tests)"))
}

/// The build folder of this program; cargo puts tests and examples below it.
fn own_build() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let folder = program.parent()?;
    let is_below = folder.ends_with("deps") || folder.ends_with("examples");
    Some(if is_below { folder.parent()? } else { folder }.to_owned())
}

/// The path of a program that `tests/netns/peers` builds, if it exists.
pub fn peer(name: &str) -> Option<PathBuf> {
    let path = peers().join(name);
    path.is_file().then_some(path)
}

/// The folder of the programs that `tests/netns/peers` builds.
pub(crate) fn peers() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = || env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    let peers = env::var_os("LINERATE_PEERS");
    peers.map_or_else(|| cache().join("linerate-peers"), PathBuf::from).join("bin")
}
