//! The TUN device: the two halves of the IP side over one file descriptor.
//!
//! ```text
//!   kernel -- queue --> readv  --> Batch                          TunRecv
//!   kernel <----------- writev <-- Coalescer <-- RecvBatch spans  TunSend
//! ```
//!
//! Each read or write transfers a virtio-net header and one IP packet. The header marks
//! super-packets ([`packet::Offload`]). The device is removed when both halves are dropped, unless
//! it was made persistent before.
//!
//! While the interface is down, no packets arrive, `poll` waits, and writes fail with EIO. After
//! it was deleted, all calls fail with EBADFD, and `poll` reports an error (drivers/net/tun.c).

pub(crate) mod device;
mod recv;
mod refusal;
mod send;

use std::{io, os::fd::OwnedFd, sync::Arc};

pub use device::{Calls, SuperPackets};
pub use recv::{TunRecv, TunSource};
pub use send::TunSend;

use crate::{
    errno::Errno,
    netlink::{Netlink, NetlinkError},
    offload::Offloads,
    wake::Wake,
};

/// Creates TUN devices.
#[derive(Debug)]
pub struct Tun;

/// A new device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunInfo {
    /// The interface's name. The kernel has replaced `%d` by a number.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The MTU in bytes.
    pub mtu: u32,
}

/// An error of [`Tun::create`].
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is empty, longer than 15 bytes, or contains `/`, `:`, white space, or `%` other
    /// than one `%d`.
    #[error("not a valid interface name")]
    NameInvalid,
    /// The name is used by another interface.
    #[error("the name is in use")]
    Busy,
    #[error("no permission to create a TUN device (CAP_NET_ADMIN)")]
    NoPermission,
    /// The kernel module is missing, or the container lacks the device.
    #[error("/dev/net/tun does not exist")]
    NoDevice,
    #[error("the MTU must be between 68 and 65535")]
    MtuInvalid,
    #[error(transparent)]
    Os(#[from] io::Error),
}

impl Tun {
    /// Creates the interface `name`. The kernel replaces one `%d` by a number. The interface is
    /// down, without addresses. In `offloads`, those for reads that the kernel lacks are switched
    /// off.
    ///
    /// # Errors
    /// See [`TunError`]. The device is not left behind.
    pub fn create(
        name: &str,
        mtu: u32,
        offloads: &Arc<Offloads>,
    ) -> Result<(TunRecv, TunSend, TunInfo), TunError> {
        let (device, name) = device::create(name)?;
        let index = nix::net::if_::if_nametoindex(name.as_str()).map_err(io::Error::from)?;
        set_mtu(index, mtu)?;
        let info = TunInfo { name, index, mtu };
        let (recv, send) = Self::adopt(device.into_fd(), offloads)?;
        Ok((recv, send, info))
    }

    /// The halves of an open TUN device with virtio-net headers. It may be in another network
    /// namespace.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn adopt(fd: OwnedFd, offloads: &Arc<Offloads>) -> io::Result<(TunRecv, TunSend)> {
        let wake = Wake::new()?;
        let device = Arc::new(device::TunDevice::from_fd(fd));
        let recv = TunRecv::new(device.clone(), wake, offloads.clone());
        Ok((recv, TunSend::new(device, offloads.clone())))
    }
}

fn set_mtu(index: u32, mtu: u32) -> Result<(), TunError> {
    match Netlink::open().and_then(|netlink| netlink.set_mtu(index, mtu)) {
        Ok(()) => Ok(()),
        Err(error @ NetlinkError::Refused(_)) if error.errno() == Some(Errno::EINVAL) => {
            Err(TunError::MtuInvalid)
        }
        Err(error) => Err(TunError::Os(error.into())),
    }
}

#[cfg(test)]
mod tests;
