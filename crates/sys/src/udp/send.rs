//! The sending half: `sendmmsg` over the runs of a batch.
//!
//! ```text
//!   cursor -> up to 128 messages -> sendmmsg -> n sent: cursor + n, repeat
//!                                            -> the first was refused (`refusal`):
//!     earlier ICMP error     retried
//!     full queues            retried after a short wait; then NoBuffer
//!     a stretch as one       retried, its datagrams one by one; if that works, the
//!                            path's gate closes for a while (`gates`)
//!     stale sticky source    the run without it; StaleSource if that works
//!     the destination        the rest of the run fails
//!     anything else          the message fails
//! ```
//!
//! A message is a stretch of a run, by `UDP_SEGMENT`, or one datagram.
//!
//! A sticky source is refused when the address is no longer local. If only the route has changed,
//! the datagram follows it; [`crate::netlink::Monitor`] reports that, so that another source can be
//! chosen.

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

/// The most datagrams of one stretch: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_STRETCH: usize = 64;
/// The most bytes of one stretch: the payload of the largest IPv4 packet.
const MAX_STRETCH_BYTES: usize = 65_507;

/// How long one batch waits in total for full queues: a congested tunnel should drop, not add 100
/// ms.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The length of one wait.
const WAIT: Duration = Duration::from_millis(1);
/// How many errors of earlier datagrams are skipped for one datagram. Each is reported once, so
/// many of them mean something else.
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

    // The option is set on the socket, but this half sends all data, one call after the other.
    // Handshakes, which the other half sends meanwhile, fit every path.
    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        let socket = self.shared.socket().ok_or(SendError::NoSocket)?;
        let Endpoint { remote, local } = endpoint;
        let remote = remote.direct().ok_or(SendError::Unreachable)?;
        if !socket.family().reaches(remote) {
            return Err(SendError::Unreachable);
        }
        let message =
            Outgoing { payload: datagram, segment: None, remote, local, tos: Tos::default() };
        socket.set_whole(remote.is_ipv4(), true).map_err(send_error)?;
        let sent = self.messages.send(socket.as_fd(), socket.family(), [message].into_iter());
        socket.set_whole(remote.is_ipv4(), false).map_err(send_error)?;
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
    /// A path that refused a stretch. Its datagrams are sent one by one.
    suspect: Option<Path>,
    /// The first run that is not completely sent.
    transmit: usize,
    /// The first unsent datagram of that run.
    datagram: usize,
    /// The endpoint whose sticky source was refused last. It is left out.
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

    /// The messages from the cursor on, until one that the socket cannot send.
    fn unsent(&self) -> impl Iterator<Item = Outgoing<'a>> + use<'a, '_> {
        let (mut transmit, mut datagram) = (self.transmit, self.datagram);
        std::iter::from_fn(move || {
            let run = self.batch.transmits().get(transmit)?;
            let remote = run.endpoint.remote.direct();
            let remote = remote.filter(|remote| self.socket.family().reaches(*remote))?;
            let count = self.stretch(run, datagram);
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

    /// How many datagrams of a run, from `first` on, are sent as one message.
    fn stretch(&self, run: &Transmit, first: usize) -> usize {
        let is_suspect = self.suspect.is_some_and(|path| path.leads_to(run));
        if is_suspect || !self.gates.are_open(run) {
            return 1;
        }
        let fitting = (MAX_STRETCH_BYTES / run.segment).clamp(1, MAX_STRETCH);
        (run.datagrams() - first).min(fitting)
    }

    fn handle_error(&mut self, errno: Errno, run: &Transmit, time: &impl Clock) {
        let cause = Cause::of(errno);
        let count = self.stretch(run, self.datagram);
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
                // It was not the stretch.
                self.suspect = None;
            }
            _ if cause.ends_run() => {
                // It was not the stretch, as one datagram is refused as well.
                self.suspect = None;
                self.fail(run.datagrams() - self.datagram, send_error(errno));
            }
            _ => self.fail(count, send_error(errno)),
        }
    }

    /// Moves the cursor over messages that were sent.
    fn advance(&mut self, messages: usize, time: &impl Clock) {
        for _ in 0..messages {
            let Some(run) = self.batch.transmits().get(self.transmit) else { return };
            let count = self.stretch(run, self.datagram);
            // A shorter last datagram does not show that longer ones would be accepted.
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

    /// Skips datagrams of the current run, with an error.
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
