//! The sending half: `sendmmsg` over the runs of a batch.
//!
//! ```text
//!   cursor -> up to 128 datagrams -> sendmmsg -> n went: cursor + n, again
//!                                             -> the first was refused:
//!     ICMP error of before   again
//!     full queues            again after a short wait; in the end NoBuffer
//!     sticky source stale    the run without it; StaleSource when it went
//!     anything else          noted, cursor + 1
//! ```
//!
//! A sticky source is refused when the address is no longer ours. When only the
//! route has moved, IPv4 says nothing: told an interface without a route, it takes
//! the destination to be on that link (ip_route_output_key_hash_rcu,
//! net/ipv4/route.c). So endpoints must also forget their source when
//! [`crate::netlink::Monitor`] tells that routes changed.

use std::{fmt, os::fd::AsFd, sync::Arc, time::Duration};

use nix::errno::Errno;
use packet::{Endpoint, Failure, SendBatch, SendError, Transmit, UdpSend};

use super::{
    Shared,
    mmsg::{Messages, Outgoing},
    socket::Socket,
};
use crate::poll;

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
}

impl UdpSend for UdpSender {
    fn send(&mut self, batch: &mut SendBatch) {
        self.failures.clear();
        match self.shared.socket() {
            Some(socket) => {
                Pass::new(&socket, batch, &mut self.failures).run(&mut self.messages);
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
        Self { shared, messages: Messages::new(), failures: Vec::new() }
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
    fn new(socket: &'a Socket, batch: &'a SendBatch, failures: &'a mut Vec<Failure>) -> Self {
        Self {
            socket,
            batch,
            failures,
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

    /// The datagrams from the cursor on, as far as the socket can send them.
    fn unsent(&self) -> impl Iterator<Item = Outgoing<'a>> + use<'a> {
        let (batch, stale, family) = (self.batch, self.stale, self.socket.family());
        let runs = batch.transmits()[self.transmit..].iter();
        let skips = std::iter::once(self.datagram).chain(std::iter::repeat(0));
        runs.take_while(move |run| family.reaches(run.endpoint.remote)).zip(skips).flat_map(
            move |(run, skip)| {
                let Transmit { endpoint, ecn, .. } = *run;
                let local = endpoint.local.filter(|_| stale != Some(endpoint));
                batch.datagrams(run).skip(skip).map(move |payload| Outgoing {
                    payload,
                    remote: endpoint.remote,
                    local,
                    ecn,
                })
            },
        )
    }

    fn handle_error(&mut self, errno: Errno, endpoint: Endpoint) {
        let is_pinned = endpoint.local.is_some() && self.stale != Some(endpoint);
        match errno {
            Errno::EINTR => {}
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
            }
            errno => self.skip(classify(errno)),
        }
    }

    /// Moves the cursor over datagrams that went.
    fn advance(&mut self, mut count: usize) {
        while count > 0
            && let Some(run) = self.batch.transmits().get(self.transmit)
        {
            let step = count.min(run.datagrams() - self.datagram);
            if run.endpoint.local.is_some() && self.stale == Some(run.endpoint) {
                self.note(step, SendError::StaleSource);
            }
            count -= step;
            self.step(step);
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
