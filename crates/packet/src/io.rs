//! The four half-traits between the data plane and the outside, batch-first; and a fifth, for
//! who sends beside the data path.
//!
//! `sys` implements them over a TUN device and UDP sockets, `sim` in memory.
//! A half is used by one thread at a time. Where receiving waits, it does so until
//! there is something to return or the half is woken; a woken receive may bring
//! nothing.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use crate::{Batch, Endpoint, IpPacket, RecvBatch, SendBatch, SendError};

/// Ends the wait of one receiving half, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The IP side's receiving half: packets that want to enter the tunnel.
pub trait IpRecv: Send {
    /// Appends to `batch` until the source is empty or the batch is full. Where
    /// it is to `wait`, it does so for the first packet.
    ///
    /// # Errors
    /// The device is gone; nothing more will come.
    fn recv(&mut self, batch: &mut Batch, wait: bool) -> io::Result<()>;

    /// Ends a wait in [`IpRecv::recv`].
    fn waker(&self) -> Waker;
}

/// The IP side's sending half: packets that left the tunnel.
pub trait IpSend: Send + 'static {
    /// Writes the `packets` of `batch` in order. Returns how many the device
    /// refused.
    ///
    /// # Errors
    /// The device is gone.
    fn send(&mut self, batch: &RecvBatch, packets: &[IpPacket]) -> io::Result<usize>;
}

/// The UDP side's receiving half.
pub trait UdpRecv: Send {
    /// Clears `batch` and fills it with what has arrived. Where it is to `wait`, it
    /// does so for the first datagram. It takes as much as can be worked on at once,
    /// or, where it is to `drain`, as much as there is room for.
    ///
    /// # Errors
    /// The socket can never receive again.
    fn recv(&mut self, batch: &mut RecvBatch, drain: bool, wait: bool) -> io::Result<()>;

    /// Ends a wait in [`UdpRecv::recv`].
    fn waker(&self) -> Waker;

    /// For how long a wait for a datagram lasts at most. It is a second while a flood is left out, so
    /// that its end is seen though nothing comes.
    fn max_wait(&self) -> Option<Duration> {
        None
    }

    /// From now on most of a flood is left out before it is received, or, without one, nothing.
    /// Whether it is so: what cannot leave out anything receives all.
    fn shed(&mut self, flood: Option<&Flood>) -> bool {
        flood.is_none()
    }
}

/// Waits for both receiving halves at once, for a thread that works for both.
pub trait Poll: Send {
    /// Waits until one of them has something or is woken, for so long `at_most`, and says which.
    ///
    /// # Errors
    /// One of them is gone; nothing more will come.
    fn poll(&mut self, at_most: Option<Duration>) -> io::Result<Ready>;
}

/// Which receiving half has something, or was woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub ip: bool,
    pub udp: bool,
}

/// What is left of a flood. Messages of WireGuard are received in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flood {
    /// All datagrams from these addresses are received.
    pub expected: Vec<IpAddr>,
    /// Of 2^32 others so many, which chance chooses.
    pub share: u32,
}

/// The UDP side's sending half.
pub trait UdpSend: Send + 'static {
    /// Sends every transmit of `batch` in order. A transmit that could not be
    /// sent is skipped, and noted in the batch's failures; those behind it are
    /// sent all the same. Those to relayed endpoints are not its business, and not noted.
    fn send(&mut self, batch: &mut SendBatch);

    /// Sends one datagram that arrives whole or not at all: nobody fragments it.
    ///
    /// # Errors
    /// [`SendError::TooBig`] where it is longer than the first link carries; any other where
    /// it did not go either.
    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError>;
}

/// Sends datagrams of a control protocol by the UDP side's socket, from any thread, and beside
/// its sending half.
pub trait ControlSend: Send + Sync {
    /// Sends one datagram, from `to.local` where that is given. It may pass as many routers as
    /// `hops` says (TTL, hop limit); without, as many as any other.
    ///
    /// # Errors
    /// It did not go.
    fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError>;
}
