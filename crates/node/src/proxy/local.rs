//! The side of this machine: listeners and streams by TCP and by Unix sockets.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream},
};

use super::half_open::Client;
use crate::conf::Place;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Takes clients of this machine, or of its network.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// A connection to somebody on this machine.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The file of a Unix socket, that goes when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Listener {
    /// Listens. A Unix socket is for its user only, and one that is left of a process
    /// that is gone makes room.
    pub async fn bind(place: &Place) -> io::Result<Self> {
        match place {
            Place::Ip(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Place::Unix(path) => {
                remove_left_over(path)?;
                let socket = UnixSocket::new_stream()?;
                socket.bind(path)?;
                let file = SocketFile(path.clone());
                // Nobody gets in before: it does not listen yet.
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                let listener = socket.listen(BACKLOG)?;
                Ok(Self::Unix { listener, _file: file })
            }
        }
    }

    pub async fn accept(&self) -> io::Result<(Stream, Client)> {
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
    pub async fn connect(place: &Place) -> io::Result<Self> {
        Ok(match place {
            Place::Ip(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Place::Unix(path) => Self::Unix(UnixStream::connect(path).await?),
        })
    }

    /// Ends it by RST, where there is such a thing.
    pub fn reset(self) {
        if let Self::Tcp(stream) = self {
            // Where that fails, it ends by FIN.
            let _ = stream.set_zero_linger();
        }
    }
}

fn remove_left_over(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(old) if old.file_type().is_socket() => {
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
                Err(_) => fs::remove_file(path),
            }
        }
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "the socket was gone");
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
