//! Dispatches received packets to sockets, and decides which socket sends next.
//!
//! ```text
//!   engine's outbound thread            any task              engine's inbound thread
//!     StackRecv::recv                TcpStream, ...             StackSend::send
//!        | polls ready sockets           |  read, write            | coalesces
//!        v                               v                         v
//!     +---------------------- State, behind one mutex -----------------------+
//!     | flows -> sockets: Connection, wakers   listeners   datagrams   pings |
//!     | ready: sockets that may have to send   timers: when to poll again    |
//!     +-----------------------------------------------------------------------+
//! ```
//!
//! The stack does without threads and packet queues. The engine requests packets, and each segment
//! is then written directly from its connection's buffer to the engine's. If the engine has no
//! space, data waits in the connection's buffer and finally in the application.

mod config;
mod datagrams;
mod fragments;
mod icmp;
mod local;
mod paths;
mod reassembly;
mod recv;
mod secret;
pub(crate) mod segments;
mod send;
pub(crate) mod shared;
mod socket_queue;
mod state;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

pub use config::{Clock, Config, CongestionControl, Counters};
pub use recv::StackRecv;
pub use send::StackSend;
use shared::Shared;

use crate::net::{TcpListener, TcpStream, UdpSocket};

/// A TCP/IP stack. Clones share it.
#[derive(Clone)]
pub struct Stack(Arc<Shared>);

/// Time in which the last packets of a closed stack may leave.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Stack {
    /// Creates a stack and its halves for the engine.
    pub fn new(config: Config) -> (Self, StackRecv, StackSend) {
        let shared = Arc::new(Shared::new(config));
        let recv = StackRecv::new(shared.clone());
        let send = StackSend::new(shared.clone());
        (Self(shared), recv, send)
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The peer refused or did not answer, the stack lacks a route or an address of its family, or
    /// there is not enough memory for another connection.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.0.lock().dial(to, self.0.now())?;
        let stream = TcpStream::new(self.0.clone(), stream);
        stream.connected().await?;
        Ok(stream)
    }

    /// Listens at a local address, or at all of them if it is unspecified. Port 0 selects a free
    /// port.
    ///
    /// # Errors
    /// The address is not local, or in use.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let at = self.0.lock().listen(at)?;
        Ok(TcpListener::new(self.0.clone(), at))
    }

    /// Binds a UDP socket to a local address, or to all of them if it is unspecified. Port 0
    /// selects a free port.
    ///
    /// # Errors
    /// The address is not local, or in use.
    pub fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let at = self.0.lock().bind(at)?;
        Ok(UdpSocket::new(self.0.clone(), at))
    }

    /// Sends an echo request, waits for the answer and returns the round trip time. It never times
    /// out.
    ///
    /// # Errors
    /// The stack lacks an address of that family.
    pub async fn ping(&self, to: IpAddr) -> io::Result<Duration> {
        let number = self.0.lock().send_ping(to, self.0.now())?;
        let ping = Ping { shared: &self.0, number };
        poll_fn(|context| ping.shared.lock().poll_ping(ping.number, context)).await
    }

    /// Waits until peers have acknowledged all data of dropped streams, or until those connections
    /// have failed.
    pub async fn drained(&self) {
        poll_fn(|context| self.0.lock().poll_drained(context)).await;
    }

    /// Closes the stack. Connections are reset with a notification of their peers, and all present
    /// and later operations fail. Waits for the resets to leave, at most 1 s: the sending thread may be
    /// late on a busy machine.
    pub fn close(&self) {
        self.0.lock().shut_down(true);
        // Resets that have not left after the timeout are lost.
        self.0.wait_until_flushed(CLOSE_TIMEOUT);
    }

    /// Sets whether TCP sends super-packets, and whether received packets are coalesced. Both are
    /// on by default. Turning them off serves measurements and debugging.
    pub fn set_offloads(&self, gso: bool, gro: bool) {
        self.0.lock().local.set_gso(gso);
        self.0.set_gro(gro);
    }

    /// The values of [`Stack::set_offloads`].
    pub fn offloads(&self) -> (bool, bool) {
        (self.0.lock().local.has_gso(), self.0.has_gro())
    }

    /// Replaces the local addresses. Connections from removed addresses remain until their peers
    /// time out.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.0.lock().local.set_addresses(addresses);
    }

    /// Sets the MTU for new connections.
    pub fn set_mtu(&self, mtu: u16) {
        self.0.lock().local.set_mtu(mtu);
    }

    /// Counters of dropped packets.
    pub fn counters(&self) -> Counters {
        self.0.lock().counters()
    }

    /// Number of connections, including those that are closing.
    pub fn connections(&self) -> usize {
        self.0.lock().sockets.len()
    }

    /// Bytes in buffers.
    pub fn memory_used(&self) -> usize {
        self.0.lock().budget().used()
    }
}

/// An echo request without an answer.
struct Ping<'a> {
    shared: &'a Shared,
    number: u16,
}

impl Drop for Ping<'_> {
    fn drop(&mut self) {
        self.shared.lock().remove_ping(self.number);
    }
}

/// Adds a task to those that wait, unless it is one of them.
fn add_waker(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

/// Result of polling for a change of the state.
pub(crate) type Polled<T> = Poll<io::Result<T>>;
