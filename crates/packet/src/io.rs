//! The four half-traits between the data plane and its surroundings, all of them batched. [`Poll`]
//! waits for two of them, and [`ControlSend`] sends outside the data path.
//!
//! `sys` implements them over a TUN device and UDP sockets, `sim` in memory. Each half is used by
//! one thread at a time. A waiting receive returns when something has arrived or the half is woken.
//! A woken receive may return nothing.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use crate::{Batch, Endpoint, IpPacket, RecvBatch, SendBatch, SendError};

/// Ends the wait of one receiving half. It may be called from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The IP side's receiving half: packets to send through the tunnel.
pub trait IpRecv: Send {
    /// Appends to `batch` until the source is empty or the batch is full. If `wait` is set, it
    /// waits for the first packet.
    ///
    /// # Errors
    /// The device is gone. Nothing more will arrive.
    fn recv(&mut self, batch: &mut Batch, wait: bool) -> io::Result<()>;

    /// Ends a wait in [`IpRecv::recv`].
    fn waker(&self) -> Waker;
}

/// The IP side's sending half: packets from the tunnel.
pub trait IpSend: Send + 'static {
    /// Writes the `packets` of `batch` in order. Returns the number that the device refused.
    ///
    /// # Errors
    /// The device is gone.
    fn send(&mut self, batch: &RecvBatch, packets: &[IpPacket]) -> io::Result<usize>;
}

/// The UDP side's receiving half.
pub trait UdpRecv: Send {
    /// Clears `batch` and fills it with the datagrams that have arrived. If `wait` is set, it waits
    /// for the first datagram. It returns as many as can be processed at once or, if `drain` is
    /// set, as many as fit.
    ///
    /// # Errors
    /// The socket can never receive again.
    fn recv(&mut self, batch: &mut RecvBatch, drain: bool, wait: bool) -> io::Result<()>;

    /// Ends a wait in [`UdpRecv::recv`].
    fn waker(&self) -> Waker;

    /// The longest wait for a datagram. It is one second while a flood is shed, so that its end is
    /// noticed even if nothing arrives.
    fn max_wait(&self) -> Option<Duration> {
        None
    }

    /// Sheds most of a flood before it is received, or stops shedding. Returns whether the request
    /// is in force. An implementation that cannot shed receives everything.
    fn shed(&mut self, flood: Option<&Flood>) -> bool {
        flood.is_none()
    }
}

/// Waits for both receiving halves at once, for a thread that serves both.
pub trait Poll: Send {
    /// Waits until one half has something or is woken, for `at_most` this time.
    ///
    /// # Errors
    /// One half is gone. Nothing more will arrive.
    fn poll(&mut self, at_most: Option<Duration>) -> io::Result<Ready>;
}

/// The receiving halves that have something or were woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub ip: bool,
    pub udp: bool,
}

/// The part of a flood that is still received. WireGuard messages are always received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flood {
    /// All datagrams of these senders are received.
    pub expected: Vec<IpAddr>,
    /// Portion of the other datagrams, in units of 2^-32. They are chosen at random.
    pub share: u32,
}

/// The UDP side's sending half.
pub trait UdpSend: Send + 'static {
    /// Sends every transmit of `batch` in order. A transmit that could not be sent is skipped and
    /// recorded in the batch's failures; the following ones are still sent. Transmits to relayed
    /// endpoints are ignored and not recorded.
    fn send(&mut self, batch: &mut SendBatch);

    /// Sends one datagram that must not be fragmented on its way.
    ///
    /// # Errors
    /// [`SendError::TooBig`] if it is longer than the first link allows; another error if it was not sent for another reason.
    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError>;
}

/// Sends datagrams of a control protocol by the UDP side's socket, independently of its sending
/// half. It may be called from any thread.
pub trait ControlSend: Send + Sync {
    /// Sends one datagram, from `to.local` if that is set. `hops` limits the number of routers
    /// (TTL, hop limit); `None` is the default limit.
    ///
    /// # Errors
    /// The datagram was not sent.
    fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError>;
}
