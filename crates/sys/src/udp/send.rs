//! The sending half: `sendmmsg` over the runs of a batch.
//!
//! ```text
//!   cursor -> up to 128 messages -> sendmmsg -> n went: cursor + n, again
//!                                            -> the first was refused:
//!     a stretch as one       again, its datagrams one by one; when they go so,
//!                            the path's gate closes for a while
//!     ICMP error of before   again
//!     full queues            again after a short wait; in the end NoBuffer
//!     sticky source stale    the run without it; StaleSource when it went
//!     anything else          noted, cursor + 1
//! ```
//!
//! A message is a stretch of a run, by `UDP_SEGMENT`, or one datagram.
//!
//! A sticky source is refused when the address is no longer ours. When only the
//! route has moved, the datagram follows it; that the source should then be another
//! one is told by [`crate::netlink::Monitor`].

use std::{fmt, net::IpAddr, os::fd::AsFd, sync::Arc, time::Duration};

use nix::errno::Errno;
use packet::{Endpoint, Failure, SendBatch, SendError, Transmit, UdpSend};

use super::{
    Shared,
    mmsg::{Messages, Outgoing},
    socket::Socket,
};
use crate::{
    offload::{Gate, Switch},
    poll,
};

/// Datagrams of one stretch at most: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_STRETCH: usize = 64;
/// Bytes of one stretch at most: what one IPv4 packet holds behind its headers.
const MAX_STRETCH_BYTES: usize = 65_507;
/// Paths whose gates are kept. Beyond that the oldest is forgotten, and the kernel
/// asked once more.
const MAX_GATES: usize = 64;

/// How long one batch waits for full queues, all its datagrams together: a
/// tunnel that is behind should drop, not add 100 ms.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long one wait is.
const WAIT: Duration = Duration::from_millis(1);
/// How many errors of earlier datagrams are taken before one datagram goes. Each
/// is reported once, so that more than one or two means something else.
const MAX_REFUSED: u32 = 16;

/// A sending half of a [`super::UdpSocket`].
pub struct UdpSender {
    shared: Arc<Shared>,
    messages: Messages,
    failures: Vec<Failure>,
    gates: Gates,
}

/// What refused a stretch: a path out of the host, for all that go there or for one
/// remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    /// What a sticky source names; 0 is the routing table's choice.
    interface: u32,
    remote: Option<IpAddr>,
}

impl Path {
    /// Whom an errno accuses. A device that cannot (EIO) cannot for anybody; a
    /// length that does not fit concerns one path's MTU.
    fn accused(errno: Errno, endpoint: &Endpoint) -> Self {
        let whole_device = matches!(errno, Errno::EIO | Errno::EOPNOTSUPP);
        let remote = (!whole_device).then(|| endpoint.remote.ip());
        Self { interface: interface(endpoint), remote }
    }

    fn leads_to(&self, endpoint: &Endpoint) -> bool {
        self.interface == interface(endpoint)
            && self.remote.is_none_or(|remote| remote == endpoint.remote.ip())
    }
}

/// Whether `UDP_SEGMENT` is used, path by path.
#[derive(Debug, Default)]
struct Gates {
    /// Paths that refused it once.
    gates: Vec<(Path, Gate)>,
    /// Whether it is wanted, and which paths are closed. Both stay as they are
    /// during a pass: what was counted as sent must be what was sent.
    wanted: bool,
    closed: Vec<Path>,
}

impl Gates {
    fn begin_pass(&mut self, switch: &Switch) {
        self.wanted = switch.wanted();
        self.closed.clear();
        let closed = self.gates.iter().filter(|(_, gate)| !gate.is_open(switch));
        self.closed.extend(closed.map(|(path, _)| path));
    }

    fn are_open(&self, endpoint: &Endpoint) -> bool {
        self.wanted && !self.closed.iter().any(|path| path.leads_to(endpoint))
    }

    fn went(&mut self, endpoint: &Endpoint) {
        let used = self.gates.iter_mut().filter(|(path, _)| path.leads_to(endpoint));
        used.for_each(|(_, gate)| gate.went());
    }

    fn demote(&mut self, path: Path, switch: &Switch) {
        let at = self.gates.iter().position(|(of, _)| *of == path).unwrap_or_else(|| {
            if self.gates.len() == MAX_GATES {
                self.gates.remove(0);
            }
            self.gates.push((path, Gate::default()));
            self.gates.len() - 1
        });
        self.gates[at].1.demote(switch);
        self.closed.push(path);
    }
}

fn interface(endpoint: &Endpoint) -> u32 {
    endpoint.local.map_or(0, |local| local.interface)
}

impl UdpSend for UdpSender {
    fn send(&mut self, batch: &mut SendBatch) {
        self.failures.clear();
        match self.shared.socket() {
            Some(socket) => {
                let switch = &self.shared.offloads.udp_gso;
                self.gates.begin_pass(switch);
                Pass::new((&socket, batch), &mut self.failures, (&mut self.gates, switch))
                    .run(&mut self.messages);
            }
            None => note_all(batch, &mut self.failures, SendError::NoSocket),
        }
        for &failure in &self.failures {
            batch.fail(failure);
        }
    }
}

impl UdpSender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let gates = Gates::default();
        Self { shared, messages: Messages::new(), failures: Vec::new(), gates }
    }
}

impl fmt::Debug for UdpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSender").field("shared", &self.shared).finish_non_exhaustive()
    }
}

fn note_all(batch: &SendBatch, failures: &mut Vec<Failure>, error: SendError) {
    let all = batch.transmits().iter().enumerate();
    failures.extend(all.map(|(transmit, run)| Failure {
        transmit,
        datagrams: run.datagrams(),
        error,
    }));
}

/// One walk over a batch.
struct Pass<'a> {
    socket: &'a Socket,
    batch: &'a SendBatch,
    failures: &'a mut Vec<Failure>,
    gates: &'a mut Gates,
    gso: &'a Switch,
    /// A path that refused a stretch: its datagrams go one by one.
    suspect: Option<Path>,
    /// The first run with something unsent.
    transmit: usize,
    /// The first unsent datagram of that run.
    datagram: usize,
    /// Whose sticky source the kernel refused last: it goes without.
    stale: Option<Endpoint>,
    patience: Duration,
    refused: u32,
}

impl<'a> Pass<'a> {
    fn new(
        (socket, batch): (&'a Socket, &'a SendBatch),
        failures: &'a mut Vec<Failure>,
        (gates, gso): (&'a mut Gates, &'a Switch),
    ) -> Self {
        Self {
            socket,
            batch,
            failures,
            gates,
            gso,
            suspect: None,
            transmit: 0,
            datagram: 0,
            stale: None,
            patience: PATIENCE,
            refused: 0,
        }
    }

    fn run(&mut self, messages: &mut Messages) {
        while let Some(&run) = self.batch.transmits().get(self.transmit) {
            if !self.socket.family().reaches(run.endpoint.remote) {
                self.skip(SendError::Unreachable);
                continue;
            }
            match messages.send(self.socket.as_fd(), self.socket.family(), self.unsent()) {
                Ok(count) => {
                    self.refused = 0;
                    self.advance(count);
                }
                Err(errno) => self.handle_error(errno, run.endpoint),
            }
        }
    }

    /// The messages from the cursor on, as far as the socket can send them.
    fn unsent(&self) -> impl Iterator<Item = Outgoing<'a>> + use<'a, '_> {
        let (mut transmit, mut datagram) = (self.transmit, self.datagram);
        std::iter::from_fn(move || {
            let run = self.batch.transmits().get(transmit)?;
            if !self.socket.family().reaches(run.endpoint.remote) {
                return None;
            }
            let count = self.stretch(run, datagram);
            let message = Outgoing {
                payload: self.batch.stretch(run, datagram, count),
                segment: (count > 1).then_some(run.segment as u16),
                remote: run.endpoint.remote,
                local: run.endpoint.local.filter(|_| self.stale != Some(run.endpoint)),
                ecn: run.ecn,
            };
            datagram += count;
            if datagram >= run.datagrams() {
                (transmit, datagram) = (transmit + 1, 0);
            }
            Some(message)
        })
    }

    /// How many datagrams of a run from `first` on go as one message.
    fn stretch(&self, run: &Transmit, first: usize) -> usize {
        let is_suspect = self.suspect.is_some_and(|path| path.leads_to(&run.endpoint));
        if is_suspect || !self.gates.are_open(&run.endpoint) {
            return 1;
        }
        let fitting = (MAX_STRETCH_BYTES / run.segment).clamp(1, MAX_STRETCH);
        (run.datagrams() - first).min(fitting)
    }

    fn handle_error(&mut self, errno: Errno, endpoint: Endpoint) {
        let is_pinned = endpoint.local.is_some() && self.stale != Some(endpoint);
        let run = &self.batch.transmits()[self.transmit];
        match errno {
            Errno::EINTR => {}
            // No checksum offload (EIO), a route with a smaller MTU (EINVAL before
            // 6.14, EMSGSIZE), an old driver: whatever it is, one by one tells.
            Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE | Errno::EOPNOTSUPP
                if self.stretch(run, self.datagram) > 1 =>
            {
                self.suspect = Some(Path::accused(errno, &endpoint));
            }
            // The ICMP error of an earlier datagram, in the place of this send.
            Errno::ECONNREFUSED if self.refused < MAX_REFUSED => self.refused += 1,
            Errno::EAGAIN if !self.patience.is_zero() => {
                poll::writable(self.socket.as_fd(), WAIT);
                self.patience = self.patience.saturating_sub(WAIT);
            }
            // The queue of the device is full, which no poll tells of.
            Errno::ENOBUFS | Errno::ENOMEM if !self.patience.is_zero() => {
                std::thread::sleep(WAIT);
                self.patience = self.patience.saturating_sub(WAIT);
            }
            Errno::EINVAL | Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::ENODEV
                if is_pinned =>
            {
                self.stale = Some(endpoint);
                // That was it, and not the stretch.
                self.suspect = None;
            }
            errno => self.skip(classify(errno)),
        }
    }

    /// Moves the cursor over messages that went.
    fn advance(&mut self, messages: usize) {
        for _ in 0..messages {
            let Some(run) = self.batch.transmits().get(self.transmit) else { return };
            let count = self.stretch(run, self.datagram);
            let suspect = self.suspect.filter(|path| path.leads_to(&run.endpoint));
            if count > 1 {
                self.gates.went(&run.endpoint);
            } else if let Some(path) = suspect {
                self.gates.demote(path, self.gso);
                self.suspect = None;
            }
            if run.endpoint.local.is_some() && self.stale == Some(run.endpoint) {
                self.note(count, SendError::StaleSource);
            }
            self.step(count);
        }
    }

    /// Leaves the datagram at the cursor unsent.
    fn skip(&mut self, error: SendError) {
        self.refused = 0;
        self.note(1, error);
        self.step(1);
    }

    fn step(&mut self, datagrams: usize) {
        self.datagram += datagrams;
        let run = self.batch.transmits().get(self.transmit);
        if run.is_none_or(|run| self.datagram >= run.datagrams()) {
            self.transmit += 1;
            self.datagram = 0;
        }
    }

    fn note(&mut self, datagrams: usize, error: SendError) {
        let transmit = self.transmit;
        match self.failures.last_mut() {
            Some(last) if last.transmit == transmit && last.error == error => {
                last.datagrams += datagrams;
            }
            _ => self.failures.push(Failure { transmit, datagrams, error }),
        }
    }
}

fn classify(errno: Errno) -> SendError {
    match errno {
        Errno::EMSGSIZE => SendError::TooBig,
        Errno::EHOSTUNREACH
        | Errno::ENETUNREACH
        | Errno::ENETDOWN
        // No address of ours has that scope, as with IPv6 switched off.
        | Errno::EADDRNOTAVAIL
        | Errno::EPERM
        | Errno::EACCES => SendError::Unreachable,
        Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM => SendError::NoBuffer,
        errno => SendError::Other(errno as i32),
    }
}
