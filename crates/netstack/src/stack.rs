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
mod paths;
mod reassembly;
mod recv;
mod segments;
mod send;
mod socket_queue;
mod state;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

pub use config::{Clock, Config, CongestionControl, Counters};
pub use recv::StackRecv;
pub(crate) use segments::Flow;
pub use send::StackSend;
use state::State;

use crate::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::Time,
};

/// A TCP/IP stack. Clones share it.
#[derive(Clone)]
pub struct Stack(Arc<Shared>);

pub(crate) struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// [`StackRecv`] waits for this.
    ready: Condvar,
    /// Closing the stack waits for this until all packets have left.
    flushed: Condvar,
    /// Whether received packets are coalesced.
    gro: AtomicBool,
}

/// Time in which the last packets of a closed stack may leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Stack {
    /// Creates a stack and its halves for the engine.
    pub fn new(config: Config) -> (Self, StackRecv, StackSend) {
        let shared = Arc::new(Shared {
            clock: config.clock.clone(),
            state: Mutex::new(State::new(config)),
            ready: Condvar::new(),
            flushed: Condvar::new(),
            gro: AtomicBool::new(true),
        });
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
    /// and later operations fail. Waits for the resets to leave, at most 100 ms.
    pub fn close(&self) {
        self.0.lock().shut_down(true);
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |state: &mut State| !state.has_nothing_to_send();
        // Resets that have not left after the timeout are lost.
        drop(self.0.flushed.wait_timeout_while(state, CLOSE_TIMEOUT, waiting));
    }

    /// Sets whether TCP sends super-packets, and whether received packets are coalesced. Both are
    /// on by default. Turning them off serves measurements and debugging.
    pub fn set_offloads(&self, gso: bool, gro: bool) {
        self.0.lock().set_gso(gso);
        self.0.gro.store(gro, Ordering::Relaxed);
    }

    /// The values of [`Stack::set_offloads`].
    pub fn offloads(&self) -> (bool, bool) {
        (self.0.lock().gso, self.0.gro.load(Ordering::Relaxed))
    }

    /// Replaces the local addresses. Connections from removed addresses remain until their peers
    /// time out.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.0.lock().addresses = addresses;
    }

    /// Sets the MTU for new connections.
    pub fn set_mtu(&self, mtu: u16) {
        self.0.lock().set_mtu(mtu);
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

impl Shared {
    pub fn now(&self) -> Time {
        Time::new((self.clock)())
    }

    pub fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, state: Some(state) }
    }
}

/// The locked state. Releasing it wakes all tasks that have work.
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    state: Option<MutexGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    /// Waits until a socket has something to send, for `at_most` this time.
    pub fn wait(mut self, at_most: Option<Duration>) -> Self {
        let shared = self.shared;
        if let Some(state) = self.state.take() {
            let ready = &shared.ready;
            let state = match at_most {
                Some(at_most) => {
                    let waited = ready.wait_timeout(state, at_most);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            self.state = Some(state);
        }
        self
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is locked until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is locked until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let wakers = state.take_wakers();
        let sender_sleeps = state.must_wake_sender();
        let flushed = state.closed && state.has_nothing_to_send();
        drop(state);
        if flushed {
            self.shared.flushed.notify_all();
        }
        if sender_sleeps {
            self.shared.ready.notify_one();
        }
        wakers.into_iter().for_each(Waker::wake);
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
