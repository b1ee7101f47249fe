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

/// Where syslog listens, whichever it is (syslog(3), `_PATH_LOG`).
const PATH: &str = "/dev/log";

/// A connection to syslog.
#[derive(Debug)]
pub struct Syslog(UnixDatagram);

impl Syslog {
    /// Connects.
    ///
    /// # Errors
    /// Nothing listens.
    pub fn connect() -> io::Result<Self> {
        Self::connect_to(PATH)
    }

    fn connect_to(path: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self(socket))
    }

    /// Sends a message, and does not wait where syslog is slow: the message is lost.
    pub fn send(&self, message: &[u8]) {
        send_or_lose(self.0.as_raw_fd(), message);
    }
}

impl From<OwnedFd> for Syslog {
    /// A socket that is connected to syslog.
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

/// Makes a socket standard error, where panics and hooks write as well.
///
/// # Errors
/// The process may not.
pub fn redirect_stderr(socket: &OwnedFd) -> io::Result<()> {
    Ok(dup2_stderr(socket)?)
}

/// Sends a message over standard error, a socket, and does not wait for its reader: the message is
/// lost.
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
    fn a_message_is_one_datagram_and_is_lost_where_nobody_reads() {
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
        assert!(many < 10_000, "it waits, or nothing is lost");
        drop(syslog);
        assert!(!sends(b"nobody is there"));
        std::fs::remove_file(&path).unwrap();
    }
}
