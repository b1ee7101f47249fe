//! TCP keepalive: probes the other end of an idle connection.

use std::{io, os::fd::AsFd, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};

/// Times and number of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a connection is idle before the first probe.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
    /// Unanswered probes until the connection is closed.
    pub probes: u32,
}

/// An idle connection is closed after a quarter of an hour, like one whose data is not acknowledged
/// (`tcp_retries2`): a laptop may sleep that long, or a path be down.
pub const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(600), interval: Duration::from_secs(60), probes: 5 };

/// Switches keepalive on, with the times of the socket's network namespace.
pub fn enable(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::KeepAlive, &true)?)
}

/// Switches keepalive on with these times. Sockets accepted by a listener inherit them.
pub fn set_keepalive(socket: &impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    enable(socket)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &seconds(keepalive.idle))?;
    setsockopt(socket, sockopt::TcpKeepInterval, &seconds(keepalive.interval))?;
    Ok(setsockopt(socket, sockopt::TcpKeepCount, &keepalive.probes)?)
}
