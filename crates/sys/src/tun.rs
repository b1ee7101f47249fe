//! The TUN device: the IP side's two halves over one file descriptor.
//!
//! ```text
//!   kernel -- queue --> read  --> Batch            TunRecv
//!   kernel <----------- write <-- RecvBatch spans  TunSend
//! ```
//!
//! A read or a write is one whole IP packet, without a header before it. The
//! device lives as long as one half does, unless it was made persistent by
//! somebody else beforehand.
//!
//! What the kernel answers (drivers/net/tun.c): an interface that is down has
//! nothing to read and refuses writes with EIO, and `poll` waits; a deleted one
//! answers everything with EBADFD and `poll` with an error.

mod device;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::{errno::Errno, unistd};
use packet::{Batch, IpRecv, IpSend, RecvBatch, Span, Waker};

use crate::{
    netlink::{Netlink, NetlinkError},
    poll,
    wake::{Waited, Wake},
};

/// How long one write waits for room in a device whose send buffer is full.
/// TUN devices have no such bound unless somebody set one, so that this is
/// only to keep the loop finite.
const WRITE_PATIENCE: Duration = Duration::from_millis(5);

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
    /// number. It is down, and has no addresses.
    ///
    /// # Errors
    /// See [`TunError`]; no device is left behind.
    pub fn create(name: &str, mtu: u32) -> Result<(TunRecv, TunSend, TunInfo), TunError> {
        let (fd, name) = device::create(name)?;
        let index = nix::net::if_::if_nametoindex(name.as_str()).map_err(io::Error::from)?;
        let wake = Wake::new()?;
        set_mtu(index, mtu)?;
        let fd = Arc::new(fd);
        let recv = TunRecv { fd: fd.clone(), wake };
        Ok((recv, TunSend { fd }, TunInfo { name, index, mtu }))
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

/// The receiving half: packets that the kernel routes into the interface.
#[derive(Debug)]
pub struct TunRecv {
    fd: Arc<OwnedFd>,
    wake: Wake,
}

impl IpRecv for TunRecv {
    fn recv(&mut self, batch: &mut Batch) -> io::Result<()> {
        batch.clear();
        loop {
            self.drain(batch)?;
            if !batch.is_empty() {
                return Ok(());
            }
            match self.wake.wait(Some(self.fd.as_fd()))? {
                Waited::Woken => return Ok(()),
                Waited::Readable => {}
                Waited::Failed => return Err(Errno::EBADFD.into()),
            }
        }
    }

    fn waker(&self) -> Waker {
        self.wake.waker()
    }
}

impl TunRecv {
    /// Reads until the queue is empty or the batch is full. An error behind
    /// packets is kept for the next time, when it comes again.
    fn drain(&self, batch: &mut Batch) -> io::Result<()> {
        while let Some(spare) = batch.spare() {
            match unistd::read(&self.fd, spare) {
                Ok(len) => batch.commit(len),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) if batch.is_empty() => return Err(errno.into()),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl AsFd for TunRecv {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The sending half: packets for the kernel to take as received.
#[derive(Clone, Debug)]
pub struct TunSend {
    fd: Arc<OwnedFd>,
}

impl IpSend for TunSend {
    fn send(&mut self, batch: &RecvBatch, packets: &[Span]) -> io::Result<usize> {
        let mut refused = 0;
        for &packet in packets {
            match self.write(batch.get(packet)) {
                Ok(()) => {}
                Err(Errno::EBADFD) => return Err(Errno::EBADFD.into()),
                // EIO: the interface is down. EINVAL: no IP packet. ENOBUFS,
                // ENOMEM: no memory. All concern this packet alone.
                Err(_) => refused += 1,
            }
        }
        Ok(refused)
    }
}

impl TunSend {
    fn write(&self, packet: &[u8]) -> Result<(), Errno> {
        let mut patient = true;
        loop {
            match unistd::write(&self.fd, packet) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if patient => {
                    patient = poll::writable(self.fd.as_fd(), WRITE_PATIENCE);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests;
