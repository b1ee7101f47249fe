//! The WireGuard implementations that the rig can run, all of them configured by wg(8).

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::show::forced_off;

/// A userspace WireGuard with wireguard-go's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Ours: `LINERATE_BIN`, else the build that the running program is part of.
    Linerate,
    /// The reference in Go.
    WireguardGo,
    /// Tailscale's fork of it, the fastest in Go. It learns no endpoint from what it receives:
    /// Tailscale's client tells it. So both sides of a tunnel with it need one.
    Tailscale,
    /// Cloudflare's in Rust.
    Boringtun,
    /// Mullvad's, which grew out of boringtun.
    Gotatun,
}

use Implementation::{Boringtun, Gotatun, Linerate, Tailscale, WireguardGo};

impl Implementation {
    /// All of them, ours first.
    pub const ALL: [Implementation; 5] = [Linerate, WireguardGo, Tailscale, Boringtun, Gotatun];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Implementation> {
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

    /// Where its binary is, if it is anywhere.
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

    /// Where its binary is.
    ///
    /// # Panics
    /// When it is nowhere.
    pub fn path(self) -> PathBuf {
        let hint = if self == Linerate { "make build, or set LINERATE_BIN" } else { "make peers" };
        self.program().unwrap_or_else(|| panic!("{self} is not installed ({hint})"))
    }

    /// Whether a peer is missing; announced loudly, so that the skipped test is seen. Never true
    /// of linerate, whose absence is an error.
    pub fn is_skipped(self) -> bool {
        let is_missing = self != Linerate && self.program().is_none();
        if is_missing {
            skips::skip(self.name());
        }
        is_missing
    }

    /// The arguments that start it; in the background it returns once the interface is usable.
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

/// An implementation and the binary that runs it, as of one of two builds to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose command line it takes.
    pub implementation: Implementation,
    /// The binary.
    pub path: PathBuf,
    /// What its environment names beside this process's.
    pub environment: Vec<(&'static str, &'static str)>,
}

impl From<Implementation> for Program {
    /// The one that is installed.
    ///
    /// # Panics
    /// When none is.
    fn from(implementation: Implementation) -> Program {
        Program { implementation, path: implementation.path(), environment: Vec::new() }
    }
}

fn linerate() -> Option<PathBuf> {
    built("LINERATE_BIN", "linerate")
}

/// A binary of the workspace: the one that a variable names, else the one that was built with this
/// program, else a release build, else another.
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
/// When it is not built.
pub fn example(name: &str) -> PathBuf {
    let path = own_build().map(|build| build.join("examples").join(name));
    let path = path.filter(|path| path.is_file());
    path.unwrap_or_else(|| panic!("the example {name} is not built (make build-tests)"))
}

/// The folder of the build that this program is part of: cargo puts tests and examples below it.
fn own_build() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let folder = program.parent()?;
    let is_below = folder.ends_with("deps") || folder.ends_with("examples");
    Some(if is_below { folder.parent()? } else { folder }.to_owned())
}

/// Where the program of this name is that `tests/netns/peers` builds, if it could.
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
