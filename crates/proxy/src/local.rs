//! Listeners and streams on this side of the proxy: TCP and Unix sockets.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream as StdUnixStream},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use sys::{
    keepalive::{KEEPALIVE, set_keepalive},
    tcp_idle::receive_idle_time,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
};

use super::half_open::Client;
use config::conf::SocketAddress;
use sys::SocketFile;

/// The backlog of a listener. Linux limits it to `somaxconn`, 4096 by default.
const BACKLOG: u32 = 4096;

/// Accepts clients of this machine, or of its network.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// A connection to a client or service on this side.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens. A Unix socket is accessible to its user only, and replaces one that an ended process
    /// left behind.
    pub(crate) async fn bind(address: &SocketAddress) -> io::Result<Self> {
        match address {
            SocketAddress::Ip(address) => {
                let socket =
                    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.set_reuseaddr(true)?;
                set_keepalive(&socket, KEEPALIVE)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket.listen(BACKLOG)?))
            }
            SocketAddress::Unix(path) => {
                let (listener, file) = SocketFile::listen(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix { listener: UnixListener::from_std(listener)?, _file: file })
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, Client)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Client::Ip(from.ip())))
            }
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred()?.uid();
                Ok((Stream::Unix(stream), Client::User(user)))
            }
        }
    }
}

impl Stream {
    pub async fn connect(address: &SocketAddress) -> io::Result<Self> {
        Ok(match address {
            SocketAddress::Ip(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            SocketAddress::Unix(path) => Self::Unix(UnixStream::connect(path).await?),
        })
    }

    /// How long the other end has sent nothing ([`receive_idle_time`]).
    pub fn silent_for(&self) -> Duration {
        match self {
            Self::Tcp(stream) => receive_idle_time(stream),
            Self::Unix(stream) => receive_idle_time(stream),
        }
    }

    /// Waits until the other end no longer reads: a TCP connection was reset, or a Unix socket was
    /// closed. This does not read the input. The end of the input alone is a half-close (RFC 9293,
    /// section 3.6), and the wait continues.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub async fn gone(&self) -> io::Result<()> {
        // Readiness is cleared here with every event. Reads and writes elsewhere must not lose
        // theirs, so this watches a duplicate of the file descriptor.
        let fd = match self {
            Self::Tcp(stream) => stream.as_fd().try_clone_to_owned(),
            Self::Unix(stream) => stream.as_fd().try_clone_to_owned(),
        };
        // It may be a TCP socket: only its readiness is used.
        let watched = UnixStream::from_std(StdUnixStream::from(fd?))?;
        while !watched.ready(Interest::WRITABLE).await?.is_write_closed() {
            let clear = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            // It returns the error that clears the readiness.
            let _ = watched.try_io(Interest::WRITABLE, clear);
        }
        Ok(())
    }

    /// Returns the stream, or resets it if it was refused.
    ///
    /// # Errors
    /// The refusal.
    pub fn or_reset<E: Into<io::Error>>(self, refused: Result<(), E>) -> io::Result<Self> {
        match refused {
            Ok(()) => Ok(self),
            Err(refused) => {
                self.reset();
                Err(refused.into())
            }
        }
    }

    /// Closes the stream: a TCP connection by RST.
    pub fn reset(self) {
        if let Self::Tcp(stream) = self {
            // If this fails, the connection ends by FIN.
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
