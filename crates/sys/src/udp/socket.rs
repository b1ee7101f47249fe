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

/// The size of each buffer in bytes. The receive buffer must hold what arrives while the receiving
/// thread decrypts a batch or waits for a core: with 512 KiB, quic lost 20 % and udp 30 % (docs:
/// design, "What was tried"). The send buffer takes a whole batch in one call.
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
    /// The kernel's drop counter as last seen.
    drops: AtomicU32,
    /// Whether GRO is enabled.
    gro: AtomicBool,
    /// Whether a filter drops most of a flood, which the kernel counts like all it drops.
    sheds: AtomicBool,
    /// The kernel's drop counter where the last filter was removed, or later.
    shed_until: AtomicU32,
}

/// Datagrams that the kernel dropped since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drops {
    /// For want of room.
    pub lost: u32,
    /// By a filter.
    pub shed: u32,
}

impl Socket {
    /// Binds to both families, or to IPv4 if the system has no IPv6. The helper does so if there is
    /// one.
    pub(super) fn bind(port: u16, fwmark: u32, helper: Option<&Helper>) -> Result<Self, BindError> {
        if let Some(helper) = helper {
            return Self::adopt(helper.socket(port, fwmark).map_err(helper_error)?);
        }
        match Self::bind_family(Family::Dual, port, fwmark) {
            Err(BindError::Os(error)) if has_no_ipv6(&error) => {
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

    /// A socket that another process has bound.
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
        // Setting a mark takes a privilege even if it does not change.
        if getsockopt(&self.fd, sockopt::Mark) == Ok(fwmark) {
            return Ok(());
        }
        if let Some(helper) = helper {
            return helper.mark(self.fd.as_fd(), fwmark).map_err(helper_error);
        }
        setsockopt(&self.fd, sockopt::Mark, &fwmark).map_err(refusal)
    }

    /// Enables or disables GRO; whether the kernel accepted it.
    pub(super) fn set_gro(&self, calls: &impl Calls, on: bool) -> bool {
        self.gro.swap(on, Ordering::Relaxed) == on || calls.set_gro(self.as_fd(), on).is_ok()
    }

    /// Forbids fragmentation of what is sent over IPv4 or IPv6, or allows it again. While it is
    /// forbidden, the path MTU that the kernel has learned is ignored.
    pub(super) fn set_whole(&self, ipv4: bool, whole: bool) -> Result<(), Errno> {
        match (ipv4, whole) {
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

    /// There is no filter since the kernel's drop counter was this, or, if it does not say, as it was
    /// last seen.
    pub(super) fn end_shedding(&self, drops: Result<u32, Errno>) {
        let drops = drops.unwrap_or_else(|_| self.drops.load(Ordering::Relaxed));
        self.shed_until.store(drops, Ordering::Relaxed);
        self.sheds.store(false, Ordering::Relaxed);
    }

    /// Updates the kernel's drop counter, as it was when a datagram was received; returns the new
    /// drops. What is lost for want of room while there is a filter is taken for what it drops.
    pub(super) fn note_drops(&self, drops: u32) -> Drops {
        let new = drops.wrapping_sub(self.drops.swap(drops, Ordering::Relaxed));
        if self.sheds() {
            return Drops { lost: 0, shed: new };
        }
        let behind = drops.wrapping_sub(self.shed_until.load(Ordering::Relaxed));
        // One that waited since before the filter was removed has an older counter.
        if behind as i32 <= 0 {
            return Drops { lost: 0, shed: new };
        }
        self.shed_until.store(drops, Ordering::Relaxed);
        let lost = new.min(behind);
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
    let v4 = bound.as_sockaddr_in().map(|address| address.port());
    v4.or(bound.as_sockaddr_in6().map(|address| address.port()))
}

fn set_options(fd: &OwnedFd, family: Family) -> Result<(), Errno> {
    // This may exceed the system's limit, but takes CAP_NET_ADMIN.
    if setsockopt(fd, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(fd, sockopt::RcvBuf, &BUFFER)?;
    }
    if setsockopt(fd, sockopt::SndBufForce, &BUFFER).is_err() {
        setsockopt(fd, sockopt::SndBuf, &BUFFER)?;
    }
    setsockopt(fd, sockopt::RxqOvfl, &1)?;
    // How long a datagram waited is optional.
    let _ = setsockopt(fd, sockopt::ReceiveTimestampns, &true);
    // A dual-stack socket has the options of both levels, and IPv4 datagrams have IPv4 control
    // messages.
    setsockopt(fd, sockopt::Ipv4PacketInfo, &true)?;
    setsockopt(fd, sockopt::IpRecvTos, &true)?;
    setsockopt(fd, MtuDiscover, &libc::IP_PMTUDISC_DONT)?;
    if family == Family::Dual {
        setsockopt(fd, sockopt::Ipv6V6Only, &false)?;
        setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true)?;
        setsockopt(fd, sockopt::Ipv6RecvTClass, &true)?;
        setsockopt(fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DONT)?;
        // Like the kernel module: a label made from the flow's hash adds nothing to the ports. An
        // old kernel may lack the option.
        let _ = setsockopt(fd, Ipv6AutoFlowLabel, &0);
    }
    Ok(())
}

/// The error of a helper.
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

/// EAFNOSUPPORT: booted with `ipv6.disable=1`, or a kernel without IPv6. EADDRNOTAVAIL: IPv6 is
/// disabled in this network namespace.
fn has_no_ipv6(error: &io::Error) -> bool {
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
    /// Whether the DF bit is set. It is not, as in the kernel module: an outer packet that is too
    /// long for its path arrives in fragments instead of being lost. Only path MTU probes have it.
    MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// The same for IPv6, where the sender fragments.
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
