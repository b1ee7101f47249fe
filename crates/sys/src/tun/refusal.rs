//! What an errno of a write to the TUN means (`tun_get_user`, drivers/net/tun.c).

use nix::errno::Errno;

/// What a refused write accuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nothing: a signal came.
    Signal,
    /// The device's send buffer, of which poll tells.
    Queue,
    /// The device: it was deleted.
    Gone,
    /// The interface: it is down.
    Down,
    /// Memory, of which a single packet needs less.
    Memory,
    /// What was written: the super-packet, or the one packet.
    Packet,
}

impl Cause {
    pub(super) fn of(errno: Errno) -> Self {
        match errno {
            Errno::EINTR => Self::Signal,
            Errno::EAGAIN => Self::Queue,
            Errno::EBADFD => Self::Gone,
            Errno::EIO => Self::Down,
            Errno::ENOBUFS | Errno::ENOMEM => Self::Memory,
            // EINVAL: no IP packet, or a super-packet that the header does not
            // describe, or that this kernel does not take (6.6.44).
            _ => Self::Packet,
        }
    }
}
