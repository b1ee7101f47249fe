//! What the stack knows, and whose turn it is.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    task::{Context, Poll, Waker},
};

use packet::{Offload, wire};
use slab::Slab;

use super::{
    config::{Config, CongestionControl, Counters, MIN_MTU},
    datagrams::Datagrams,
    echo::Pings,
    fragments::Fragments,
    line::Line,
    note_waiting,
    paths::Paths,
    segments::{Flow, Listener, TcpSocket},
};
use crate::{budget::Budget, ip, tcp, time::Time};

/// Bytes of answers that wait to be sent, at most: a flood gets fewer answers.
const ANSWERS: usize = 256 * 1024;
/// Connections in TIME-WAIT, at most: about 4 MiB. More end the oldest.
pub(super) const TIME_WAITS: usize = 4096;
/// Timers that are out of date are dropped when there are more than one of each connection
/// and so many.
const TIMERS_KEPT: usize = 64;
/// Connections at most that nobody owns and that are not over. More reset the oldest.
pub(super) const ORPHANS: usize = 4096;

pub(crate) struct State {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mtu: u16,
    /// Whether super-packets leave.
    pub(super) gso: bool,
    pub(super) control: CongestionControl,
    pub(super) secret: u128,
    pub(super) budget: Budget,
    pub(super) counters: Counters,
    pub(crate) sockets: Slab<TcpSocket>,
    pub(super) flows: HashMap<Flow, usize>,
    pub(super) listeners: HashMap<SocketAddr, Listener>,
    pub(super) datagrams: Datagrams,
    pub(super) pings: Pings,
    pub(super) paths: Paths,
    pub(super) fragments: Fragments,
    /// Counts packets that were sent in fragments.
    pub(super) cut: u32,
    pub(super) turns: Turns,
    /// Ports and numbers that were handed out.
    pub(super) drawn: u32,
    /// Connections in TIME-WAIT, the oldest first.
    pub(super) time_waits: Line,
    /// Connections whose application is gone and that are not over.
    pub(super) orphans: Line,
    /// Who waits for what those wrote to be through.
    pub(super) drainers: Vec<Waker>,
    /// Whether the engine's half is gone, or the stack closed.
    pub(super) gone: bool,
}

/// Who has something to do.
#[derive(Default)]
pub(super) struct Turns {
    /// Sockets that may have something to send.
    pub ready: VecDeque<usize>,
    /// When to look at a socket again; some of it is out of date.
    pub timers: BinaryHeap<Reverse<(Time, usize)>>,
    /// Packets that nobody in particular sends.
    pub answers: VecDeque<(Vec<u8>, Offload)>,
    answer_bytes: usize,
    /// Whom to wake when the state is released.
    pub wakers: Vec<Waker>,
    /// Until when the sending thread sleeps; `None` while it does not.
    pub sleeps: Option<Time>,
    /// Whether it is to return to the engine.
    pub woken: bool,
}

impl State {
    pub fn new(config: Config) -> Self {
        Self {
            addresses: config.addresses,
            mtu: config.mtu.max(MIN_MTU),
            gso: true,
            control: config.control,
            secret: config.secret,
            budget: Budget::new(config.memory),
            counters: Counters::default(),
            sockets: Slab::new(),
            flows: HashMap::new(),
            listeners: HashMap::new(),
            datagrams: Datagrams::default(),
            pings: Pings::default(),
            paths: Paths::default(),
            fragments: Fragments::default(),
            cut: 0,
            turns: Turns::default(),
            drawn: 0,
            time_waits: Line::default(),
            orphans: Line::default(),
            drainers: Vec::new(),
            gone: false,
        }
    }

    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu.max(MIN_MTU);
    }

    pub fn set_gso(&mut self, gso: bool) {
        self.gso = gso;
    }

    /// The longest packet that may leave, in bytes.
    pub fn most(&self) -> usize {
        usize::from(if self.gso { u16::MAX } else { self.mtu })
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn take_wakers(&mut self) -> Vec<Waker> {
        if !self.drainers.is_empty() && self.is_drained() {
            self.turns.wakers.append(&mut self.drainers);
        }
        mem::take(&mut self.turns.wakers)
    }

    /// Whether the peers have all that was written to connections that nobody owns.
    fn is_drained(&self) -> bool {
        // What is missing in these is the peer's half.
        let done = |id| matches!(self.sockets[id].tcp.state(), tcp::State::FinWait2);
        self.gone || self.orphans.iter().all(done)
    }

    /// Waits until it is so.
    pub fn poll_drained(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.is_drained() {
            return Poll::Ready(());
        }
        note_waiting(&mut self.drainers, context);
        Poll::Pending
    }

    /// Whether there is nothing that could leave now.
    pub fn has_nothing_to_send(&self) -> bool {
        let turns = &self.turns;
        turns.ready.is_empty() && turns.answers.is_empty() && self.datagrams.ready.is_empty()
    }

    /// When something is due next.
    pub fn due(&self) -> Option<Time> {
        let timer = self.turns.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(self.fragments.poll_timeout()).min()
    }

    /// Whether the sending thread sleeps though it has something to do.
    pub fn must_wake_sender(&mut self) -> bool {
        let Some(until) = self.turns.sleeps else { return false };
        let due = self.due().is_some_and(|due| due < until);
        let wakes = self.turns.woken || due || !self.has_nothing_to_send();
        if wakes {
            // Once is enough.
            self.turns.sleeps = None;
        }
        wakes
    }

    /// Updates a socket after an event: whether it has something to send, when to poll it
    /// again, which tasks to wake, and whether it is closed.
    pub fn touch(&mut self, id: usize) {
        let most = self.most();
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if !socket.queued && socket.tcp.wants_transmit(socket.room(most)) {
            socket.queued = true;
            self.turns.ready.push_back(id);
        }
        self.look_after(id);
    }

    /// The same, but that it had its turn just now.
    pub fn look_after(&mut self, id: usize) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if let Some(due) = socket.tcp.poll_timeout()
            && socket.scheduled.is_none_or(|scheduled| due < scheduled)
        {
            socket.scheduled = Some(due);
            self.turns.timers.push(Reverse((due, id)));
            if self.turns.timers.len() > 2 * self.sockets.len() + TIMERS_KEPT {
                self.drop_old_timers();
            }
        }
        let Some(socket) = self.sockets.get_mut(id) else { return };
        socket.wake(&mut self.turns.wakers);
        if socket.tcp.state() == tcp::State::TimeWait && socket.waits.is_none() {
            socket.waits = Some(self.time_waits.push(id));
            if self.time_waits.len() > TIME_WAITS {
                self.end_oldest_time_wait();
            }
        }
        self.settle_orphan(id);
        self.settle(id);
    }

    /// Notes that nobody owns a socket any more.
    pub fn note_orphan(&mut self, id: usize) {
        self.sockets[id].orphan = Some(self.orphans.push(id));
        self.settle_orphan(id);
        if self.orphans.len() > ORPHANS
            && let Some(oldest) = self.orphans.pop()
        {
            self.sockets[oldest].tcp.abort();
            self.touch(oldest);
        }
    }

    /// Counts a socket no more that has nothing more to say or to hear.
    fn settle_orphan(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if matches!(socket.tcp.state(), tcp::State::TimeWait | tcp::State::Closed) {
            self.orphans.remove(socket.orphan.take());
        }
    }

    fn drop_old_timers(&mut self) {
        let timer = |(id, socket): (usize, &TcpSocket)| Some(Reverse((socket.scheduled?, id)));
        self.turns.timers = self.sockets.iter().filter_map(timer).collect();
    }

    fn end_oldest_time_wait(&mut self) {
        let oldest = self.time_waits.pop();
        if let Some(id) = oldest.filter(|id| !self.sockets[*id].owned) {
            self.remove(id);
        }
    }

    /// Runs the timers of sockets that are due, and drops packets that were not complete in time.
    pub fn handle_timeouts(&mut self, now: Time) {
        self.expire_fragments(now);
        while let Some(Reverse((due, id))) = self.turns.timers.peek().copied()
            && due <= now
        {
            self.turns.timers.pop();
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            if socket.scheduled != Some(due) {
                continue;
            }
            socket.scheduled = None;
            if socket.tcp.poll_timeout().is_some_and(|due| due <= now) {
                socket.tcp.handle_timeout(now);
            }
            self.touch(id);
        }
    }

    /// Has a packet sent that nobody waits for.
    pub fn answer(&mut self, packet: Vec<u8>, offload: Offload) {
        let turns = &mut self.turns;
        if turns.answer_bytes + packet.len() > ANSWERS {
            self.counters.answers += 1;
            return;
        }
        turns.answer_bytes += packet.len();
        turns.answers.push_back((packet, offload));
    }

    /// The same with several packets, all of them or none.
    pub fn answer_all(&mut self, packets: Vec<Vec<u8>>) {
        let len: usize = packets.iter().map(Vec::len).sum();
        if self.turns.answer_bytes + len > ANSWERS {
            self.counters.answers += 1;
            return;
        }
        packets.into_iter().for_each(|packet| self.answer(packet, Offload::None));
    }

    /// An identification for the fragments of one packet. Other hosts cannot predict it (RFC 7739
    /// section 5.3).
    pub fn fragment_id(&mut self, addresses: (IpAddr, IpAddr)) -> u32 {
        self.cut = self.cut.wrapping_add(1);
        (self.keyed(&("fragment", addresses)) as u32).wrapping_add(self.cut)
    }

    /// The next of the answers.
    pub fn next_answer(&mut self) -> Option<(Vec<u8>, Offload)> {
        let answer = self.turns.answers.pop_front()?;
        self.turns.answer_bytes -= answer.0.len();
        Some(answer)
    }

    /// An address of ours from which to send to `to`. From us to us there is no way: the
    /// engine would have it for a peer.
    pub fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        if self.gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.addresses.contains(&to) {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let fits = |address: &&IpAddr| address.is_ipv4() == to.is_ipv4();
        let source = self.addresses.iter().find(fits).copied();
        source.ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
    }

    /// Whether one may listen there.
    pub fn check_local(&self, at: SocketAddr) -> io::Result<()> {
        if self.gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if at.ip().is_unspecified() || self.addresses.contains(&at.ip()) {
            return Ok(());
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    /// The bound addresses that match a packet to `local`, the most specific first.
    pub fn places(local: SocketAddr) -> [SocketAddr; 3] {
        let family: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let all: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        [local.ip(), family, all].map(|ip| SocketAddr::new(ip, local.port()))
    }

    /// A free port, the first of an unpredictable row for which `is_free`.
    pub fn draw_port(&mut self, is_free: impl Fn(&Self, u16) -> bool) -> io::Result<u16> {
        /// The ports of RFC 6335 section 6 and some more, as in Linux.
        const FIRST: u16 = 32_768;
        const COUNT: u16 = 28_232;
        self.drawn = self.drawn.wrapping_add(1);
        let begin = self.keyed(&("port", self.drawn)) as u32;
        for step in 0..u32::from(COUNT) {
            let port = FIRST + (begin.wrapping_add(step) % u32::from(COUNT)) as u16;
            if is_free(self, port) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// A number that follows from `of` and the secret.
    pub fn keyed(&self, of: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.secret, of).hash(&mut hasher);
        hasher.finish()
    }

    /// Payload of a segment to or from an address, by our MTU.
    pub fn mss(&self, peer: IpAddr) -> u16 {
        self.mtu - ip::header_len(peer) as u16 - wire::tcp::HEADER_LEN as u16
    }
}
