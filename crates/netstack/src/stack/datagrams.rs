//! UDP: sockets, each with a queue both ways.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    task::{Context, Waker},
};

use packet::{
    ChecksumAt, Offload,
    wire::{get_u16, put_u16, udp},
};

use super::{
    Polled, note_waiting,
    segments::{Flow, PathError},
    state::State,
};
use crate::{
    budget::Budget,
    ip::{self, Packet},
    time::Time,
};

/// Bytes that wait in one direction of one socket at most, as Linux' `rmem_default`.
/// What arrives beyond it is dropped, what is sent waits.
const QUEUE: usize = 208 * 1024;
/// What a datagram costs beside its bytes.
const OVERHEAD: usize = 128;

#[derive(Default)]
pub(crate) struct Datagrams {
    sockets: HashMap<SocketAddr, Socket>,
    /// Those that have something to send.
    pub ready: VecDeque<SocketAddr>,
}

#[derive(Default)]
struct Socket {
    received: Queue,
    to_send: Queue,
    /// The only one that it speaks with.
    peer: Option<SocketAddr>,
    /// What was said of what it sent to that one, and was not told yet.
    error: Option<io::ErrorKind>,
    readers: Vec<Waker>,
    writers: Vec<Waker>,
}

/// Datagrams with the other side's address.
#[derive(Default)]
struct Queue {
    datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    bytes: usize,
}

impl Queue {
    /// One datagram has room whatever memory is left.
    fn has_room(&self, len: usize, budget: &Budget) -> bool {
        let fits = self.bytes + len + OVERHEAD <= QUEUE && !budget.is_short();
        self.bytes == 0 || fits
    }

    fn push(&mut self, other: SocketAddr, bytes: Vec<u8>, budget: &Budget) {
        let cost = bytes.len() + OVERHEAD;
        self.bytes += cost;
        budget.charge(cost);
        self.datagrams.push_back((other, bytes));
    }

    fn pop(&mut self, budget: &Budget) -> Option<(SocketAddr, Vec<u8>)> {
        let datagram = self.datagrams.pop_front()?;
        let cost = datagram.1.len() + OVERHEAD;
        self.bytes -= cost;
        budget.refund(cost);
        Some(datagram)
    }
}

impl Datagrams {
    /// Whom a datagram of a flow is for.
    fn socket_at(&mut self, flow: Flow) -> Option<&mut Socket> {
        let hears = |socket: &Socket| socket.peer.is_none_or(|peer| peer == flow.remote);
        let mut places = State::places(flow.local).into_iter();
        let place = places.find(|place| self.sockets.get(place).is_some_and(hears))?;
        self.sockets.get_mut(&place)
    }
}

impl State {
    /// Binds a socket.
    pub fn bind(&mut self, at: SocketAddr) -> io::Result<SocketAddr> {
        self.check_local(at)?;
        let is_free = |state: &Self, port| {
            !state.datagrams.sockets.contains_key(&SocketAddr::new(at.ip(), port))
        };
        let port = if at.port() == 0 { self.draw_port(is_free)? } else { at.port() };
        if !is_free(self, port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let at = SocketAddr::new(at.ip(), port);
        self.datagrams.sockets.insert(at, Socket::default());
        Ok(at)
    }

    /// Has a socket speak with one peer only, and hear of its errors.
    pub fn connect_datagrams(&mut self, at: SocketAddr, to: SocketAddr) -> io::Result<()> {
        self.source_for(to.ip())?;
        let socket = self.datagrams.sockets.get_mut(&at).ok_or(io::ErrorKind::NotConnected)?;
        (socket.peer, socket.error) = (Some(to), None);
        Ok(())
    }

    /// Drops a socket, and what waits in it.
    pub fn unbind(&mut self, at: SocketAddr) {
        if let Some(socket) = self.datagrams.sockets.remove(&at) {
            self.budget.refund(socket.received.bytes + socket.to_send.bytes);
        }
    }

    /// Whom a socket is connected to.
    pub fn peer_of(&self, at: SocketAddr) -> Option<SocketAddr> {
        self.datagrams.sockets.get(&at)?.peer
    }

    /// Takes a datagram.
    pub fn handle_udp(&mut self, packet: &Packet<'_>) {
        let Some(header) = packet.transport.first_chunk::<{ udp::HEADER_LEN }>() else {
            self.counters.malformed += 1;
            return;
        };
        let payload = packet.payload(udp::HEADER_LEN);
        let len = usize::from(get_u16(header, udp::LENGTH))
            .saturating_sub(udp::HEADER_LEN)
            .min(payload.len());
        let local = SocketAddr::new(packet.destination, get_u16(header, udp::DESTINATION_PORT));
        let remote = SocketAddr::new(packet.source, get_u16(header, udp::SOURCE_PORT));
        let Some(socket) = self.datagrams.socket_at(Flow { local, remote }) else {
            self.counters.datagrams += 1;
            self.answer_unreachable(packet);
            return;
        };
        if !socket.received.has_room(len, &self.budget) {
            self.counters.datagrams += 1;
            return;
        }
        let mut bytes = vec![0; len];
        payload.each(0..len, |at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
        socket.received.push(remote, bytes, &self.budget);
        let mut readers = std::mem::take(&mut socket.readers);
        self.turns.wakers.append(&mut readers);
    }

    /// A router, or the peer, says something of a packet of `len` bytes that was sent. Who
    /// quotes none of ours is not believed (RFC 5927 section 4.1): of a datagram nothing
    /// else is known any more. Only a connected socket is told: another could not tell
    /// which peer it concerns, and would believe any host's word about every path.
    pub fn handle_udp_error(&mut self, flow: Flow, len: usize, error: PathError, now: Time) {
        let Some(socket) = self.datagrams.socket_at(flow).filter(|socket| socket.peer.is_some())
        else {
            return;
        };
        let kind = match error {
            PathError::Refused => io::ErrorKind::ConnectionRefused,
            PathError::Unreachable => io::ErrorKind::HostUnreachable,
            PathError::TooBig(mtu) => {
                let mtu = mtu as usize;
                if mtu < len {
                    self.paths.lower(flow.remote.ip(), mtu, now);
                }
                return;
            }
        };
        socket.error = Some(kind);
        let mut readers = std::mem::take(&mut socket.readers);
        self.turns.wakers.append(&mut readers);
    }

    /// Queues a datagram.
    pub fn poll_send_to(
        &mut self,
        at: SocketAddr,
        (bytes, to): (&[u8], SocketAddr),
        now: Time,
        context: &Context<'_>,
    ) -> Polled<()> {
        let own = usize::from(self.mtu);
        let mtu = self.paths.mtu(to.ip(), now).unwrap_or(own).min(own);
        if bytes.len() > mtu - ip::header_len(to.ip()) - udp::HEADER_LEN {
            // It is EMSGSIZE elsewhere.
            let why = if mtu < own { "longer than the path" } else { "longer than the MTU" };
            let error = io::Error::new(io::ErrorKind::InvalidInput, format!("{why} allows"));
            return Polled::Ready(Err(error));
        }
        if let Err(error) = self.source_for(to.ip()) {
            return Polled::Ready(Err(error));
        }
        let Some(socket) = self.datagrams.sockets.get_mut(&at) else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Some(error) = socket.error.take() {
            return Polled::Ready(Err(error.into()));
        }
        if !socket.to_send.has_room(bytes.len(), &self.budget) {
            note_waiting(&mut socket.writers, context);
            return Polled::Pending;
        }
        if socket.to_send.datagrams.is_empty() {
            self.datagrams.ready.push_back(at);
        }
        socket.to_send.push(to, bytes.to_vec(), &self.budget);
        Polled::Ready(Ok(()))
    }

    /// The next datagram that came, as far as `to` holds it.
    pub fn poll_recv_from(
        &mut self,
        at: SocketAddr,
        to: &mut [u8],
        context: &Context<'_>,
    ) -> Polled<(usize, SocketAddr)> {
        let gone = self.gone;
        let Some(socket) = self.datagrams.sockets.get_mut(&at) else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some((from, bytes)) = socket.received.pop(&self.budget) else {
            if let Some(error) = socket.error.take() {
                return Polled::Ready(Err(error.into()));
            }
            if gone {
                return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            note_waiting(&mut socket.readers, context);
            return Polled::Pending;
        };
        let len = bytes.len().min(to.len());
        to[..len].copy_from_slice(&bytes[..len]);
        Polled::Ready(Ok((len, from)))
    }

    /// Writes the next datagram of a socket whose turn it is, an IP packet, to `to`.
    pub fn poll_datagram(&mut self, to: &mut [u8]) -> Option<(usize, Offload)> {
        let at = self.datagrams.ready.pop_front()?;
        let socket = self.datagrams.sockets.get_mut(&at)?;
        let (dest, bytes) = socket.to_send.pop(&self.budget)?;
        self.turns.wakers.append(&mut socket.writers);
        if !socket.to_send.datagrams.is_empty() {
            self.datagrams.ready.push_back(at);
        }
        let source =
            if at.ip().is_unspecified() { self.source_for(dest.ip()) } else { Ok(at.ip()) };
        let source = source.ok().filter(|source| source.is_ipv4() == dest.is_ipv4())?;
        let addresses = (source, dest.ip());
        let start = ip::header_len(dest.ip());
        let len = udp::HEADER_LEN + bytes.len();
        ip::write_header(to, addresses, ip::UDP, len);
        let header = &mut to[start..start + udp::HEADER_LEN];
        put_u16(header, udp::SOURCE_PORT, at.port());
        put_u16(header, udp::DESTINATION_PORT, dest.port());
        put_u16(header, udp::LENGTH, len as u16);
        let sum = ip::pseudo_sum(addresses, ip::UDP, len);
        put_u16(header, udp::CHECKSUM, sum);
        to[start + udp::HEADER_LEN..start + len].copy_from_slice(&bytes);
        let checksum = ChecksumAt { start: start as u16, offset: udp::CHECKSUM.start as u16 };
        Some((start + len, Offload::Checksum(checksum)))
    }

    pub fn abandon_datagrams(&mut self) {
        for socket in self.datagrams.sockets.values_mut() {
            self.turns.wakers.append(&mut socket.readers);
            self.turns.wakers.append(&mut socket.writers);
        }
    }
}
