//! The TUN device: the IP side's two halves over one file descriptor.
//!
//! ```text
//!   kernel -- queue --> readv  --> Batch                          TunRecv
//!   kernel <----------- writev <-- Coalescer <-- RecvBatch spans  TunSend
//! ```
//!
//! A read or a write is one whole IP packet behind a virtio-net header, which
//! says whether the packet stands for many ([`packet::Offload`]). The device lives as long as one half does, unless it was made persistent by
//! somebody else beforehand.
//!
//! What the kernel answers (drivers/net/tun.c): an interface that is down has
//! nothing to read and refuses writes with EIO, and `poll` waits; a deleted one
//! answers everything with EBADFD and `poll` with an error.

pub(crate) mod device;
mod recv;
mod refusal;
mod send;

use std::{io, os::fd::OwnedFd, sync::Arc};

pub use device::Calls;
pub use recv::TunRecv;
pub use send::TunSend;

use crate::{
    netlink::{Netlink, NetlinkError},
    offload::Offloads,
    wake::Wake,
};

/// Makes TUN devices.
#[derive(Debug)]
pub struct Tun;

/// What a new device is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunInfo {
    /// The interface's name, with the number the kernel chose for a `%d`.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The MTU in bytes.
    pub mtu: u32,
}

/// Why there is no TUN device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// No name for an interface: empty, over 15 bytes, with a `/`, a `:`,
    /// white space, or a `%` other than one `%d`.
    #[error("not a name for an interface")]
    NameInvalid,
    /// There is an interface of that name.
    #[error("the name is in use")]
    Busy,
    /// The right to make a device is missing: `CAP_NET_ADMIN`.
    #[error("no permission to make a TUN device (CAP_NET_ADMIN)")]
    NoPermission,
    /// There is no `/dev/net/tun`: the kernel module is missing, or the
    /// container was not given the device.
    #[error("there is no /dev/net/tun")]
    NoDevice,
    /// An MTU that a TUN device cannot have; it lies between 68 and 65535.
    #[error("an MTU lies between 68 and 65535")]
    MtuInvalid,
    /// Any other answer of the kernel.
    #[error(transparent)]
    Os(#[from] io::Error),
}

impl Tun {
    /// Makes the interface `name`, which may hold one `%d` for the kernel to
    /// number. It is down, and has no addresses. Of the `offloads`, those for reads
    /// that the kernel lacks are switched off.
    ///
    /// # Errors
    /// See [`TunError`]; no device is left behind.
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

    /// The halves of an open TUN device with virtio-net headers, that may be in another
    /// network namespace.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn adopt(fd: OwnedFd, offloads: &Arc<Offloads>) -> io::Result<(TunRecv, TunSend)> {
        let wake = Wake::new()?;
        let device = Arc::new(device::Device::from_fd(fd));
        let recv = TunRecv::new(device.clone(), wake, offloads.clone());
        Ok((recv, TunSend::new(device, offloads.clone())))
    }
}

fn set_mtu(index: u32, mtu: u32) -> Result<(), TunError> {
    match Netlink::open().and_then(|netlink| netlink.set_mtu(index, mtu)) {
        Ok(()) => Ok(()),
        Err(error @ NetlinkError::Refused(_)) if error.errno() == Some(libc::EINVAL) => {
            Err(TunError::MtuInvalid)
        }
        Err(error) => Err(TunError::Os(error.into())),
    }
}

#[cfg(test)]
mod tests;
