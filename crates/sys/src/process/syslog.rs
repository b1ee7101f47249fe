//! The connection to syslog(3).

use std::{io, os::unix::net::UnixDatagram};

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

    /// Makes it standard error, where panics and hooks write as well.
    ///
    /// # Errors
    /// The process may not.
    pub fn become_stderr(&self) -> io::Result<()> {
        Ok(dup2_stderr(&self.0)?)
    }

    /// Sends a message over standard error, and does not wait where syslog is slow: the message is
    /// lost.
    pub fn send_by_stderr(message: &[u8]) {
        let _ = send(STDERR_FILENO, message, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

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
