//! TCP keepalive, which probes the other end of an idle connection.

use std::{io, os::fd::AsFd, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};

/// Intervals and number of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The idle time before the first probe.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
    /// The number of unanswered probes after which the connection is closed.
    pub probes: u32,
}

/// An unreachable idle connection is closed after a quarter of an hour, like one with
/// unacknowledged data (`tcp_retries2`). A laptop may be suspended, or a path be down, for that
/// time.
pub const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(600), interval: Duration::from_secs(60), probes: 5 };

/// Enables keepalive with the settings of the socket's network namespace.
pub fn enable(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::KeepAlive, &true)?)
}

/// Enables keepalive with these settings. Sockets accepted by a listener inherit them.
pub fn set_keepalive(socket: &impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    enable(socket)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &seconds(keepalive.idle))?;
    setsockopt(socket, sockopt::TcpKeepInterval, &seconds(keepalive.interval))?;
    Ok(setsockopt(socket, sockopt::TcpKeepCount, &keepalive.probes)?)
}
