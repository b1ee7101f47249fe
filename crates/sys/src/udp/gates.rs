//! Whether `UDP_SEGMENT` is used, for each path on its own.

use std::net::IpAddr;

use packet::{Endpoint, Transmit};

use super::refusal::Cause;
use crate::{
    offload::{Gate, Switch},
    time::Clock,
};

/// The most paths that are remembered. Beyond that the oldest is forgotten, and tried again.
const MAX_GATES: usize = 64;

/// What refused a stretch: the path through an interface to one address, or, once it has refused a
/// second address, the interface itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The interface of the sticky source; 0 if the routing table chooses, perhaps another one for
    /// each address.
    interface: u32,
    remote: Option<IpAddr>,
    cause: Cause,
    /// The shortest segment it refused: shorter ones may fit. 0 for any length.
    segment: usize,
}

impl Path {
    pub(super) fn leads_to(&self, run: &Transmit) -> bool {
        self.segment <= run.segment
            && self.interface == interface(&run.endpoint)
            && (self.remote.is_none() || self.remote == address(&run.endpoint))
    }

    fn is_same_route(&self, other: &Self) -> bool {
        (self.interface, self.remote) == (other.interface, other.remote)
    }
}

fn address(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.remote.direct().map(|remote| remote.ip())
}

fn interface(endpoint: &Endpoint) -> u32 {
    endpoint.local.map_or(0, |local| local.interface)
}

/// The gates of the paths that refused a stretch.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: Vec<(Path, Gate)>,
    /// Whether it is wanted, and which paths are closed. Neither changes during a pass, so that
    /// what is counted as sent is what was sent.
    wanted: bool,
    closed: Vec<Path>,
}

impl Gates {
    pub(super) fn begin_pass(&mut self, switch: &Switch, time: &impl Clock) {
        self.wanted = switch.is_enabled();
        self.closed.clear();
        let closed = self.gates.iter().filter(|(_, gate)| !gate.is_open(switch, time));
        self.closed.extend(closed.map(|(path, _)| path));
    }

    pub(super) fn are_open(&self, run: &Transmit) -> bool {
        self.wanted && !self.closed.iter().any(|path| path.leads_to(run))
    }

    /// What to suspect after a stretch was refused. A fault of the device is at first attributed to
    /// the path to one address (such as an IPsec policy).
    pub(super) fn suspect(&self, cause: Cause, run: &Transmit) -> Path {
        let segment = if cause == Cause::Length { run.segment } else { 0 };
        let remote = address(&run.endpoint);
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

    /// A stretch was accepted.
    pub(super) fn succeeded(&mut self, run: &Transmit) {
        if !self.gates.is_empty() {
            self.gates.retain(|(path, _)| !path.leads_to(run));
        }
    }

    /// A path refused a stretch, and accepted its datagrams one by one.
    pub(super) fn demote(&mut self, path: Path, switch: &Switch, time: &impl Clock) {
        let at =
            self.gates.iter().position(|(of, _)| of.is_same_route(&path)).unwrap_or_else(|| {
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
