//! TCP connections.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    stack::{segments::Flow, shared::Shared},
    tcp::{Failure, Keepalive},
};

/// A TCP connection of a [`Stack`](crate::Stack). Shutdown sends FIN after the written data.
/// Dropping the stream does the same, and resets the connection if received data was not read.
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

    /// Waits until the connection is established.
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

    /// Local address.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.flow.local)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.flow.remote)
    }

    /// Makes the connection end with a reset when it is dropped, even if data was not sent.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.shared.lock().sockets[self.id].resets = true;
        Ok(())
    }

    /// Sets whether short segments are sent at once (the default) or wait until all data in flight
    /// is acknowledged.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.with(self.id, |socket| socket.tcp.set_nagle(!nodelay));
        Ok(())
    }

    /// Enables or disables keepalive probes to a silent peer. They are off by default. If the peer
    /// does not answer, the connection fails with `TimedOut`.
    ///
    /// # Errors
    /// Never; other sockets have this signature.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.with(self.id, |socket| socket.tcp.set_keepalive(keepalive, now));
        Ok(())
    }

    /// The settings of keepalive probes; `None` if they are off.
    ///
    /// # Errors
    /// Never; other sockets have this signature.
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        Ok(self.shared.lock().sockets[self.id].tcp.keepalive())
    }

    /// Whether short segments are sent at once.
    ///
    /// # Errors
    /// Never; tokio has this signature.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(!self.shared.lock().sockets[self.id].tcp.nagle())
    }
}

impl TcpStream {
    /// Reads the available data, or waits for data.
    pub(super) fn poll_read_to(
        &self,
        context: &Context<'_>,
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
            // After the peer's FIN, an error concerns only the writer.
            if socket.tcp.has_received_fin() {
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

    /// Writes as much of the buffers as fits, or waits for space.
    pub(super) fn poll_write_all_of(
        &self,
        context: &Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        state.with(self.id, |socket| {
            let mut written = 0;
            for buf in bufs {
                match socket.tcp.write(buf) {
                    Some(len) => written += len,
                    None => {
                        return Poll::Ready(Err(match socket.tcp.take_failure() {
                            // The peer had sent FIN and is gone now. The kernel's sockets return
                            // the same error.
                            Some(Failure::Reset) if socket.tcp.has_received_fin() => {
                                io::ErrorKind::BrokenPipe.into()
                            }
                            Some(failure) => error(failure),
                            None => io::ErrorKind::BrokenPipe.into(),
                        }));
                    }
                }
            }
            if written == 0 && bufs.iter().any(|buf| !buf.is_empty()) {
                socket.wait_writable(context);
                return Poll::Pending;
            }
            Poll::Ready(Ok(written))
        })
    }

    /// Sends FIN after the written data.
    pub(super) fn end(&self) {
        let now = self.shared.now();
        self.shared.lock().with(self.id, |socket| socket.tcp.shutdown(now));
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_to(context, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_all_of(context, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_all_of(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.lock().drop_stream(self.id, now);
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
