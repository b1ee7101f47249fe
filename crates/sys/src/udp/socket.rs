//! One bound socket and its options.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use nix::{
    errno::Errno,
    setsockopt_impl, sockopt_impl,
    sys::socket::{
        AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, getsockname,
        getsockopt, setsockopt, socket, sockopt,
    },
};

use super::{BindError, address::Family, mmsg::Calls};
use crate::{errno::errno, process::Helper};

/// The size of each buffer in bytes. The receive buffer must absorb the datagrams that arrive
/// while the receiving thread decrypts a batch or waits for a core: with 512 KiB, quic lost 20 %
/// and udp 30 % (docs: design, "What was tried"). The send buffer accepts a whole batch in one
/// call.
const BUFFER: usize = 4 * 1024 * 1024;

/// The sizes of the socket's buffers in bytes, as requested. The kernel doubles them for its
/// overhead (socket(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    pub receive: usize,
    pub send: usize,
    /// The requested size. Without `CAP_NET_ADMIN`, `net.core.rmem_max` and `wmem_max` limit it.
    pub wanted: usize,
}

/// A bound UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    family: Family,
    port: u16,
    /// The last value of the kernel's drop counter.
    drops: AtomicU32,
    /// Whether GRO is enabled.
    gro: AtomicBool,
    /// Whether a filter sheds a flood. The kernel includes its drops in the drop counter.
    sheds: AtomicBool,
    /// The kernel's drop counter when the last filter was removed, or a later value.
    shed_until: AtomicU32,
}

/// Datagrams that the kernel dropped since the last update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drops {
    /// Because the buffer was full.
    pub lost: u32,
    /// By the filter.
    pub shed: u32,
}

impl Socket {
    /// Binds to both families, or only to IPv4 if the system lacks IPv6. If a helper is given, it
    /// creates the socket.
    pub(super) fn bind(port: u16, fwmark: u32, helper: Option<&Helper>) -> Result<Self, BindError> {
        if let Some(helper) = helper {
            return Self::adopt(helper.socket(port, fwmark).map_err(helper_error)?);
        }
        match Self::bind_family(Family::Dual, port, fwmark) {
            Err(BindError::Os(error)) if lacks_ipv6(&error) => {
                Self::bind_family(Family::V4, port, fwmark)
            }
            bound => bound,
        }
    }

    pub(super) fn bind_family(family: Family, port: u16, fwmark: u32) -> Result<Self, BindError> {
        let domain = match family {
            Family::Dual => AddressFamily::Inet6,
            Family::V4 => AddressFamily::Inet,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(domain, SockType::Datagram, flags, None::<SockProtocol>)
            .map_err(io::Error::from)?;
        set_options(&fd, family).map_err(io::Error::from)?;
        let mut this = Self::new(fd, family, 0);
        if fwmark != 0 {
            this.set_fwmark(fwmark, None)?;
        }
        this.port = bind_port(&this.fd, family, port)?;
        Ok(this)
    }

    /// Takes a socket that another process has bound.
    fn adopt(fd: OwnedFd) -> Result<Self, BindError> {
        let bound: SockaddrStorage = getsockname(fd.as_raw_fd()).map_err(io::Error::from)?;
        let family = if bound.as_sockaddr_in6().is_some() { Family::Dual } else { Family::V4 };
        let port = port_of(&bound).ok_or(io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self::new(fd, family, port))
    }

    fn new(fd: OwnedFd, family: Family, port: u16) -> Self {
        let (drops, shed_until) = (AtomicU32::new(0), AtomicU32::new(0));
        let (gro, sheds) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { fd, family, port, drops, gro, sheds, shed_until }
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(super) fn set_fwmark(&self, fwmark: u32, helper: Option<&Helper>) -> Result<(), BindError> {
        // Setting a mark requires a privilege even if it does not change.
        if getsockopt(&self.fd, sockopt::Mark) == Ok(fwmark) {
            return Ok(());
        }
        if let Some(helper) = helper {
            return helper.mark(self.fd.as_fd(), fwmark).map_err(helper_error);
        }
        setsockopt(&self.fd, sockopt::Mark, &fwmark).map_err(refusal)
    }

    /// Enables or disables GRO. Returns whether the kernel accepted it.
    pub(super) fn set_gro(&self, calls: &impl Calls, on: bool) -> bool {
        self.gro.swap(on, Ordering::Relaxed) == on || calls.set_gro(self.as_fd(), on).is_ok()
    }

    /// Forbids or allows fragmentation of datagrams over IPv4 or IPv6. While it is forbidden, the
    /// kernel's learned path MTU is ignored.
    pub(super) fn forbid_fragmentation(&self, ipv4: bool, forbid: bool) -> Result<(), Errno> {
        match (ipv4, forbid) {
            (true, true) => setsockopt(&self.fd, MtuDiscover, &libc::IP_PMTUDISC_PROBE),
            (true, false) => setsockopt(&self.fd, MtuDiscover, &libc::IP_PMTUDISC_DONT),
            (false, true) => setsockopt(&self.fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_PROBE),
            (false, false) => setsockopt(&self.fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DONT),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    pub(super) fn buffers(&self) -> BufferSizes {
        BufferSizes {
            receive: getsockopt(&self.fd, sockopt::RcvBuf).unwrap_or(0) / 2,
            send: getsockopt(&self.fd, sockopt::SndBuf).unwrap_or(0) / 2,
            wanted: BUFFER,
        }
    }

    pub(super) fn sheds(&self) -> bool {
        self.sheds.load(Ordering::Relaxed)
    }

    pub(super) fn begin_shedding(&self) {
        self.sheds.store(true, Ordering::Relaxed);
    }

    /// Records that the filter was removed when the kernel's drop counter had this value; in case
    /// of an error, the last known value.
    pub(super) fn end_shedding(&self, drops: Result<u32, Errno>) {
        let drops = drops.unwrap_or_else(|_| self.drops.load(Ordering::Relaxed));
        self.shed_until.store(drops, Ordering::Relaxed);
        self.sheds.store(false, Ordering::Relaxed);
    }

    /// Updates the kernel's drop counter to its value when a datagram was received, and returns
    /// the new drops. While a filter is attached, all drops are attributed to it.
    pub(super) fn note_drops(&self, drops: u32) -> Drops {
        let new = drops.wrapping_sub(self.drops.swap(drops, Ordering::Relaxed));
        if self.sheds() {
            return Drops { lost: 0, shed: new };
        }
        let since_filter = drops.wrapping_sub(self.shed_until.load(Ordering::Relaxed));
        // A datagram that was queued before the filter was removed has an older counter.
        if since_filter as i32 <= 0 {
            return Drops { lost: 0, shed: new };
        }
        self.shed_until.store(drops, Ordering::Relaxed);
        let lost = new.min(since_filter);
        Drops { lost, shed: new - lost }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn set_gro(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    setsockopt(&fd, UdpGro, &on.into())
}

fn bind_port(fd: &OwnedFd, family: Family, port: u16) -> Result<u16, BindError> {
    let address: SocketAddr = match family {
        Family::Dual => (Ipv6Addr::UNSPECIFIED, port).into(),
        Family::V4 => (Ipv4Addr::UNSPECIFIED, port).into(),
    };
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(refusal)?;
    let bound: SockaddrStorage = getsockname(fd.as_raw_fd()).map_err(io::Error::from)?;
    Ok(port_of(&bound).unwrap_or(port))
}

fn port_of(bound: &SockaddrStorage) -> Option<u16> {
    let v4 = bound.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::port);
    v4.or(bound.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port))
}

fn set_options(fd: &OwnedFd, family: Family) -> Result<(), Errno> {
    // This may exceed the system's limit, but requires CAP_NET_ADMIN.
    if setsockopt(fd, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(fd, sockopt::RcvBuf, &BUFFER)?;
    }
    if setsockopt(fd, sockopt::SndBufForce, &BUFFER).is_err() {
        setsockopt(fd, sockopt::SndBuf, &BUFFER)?;
    }
    setsockopt(fd, sockopt::RxqOvfl, &1)?;
    // Timestamps are optional.
    let _ = setsockopt(fd, sockopt::ReceiveTimestampns, &true);
    // A dual-stack socket needs the options of both levels, as IPv4 datagrams have IPv4 control
    // messages.
    setsockopt(fd, sockopt::Ipv4PacketInfo, &true)?;
    setsockopt(fd, sockopt::IpRecvTos, &true)?;
    setsockopt(fd, MtuDiscover, &libc::IP_PMTUDISC_DONT)?;
    if family == Family::Dual {
        setsockopt(fd, sockopt::Ipv6V6Only, &false)?;
        setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true)?;
        setsockopt(fd, sockopt::Ipv6RecvTClass, &true)?;
        setsockopt(fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DONT)?;
        // As in the kernel module: a label from the flow's hash is redundant with the ports. An
        // old kernel may lack the option.
        let _ = setsockopt(fd, Ipv6AutoFlowLabel, &0);
    }
    Ok(())
}

/// Converts an error of a helper.
fn helper_error(error: io::Error) -> BindError {
    match errno(&error) {
        Some(errno) => refusal(errno),
        None => BindError::Os(error),
    }
}

fn refusal(errno: Errno) -> BindError {
    match errno {
        Errno::EADDRINUSE => BindError::InUse,
        Errno::EACCES | Errno::EPERM => BindError::Permission,
        errno => BindError::Os(errno.into()),
    }
}

/// Whether IPv6 is not available. EAFNOSUPPORT: the kernel lacks it or was booted with
/// `ipv6.disable=1`. EADDRNOTAVAIL: it is disabled in this network namespace.
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

sockopt_impl!(
    /// Whether datagrams of one flow may be coalesced (Linux 5.0).
    UdpGro,
    SetOnly,
    libc::SOL_UDP,
    libc::UDP_GRO,
    libc::c_int
);
sockopt_impl!(
    /// The setting of the DF bit. As in the kernel module it is not set, so that outer packets
    /// that exceed the MTU of their path arrive in fragments. Only path MTU probes have it.
    MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// The corresponding setting of IPv6, where the sender fragments.
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Whether the kernel generates flow labels.
    Ipv6AutoFlowLabel,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_AUTOFLOWLABEL,
    libc::c_int
);
