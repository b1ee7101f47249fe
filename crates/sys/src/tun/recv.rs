//! The receiving half: packets that the kernel routes into the interface.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::errno::Errno;
use packet::{Batch, IpRecv, Offload, VNET_HEADER_LEN, Waker};

use super::device::{Calls, Device};
use crate::{
    offload::Offloads,
    wake::{Waited, Wake},
};

/// The receiving half of a TUN device.
#[derive(Debug)]
pub struct TunRecv<D = Device> {
    fd: Arc<D>,
    wake: Wake,
    offloads: Arc<Offloads>,
    /// Which super-packets the kernel was told may come: TCP, UDP.
    told: (bool, bool),
}

impl<D: Calls> TunRecv<D> {
    pub(super) fn new(fd: Arc<D>, wake: Wake, offloads: Arc<Offloads>) -> Self {
        let mut recv = Self { fd, wake, offloads, told: (false, false) };
        recv.tell();
        recv
    }

    /// Tells the kernel what is wanted; what it does not have is not wanted any
    /// more.
    fn tell(&mut self) {
        let (mut tso, mut uso) = (self.offloads.tun_tso.wanted(), self.offloads.tun_uso.wanted());
        if uso && self.fd.set_offload(tso, true).is_err() {
            self.offloads.tun_uso.lack();
            uso = false;
        }
        if !uso && self.fd.set_offload(tso, false).is_err() {
            self.offloads.tun_tso.lack();
            tso = false;
        }
        self.told = (tso, uso);
    }

    /// Reads until the queue is empty or the batch is full; whether anything
    /// came. An error behind packets is kept for the next time, when it comes
    /// again.
    pub(super) fn drain(&self, batch: &mut Batch) -> io::Result<bool> {
        let mut came = false;
        while let Some(spare) = batch.spare() {
            match self.fd.read(spare) {
                Ok(len) => {
                    let (len, offload) = parse(&spare[..len]);
                    batch.commit(VNET_HEADER_LEN, len, offload);
                    came = true;
                }
                Err(Errno::EAGAIN) => break,
                // EINVAL: a packet that the header cannot describe; it is gone.
                Err(Errno::EINTR | Errno::EINVAL) => {}
                Err(errno) if !came => return Err(errno.into()),
                Err(_) => break,
            }
        }
        Ok(came)
    }
}

/// The length of the packet behind its header, and what is to be done to it. A
/// header that cannot be leaves a packet of no length, which is counted as none.
fn parse(read: &[u8]) -> (usize, Offload) {
    let packet = read.split_first_chunk::<VNET_HEADER_LEN>();
    packet
        .and_then(|(header, packet)| Some((packet.len(), Offload::parse(header).ok()?)))
        .unwrap_or((0, Offload::None))
}

impl<D: Calls> IpRecv for TunRecv<D> {
    fn recv(&mut self, batch: &mut Batch, wait: bool) -> io::Result<()> {
        if self.told != (self.offloads.tun_tso.wanted(), self.offloads.tun_uso.wanted()) {
            self.tell();
        }
        while !self.drain(batch)? && wait {
            match self.wake.wait(Some(self.fd.as_fd()))? {
                Waited::Woken => break,
                Waited::Readable => {}
                Waited::Failed => return Err(Errno::EBADFD.into()),
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.wake.waker()
    }
}

impl<D: Calls> AsFd for TunRecv<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
