//! The stack: which socket gets a packet that arrives, and which sends next.
//!
//! ```text
//!   engine's outbound thread            any task              engine's inbound thread
//!     StackRecv::recv                TcpStream, ...             StackSend::send
//!        | polls what is ready           |  read, write            | coalesces
//!        v                               v                         v
//!     +---------------------- State, behind one mutex -----------------------+
//!     | flows -> sockets: Connection, wakers   listeners   datagrams   pings |
//!     | ready: sockets that may have to send   timers: when to poll again    |
//!     +-----------------------------------------------------------------------+
//! ```
//!
//! There is no thread and no queue of packets: a segment is written where the engine
//! reads it, out of its connection's buffer, when the engine asks for it. What the
//! engine has no room for waits there, and so does, in the end, the application.

mod config;
mod datagrams;
mod echo;
mod fragments;
mod line;
mod paths;
mod reassembly;
mod recv;
mod segments;
mod send;
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

/// A TCP/IP stack. Clones are the same one.
#[derive(Clone)]
pub struct Stack(Arc<Shared>);

pub(crate) struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// Where [`StackRecv`] waits.
    ready: Condvar,
    /// Where closing the stack waits until everything has been sent.
    flushed: Condvar,
    /// Whether what arrives is coalesced.
    gro: AtomicBool,
}

/// How long the last packets of a stack that is closed have to leave.
const FAREWELL: Duration = Duration::from_millis(100);

impl Stack {
    /// A stack, and the engine's halves of it.
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
    /// The peer refused or did not answer, there is no way to it, there is no address of
    /// its family here, or no memory is left for one connection more.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.0.lock().dial(to, self.0.now())?;
        let stream = TcpStream::new(self.0.clone(), stream);
        stream.connected().await?;
        Ok(stream)
    }

    /// Listens at an address of ours, or at all where it is unspecified; at a free port
    /// where that is 0.
    ///
    /// # Errors
    /// The address is not ours, or in use.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let at = self.0.lock().listen(at)?;
        Ok(TcpListener::new(self.0.clone(), at))
    }

    /// Binds a UDP socket to an address of ours, or to all where it is unspecified; to a
    /// free port where that is 0.
    ///
    /// # Errors
    /// The address is not ours, or in use.
    pub fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let at = self.0.lock().bind(at)?;
        Ok(UdpSocket::new(self.0.clone(), at))
    }

    /// Sends an echo request and waits for its answer; how long that took. It waits
    /// for ever: a caller has its own patience.
    ///
    /// # Errors
    /// There is no address of its family here.
    pub async fn ping(&self, to: IpAddr) -> io::Result<Duration> {
        let number = self.0.lock().send_ping(to, self.0.now())?;
        let ping = Ping { shared: &self.0, number };
        poll_fn(|context| ping.shared.lock().poll_ping(ping.number, context)).await
    }

    /// Waits until the peers have what was written to streams that were dropped since, or
    /// will never have it.
    pub async fn drained(&self) {
        poll_fn(|context| self.0.lock().poll_drained(context)).await;
    }

    /// Ends it: connections are reset, their peers told, and whatever waits for
    /// something fails, now and later. Waits for the resets to leave, at most 100 ms.
    pub fn close(&self) {
        self.0.lock().abandon(true);
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |state: &mut State| !state.has_nothing_to_send();
        // Whether they left or not, they had their time.
        drop(self.0.flushed.wait_timeout_while(state, FAREWELL, waiting));
    }

    /// Whether TCP leaves in super-packets from now on, and whether what arrives is
    /// coalesced. Both are, at first; the plain ways are for measurements and doubts.
    pub fn set_offloads(&self, gso: bool, gro: bool) {
        self.0.lock().set_gso(gso);
        self.0.gro.store(gro, Ordering::Relaxed);
    }

    /// What [`Stack::set_offloads`] set.
    pub fn offloads(&self) -> (bool, bool) {
        (self.0.lock().gso, self.0.gro.load(Ordering::Relaxed))
    }

    /// Its own addresses from now on. Connections from others stay until their peers are silent.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.0.lock().addresses = addresses;
    }

    /// The MTU from now on, for connections to come.
    pub fn set_mtu(&self, mtu: u16) {
        self.0.lock().set_mtu(mtu);
    }

    /// What was dropped.
    pub fn counters(&self) -> Counters {
        self.0.lock().counters()
    }

    /// How many connections there are, those that end too.
    pub fn connections(&self) -> usize {
        self.0.lock().sockets.len()
    }

    /// Bytes that all buffers hold.
    pub fn memory_used(&self) -> usize {
        self.0.lock().budget().used()
    }
}

/// An echo request that waits for its answer.
struct Ping<'a> {
    shared: &'a Shared,
    number: u16,
}

impl Drop for Ping<'_> {
    fn drop(&mut self) {
        self.shared.lock().forget_ping(self.number);
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

/// The state while it is locked. On release, all tasks are woken that have something to do.
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    state: Option<MutexGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    /// Waits for somebody to have something to send, or for `at_most`.
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
        let flushed = state.gone && state.has_nothing_to_send();
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

/// Adds a task to those that wait, unless it is there already.
fn note_waiting(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

/// What a future returns that waits for the state to change.
pub(crate) type Polled<T> = Poll<io::Result<T>>;
