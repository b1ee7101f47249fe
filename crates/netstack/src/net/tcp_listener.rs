//! Listening sockets.

use std::{fmt, future::poll_fn, io, net::SocketAddr, sync::Arc, task::Poll};

use super::TcpStream;
use crate::stack::shared::Shared;

/// Accepts TCP connections of a [`Stack`](crate::Stack). Dropping it resets connections that were
/// not accepted.
pub struct TcpListener {
    shared: Arc<Shared>,
    at: SocketAddr,
}

impl TcpListener {
    pub(crate) fn new(shared: Arc<Shared>, at: SocketAddr) -> Self {
        Self { shared, at }
    }

    /// Waits for a connection. Returns it and the peer's address.
    ///
    /// # Errors
    /// The engine's half of the stack is gone.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = poll_fn(|context| {
            let polled = self.shared.lock().poll_accept(self.at, context);
            if polled.is_pending() { Poll::Pending } else { polled }
        });
        let stream = TcpStream::new(self.shared.clone(), accepted.await?);
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// The local address.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.shared.lock().stop_listening(self.at);
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpListener").field(&self.at).finish()
    }
}
