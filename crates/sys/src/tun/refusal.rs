//! The meaning of an errno of a write to the TUN (`tun_get_user`, drivers/net/tun.c).

use nix::errno::Errno;

/// The cause of a refused write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Interrupted by a signal.
    Signal,
    /// The device's send buffer is full. poll(2) reports when it has room.
    Queue,
    /// The device was deleted.
    Gone,
    /// The interface is down.
    Down,
    /// Out of memory. A single packet needs less.
    Memory,
    /// A property of this packet or super-packet.
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
            // EINVAL: not an IP packet, or a super-packet that does not match its header, or that
            // this kernel refuses (6.6.44).
            _ => Self::Packet,
        }
    }
}
