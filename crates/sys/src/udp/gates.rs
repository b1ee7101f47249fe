//! Whether `UDP_SEGMENT` is used, path by path. What one path refuses says nothing of
//! the others.

use std::net::IpAddr;

use packet::{Endpoint, Transmit};

use super::refusal::Cause;
use crate::{
    offload::{Gate, Switch},
    time::Time,
};

/// Paths whose gates are kept. Beyond that the oldest is forgotten, and the kernel
/// asked once more.
const MAX_GATES: usize = 64;

/// What refused a stretch: a way out of the host to one address, or, once it has
/// refused a second one, a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// What a sticky source names; 0 is the routing table's choice, which may be
    /// another one for each address.
    interface: u32,
    remote: Option<IpAddr>,
    cause: Cause,
    /// The shortest segments it refused: shorter ones may fit. 0 is any length.
    segment: usize,
}

impl Path {
    pub(super) fn leads_to(&self, run: &Transmit) -> bool {
        self.segment <= run.segment
            && self.interface == interface(&run.endpoint)
            && self.remote.is_none_or(|remote| remote == run.endpoint.remote.ip())
    }

    fn is_same_way(&self, other: &Self) -> bool {
        (self.interface, self.remote) == (other.interface, other.remote)
    }
}

fn interface(endpoint: &Endpoint) -> u32 {
    endpoint.local.map_or(0, |local| local.interface)
}

/// The gates of all paths that refused a stretch.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: Vec<(Path, Gate)>,
    /// Whether it is wanted, and which paths are closed. Both stay as they are
    /// during a pass: what was counted as sent must be what was sent.
    wanted: bool,
    closed: Vec<Path>,
}

impl Gates {
    pub(super) fn begin_pass(&mut self, switch: &Switch, time: &impl Time) {
        self.wanted = switch.wanted();
        self.closed.clear();
        let closed = self.gates.iter().filter(|(_, gate)| !gate.is_open(switch, time));
        self.closed.extend(closed.map(|(path, _)| path));
    }

    pub(super) fn are_open(&self, run: &Transmit) -> bool {
        self.wanted && !self.closed.iter().any(|path| path.leads_to(run))
    }

    /// Whom the refusal of a stretch accuses. What may be the device's fault is at
    /// first taken for that of the way to one address (an IPsec policy, say).
    pub(super) fn accuse(&self, cause: Cause, run: &Transmit) -> Path {
        let segment = if cause == Cause::Length { run.segment } else { 0 };
        let remote = Some(run.endpoint.remote.ip());
        let path = Path { interface: interface(&run.endpoint), remote, cause, segment };
        let seconds = |(other, _): &(Path, Gate)| {
            cause == Cause::Device
                && (other.interface, other.cause) == (path.interface, cause)
                && other.remote != path.remote
        };
        if path.interface != 0 && self.gates.iter().any(seconds) {
            return Path { remote: None, ..path };
        }
        path
    }

    /// A stretch went.
    pub(super) fn went(&mut self, run: &Transmit) {
        if !self.gates.is_empty() {
            self.gates.retain(|(path, _)| !path.leads_to(run));
        }
    }

    /// A path refused a stretch, and took its datagrams one by one.
    pub(super) fn demote(&mut self, path: Path, switch: &Switch, time: &impl Time) {
        let at = self.gates.iter().position(|(of, _)| of.is_same_way(&path)).unwrap_or_else(|| {
            if self.gates.len() == MAX_GATES {
                self.gates.remove(0);
            }
            self.gates.push((path, Gate::default()));
            self.gates.len() - 1
        });
        let (of, gate) = &mut self.gates[at];
        *of = Path { segment: of.segment.min(path.segment), ..path };
        gate.demote(switch, time);
        self.closed.push(*of);
    }
}
