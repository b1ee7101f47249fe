//! What an errno of the outer socket means. No other file of this half knows one,
//! but for EAGAIN, which is no refusal of a receive.

use nix::errno::Errno;
use packet::SendError;

/// Whom a refused send accuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody: a signal came.
    Signal,
    /// An earlier datagram: its ICMP error, in the place of this send.
    Earlier,
    /// The socket's queue, of which poll tells.
    SocketQueue,
    /// The device's queue, or memory. Nothing tells when there is room.
    DeviceQueue,
    /// A device without checksum offload (before Linux 6.11), or an IPsec policy on
    /// the way: neither takes a stretch.
    Device,
    /// A length: of the segments, for the MTU of the way, or of the datagram.
    Length,
    /// Number or length of the segments (the MTU, before Linux 6.14), a driver
    /// (virtio-net with IPv6, before 6.2), the sticky source, the destination. Which
    /// it is shows when each is left out.
    Any,
    /// The sticky source or the destination.
    Route,
    /// The destination.
    Destination,
    /// Nothing but the message: a firewall's rule may take the next one.
    Message,
}

impl Cause {
    pub(super) fn of(errno: Errno) -> Self {
        match errno {
            Errno::EINTR => Self::Signal,
            Errno::ECONNREFUSED => Self::Earlier,
            Errno::EAGAIN => Self::SocketQueue,
            Errno::ENOBUFS | Errno::ENOMEM => Self::DeviceQueue,
            Errno::EIO | Errno::EOPNOTSUPP => Self::Device,
            Errno::EMSGSIZE => Self::Length,
            Errno::EINVAL => Self::Any,
            // EADDRNOTAVAIL: no address of ours has that scope, as with IPv6
            // switched off.
            Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::ENODEV => Self::Route,
            // EACCES: a route that prohibits, or a broadcast.
            Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EACCES => Self::Destination,
            _ => Self::Message,
        }
    }

    /// Whether the datagrams of a stretch may go one by one.
    pub(super) fn may_be_offload(self) -> bool {
        matches!(self, Self::Device | Self::Length | Self::Any)
    }

    /// Whether the datagram may go without its sticky source.
    pub(super) fn may_be_source(self) -> bool {
        matches!(self, Self::Any | Self::Route)
    }

    /// Whether what follows to the same endpoint would be refused likewise.
    pub(super) fn ends_run(self) -> bool {
        matches!(self, Self::Any | Self::Route | Self::Destination)
    }
}

/// What is told of a datagram that did not go.
pub(super) fn send_error(errno: Errno) -> SendError {
    match errno {
        Errno::EMSGSIZE => SendError::TooBig,
        Errno::EHOSTUNREACH
        | Errno::ENETUNREACH
        | Errno::ENETDOWN
        | Errno::EADDRNOTAVAIL
        | Errno::EPERM
        | Errno::EACCES => SendError::Unreachable,
        Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM => SendError::NoBuffer,
        errno => SendError::Other(errno as i32),
    }
}

/// Whether an error of a receive tells of an earlier datagram (ICMP) or of a short want, and
/// reporting it has cleared it.
pub(super) fn is_passing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EINTR
            | Errno::ECONNREFUSED
            | Errno::ECONNABORTED
            | Errno::ECONNRESET
            | Errno::EHOSTUNREACH
            | Errno::ENETUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENETDOWN
            | Errno::ENONET
            | Errno::ENOPROTOOPT
            | Errno::EOPNOTSUPP
            | Errno::EPROTO
            | Errno::EMSGSIZE
            | Errno::EACCES
            | Errno::ENOMEM
            | Errno::ENOBUFS
    )
}
