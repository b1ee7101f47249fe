//! NAT64: IPv4 paths of a machine that has only IPv6. Paths use IPv4 addresses as on other
//! machines. Addresses are translated only between here and the data plane.

use std::{net::SocketAddr, time::Duration};

use ipc::{Incoming, Path};
use mesh::nat64::Prefix;

/// The validity of an answer.
const VALID_FOR: Duration = Duration::from_secs(60);

/// The state of NAT64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nat64 {
    prefix: Option<Prefix>,
    /// Whether the data plane has paths with another prefix.
    paths_outdated: bool,
    requested_at: Option<Duration>,
    /// Whether a look-up of the prefix must be started.
    needs_lookup: bool,
}

impl Nat64 {
    /// Whether IPv4 is reached through NAT64.
    pub(super) fn is_active(&self) -> bool {
        self.prefix.is_some()
    }

    /// Makes the next check query again.
    pub(super) fn invalidate(&mut self) {
        self.requested_at = None;
    }

    /// Queries the prefix if this machine has only IPv6, unless the last answer is still valid.
    pub(super) fn check(&mut self, has_v4: bool, has_v6: bool, now: Duration) {
        if has_v4 || !has_v6 {
            self.invalidate();
            self.set(None);
        } else if self.requested_at.is_none_or(|at| now >= at + VALID_FOR) {
            self.requested_at = Some(now);
            self.needs_lookup = true;
        }
    }

    /// Whether to start a look-up of the prefix now.
    pub(super) fn poll_lookup(&mut self) -> bool {
        std::mem::take(&mut self.needs_lookup)
    }

    /// Sets the prefix. Returns whether it changed.
    pub(super) fn set(&mut self, prefix: Option<Prefix>) -> bool {
        let has_changed = self.prefix != prefix;
        self.paths_outdated |= has_changed;
        self.prefix = prefix;
        has_changed
    }

    /// Whether all paths must be sent to the data plane again, because the prefix changed.
    pub(super) fn poll_outdated_paths(&mut self) -> bool {
        std::mem::take(&mut self.paths_outdated)
    }

    /// The address for the data plane.
    pub(super) fn outgoing(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.outward(at))
    }

    /// The address from the data plane.
    pub(super) fn incoming(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.inward(at))
    }

    /// A path for the data plane.
    pub(super) fn outgoing_path(&self, path: Path) -> Path {
        path_with(path, |at| self.outgoing(at))
    }

    /// A path from the data plane.
    pub(super) fn incoming_path(&self, path: Path) -> Path {
        path_with(path, |at| self.incoming(at))
    }

    /// A datagram from the data plane.
    pub(super) fn incoming_datagram(&self, one: Incoming) -> Incoming {
        Incoming { from: self.incoming(one.from), ..one }
    }
}

fn path_with(path: Path, with: impl Fn(SocketAddr) -> SocketAddr) -> Path {
    match path {
        Path::Direct(at) => Path::Direct(with(at)),
        Path::PeerRelay { at, vni } => Path::PeerRelay { at: with(at), vni },
        Path::Auxiliary { at, number } => Path::Auxiliary { at: with(at), number },
        relay @ Path::Relay(_) => relay,
    }
}
