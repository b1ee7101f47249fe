//! The sandbox of a running peer: when, and what stays in reach.
//!
//! ```text
//!   TUN, sockets, --user -> files -> threads, configuration, ready -> calls -> end
//! ```
//!
//! A peer that runs programs (hooks, resolvconf, nft) or has settings of the host to restore
//! goes without: they would be confined with it. Where the kernel does not know one half, the other is taken all the same;
//! where it does and refuses, the process ends.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sys::process::sandbox::{Confined, Reach, confine_calls, confine_files};

use crate::up::Up;

/// What resolving an endpoint's name reads, and what the allocator and a thread's start do.
const READ: [&str; 14] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/proc/self",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
];

/// A sandbox that is or is not wanted.
pub(crate) struct Sandbox {
    reach: Option<Reach>,
}

impl Sandbox {
    /// What stays in reach of a peer with these sockets, and maybe with a configuration.
    pub fn new<'a>(
        wanted: bool,
        sockets: impl IntoIterator<Item = &'a Path>,
        up: Option<&Up>,
    ) -> Self {
        if !wanted {
            tracing::info!("no sandbox: it is off");
            return Self { reach: None };
        }
        if let Some(key) = up.and_then(Up::reaches_out) {
            tracing::info!("no sandbox: {key} needs programs, or settings of the host");
            return Self { reach: None };
        }
        let folder = |path: &Path| path.parent().map(Path::to_owned);
        let reach = Reach {
            read: READ.map(PathBuf::from).to_vec(),
            write: vec!["/dev/null".into()],
            remove: sockets.into_iter().filter_map(folder).collect(),
            change: up.and_then(Up::saves_to).and_then(folder).into_iter().collect(),
        };
        Self { reach: Some(reach) }
    }

    /// Before any thread.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn confine_files(&self) -> anyhow::Result<()> {
        let Some(reach) = &self.reach else { return Ok(()) };
        told("files (landlock)", confine_files(reach).context(REFUSED)?);
        Ok(())
    }

    /// Once the start is over.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn confine_calls(&self) -> anyhow::Result<()> {
        if self.reach.is_none() {
            return Ok(());
        }
        told("system calls (seccomp)", confine_calls().context(REFUSED)?);
        Ok(())
    }
}

/// What to do about it.
const REFUSED: &str = "the sandbox was refused (`--sandbox off` goes without)";

fn told(what: &str, confined: Confined) {
    match confined {
        Confined::Wholly => tracing::info!("sandbox: {what}"),
        Confined::Partly => tracing::info!("sandbox: {what}, as far as this kernel knows"),
        Confined::Not => tracing::warn!("sandbox: this kernel cannot confine {what}"),
    }
}
