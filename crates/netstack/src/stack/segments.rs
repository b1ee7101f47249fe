//! TCP: connections by their flow, and listeners.

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

use super::{Polled, note_waiting, state::State};
use crate::{
    ip::{self, Packet},
    tcp::{
        self, Connection, Failure, HANDSHAKE, Header, Ports, Segment, Seq, Settings, Verdict, flags,
    },
    time::Time,
};

/// Connections that are asked for or not accepted yet, at most, of one listener.
pub(super) const BACKLOG: usize = 1024;
/// Bytes that one direction of a connection may hold: what 16 Gbit/s need at 8 ms, and
/// 1.3 Gbit/s at 100 ms.
const MAX_BUFFER: usize = 16 << 20;

/// A connection's two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

pub(crate) struct TcpSocket {
    pub tcp: Connection,
    pub flow: Flow,
    /// Whether it stands in line to send.
    pub queued: bool,
    /// When it will be looked at.
    pub scheduled: Option<Time>,
    /// Whether a stream of the application is its.
    pub owned: bool,
    /// Whether it ends by a reset when the application drops it.
    pub resets: bool,
    /// Its number among those in TIME-WAIT.
    pub waits: Option<u64>,
    /// Its number among those that nobody owns any more.
    pub orphan: Option<u64>,
    /// The listener that has not handed it out yet.
    listener: Option<SocketAddr>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Who waits for connections.
#[derive(Default)]
pub(crate) struct Listener {
    /// Connections that are asked for, the oldest first.
    asked: VecDeque<usize>,
    /// Those that are established and that nobody accepted yet.
    established: VecDeque<usize>,
    acceptors: Vec<Waker>,
}

impl TcpSocket {
    /// What is left for TCP of a packet of `most` bytes.
    pub fn room(&self, most: usize) -> usize {
        most - ip::header_len(self.flow.remote.ip())
    }

    /// Collects the tasks to wake.
    pub fn wake(&mut self, wakers: &mut Vec<Waker>) {
        if self.reader.is_some() && (self.tcp.readable() > 0 || self.tcp.is_at_end()) {
            wakers.extend(self.reader.take());
        }
        if self.writer.is_some() && self.tcp.is_worth_writing() {
            wakers.extend(self.writer.take());
        }
    }
}

impl State {
    /// Asks for a connection.
    pub fn dial(&mut self, to: SocketAddr, now: Time) -> io::Result<usize> {
        let source = self.source_for(to.ip())?;
        if !self.budget.has_room_for(tcp::BUFFERS) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let flow = |port| Flow { local: (source, port).into(), remote: to };
        let port = self.draw_port(|state, port| {
            let listens = state.listener_at((source, port).into()).is_some();
            !listens && !state.flows.contains_key(&flow(port))
        })?;
        let flow = flow(port);
        let settings = self.settings(flow, now);
        let tcp = Connection::connect(settings, ports(flow), now);
        let id = self.insert(tcp, flow, None);
        self.sockets[id].owned = true;
        self.touch(id);
        Ok(id)
    }

    /// Listens.
    pub fn listen(&mut self, at: SocketAddr) -> io::Result<SocketAddr> {
        self.check_local(at)?;
        let is_free =
            |state: &Self, port| !state.listeners.contains_key(&SocketAddr::new(at.ip(), port));
        let port = if at.port() == 0 { self.draw_port(is_free)? } else { at.port() };
        if !is_free(self, port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let at = SocketAddr::new(at.ip(), port);
        self.listeners.insert(at, Listener::default());
        Ok(at)
    }

    /// Ends listening: what was not accepted is reset.
    pub fn stop_listening(&mut self, at: SocketAddr) {
        self.listeners.remove(&at);
        let of_it = self.sockets.iter().filter(|(_, socket)| socket.listener == Some(at));
        let waiting: Vec<usize> = of_it.map(|(id, _)| id).collect();
        for id in waiting {
            self.sockets[id].listener = None;
            self.sockets[id].tcp.abort();
            self.touch(id);
        }
    }

    /// The next connection of a listener.
    pub fn poll_accept(&mut self, at: SocketAddr, context: &Context<'_>) -> Polled<usize> {
        let Some(listener) = self.listeners.get_mut(&at).filter(|_| !self.gone) else {
            return Polled::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let Some(id) = listener.established.pop_front() else {
            note_waiting(&mut listener.acceptors, context);
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
        // RFC 6528: a clock of 4 microseconds and what only we know of the flow.
        let clock = (now.as_nanos() / 4000) as u32;
        Settings {
            mss: self.mss(flow.remote.ip()),
            receive_buffer: MAX_BUFFER,
            send_buffer: MAX_BUFFER,
            budget: self.budget.clone(),
            control: self.control,
            initial: Seq(self.keyed(&("sequence", flow)) as u32) + clock,
            timestamp_offset: self.keyed(&("timestamp", flow)) as u32,
        }
    }

    /// Takes a segment.
    pub fn handle_tcp(&mut self, packet: &Packet<'_>, now: Time) {
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
            let makes_way = self.sockets[id].tcp.makes_way(&segment.header);
            if !makes_way || self.listener_at(flow.local).is_none() {
                let verdict = self.sockets[id].tcp.handle_segment(now, &segment);
                self.touch(id);
                if verdict == Verdict::Stray {
                    self.reset(flow, &segment);
                }
                return;
            }
            // Its owner may still hold it.
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

    /// Who listens at an address of ours.
    fn listener_at(&self, local: SocketAddr) -> Option<SocketAddr> {
        Self::places(local).into_iter().find(|place| self.listeners.contains_key(place))
    }

    fn handle_syn(&mut self, at: SocketAddr, flow: Flow, syn: &Header, now: Time) {
        let settings = self.settings(flow, now);
        let Some(listener) = self.listeners.get_mut(&at) else { return };
        let is_full = listener.asked.len() + listener.established.len() >= BACKLOG
            || !self.budget.has_room_for(tcp::BUFFERS);
        let oldest = if is_full { listener.asked.pop_front() } else { None };
        self.counters.backlog_full += u64::from(is_full);
        if let Some(oldest) = oldest {
            // A SYN alone must not keep others out; a real client sends it again.
            self.remove(oldest);
        } else if is_full {
            return;
        }
        let tcp = Connection::accept(settings, ports(flow), syn, now);
        let id = self.insert(tcp, flow, Some(at));
        if let Some(listener) = self.listeners.get_mut(&at) {
            listener.asked.push_back(id);
        }
        self.touch(id);
    }

    /// Answers a segment of no connection (RFC 9293 section 3.5.2).
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
        self.answer(bytes, offload);
    }

    /// After a socket changed: tells its listener, and removes it if it is closed and no
    /// handle to it is left.
    pub fn settle(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if let Some(at) = socket.listener
            && let Some(listener) = self.listeners.get_mut(&at)
        {
            let known = listener.established.contains(&id);
            if socket.tcp.is_over() {
                listener.asked.retain(|other| *other != id);
                listener.established.retain(|other| *other != id);
            } else if socket.tcp.is_connected() && !known {
                listener.asked.retain(|other| *other != id);
                listener.established.push_back(id);
                self.turns.wakers.append(&mut listener.acceptors);
            }
        }
        if socket.tcp.is_over() && !socket.owned {
            self.remove(id);
        }
    }

    /// Forgets a socket.
    pub fn remove(&mut self, id: usize) {
        let socket = self.sockets.remove(id);
        self.orphans.remove(socket.orphan);
        self.time_waits.remove(socket.waits);
        if self.flows.get(&socket.flow) == Some(&id) {
            self.flows.remove(&socket.flow);
        }
    }

    /// Writes what is next of a socket, an IP packet, to `to`.
    pub fn poll_socket(&mut self, id: usize, now: Time, to: &mut [u8]) -> Option<(usize, Offload)> {
        let (mtu, most) = (usize::from(self.mtu), self.most());
        let socket = self.sockets.get_mut(id)?;
        let flow = socket.flow;
        let start = ip::header_len(flow.remote.ip());
        let outgoing = socket.tcp.poll_transmit(
            now,
            &mut to[start..usize::from(u16::MAX)],
            socket.room(most),
        )?;
        let len = start + outgoing.header + outgoing.payload;
        // Neither the peer nor the tunnel takes more, whoever is wrong.
        let limit = (socket.tcp.segment_limit() as usize + 20).min(mtu - start) - outgoing.header;
        debug_assert!(outgoing.segment <= limit, "a segment above the peer's MSS");
        let segment = outgoing.segment.min(limit);
        let parts = (outgoing.header, outgoing.payload);
        Some((len, finish(&mut to[..len], flow, parts, segment)))
    }

    /// A router says something of a segment that we sent.
    pub fn handle_tcp_error(&mut self, flow: Flow, seq: Seq, error: PathError) {
        let Some(id) = self.flows.get(&flow).copied() else { return };
        let socket = &mut self.sockets[id];
        if !socket.tcp.is_flying(seq) {
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
        self.touch(id);
    }

    /// Calls `then` with a stream's connection, and looks at it afterwards.
    pub fn with<T>(&mut self, id: usize, then: impl FnOnce(&mut TcpSocket) -> T) -> T {
        let result = then(&mut self.sockets[id]);
        self.touch(id);
        result
    }

    /// The application dropped its stream.
    pub fn disown(&mut self, id: usize, now: Time) {
        let socket = &mut self.sockets[id];
        (socket.owned, socket.reader, socket.writer) = (false, None, None);
        if socket.resets {
            socket.tcp.abort();
        } else {
            socket.tcp.close(now);
        }
        self.note_orphan(id);
        self.touch(id);
    }

    /// Nothing will come any more, and nothing be sent but, where the peers are to be
    /// told, resets.
    pub fn abandon(&mut self, tell: bool) {
        self.gone = true;
        let ids: Vec<usize> = self.sockets.iter().map(|(id, _)| id).collect();
        for id in ids {
            let socket = &mut self.sockets[id];
            // A reset would take from the peer what it has and did not read yet.
            let is_done = !socket.owned && socket.tcp.state() == tcp::State::FinWait2;
            // What has failed already has told why, once.
            let is_closed = socket.tcp.state() == tcp::State::Closed;
            if tell && !is_done {
                socket.tcp.abort();
            }
            if !is_closed {
                socket.tcp.fail(Failure::Reset);
            }
            self.turns.wakers.extend(socket.reader.take());
            self.turns.wakers.extend(socket.writer.take());
            self.touch(id);
        }
        for listener in self.listeners.values_mut() {
            self.turns.wakers.append(&mut listener.acceptors);
        }
        self.abandon_datagrams();
        self.abandon_pings();
        if !tell {
            self.turns.ready.clear();
            self.turns.answers.clear();
            self.datagrams.ready.clear();
        }
    }
}

impl TcpSocket {
    /// Waits until something can be read, or never will be.
    pub fn wait_readable(&mut self, context: &Context<'_>) {
        keep(&mut self.reader, context);
    }

    /// Waits until something can be written, or never will be.
    pub fn wait_writable(&mut self, context: &Context<'_>) {
        keep(&mut self.writer, context);
    }
}

/// What a router may say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// It is longer than the path allows: so many bytes.
    TooBig(u32),
    /// Nobody is there.
    Refused,
    /// There is no way.
    Unreachable,
}

fn keep(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}

fn ports(flow: Flow) -> Ports {
    Ports { local: flow.local.port(), remote: flow.remote.port() }
}

/// Writes the IP header and the pseudo-header's sum of a packet that is TCP already;
/// what is left to do to it.
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
