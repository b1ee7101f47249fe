//! The sending half: `sendmmsg` over the runs of a batch.
//!
//! ```text
//!   cursor -> up to 128 messages -> sendmmsg -> n went: cursor + n, again
//!                                            -> the first was refused (`refusal`):
//!     ICMP error of before   again
//!     full queues            again after a short wait; in the end NoBuffer
//!     a stretch as one       again, its datagrams one by one; when they go so,
//!                            the path's gate closes for a while (`gates`)
//!     sticky source stale    the run without it; StaleSource when it went
//!     the destination        the rest of the run noted, cursor behind it
//!     anything else          the message noted, cursor + 1
//! ```
//!
//! A message is a stretch of a run, by `UDP_SEGMENT`, or one datagram.
//!
//! A sticky source is refused when the address is no longer ours. When only the
//! route has moved, the datagram follows it; that the source should then be another
//! one is told by [`crate::netlink::Monitor`].

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
use crate::{offload::Switch, time::Time};

/// Datagrams of one stretch at most: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_STRETCH: usize = 64;
/// Bytes of one stretch at most: what one IPv4 packet holds behind its headers.
const MAX_STRETCH_BYTES: usize = 65_507;

/// How long one batch waits for full queues, all its datagrams together: a
/// tunnel that is behind should drop, not add 100 ms.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long one wait is.
const WAIT: Duration = Duration::from_millis(1);
/// How many errors of earlier datagrams are taken before one datagram goes. Each
/// is reported once, so that more than one or two means something else.
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
                Pass::new((&socket, batch), failures, (gates, gso)).run(messages);
            }
            None => note_all(batch, failures, SendError::NoSocket),
        }
        for &failure in &*failures {
            batch.fail(failure);
        }
    }

    // The option is the socket's, but this half sends all data, one call after the other;
    // what the other half sends meanwhile, handshakes, fits every path.
    fn send_whole(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        let socket = self.shared.socket().ok_or(SendError::NoSocket)?;
        let Endpoint { remote, local } = endpoint;
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

    fn run(&mut self, messages: &mut impl Calls) {
        while let Some(run) = self.batch.transmits().get(self.transmit) {
            if !self.socket.family().reaches(run.endpoint.remote) {
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
                tos: run.tos,
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
        let is_suspect = self.suspect.is_some_and(|path| path.leads_to(run));
        if is_suspect || !self.gates.are_open(run) {
            return 1;
        }
        let fitting = (MAX_STRETCH_BYTES / run.segment).clamp(1, MAX_STRETCH);
        (run.datagrams() - first).min(fitting)
    }

    fn handle_error(&mut self, errno: Errno, run: &Transmit, time: &impl Time) {
        let cause = Cause::of(errno);
        let count = self.stretch(run, self.datagram);
        let is_pinned = run.endpoint.local.is_some() && self.stale != Some(run.endpoint);
        match cause {
            Cause::Signal => {}
            Cause::Earlier if self.refused < MAX_REFUSED => self.refused += 1,
            Cause::SocketQueue if !self.patience.is_zero() => {
                self.patience = self.patience.saturating_sub(WAIT);
                time.wait_writable(self.socket.as_fd(), WAIT);
            }
            Cause::DeviceQueue if !self.patience.is_zero() => {
                self.patience = self.patience.saturating_sub(WAIT);
                time.sleep(WAIT);
            }
            _ if count > 1 && cause.may_be_offload() => {
                self.suspect = Some(self.gates.accuse(cause, run));
            }
            _ if is_pinned && cause.may_be_source() => {
                self.stale = Some(run.endpoint);
                // That was it, and not the stretch.
                self.suspect = None;
            }
            _ if cause.ends_run() => {
                // Nor is it the stretch, where one datagram is refused likewise.
                self.suspect = None;
                self.fail(run.datagrams() - self.datagram, send_error(errno));
            }
            _ => self.fail(count, send_error(errno)),
        }
    }

    /// Moves the cursor over messages that went.
    fn advance(&mut self, messages: usize, time: &impl Time) {
        for _ in 0..messages {
            let Some(run) = self.batch.transmits().get(self.transmit) else { return };
            let count = self.stretch(run, self.datagram);
            // A shorter last datagram proves nothing of those before it.
            let is_full = (self.datagram + 1) * run.segment <= run.span.len;
            if count > 1 {
                self.gates.went(run);
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

    /// Leaves datagrams of the run at the cursor unsent.
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
