//! The meaning of errnos of the outer socket.

use nix::errno::Errno;
use packet::SendError;

/// The cause of a refused send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Interrupted by a signal.
    Signal,
    /// The ICMP error of an earlier datagram, reported by this send.
    Earlier,
    /// The socket's queue is full. poll(2) reports when it has room.
    SocketQueue,
    /// The device's queue is full, or out of memory. The kernel does not report when it has room.
    DeviceQueue,
    /// A device without checksum offload (before Linux 6.11), or an IPsec policy on the path.
    /// Neither accepts GSO messages.
    Device,
    /// The segments exceed the path's MTU, or the datagram is too long.
    Length,
    /// The number or length of the segments (the MTU, before Linux 6.14), a driver (virtio-net
    /// with IPv6, before 6.2), the sticky source, or the destination. It is found by omitting each
    /// in turn.
    Any,
    /// The sticky source or the destination.
    Route,
    /// The destination.
    Destination,
    /// Only this message. A firewall rule may accept the next one.
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
            // EADDRNOTAVAIL: a local address of that scope is missing, for example with IPv6 disabled.
            Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::ENODEV => Self::Route,
            // EACCES: a prohibit route, or a broadcast.
            Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EACCES => Self::Destination,
            _ => Self::Message,
        }
    }

    /// Whether the datagrams of a GSO message may be accepted singly.
    pub(super) fn may_be_offload(self) -> bool {
        matches!(self, Self::Device | Self::Length | Self::Any)
    }

    /// Whether the datagram may be accepted without its sticky source.
    pub(super) fn may_be_source(self) -> bool {
        matches!(self, Self::Any | Self::Route)
    }

    /// Whether later datagrams to the same endpoint would also be refused.
    pub(super) fn ends_run(self) -> bool {
        matches!(self, Self::Any | Self::Route | Self::Destination)
    }
}

/// The error that is reported for a datagram that was not sent.
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

/// Whether an error of a receive is the ICMP error of an earlier datagram, or a temporary shortage
/// of memory. The kernel clears such an error by reporting it.
pub(super) fn is_transient(errno: Errno) -> bool {
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
