//! UDP sockets, with a queue for each direction.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Waker},
};

use packet::{
    ChecksumAt, Offload, checksum,
    wire::{get_u16, put_u16, udp},
};

use super::{
    Polled, add_waker,
    segments::{Flow, PathError},
    state::State,
};
use crate::{
    budget::Budget,
    ip::{self, Packet},
    time::Time,
};

/// Capacity of a socket's queue in one direction, in bytes, as Linux' `rmem_default`. Received
/// datagrams beyond it are dropped, and senders wait.
const QUEUE: usize = 208 * 1024;
/// Recent destinations of an unconnected socket for which ICMP errors are accepted, each of 32
/// bytes.
const RECENT: usize = 64;
/// Overhead of a datagram, in bytes.
const OVERHEAD: usize = 128;

#[derive(Default)]
pub(crate) struct Datagrams {
    sockets: HashMap<SocketAddr, Socket>,
    /// Sockets with something to send.
    pub ready: VecDeque<SocketAddr>,
}

#[derive(Default)]
struct Socket {
    received: Queue,
    to_send: Queue,
    /// The connected peer.
    peer: Option<SocketAddr>,
    /// An ICMP error to a datagram for that peer that was not reported yet.
    error: Option<io::ErrorKind>,
    readers: Vec<Waker>,
    writers: Vec<Waker>,
    /// The last destinations of an unconnected socket.
    recent: VecDeque<SocketAddr>,
    /// The progress of the next datagram, if it is sent in fragments.
    fragmentation: Option<Fragmentation>,
}

/// A datagram that is sent in fragments.
#[derive(Clone, Copy, Debug)]
struct Fragmentation {
    source: IpAddr,
    id: u32,
    /// Data bytes of each fragment except the last.
    room: usize,
    /// Bytes that were sent, including the UDP header.
    sent: usize,
}

impl Fragmentation {
    /// Writes the next fragment of a datagram with this payload. Returns its length, and whether it
    /// is the last.
    fn write(&self, (from, dest): (u16, SocketAddr), bytes: &[u8], to: &mut [u8]) -> (usize, bool) {
        let addresses = (self.source, dest.ip());
        let whole = udp::HEADER_LEN + bytes.len();
        let len = self.room.min(whole - self.sent);
        let is_last = self.sent + len == whole;
        let position = (self.sent, len, is_last);
        let start = ip::write_fragment_header(to, addresses, (ip::UDP, self.id), position);
        let data = &mut to[start..start + len];
        if self.sent > 0 {
            let behind = self.sent - udp::HEADER_LEN;
            data.copy_from_slice(&bytes[behind..behind + len]);
            return (start + len, is_last);
        }
        let (header, data) = data.split_at_mut(udp::HEADER_LEN);
        data.copy_from_slice(&bytes[..data.len()]);
        write_udp(header, (from, dest.port()), whole, 0);
        let sum = ip::pseudo_sum(addresses, ip::UDP, whole);
        let sum = checksum::add(sum, checksum::sum(header));
        let sum = !checksum::add(sum, checksum::sum(bytes));
        // A zero would mean a datagram without a checksum (RFC 768).
        put_u16(header, udp::CHECKSUM, if sum == 0 { 0xffff } else { sum });
        (start + len, is_last)
    }
}

/// Datagrams with the address of their sender or receiver.
#[derive(Default)]
struct Queue {
    datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    bytes: usize,
}

impl Queue {
    /// An empty queue always accepts one datagram.
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

impl Socket {
    /// Records the destination of a datagram.
    fn note_destination(&mut self, to: SocketAddr) {
        if self.peer.is_some() || self.recent.contains(&to) {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(to);
    }

    /// Whether the socket may have sent the quoted datagram to this destination.
    fn may_have_sent_to(&self, to: SocketAddr) -> bool {
        self.peer.is_some() || self.recent.contains(&to)
    }
}

impl Datagrams {
    /// The socket that receives datagrams of a flow.
    fn socket_at(&mut self, flow: Flow) -> Option<&mut Socket> {
        let accepts = |socket: &Socket| socket.peer.is_none_or(|peer| peer == flow.remote);
        let mut addresses = State::bound_addresses(flow.local).into_iter();
        let address = addresses.find(|address| self.sockets.get(address).is_some_and(accepts))?;
        self.sockets.get_mut(&address)
    }
}

impl State {
    /// Binds a socket.
    pub(crate) fn bind(&mut self, at: SocketAddr) -> io::Result<SocketAddr> {
        self.check_local(at)?;
        let is_free = |state: &Self, port| {
            !state.datagrams.sockets.contains_key(&SocketAddr::new(at.ip(), port))
        };
        let port = if at.port() == 0 { self.choose_port(is_free)? } else { at.port() };
        if !is_free(self, port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let at = SocketAddr::new(at.ip(), port);
        self.datagrams.sockets.insert(at, Socket::default());
        Ok(at)
    }

    /// Connects a socket to one peer.
    pub(crate) fn connect_datagrams(&mut self, at: SocketAddr, to: SocketAddr) -> io::Result<()> {
        self.source_for(to.ip())?;
        let socket = self.datagrams.sockets.get_mut(&at).ok_or(io::ErrorKind::NotConnected)?;
        (socket.peer, socket.error) = (Some(to), None);
        Ok(())
    }

    /// Removes a socket and its queues.
    pub(crate) fn unbind(&mut self, at: SocketAddr) {
        if let Some(socket) = self.datagrams.sockets.remove(&at) {
            self.budget.refund(socket.received.bytes + socket.to_send.bytes);
        }
    }

    /// The peer that a socket is connected to.
    pub(crate) fn peer_of(&self, at: SocketAddr) -> Option<SocketAddr> {
        self.datagrams.sockets.get(&at)?.peer
    }

    /// Handles a received datagram.
    pub(crate) fn handle_udp(&mut self, packet: &Packet<'_>) {
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
        self.schedule.wakers.append(&mut readers);
    }

    /// Handles an ICMP error to a packet of `len` bytes. Errors that do not quote a datagram of a
    /// socket are ignored (RFC 5927 section 4.1); a datagram has no sequence number that could be
    /// checked. Only a connected socket gets the error, because others could not tell which peer it
    /// concerns. A path MTU is lowered for any recent destination.
    pub(crate) fn handle_udp_error(&mut self, flow: Flow, len: usize, error: PathError, now: Time) {
        let socket = self.datagrams.socket_at(flow);
        let Some(socket) = socket.filter(|socket| socket.may_have_sent_to(flow.remote)) else {
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
        if socket.peer.is_none() {
            return;
        }
        socket.error = Some(kind);
        let mut readers = std::mem::take(&mut socket.readers);
        self.schedule.wakers.append(&mut readers);
    }

    /// Queues a datagram.
    pub(crate) fn poll_send_to(
        &mut self,
        at: SocketAddr,
        (bytes, to): (&[u8], SocketAddr),
        context: &Context<'_>,
    ) -> Polled<()> {
        if bytes.len() > ip::max_payload_len(to.ip()) - udp::HEADER_LEN {
            // The kernel returns EMSGSIZE.
            let why = "the datagram exceeds the longest length";
            return Polled::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, why)));
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
            add_waker(&mut socket.writers, context);
            return Polled::Pending;
        }
        if socket.to_send.datagrams.is_empty() {
            self.datagrams.ready.push_back(at);
        }
        socket.to_send.push(to, bytes.to_vec(), &self.budget);
        Polled::Ready(Ok(()))
    }

    /// Returns the next received datagram, truncated to `to`.
    pub(crate) fn poll_recv_from(
        &mut self,
        at: SocketAddr,
        to: &mut [u8],
        context: &Context<'_>,
    ) -> Polled<(usize, SocketAddr)> {
        let closed = self.closed;
        let Some(socket) = self.datagrams.sockets.get_mut(&at) else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some((from, bytes)) = socket.received.pop(&self.budget) else {
            if let Some(error) = socket.error.take() {
                return Polled::Ready(Err(error.into()));
            }
            if closed {
                return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            add_waker(&mut socket.readers, context);
            return Polled::Pending;
        };
        let len = bytes.len().min(to.len());
        to[..len].copy_from_slice(&bytes[..len]);
        Polled::Ready(Ok((len, from)))
    }

    /// Writes the next datagram of the next ready socket to `to`, as an IP packet. A datagram that
    /// is longer than the path allows is sent in fragments, one per call.
    pub(crate) fn poll_datagram(&mut self, to: &mut [u8], now: Time) -> Option<(usize, Offload)> {
        let at = self.datagrams.ready.pop_front()?;
        let socket = self.datagrams.sockets.get_mut(&at)?;
        if let Some(fragmentation) = socket.fragmentation {
            return self.write_fragment(at, fragmentation, to);
        }
        let (dest, bytes) = socket.to_send.datagrams.front()?;
        let (dest, len) = (*dest, udp::HEADER_LEN + bytes.len());
        socket.note_destination(dest);
        let start = ip::header_len(dest.ip());
        let own = self.local.mtu();
        let mtu = self.paths.mtu(dest.ip(), now).map_or(own, |mtu| mtu.min(own));
        if start + len > mtu {
            return self.start_fragmentation(at, dest, mtu, to);
        }
        let (_, bytes) = self.take_datagram(at)?;
        let addresses = (self.source_from(at, dest)?, dest.ip());
        ip::write_header(to, addresses, ip::UDP, len);
        let sum = ip::pseudo_sum(addresses, ip::UDP, len);
        write_udp(&mut to[start..], (at.port(), dest.port()), len, sum);
        to[start + udp::HEADER_LEN..start + len].copy_from_slice(&bytes);
        let checksum = ChecksumAt { start: start as u16, offset: udp::CHECKSUM.start as u16 };
        Some((start + len, Offload::Checksum(checksum)))
    }

    /// The address from which a socket sends.
    fn source_from(&self, at: SocketAddr, dest: SocketAddr) -> Option<IpAddr> {
        let source =
            if at.ip().is_unspecified() { self.source_for(dest.ip()) } else { Ok(at.ip()) };
        source.ok().filter(|source| source.is_ipv4() == dest.is_ipv4())
    }

    /// Writes the first fragment of a socket's next datagram.
    fn start_fragmentation(
        &mut self,
        at: SocketAddr,
        dest: SocketAddr,
        mtu: usize,
        to: &mut [u8],
    ) -> Option<(usize, Offload)> {
        let Some(source) = self.source_from(at, dest) else {
            self.take_datagram(at);
            return None;
        };
        let id = self.secret.next_fragment_id((source, dest.ip()));
        let room = ip::fragment_data_len(dest.ip(), mtu);
        self.write_fragment(at, Fragmentation { source, id, room, sent: 0 }, to)
    }

    /// Writes the next fragment of a socket's next datagram. All fragments of a datagram are sent
    /// consecutively.
    fn write_fragment(
        &mut self,
        at: SocketAddr,
        fragmentation: Fragmentation,
        to: &mut [u8],
    ) -> Option<(usize, Offload)> {
        let socket = self.datagrams.sockets.get_mut(&at)?;
        let (dest, bytes) = socket.to_send.datagrams.front()?;
        let (len, is_last) = fragmentation.write((at.port(), *dest), bytes, to);
        if is_last {
            self.take_datagram(at);
        } else {
            socket.fragmentation = Some(Fragmentation {
                sent: fragmentation.sent + fragmentation.room,
                ..fragmentation
            });
            self.datagrams.ready.push_front(at);
        }
        Some((len, Offload::None))
    }

    /// Removes a socket's next datagram from the queue, after it was sent or failed.
    fn take_datagram(&mut self, at: SocketAddr) -> Option<(SocketAddr, Vec<u8>)> {
        let Datagrams { sockets, ready } = &mut self.datagrams;
        let socket = sockets.get_mut(&at)?;
        socket.fragmentation = None;
        let taken = socket.to_send.pop(&self.budget);
        self.schedule.wakers.append(&mut socket.writers);
        if !socket.to_send.datagrams.is_empty() {
            ready.push_back(at);
        }
        taken
    }

    pub(crate) fn wake_datagram_tasks(&mut self) {
        for socket in self.datagrams.sockets.values_mut() {
            self.schedule.wakers.append(&mut socket.readers);
            self.schedule.wakers.append(&mut socket.writers);
        }
    }
}

/// Writes a UDP header. `sum` goes to the checksum field.
fn write_udp(to: &mut [u8], (from, dest): (u16, u16), len: usize, sum: u16) {
    let header = &mut to[..udp::HEADER_LEN];
    put_u16(header, udp::SOURCE_PORT, from);
    put_u16(header, udp::DESTINATION_PORT, dest);
    put_u16(header, udp::LENGTH, len as u16);
    put_u16(header, udp::CHECKSUM, sum);
}
