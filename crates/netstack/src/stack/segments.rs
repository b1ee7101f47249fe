//! TCP connections by their flow, and listeners.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    task::{Context, Waker},
};

use packet::{
    ChecksumAt, Offload,
    wire::{self, put_u16},
};

use super::{Polled, add_waker, state::State};
use crate::{
    ip::{self, Packet},
    tcp::{
        self, Connection, Failure, HANDSHAKE, Header, Ports, Segment, Seq, Settings, Verdict, flags,
    },
    time::Time,
};

/// The most connections of a listener that are not accepted yet.
pub(super) const BACKLOG: usize = 1024;
/// Capacity of one direction of a connection, in bytes: for 16 Gbit/s at 8 ms, or 1.3 Gbit/s at 100
/// ms.
const MAX_BUFFER: usize = 16 << 20;

/// The two addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

pub(crate) struct TcpSocket {
    pub tcp: Connection,
    pub flow: Flow,
    /// Whether it is in the queue of ready sockets.
    pub queued: bool,
    /// Time of its next timer.
    pub scheduled: Option<Time>,
    /// Whether the application has a stream for it.
    pub owned: bool,
    /// Whether it is reset when the application drops it.
    pub resets: bool,
    /// Its number in the queue of connections in TIME-WAIT.
    pub waits: Option<u64>,
    /// Its number in the queue of orphans.
    pub orphan: Option<u64>,
    /// The listener that has not returned it yet.
    listener: Option<SocketAddr>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// A listening socket.
#[derive(Default)]
pub(crate) struct Listener {
    /// Connections in the handshake, the oldest first.
    pending: VecDeque<usize>,
    /// Established connections that were not accepted yet.
    established: VecDeque<usize>,
    acceptors: Vec<Waker>,
}

impl TcpSocket {
    /// Space for a TCP segment in a packet of `most` bytes.
    pub(crate) fn room(&self, most: usize) -> usize {
        most - ip::header_len(self.flow.remote.ip())
    }

    /// Collects the tasks to wake.
    pub(crate) fn wake(&mut self, wakers: &mut Vec<Waker>) {
        if self.reader.is_some() && (self.tcp.readable() > 0 || self.tcp.is_at_end()) {
            wakers.extend(self.reader.take());
        }
        if self.writer.is_some() && self.tcp.is_worth_writing() {
            wakers.extend(self.writer.take());
        }
    }
}

impl State {
    /// Opens a connection.
    pub(crate) fn dial(&mut self, to: SocketAddr, now: Time) -> io::Result<usize> {
        let source = self.source_for(to.ip())?;
        if !self.budget.has_room_for(tcp::BUFFERS) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let flow = |port| Flow { local: (source, port).into(), remote: to };
        let port = self.choose_port(|state, port| {
            let listens = state.listener_at((source, port).into()).is_some();
            !listens && !state.flows.contains_key(&flow(port))
        })?;
        let flow = flow(port);
        let settings = self.settings(flow, now);
        let tcp = Connection::connect(settings, ports(flow), now);
        let id = self.insert(tcp, flow, None);
        self.sockets[id].owned = true;
        self.update(id);
        Ok(id)
    }

    /// Starts to listen.
    pub(crate) fn listen(&mut self, at: SocketAddr) -> io::Result<SocketAddr> {
        self.check_local(at)?;
        let is_free =
            |state: &Self, port| !state.listeners.contains_key(&SocketAddr::new(at.ip(), port));
        let port = if at.port() == 0 { self.choose_port(is_free)? } else { at.port() };
        if !is_free(self, port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let at = SocketAddr::new(at.ip(), port);
        self.listeners.insert(at, Listener::default());
        Ok(at)
    }

    /// Stops listening, and resets connections that were not accepted.
    pub(crate) fn stop_listening(&mut self, at: SocketAddr) {
        self.listeners.remove(&at);
        let of_it = self.sockets.iter().filter(|(_, socket)| socket.listener == Some(at));
        let waiting: Vec<usize> = of_it.map(|(id, _)| id).collect();
        for id in waiting {
            self.sockets[id].listener = None;
            self.sockets[id].tcp.abort();
            self.update(id);
        }
    }

    /// Returns the next connection of a listener.
    pub(crate) fn poll_accept(&mut self, at: SocketAddr, context: &Context<'_>) -> Polled<usize> {
        let Some(listener) = self.listeners.get_mut(&at).filter(|_| !self.closed) else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some(id) = listener.established.pop_front() else {
            add_waker(&mut listener.acceptors, context);
            return Polled::Pending;
        };
        let socket = &mut self.sockets[id];
        socket.listener = None;
        socket.owned = true;
        Polled::Ready(Ok(id))
    }

    fn insert(&mut self, tcp: Connection, flow: Flow, listener: Option<SocketAddr>) -> usize {
        let id = self.sockets.insert(TcpSocket {
            tcp,
            flow,
            queued: false,
            scheduled: None,
            owned: false,
            resets: false,
            waits: None,
            orphan: None,
            listener,
            reader: None,
            writer: None,
        });
        self.flows.insert(flow, id);
        id
    }

    fn settings(&self, flow: Flow, now: Time) -> Settings {
        // RFC 6528: a clock with a period of 4 microseconds, and a keyed hash of the flow.
        let clock = (now.as_nanos() / 4000) as u32;
        Settings {
            mss: self.local.mss(flow.remote.ip()),
            receive_buffer: MAX_BUFFER,
            send_buffer: MAX_BUFFER,
            budget: self.budget.clone(),
            control: self.control,
            initial: Seq(self.secret.hash(&("sequence", flow)) as u32) + clock,
            timestamp_offset: self.secret.hash(&("timestamp", flow)) as u32,
        }
    }

    /// Handles a received segment.
    pub(crate) fn handle_tcp(&mut self, packet: &Packet<'_>, now: Time) {
        let Some((header, len)) = Header::parse(packet.transport) else {
            self.counters.malformed += 1;
            return;
        };
        let flow = Flow {
            local: (packet.destination, header.destination).into(),
            remote: (packet.source, header.source).into(),
        };
        let segment = Segment { header, payload: packet.payload(len) };
        if let Some(id) = self.flows.get(&flow).copied() {
            let can_be_replaced = self.sockets[id].tcp.can_be_replaced(&segment.header);
            if !can_be_replaced || self.listener_at(flow.local).is_none() {
                let verdict = self.sockets[id].tcp.handle_segment(now, &segment);
                self.update(id);
                if verdict == Verdict::Stray {
                    self.reset(flow, &segment);
                }
                return;
            }
            // The application may still have a stream for it.
            self.flows.remove(&flow);
            if !self.sockets[id].owned {
                self.remove(id);
            }
        }
        match self.listener_at(flow.local) {
            Some(at) if segment.header.flags & HANDSHAKE == flags::SYN => {
                self.handle_syn(at, flow, &segment.header, now);
            }
            _ => self.reset(flow, &segment),
        }
    }

    /// The listener for a local address.
    fn listener_at(&self, local: SocketAddr) -> Option<SocketAddr> {
        Self::bound_addresses(local)
            .into_iter()
            .find(|address| self.listeners.contains_key(address))
    }

    fn handle_syn(&mut self, at: SocketAddr, flow: Flow, syn: &Header, now: Time) {
        let settings = self.settings(flow, now);
        let Some(listener) = self.listeners.get_mut(&at) else { return };
        let is_full = listener.pending.len() + listener.established.len() >= BACKLOG
            || !self.budget.has_room_for(tcp::BUFFERS);
        let oldest = if is_full { listener.pending.pop_front() } else { None };
        self.counters.backlog_full += u64::from(is_full);
        if let Some(oldest) = oldest {
            // Clients with only a SYN must not keep others out. A real client repeats its SYN.
            self.remove(oldest);
        } else if is_full {
            return;
        }
        let tcp = Connection::accept(settings, ports(flow), syn, now);
        let id = self.insert(tcp, flow, Some(at));
        if let Some(listener) = self.listeners.get_mut(&at) {
            listener.pending.push_back(id);
        }
        self.update(id);
    }

    /// Answers a segment without a connection (RFC 9293 section 3.5.2).
    fn reset(&mut self, flow: Flow, segment: &Segment<'_>) {
        self.counters.stray += 1;
        let header = &segment.header;
        if header.has(flags::RST) {
            return;
        }
        let answers = header.has(flags::ACK);
        let reset = Header {
            source: flow.local.port(),
            destination: flow.remote.port(),
            seq: if answers { header.ack } else { Seq(0) },
            ack: if answers { Seq(0) } else { segment.end() },
            flags: if answers { flags::RST } else { flags::RST | flags::ACK },
            window: 0,
            options: Default::default(),
        };
        let start = ip::header_len(flow.remote.ip());
        let mut bytes = vec![0; start + reset.len()];
        reset.write(&mut bytes[start..]);
        let offload = finish(&mut bytes, flow, (reset.len(), 0), 1);
        self.queue_answer(bytes, offload);
    }

    /// Updates the listener after a change of a socket, and removes the socket if it is closed and
    /// has no stream.
    pub(crate) fn update_listener(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if let Some(at) = socket.listener
            && let Some(listener) = self.listeners.get_mut(&at)
        {
            let known = listener.established.contains(&id);
            if socket.tcp.is_over() {
                listener.pending.retain(|other| *other != id);
                listener.established.retain(|other| *other != id);
            } else if socket.tcp.is_connected() && !known {
                listener.pending.retain(|other| *other != id);
                listener.established.push_back(id);
                self.schedule.wakers.append(&mut listener.acceptors);
            }
        }
        if socket.tcp.is_over() && !socket.owned {
            self.remove(id);
        }
    }

    /// Removes a socket.
    pub(crate) fn remove(&mut self, id: usize) {
        let socket = self.sockets.remove(id);
        self.ending.orphans.remove(socket.orphan);
        self.ending.time_waits.remove(socket.waits);
        if self.flows.get(&socket.flow) == Some(&id) {
            self.flows.remove(&socket.flow);
        }
    }

    /// Writes the next packet of a socket to `to`.
    pub(crate) fn poll_socket(
        &mut self,
        id: usize,
        now: Time,
        to: &mut [u8],
    ) -> Option<(usize, Offload)> {
        let (mtu, most) = (self.local.mtu(), self.local.max_packet_len());
        let socket = self.sockets.get_mut(id)?;
        let flow = socket.flow;
        let start = ip::header_len(flow.remote.ip());
        let outgoing = socket.tcp.poll_transmit(
            now,
            &mut to[start..usize::from(u16::MAX)],
            socket.room(most),
        )?;
        let len = start + outgoing.header + outgoing.payload;
        // Never exceeds the limits of peer and tunnel, even after an error in this code.
        let limit = (socket.tcp.segment_limit() as usize + 20).min(mtu - start) - outgoing.header;
        debug_assert!(outgoing.segment <= limit, "a segment above the peer's MSS");
        let segment = outgoing.segment.min(limit);
        let parts = (outgoing.header, outgoing.payload);
        Some((len, finish(&mut to[..len], flow, parts, segment)))
    }

    /// Handles an ICMP error to a sent segment.
    pub(crate) fn handle_tcp_error(&mut self, flow: Flow, seq: Seq, error: PathError) {
        let Some(id) = self.flows.get(&flow).copied() else { return };
        let socket = &mut self.sockets[id];
        if !socket.tcp.is_in_flight(seq) {
            return;
        }
        match error {
            PathError::TooBig(mtu) => {
                let headers = ip::header_len(flow.remote.ip()) as u32 + 20;
                socket.tcp.lower_path(mtu.saturating_sub(headers));
            }
            PathError::Refused => socket.tcp.unreachable(true),
            PathError::Unreachable => socket.tcp.unreachable(false),
        }
        self.update(id);
    }

    /// Calls `then` with a socket, and updates it afterwards.
    pub(crate) fn with<T>(&mut self, id: usize, then: impl FnOnce(&mut TcpSocket) -> T) -> T {
        let result = then(&mut self.sockets[id]);
        self.update(id);
        result
    }

    /// Handles that the application dropped its stream.
    pub(crate) fn drop_stream(&mut self, id: usize, now: Time) {
        let socket = &mut self.sockets[id];
        (socket.owned, socket.reader, socket.writer) = (false, None, None);
        if socket.resets {
            socket.tcp.abort();
        } else {
            socket.tcp.close(now);
        }
        self.note_orphan(id);
        self.update(id);
    }

    /// Fails all connections and operations, and optionally sends resets to the peers. Nothing else
    /// is sent or received afterwards.
    pub(crate) fn shut_down(&mut self, tell: bool) {
        self.closed = true;
        let ids: Vec<usize> = self.sockets.iter().map(|(id, _)| id).collect();
        for id in ids {
            let socket = &mut self.sockets[id];
            // A reset would discard data that the peer has not read yet.
            let is_done = !socket.owned && socket.tcp.state() == tcp::State::FinWait2;
            // A closed connection has already reported its failure.
            let is_closed = socket.tcp.state() == tcp::State::Closed;
            if tell && !is_done {
                socket.tcp.abort();
            }
            if !is_closed {
                socket.tcp.fail(Failure::Reset);
            }
            self.schedule.wakers.extend(socket.reader.take());
            self.schedule.wakers.extend(socket.writer.take());
            self.update(id);
        }
        for listener in self.listeners.values_mut() {
            self.schedule.wakers.append(&mut listener.acceptors);
        }
        self.wake_datagram_tasks();
        self.wake_ping_tasks();
        if !tell {
            self.schedule.ready.clear();
            self.schedule.answers.clear();
            self.datagrams.ready.clear();
        }
    }
}

impl TcpSocket {
    /// Registers a task to be woken when data can be read or the stream has ended.
    pub(crate) fn wait_readable(&mut self, context: &Context<'_>) {
        store_waker(&mut self.reader, context);
    }

    /// Registers a task to be woken when data can be written or the stream has ended.
    pub(crate) fn wait_writable(&mut self, context: &Context<'_>) {
        store_waker(&mut self.writer, context);
    }
}

/// An ICMP error to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// The packet exceeds the path MTU, in bytes.
    TooBig(u32),
    /// The port is closed.
    Refused,
    /// The destination is unreachable.
    Unreachable,
}

fn store_waker(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

fn ports(flow: Flow) -> Ports {
    Ports { local: flow.local.port(), remote: flow.remote.port() }
}

/// Writes the IP header and the sum of the pseudo-header of a packet that contains a TCP segment.
/// Returns its offload.
fn finish(
    packet: &mut [u8],
    flow: Flow,
    (header, payload): (usize, usize),
    segment: usize,
) -> Offload {
    let addresses = (flow.local.ip(), flow.remote.ip());
    let start = packet.len() - header - payload;
    let len = header + payload;
    ip::write_header(packet, addresses, ip::TCP, len);
    let sum = ip::pseudo_sum(addresses, ip::TCP, len);
    put_u16(&mut packet[start..], wire::tcp::CHECKSUM, sum);
    let checksum = ChecksumAt { start: start as u16, offset: wire::tcp::CHECKSUM.start as u16 };
    if payload <= segment {
        return Offload::Checksum(checksum);
    }
    let protocol = match flow.remote {
        SocketAddr::V4(_) => packet::SegmentProtocol::Tcp4,
        SocketAddr::V6(_) => packet::SegmentProtocol::Tcp6,
    };
    Offload::Segment { protocol, size: segment as u16, checksum, tunnel: None }
}
