//! The IP side: an input queue and an output queue.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use packet::{Batch, IpPacket, IpRecv, IpSend, Offload, RecvBatch, Waker};

/// The test's end of an IP side.
#[derive(Clone, Debug, Default)]
pub struct Port(Arc<Mutex<Queues>>);

#[derive(Debug, Default)]
struct Queues {
    into_tunnel: VecDeque<(Vec<u8>, Offload)>,
    out_of_tunnel: VecDeque<Vec<u8>>,
    is_removed: bool,
}

/// The engine's receiving half.
#[derive(Debug)]
pub struct PortRecv(Port);

/// The engine's sending half.
#[derive(Debug)]
pub struct PortSend(Port);

impl Port {
    /// The engine's halves.
    pub fn halves(&self) -> (PortRecv, PortSend) {
        (PortRecv(self.clone()), PortSend(self.clone()))
    }

    /// Sends a packet into the tunnel.
    pub fn push(&self, packet: impl Into<Vec<u8>>) {
        self.push_super(packet, Offload::None);
    }

    /// Sends a packet into the tunnel, with an offload that remains to be done.
    pub fn push_super(&self, packet: impl Into<Vec<u8>>, offload: Offload) {
        self.lock().into_tunnel.push_back((packet.into(), offload));
    }

    /// Takes all packets that left the tunnel.
    pub fn take(&self) -> Vec<Vec<u8>> {
        self.lock().out_of_tunnel.drain(..).collect()
    }

    /// Whether packets wait at the entry.
    pub fn waiting(&self) -> bool {
        !self.lock().into_tunnel.is_empty()
    }

    /// Makes the device fail.
    pub fn remove_device(&self) {
        self.lock().is_removed = true;
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        if self.lock().is_removed { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }
}

impl IpRecv for PortRecv {
    fn recv(&mut self, batch: &mut Batch, _wait: bool) -> io::Result<()> {
        self.0.check()?;
        let mut queues = self.0.lock();
        while let (Some(spare), Some((packet, offload))) =
            (batch.spare(), queues.into_tunnel.front())
        {
            spare[..packet.len()].copy_from_slice(packet);
            batch.commit(0, packet.len(), *offload);
            queues.into_tunnel.pop_front();
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
}

impl IpSend for PortSend {
    fn send(&mut self, batch: &RecvBatch, packets: &[IpPacket]) -> io::Result<usize> {
        self.0.check()?;
        let packets = packets.iter().map(|packet| batch.get(packet.span).to_vec());
        self.0.lock().out_of_tunnel.extend(packets);
        Ok(0)
    }
}
