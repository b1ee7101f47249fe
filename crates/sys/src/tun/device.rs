//! `/dev/net/tun` and its ioctls (Documentation/networking/tuntap.rst).
#![expect(unsafe_code, reason = "the TUNSETIFF and TUNSETOFFLOAD ioctls")]

use std::{
    ffi::{CStr, c_char},
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    net::if_::if_nametoindex,
    sys::{stat::Mode, uio::writev},
    unistd::read,
};
use packet::VNET_HEADER_LEN;

use super::TunError;
use crate::time::Clock;

/// Tasks that the kernel may leave to the reader of packets (`include/uapi/linux/if_tun.h`):
/// checksums.
const CHECKSUM: libc::c_ulong = 0x01;
/// TCP segmentation, of IPv4, IPv6 and with ECN.
const TSO: libc::c_ulong = 0x02 | 0x04 | 0x08;
/// UDP segmentation, of IPv4 and IPv6 (Linux 6.2).
const USO: libc::c_ulong = 0x20 | 0x40;
/// Segmentation of TCP and UDP inside a UDP tunnel, with or without a checksum of the tunnel
/// (Linux 6.17).
const TUNNEL: libc::c_ulong = 0x80 | 0x100;

/// The system calls of both halves. Tests and the fuzzer replace the TUN device by a simulated one
/// that can refuse calls.
pub trait Calls: Clock + AsFd + Send + Sync + 'static {
    /// Reads a virtio-net header and one packet, without waiting.
    fn read(&self, to: &mut [u8]) -> Result<usize, Errno>;

    /// Writes a virtio-net header and one packet, without waiting.
    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno>;

    /// Sets the super-packets that may be read.
    fn set_offload(&self, reads: SuperPackets) -> Result<(), Errno>;
}

/// The super-packets that may be read from a TUN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperPackets {
    /// Those of TCP.
    pub tcp: bool,
    /// Those of UDP.
    pub udp: bool,
    /// Those of TCP or UDP inside a UDP tunnel.
    pub tunnel: bool,
}

/// A TUN device.
#[derive(Debug)]
pub struct TunDevice(OwnedFd);

impl TunDevice {
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl Clock for TunDevice {}

impl Calls for TunDevice {
    fn read(&self, to: &mut [u8]) -> Result<usize, Errno> {
        read(&self.0, to)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        writev(&self.0, pieces)
    }

    fn set_offload(&self, reads: SuperPackets) -> Result<(), Errno> {
        let SuperPackets { tcp, udp, tunnel } = reads;
        let of = |wanted, flags| if wanted { CHECKSUM | flags } else { 0 };
        let flags = of(tcp, TSO) | of(udp, USO) | of(tunnel && (tcp || udp), TUNNEL);
        // SAFETY: TUNSETOFFLOAD takes an integer and accesses no memory.
        let set = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD, flags) };
        Errno::result(set).map(drop)
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates a TUN device, or attaches to a persistent one. Also returns its actual name.
pub(crate) fn create(name: &str) -> Result<(TunDevice, String), TunError> {
    let mut request = request(name)?;
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = open("/dev/net/tun", flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => TunError::NoDevice,
        Errno::EACCES | Errno::EPERM => TunError::NoPermission,
        errno => TunError::Os(errno.into()),
    })?;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which is `request`.
    let made = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if let Err(errno) = Errno::result(made) {
        return Err(refusal(errno, name));
    }
    let len = VNET_HEADER_LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one integer, which is `len`.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    Errno::result(set).map_err(io::Error::from)?;
    Ok((TunDevice(fd), name_in(&request)?))
}

fn request(name: &str) -> Result<libc::ifreq, TunError> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // If the name was empty, the kernel would choose one.
    if name.is_empty() || name.len() >= ifr_name.len() || name.contains('\0') {
        return Err(TunError::NameInvalid);
    }
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    Ok(libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } })
}

fn refusal(errno: Errno, name: &str) -> TunError {
    match errno {
        Errno::EBUSY | Errno::EEXIST => TunError::Busy,
        Errno::EPERM | Errno::EACCES => TunError::NoPermission,
        // EINVAL means an invalid name, or the name of an interface of another kind.
        Errno::EINVAL if if_nametoindex(name).is_ok() => TunError::Busy,
        Errno::EINVAL => TunError::NameInvalid,
        errno => TunError::Os(errno.into()),
    }
}

fn name_in(request: &libc::ifreq) -> Result<String, TunError> {
    let bytes = request.ifr_name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes)
        .map_err(|_| io::Error::from(Errno::EINVAL))?
        .to_str()
        .map_err(|_| TunError::NameInvalid)?;
    Ok(name.to_owned())
}
