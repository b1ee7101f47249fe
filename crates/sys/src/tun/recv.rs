//! The receiving half, for packets that the kernel routes to the interface.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::errno::Errno;
use packet::{Batch, IpRecv, Offload, VNET_HEADER_LEN, Waker};

use super::device::{Calls, SuperPackets, TunDevice};
use crate::{
    offload::{Offloads, Switch},
    wake::{Waited, Wake},
};

/// The receiving half of a TUN device.
#[derive(Debug)]
pub struct TunRecv<D = TunDevice> {
    fd: Arc<D>,
    wake: Wake,
    offloads: Arc<Offloads>,
    /// The enabled super-packets.
    enabled: SuperPackets,
}

/// The event source of a receiving half.
#[derive(Debug)]
pub struct TunSource {
    pub(crate) device: Arc<TunDevice>,
    pub(crate) wake: Wake,
}

impl<D: Calls> TunRecv<D> {
    pub(super) fn new(fd: Arc<D>, wake: Wake, offloads: Arc<Offloads>) -> Self {
        let mut recv = Self { fd, wake, offloads, enabled: SuperPackets::default() };
        recv.set_offloads();
        recv
    }

    /// Enables the requested super-packets, and switches off those that the kernel lacks.
    fn set_offloads(&mut self) {
        let Offloads { tun_tso, tun_uso, tun_tunnel_gso, .. } = &*self.offloads;
        let mut reads = self.wanted();
        while self.fd.set_offload(reads).is_err() && reads != SuperPackets::default() {
            let (newest, switch) = match reads {
                SuperPackets { tunnel: true, .. } => (&mut reads.tunnel, tun_tunnel_gso),
                SuperPackets { udp: true, .. } => (&mut reads.udp, tun_uso),
                _ => (&mut reads.tcp, tun_tso),
            };
            *newest = false;
            switch.mark_unsupported();
        }
        self.enabled = reads;
    }

    fn wanted(&self) -> SuperPackets {
        let Offloads { tun_tso, tun_uso, tun_tunnel_gso, .. } = &*self.offloads;
        let [tcp, udp, tunnel] = [tun_tso, tun_uso, tun_tunnel_gso].map(Switch::is_enabled);
        SuperPackets { tcp, udp, tunnel }
    }

    /// Reads until the queue is empty or the batch is full. Returns whether there was a packet. An
    /// error after packets is ignored, as the next read reports it again.
    pub(super) fn drain(&self, batch: &mut Batch) -> io::Result<bool> {
        let mut any = false;
        while let Some(spare) = batch.spare() {
            match self.fd.read(spare) {
                Ok(len) => {
                    let (len, offload) = parse(&spare[..len]);
                    batch.commit(VNET_HEADER_LEN, len, offload);
                    any = true;
                }
                Err(Errno::EAGAIN) => break,
                // EINVAL: a packet that the header cannot represent. The kernel has dropped it.
                Err(Errno::EINTR | Errno::EINVAL) => {}
                Err(errno) if !any => return Err(errno.into()),
                Err(_) => break,
            }
        }
        Ok(any)
    }
}

/// The length of the packet after its header, and its offload. With an invalid header, the length
/// is 0 and the packet is ignored.
fn parse(read: &[u8]) -> (usize, Offload) {
    let packet = read.split_first_chunk::<VNET_HEADER_LEN>();
    packet
        .and_then(|(header, packet)| Some((packet.len(), Offload::parse(header).ok()?)))
        .unwrap_or((0, Offload::None))
}

impl TunRecv {
    /// The event source of this half.
    pub fn source(&self) -> TunSource {
        TunSource { device: self.fd.clone(), wake: self.wake.clone() }
    }
}

impl<D: Calls> IpRecv for TunRecv<D> {
    fn recv(&mut self, batch: &mut Batch, wait: bool) -> io::Result<()> {
        if self.enabled != self.wanted() {
            self.set_offloads();
        }
        while !self.drain(batch)? && wait {
            match self.wake.wait(Some(self.fd.as_fd()), None)? {
                Waited::Woken => break,
                Waited::Readable | Waited::TimedOut => {}
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
