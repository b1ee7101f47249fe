//! The state of `UDP_SEGMENT` for each path.

use std::net::IpAddr;

use packet::{Endpoint, Transmit};

use super::refusal::Cause;
use crate::{
    offload::{Gate, Switch},
    time::Clock,
};

/// The maximum number of stored paths. Beyond that, the oldest is removed, and tried again.
const MAX_GATES: usize = 64;

/// The path of a refused GSO message: through an interface to one address, or, after a refusal for
/// a second address, all paths through the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The interface of the sticky source; 0 if the routing table chooses, which may choose
    /// another one for each address.
    interface: u32,
    remote: Option<IpAddr>,
    cause: Cause,
    /// The length of the shortest refused segment, as shorter ones may fit. 0 for all lengths.
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

/// The gates of paths with refused GSO messages.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: Vec<(Path, Gate)>,
    /// Whether GSO is enabled, and the closed paths. Neither changes during a pass, so that sent
    /// datagrams are counted as they were sent.
    is_enabled: bool,
    closed: Vec<Path>,
}

impl Gates {
    pub(super) fn begin_pass(&mut self, switch: &Switch, time: &impl Clock) {
        self.is_enabled = switch.is_enabled();
        self.closed.clear();
        let closed = self.gates.iter().filter(|(_, gate)| !gate.is_open(switch, time));
        self.closed.extend(closed.map(|(path, _)| path));
    }

    pub(super) fn are_open(&self, run: &Transmit) -> bool {
        self.is_enabled && !self.closed.iter().any(|path| path.leads_to(run))
    }

    /// The suspected path of a refused GSO message. A fault of the device is first attributed to
    /// the path to one address (for example an IPsec policy).
    pub(super) fn suspect(&self, cause: Cause, run: &Transmit) -> Path {
        let segment = if cause == Cause::Length { run.segment } else { 0 };
        let remote = address(&run.endpoint);
        let path = Path { interface: interface(&run.endpoint), remote, cause, segment };
        let is_other_address = |(other, _): &(Path, Gate)| {
            cause == Cause::Device
                && (other.interface, other.cause) == (path.interface, cause)
                && other.remote != path.remote
        };
        if path.interface != 0 && self.gates.iter().any(is_other_address) {
            return Path { remote: None, ..path };
        }
        path
    }

    /// Records that a GSO message was accepted.
    pub(super) fn succeeded(&mut self, run: &Transmit) {
        if !self.gates.is_empty() {
            self.gates.retain(|(path, _)| !path.leads_to(run));
        }
    }

    /// Records that a path refused a GSO message, and accepted its datagrams singly.
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
