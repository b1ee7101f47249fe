//! Whether the peer of a silent TCP connection is still there: it is asked.

use std::{io, os::fd::AsFd, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};

/// When a silent peer is asked, and when it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long nothing has to come before it is asked.
    pub idle: Duration,
    /// How long each answer is waited for.
    pub interval: Duration,
    /// Questions without an answer after which it is gone.
    pub probes: u32,
}

/// A silent peer is gone after a quarter of an hour, as one that does not acknowledge what
/// it is sent (`tcp_retries2`): a laptop may sleep for so long, or a path be down.
pub const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(600), interval: Duration::from_secs(60), probes: 5 };

/// Has the peer of a socket asked, at the times of its network namespace.
///
/// # Errors
/// The kernel's answer.
pub fn switch_on(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::KeepAlive, &true)?)
}

/// Has the peers of a socket asked at these times; a listener's sockets have it from it.
///
/// # Errors
/// The kernel's answer.
pub fn keep_alive(socket: &impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    switch_on(socket)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &seconds(keepalive.idle))?;
    setsockopt(socket, sockopt::TcpKeepInterval, &seconds(keepalive.interval))?;
    Ok(setsockopt(socket, sockopt::TcpKeepCount, &keepalive.probes)?)
}
