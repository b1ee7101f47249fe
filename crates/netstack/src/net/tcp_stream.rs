//! A connection.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    stack::{Flow, Shared},
    tcp::Failure,
};

/// A TCP connection of a [`Stack`](crate::Stack). Shutting it down ends our half behind
/// what was written; dropping it does so too, and resets it where something was not
/// read.
pub struct TcpStream {
    shared: Arc<Shared>,
    id: usize,
    flow: Flow,
}

impl TcpStream {
    pub(crate) fn new(shared: Arc<Shared>, id: usize) -> Self {
        let flow = shared.lock().sockets[id].flow;
        Self { shared, id, flow }
    }

    /// Waits until there is a connection.
    pub(crate) async fn connected(&self) -> io::Result<()> {
        poll_fn(|context| {
            let mut state = self.shared.lock();
            let socket = &mut state.sockets[self.id];
            if let Some(failure) = socket.tcp.take_failure() {
                return Poll::Ready(Err(error(failure)));
            }
            if socket.tcp.is_connected() {
                return Poll::Ready(Ok(()));
            }
            socket.wait_writable(context);
            Poll::Pending
        })
        .await
    }

    /// Our address.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.flow.local)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.flow.remote)
    }

    /// Has the connection end by a reset when it is dropped, whatever was not sent.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.shared.lock().with(self.id, |socket| socket.tcp.abort());
        Ok(())
    }

    /// Whether short segments leave at once, as they do at first, or wait for what is on
    /// its way.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.with(self.id, |socket| socket.tcp.set_nagle(!nodelay));
        Ok(())
    }

    /// Whether short segments leave at once.
    ///
    /// # Errors
    /// None; it is one of tokio's signatures.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(!self.shared.lock().sockets[self.id].tcp.nagle())
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.with(self.id, |socket| {
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let len = socket.tcp.read(buf.initialize_unfilled(), now);
            if len > 0 {
                buf.advance(len);
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = socket.tcp.take_failure() {
                return Poll::Ready(Err(error(failure)));
            }
            if socket.tcp.is_at_end() {
                return Poll::Ready(Ok(()));
            }
            socket.wait_readable(context);
            Poll::Pending
        })
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        state.with(self.id, |socket| match socket.tcp.write(buf) {
            Some(0) if !buf.is_empty() => {
                socket.wait_writable(context);
                Poll::Pending
            }
            Some(len) => Poll::Ready(Ok(len)),
            None => Poll::Ready(Err(match socket.tcp.take_failure() {
                Some(failure) => error(failure),
                None => io::ErrorKind::BrokenPipe.into(),
            })),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.with(self.id, |socket| socket.tcp.shutdown(now));
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.lock().disown(self.id, now);
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpStream").field(&self.flow).finish()
    }
}

fn error(failure: Failure) -> io::Error {
    let kind = match failure {
        Failure::Refused => io::ErrorKind::ConnectionRefused,
        Failure::Reset => io::ErrorKind::ConnectionReset,
        Failure::TimedOut => io::ErrorKind::TimedOut,
        Failure::Unreachable => io::ErrorKind::HostUnreachable,
    };
    kind.into()
}
