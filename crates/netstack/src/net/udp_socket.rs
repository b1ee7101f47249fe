//! Datagrams.

use std::{fmt, future::poll_fn, io, net::SocketAddr, sync::Arc};

use crate::stack::Shared;

/// A UDP socket of a [`Stack`](crate::Stack).
pub struct UdpSocket {
    shared: Arc<Shared>,
    at: SocketAddr,
}

impl UdpSocket {
    pub(crate) fn new(shared: Arc<Shared>, at: SocketAddr) -> Self {
        Self { shared, at }
    }

    /// Sends a datagram; waits for room where much waits to leave.
    ///
    /// # Errors
    /// It is longer than the MTU allows, or there is no address of its family here.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        poll_fn(|context| self.shared.lock().poll_send_to(self.at, (bytes, to), context)).await?;
        Ok(bytes.len())
    }

    /// Waits for a datagram; its length, cut to what `to` holds, and who sent it.
    ///
    /// # Errors
    /// The engine's half of the stack is gone.
    pub async fn recv_from(&self, to: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|context| self.shared.lock().poll_recv_from(self.at, to, context)).await
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
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
