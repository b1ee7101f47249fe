//! UDP sockets.

use std::{fmt, future::poll_fn, io, net::SocketAddr, sync::Arc, task::Context};

use crate::stack::shared::Shared;

/// A UDP socket of a [`Stack`](crate::Stack).
pub struct UdpSocket {
    shared: Arc<Shared>,
    at: SocketAddr,
}

impl UdpSocket {
    pub(crate) fn new(shared: Arc<Shared>, at: SocketAddr) -> Self {
        Self { shared, at }
    }

    /// Connects the socket to one peer. It then receives only from that peer, and
    /// [`UdpSocket::send`] sends there. After an ICMP error to its datagrams the next call fails
    /// with `ConnectionRefused` or `HostUnreachable`.
    ///
    /// # Errors
    /// The stack lacks an address of that family, or is closed.
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        self.shared.lock().connect_datagrams(self.at, to)
    }

    /// Sends a datagram. Waits for room while the send queue is full. A datagram that is longer
    /// than the MTU, or than the path MTU that routers have reported, is sent in fragments.
    ///
    /// # Errors
    /// `InvalidInput` if the datagram exceeds the limit of its family (65,507 bytes in IPv4);
    /// `NetworkUnreachable` if the stack lacks an address of its family. See
    /// [`UdpSocket::connect`] for others.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        let send = |context: &mut Context<'_>| {
            self.shared.lock().poll_send_to(self.at, (bytes, to), context)
        };
        poll_fn(send).await?;
        Ok(bytes.len())
    }

    /// Waits for a datagram. Returns its length, truncated to `to`, and the sender.
    ///
    /// # Errors
    /// The engine's half of the stack is gone. See [`UdpSocket::connect`] for others.
    pub async fn recv_from(&self, to: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|context| self.shared.lock().poll_recv_from(self.at, to, context)).await
    }

    /// Sends a datagram to the connected peer. Waits for room while the send queue is full.
    ///
    /// # Errors
    /// The socket is not connected, or the datagram exceeds the limit of its family.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_to(bytes, self.peer_addr()?).await
    }

    /// Waits for a datagram from the connected peer. Returns its length, truncated to `to`.
    ///
    /// # Errors
    /// The socket is not connected, or the engine's half of the stack is gone.
    pub async fn recv(&self, to: &mut [u8]) -> io::Result<usize> {
        self.peer_addr()?;
        Ok(self.recv_from(to).await?.0)
    }

    /// The address of the connected peer.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.shared.lock().peer_of(self.at);
        peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The local address.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.shared.lock().unbind(self.at);
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpSocket").field(&self.at).finish()
    }
}
