//! The connection to syslog(3).

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixDatagram,
    },
};

use nix::{
    libc::STDERR_FILENO,
    sys::socket::{MsgFlags, send},
    unistd::dup2_stderr,
};

/// The socket of every syslog implementation (syslog(3), `_PATH_LOG`).
const PATH: &str = "/dev/log";

/// A connection to syslog.
#[derive(Debug)]
pub struct Syslog(UnixDatagram);

impl Syslog {
    /// Connects.
    ///
    /// # Errors
    /// No process listens.
    pub fn connect() -> io::Result<Self> {
        Self::connect_to(PATH)
    }

    fn connect_to(path: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self(socket))
    }

    /// Sends a message without waiting. If syslog is slow, the message is lost.
    pub fn send(&self, message: &[u8]) {
        send_or_lose(self.0.as_raw_fd(), message);
    }
}

impl From<OwnedFd> for Syslog {
    /// Takes a socket that is connected to syslog.
    fn from(socket: OwnedFd) -> Self {
        Self(socket.into())
    }
}

impl From<Syslog> for OwnedFd {
    fn from(syslog: Syslog) -> Self {
        syslog.0.into()
    }
}

impl AsFd for Syslog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Redirects standard error to a socket, including the output of panics and hooks.
///
/// # Errors
/// The kernel refused.
pub fn redirect_stderr(socket: &OwnedFd) -> io::Result<()> {
    Ok(dup2_stderr(socket)?)
}

/// Sends a message over standard error, which must be a socket, without waiting. If the reader is
/// slow, the message is lost.
pub fn send_to_stderr(message: &[u8]) {
    send_or_lose(STDERR_FILENO, message);
}

fn send_or_lose(socket: RawFd, message: &[u8]) {
    let _ = send(socket, message, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_datagram_and_is_lost_without_a_reader() {
        let path = std::env::temp_dir().join(format!("linerate-syslog-{}", std::process::id()));
        let syslog = UnixDatagram::bind(&path).unwrap();
        let ours = Syslog::connect_to(path.to_str().unwrap()).unwrap();
        let sends = |text: &[u8]| {
            send(ours.0.as_raw_fd(), text, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok()
        };
        assert!(sends(b"<27>linerate[1]: one\n") && sends(b"two"));
        let mut message = [0; 64];
        let length = syslog.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"<27>linerate[1]: one\n");
        let many = (0..10_000).take_while(|_| sends(b"more")).count();
        assert!(many < 10_000, "sending blocks, or the queue is unlimited");
        drop(syslog);
        assert!(!sends(b"to a closed socket"));
        std::fs::remove_file(&path).unwrap();
    }
}
