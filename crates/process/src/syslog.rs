//! The process that forwards the log of a background peer to syslog. A confined peer must not have
//! the datagram socket, with which it could send to any other socket of its user.
//!
//! ```text
//!   peer, before its sandbox ── the socket of syslog ──► linerate-log: this program, executed again
//!     | standard error, a connected pair ── messages ──►  |  ── the same messages ──► /dev/log
//!     x ends ───────────────────────────────────────────► x ends
//! ```

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::Context;
use sys::{
    Channel,
    process::{self, RetainedCapabilities, Signals, Syslog, retain_capabilities, silence_stderr},
};

use crate::{children, events::release_unused, lifecycle::LogStyle};

/// The name of this program as this process, which is its first argument.
pub(crate) const NAME: &str = "linerate-log";
/// Bytes of the longest message. Longer ones are truncated.
const MESSAGE: usize = 64 << 10;

/// Starts the process. Returns the socket to which messages are sent.
///
/// # Errors
/// The process cannot be started.
pub fn forward_to(syslog: &Syslog) -> io::Result<OwnedFd> {
    let (ours, theirs) = Channel::pair()?;
    children::start(NAME, LogStyle::default(), theirs)?;
    ours.send_with(&[0], syslog.as_fd())?;
    Ok(ours.into())
}

/// Forwards messages from standard input until the peer exits.
///
/// # Errors
/// Standard input is not a connection to a peer.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    let _signals = Signals::block().context("signals")?;
    process::set_process_name(NAME).context("its name")?;
    process::harden().context("core dumps")?;
    retain_capabilities(RetainedCapabilities::default())?;
    let peer = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (_, syslog) = peer.receive_with(&mut [0])?;
    let syslog = Syslog::from(syslog.context("the peer sent no socket")?);
    // Otherwise a reader of the terminal or pipe would wait for this process.
    silence_stderr()?;
    release_unused();
    forward(&peer, &syslog)
}

fn forward(peer: &Channel, syslog: &Syslog) -> anyhow::Result<()> {
    let mut buffer = vec![0; MESSAGE];
    loop {
        match peer.receive(&mut buffer)? {
            0 => return Ok(()),
            length => syslog.send(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn each_message_is_forwarded_as_one_datagram_until_the_peer_ends() {
        let (socket, received) = UnixDatagram::pair().unwrap();
        let (peer, theirs) = Channel::pair().unwrap();
        let syslog = Syslog::from(OwnedFd::from(socket));
        peer.send(b"<27>linerate[1]: one\n").unwrap();
        peer.send(b"two").unwrap();
        drop(peer);
        forward(&theirs, &syslog).unwrap();
        let mut message = [0; 64];
        for expected in [&b"<27>linerate[1]: one\n"[..], b"two"] {
            let length = received.recv(&mut message).unwrap();
            assert_eq!(&message[..length], expected);
        }
    }
}
