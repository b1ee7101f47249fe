//! A host's UDP sockets.

use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};

use packet::{
    ControlSend, Endpoint, Local, RecvBatch, RecvMeta, SendBatch, SendError, UdpRecv, UdpSend,
    Waker,
};

use crate::{
    link::Datagram,
    network::{Network, Realm},
};

/// A socket for tests that run without an engine.
#[derive(Clone, Debug)]
pub struct Socket {
    network: Network,
    realm: Realm,
    pub address: SocketAddr,
}

/// A socket's receiving half.
#[derive(Debug)]
pub struct NetRecv(Socket);

/// A socket's sending half.
#[derive(Clone, Debug)]
pub struct NetSend(Socket);

/// The receive queue of a socket.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// With arrival times.
    arrived: VecDeque<(Duration, Datagram)>,
    /// Dropped datagrams that were not reported yet.
    lost: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, now: Duration, datagram: Datagram, room: usize) {
        if self.arrived.len() < room {
            self.arrived.push_back((now, datagram));
        } else {
            self.lost += 1;
        }
    }
}

impl Socket {
    pub(crate) fn new(network: Network, realm: Realm, address: SocketAddr) -> Self {
        Self { network, realm, address }
    }

    /// The engine's halves.
    pub fn halves(self) -> (NetRecv, NetSend) {
        (NetRecv(self.clone()), NetSend(self))
    }

    pub fn send(&self, to: SocketAddr, bytes: &[u8]) {
        self.launch(Datagram::new(self.address, to, bytes));
    }

    pub fn send_with_ttl(&self, to: SocketAddr, bytes: &[u8], ttl: u8) {
        self.launch(Datagram { ttl, ..Datagram::new(self.address, to, bytes) });
    }

    /// Takes the first datagram in the queue.
    pub fn receive(&self) -> Option<Datagram> {
        let mut state = self.network.lock();
        let queue = state.sockets.get_mut(&(self.realm, self.address))?;
        queue.arrived.pop_front().map(|(_, datagram)| datagram)
    }

    fn launch(&self, datagram: Datagram) {
        self.network.lock().send(self.realm, datagram);
    }
}

impl UdpRecv for NetRecv {
    fn recv(&mut self, batch: &mut RecvBatch, _drain: bool, _wait: bool) -> io::Result<()> {
        batch.clear();
        let Socket { network, realm, address } = &self.0;
        let mut state = network.lock();
        let now = state.now;
        let Some(queue) = state.sockets.get_mut(&(*realm, *address)) else { return Ok(()) };
        batch.note_lost(std::mem::take(&mut queue.lost));
        let local = Some(Local { addr: address.ip(), interface: 1 });
        let count = queue.arrived.len().min(batch.capacity());
        let last = (count == batch.capacity()).then(|| &queue.arrived[count - 1]);
        batch.note_waited(last.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(*since)));
        let datagrams: Vec<_> =
            queue.arrived.drain(..count).map(|(_, datagram)| datagram).collect();
        for (slot, datagram) in batch.slots_mut().zip(&datagrams) {
            slot[..datagram.bytes.len()].copy_from_slice(&datagram.bytes);
        }
        for datagram in &datagrams {
            let len = datagram.bytes.len();
            let endpoint = Endpoint { local, ..Endpoint::new(datagram.from) };
            batch.commit(RecvMeta { len, stride: len, endpoint, ecn: datagram.ecn });
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
}

impl UdpSend for NetSend {
    fn send(&mut self, batch: &mut SendBatch) {
        for transmit in batch.transmits() {
            let Some(to) = transmit.endpoint.remote.direct() else { continue };
            for bytes in batch.datagrams(transmit) {
                let datagram = Datagram::new(self.0.address, to, bytes);
                self.0.launch(Datagram { ecn: transmit.tos.ecn(), ..datagram });
            }
        }
    }

    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        self.0.send(endpoint.remote.direct().ok_or(SendError::Unreachable)?, datagram);
        Ok(())
    }
}

impl ControlSend for NetSend {
    fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError> {
        let to = to.remote.direct().ok_or(SendError::Unreachable)?;
        match hops {
            Some(hops) => self.0.send_with_ttl(to, datagram, hops),
            None => self.0.send(to, datagram),
        }
        Ok(())
    }
}
