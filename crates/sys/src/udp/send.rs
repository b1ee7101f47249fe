//! The sending half: `sendmmsg` over the runs of a batch.
//!
//! ```text
//!   cursor -> up to 128 messages -> sendmmsg -> n sent: cursor + n, repeat
//!                                            -> the first was refused (`refusal`):
//!     earlier ICMP error     retried
//!     full queues            retried after a short wait; then NoBuffer
//!     a GSO message          its datagrams are retried singly; if that works, the
//!                            path's gate closes for a while (`gates`)
//!     stale sticky source    the run is retried without it; StaleSource if that works
//!     the destination        the rest of the run fails
//!     other errors           the message fails
//! ```
//!
//! A message is one datagram, or a GSO message (`UDP_SEGMENT`) of several datagrams of a run.
//!
//! A sticky source is refused after the address was removed from this machine. If only the route
//! has changed, datagrams follow it, and [`crate::netlink::Monitor`] reports the change, so that
//! another source can be chosen.

use std::{fmt, os::fd::AsFd, sync::Arc, time::Duration};

use nix::errno::Errno;
use packet::{Endpoint, Failure, SendBatch, SendError, Tos, Transmit, UdpSend};

use super::{
    Shared,
    gates::{Gates, Path},
    mmsg::{Calls, Messages, Outgoing},
    refusal::{Cause, send_error},
    socket::Socket,
};
use crate::{offload::Switch, time::Clock};

/// The maximum number of datagrams of a GSO message: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_SEGMENTS: usize = 64;
/// The maximum length of a GSO message in bytes: the payload of the largest IPv4 packet.
const MAX_GSO_BYTES: usize = 65_507;

/// The total time that one batch waits for full queues. A congested tunnel should drop packets
/// rather than add 100 ms.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The duration of one wait.
const WAIT: Duration = Duration::from_millis(1);
/// The maximum number of errors of earlier datagrams that are ignored for one datagram. Each is
/// reported once, so many errors have another cause.
const MAX_REFUSED: u32 = 16;

/// A sending half of a [`super::UdpSocket`].
pub struct UdpSender<C = Messages> {
    shared: Arc<Shared>,
    pub(super) messages: C,
    failures: Vec<Failure>,
    gates: Gates,
}

impl<C: Calls> UdpSend for UdpSender<C> {
    fn send(&mut self, batch: &mut SendBatch) {
        let Self { shared, messages, failures, gates } = self;
        failures.clear();
        match shared.socket() {
            Some(socket) => {
                let gso = &shared.offloads.udp_gso;
                gates.begin_pass(gso, messages);
                Pass {
                    socket: &socket,
                    batch,
                    failures,
                    gates,
                    gso,
                    suspect: None,
                    transmit: 0,
                    datagram: 0,
                    stale: None,
                    time_left: TIMEOUT,
                    refused: 0,
                }
                .run(messages);
            }
            None => fail_all(batch, failures, SendError::NoSocket),
        }
        for &failure in &*failures {
            batch.fail(failure);
        }
    }

    // The option applies to the socket, but this half sends all data, in sequential calls.
    // Handshakes, which the other half may send at the same time, fit every path.
    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        let socket = self.shared.socket().ok_or(SendError::NoSocket)?;
        let Endpoint { remote, local } = endpoint;
        let remote = remote.direct().ok_or(SendError::Unreachable)?;
        if !socket.family().reaches(remote) {
            return Err(SendError::Unreachable);
        }
        let message =
            Outgoing { payload: datagram, segment: None, remote, local, tos: Tos::default() };
        socket.forbid_fragmentation(remote.is_ipv4(), true).map_err(send_error)?;
        let sent = self.messages.send(socket.as_fd(), socket.family(), [message].into_iter());
        socket.forbid_fragmentation(remote.is_ipv4(), false).map_err(send_error)?;
        sent.map(drop).map_err(send_error)
    }
}

impl UdpSender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self::over(shared, Messages::new())
    }
}

impl<C: Calls> UdpSender<C> {
    pub(super) fn over(shared: Arc<Shared>, messages: C) -> Self {
        Self { shared, messages, failures: Vec::new(), gates: Gates::default() }
    }
}

impl<C> fmt::Debug for UdpSender<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSender").field("shared", &self.shared).finish_non_exhaustive()
    }
}

fn fail_all(batch: &SendBatch, failures: &mut Vec<Failure>, error: SendError) {
    let all = batch.transmits().iter().enumerate();
    let all = all.filter(|(_, run)| !run.endpoint.remote.is_relayed());
    failures.extend(all.map(|(transmit, run)| Failure {
        transmit,
        datagrams: run.datagrams(),
        error,
    }));
}

/// The state of sending one batch.
struct Pass<'a> {
    socket: &'a Socket,
    batch: &'a SendBatch,
    failures: &'a mut Vec<Failure>,
    gates: &'a mut Gates,
    gso: &'a Switch,
    /// A path that refused a GSO message. Its datagrams are sent singly.
    suspect: Option<Path>,
    /// The first incomplete run.
    transmit: usize,
    /// The first unsent datagram of that run.
    datagram: usize,
    /// The endpoint of which the sticky source was last refused. The source is omitted.
    stale: Option<Endpoint>,
    time_left: Duration,
    refused: u32,
}

impl<'a> Pass<'a> {
    fn run(&mut self, messages: &mut impl Calls) {
        while let Some(run) = self.batch.transmits().get(self.transmit) {
            let Some(remote) = run.endpoint.remote.direct() else {
                self.step(run.datagrams());
                continue;
            };
            if !self.socket.family().reaches(remote) {
                self.fail(run.datagrams() - self.datagram, SendError::Unreachable);
                continue;
            }
            match messages.send(self.socket.as_fd(), self.socket.family(), self.unsent()) {
                Ok(count) => {
                    self.refused = 0;
                    self.advance(count, messages);
                }
                Err(errno) => self.handle_error(errno, run, messages),
            }
        }
    }

    /// The messages from the cursor up to one that the socket cannot send.
    fn unsent(&self) -> impl Iterator<Item = Outgoing<'a>> + use<'a, '_> {
        let (mut transmit, mut datagram) = (self.transmit, self.datagram);
        std::iter::from_fn(move || {
            let run = self.batch.transmits().get(transmit)?;
            let remote = run.endpoint.remote.direct();
            let remote = remote.filter(|remote| self.socket.family().reaches(*remote))?;
            let count = self.datagrams_in_message(run, datagram);
            let message = Outgoing {
                payload: self.batch.datagram_bytes(run, datagram, count),
                segment: (count > 1).then_some(run.segment as u16),
                remote,
                local: run.endpoint.local.filter(|_| self.stale != Some(run.endpoint)),
                tos: run.tos,
            };
            datagram += count;
            if datagram >= run.datagrams() {
                (transmit, datagram) = (transmit + 1, 0);
            }
            Some(message)
        })
    }

    /// The number of datagrams of a run, from `first`, that are sent as one message.
    fn datagrams_in_message(&self, run: &Transmit, first: usize) -> usize {
        let is_suspect = self.suspect.is_some_and(|path| path.leads_to(run));
        if is_suspect || !self.gates.are_open(run) {
            return 1;
        }
        let fitting = (MAX_GSO_BYTES / run.segment).clamp(1, MAX_SEGMENTS);
        (run.datagrams() - first).min(fitting)
    }

    fn handle_error(&mut self, errno: Errno, run: &Transmit, time: &impl Clock) {
        let cause = Cause::of(errno);
        let count = self.datagrams_in_message(run, self.datagram);
        let is_pinned = run.endpoint.local.is_some() && self.stale != Some(run.endpoint);
        match cause {
            Cause::Signal => {}
            Cause::Earlier if self.refused < MAX_REFUSED => self.refused += 1,
            Cause::SocketQueue if !self.time_left.is_zero() => {
                self.time_left = self.time_left.saturating_sub(WAIT);
                time.wait_writable(self.socket.as_fd(), WAIT);
            }
            Cause::DeviceQueue if !self.time_left.is_zero() => {
                self.time_left = self.time_left.saturating_sub(WAIT);
                time.sleep(WAIT);
            }
            _ if count > 1 && cause.may_be_offload() => {
                self.suspect = Some(self.gates.suspect(cause, run));
            }
            _ if is_pinned && cause.may_be_source() => {
                self.stale = Some(run.endpoint);
                // The GSO message was not the cause.
                self.suspect = None;
            }
            _ if cause.ends_run() => {
                // The GSO message was not the cause, as one datagram is also refused.
                self.suspect = None;
                self.fail(run.datagrams() - self.datagram, send_error(errno));
            }
            _ => self.fail(count, send_error(errno)),
        }
    }

    /// Moves the cursor past sent messages.
    fn advance(&mut self, messages: usize, time: &impl Clock) {
        for _ in 0..messages {
            let Some(run) = self.batch.transmits().get(self.transmit) else { return };
            let count = self.datagrams_in_message(run, self.datagram);
            // A shorter last datagram does not prove that longer ones would be accepted.
            let is_full = (self.datagram + 1) * run.segment <= run.span.len;
            if count > 1 {
                self.gates.succeeded(run);
            } else if let Some(path) = self.suspect.filter(|path| is_full && path.leads_to(run)) {
                self.gates.demote(path, self.gso, time);
                self.suspect = None;
            }
            if run.endpoint.local.is_some() && self.stale == Some(run.endpoint) {
                self.note(count, SendError::StaleSource);
            }
            self.step(count);
        }
    }

    /// Skips datagrams of the current run and records an error.
    fn fail(&mut self, datagrams: usize, error: SendError) {
        self.refused = 0;
        self.note(datagrams, error);
        self.step(datagrams);
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
