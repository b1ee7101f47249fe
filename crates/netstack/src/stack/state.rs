//! The state of the stack, and the order in which sockets are served.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    task::{Context, Poll, Waker},
};

use packet::Offload;
use slab::Slab;

use super::{
    add_waker,
    config::{Config, CongestionControl, Counters},
    datagrams::Datagrams,
    fragments::Fragments,
    icmp::Pings,
    local::Local,
    paths::Paths,
    secret::Secret,
    segments::{Flow, Listener, TcpSocket},
    socket_queue::SocketQueue,
};
use crate::{budget::Budget, tcp, time::Time};

/// The most bytes of queued answers. In a flood, further answers are dropped.
const ANSWERS: usize = 256 * 1024;
/// The most connections in TIME-WAIT: about 4 MiB. The oldest is removed for a new one.
pub(super) const TIME_WAITS: usize = 4096;
/// Stale timers are removed when there are more than two timers for each connection and this
/// number.
const MAX_STALE_TIMERS: usize = 64;
/// The most orphaned connections. The oldest is reset for a new one.
pub(super) const ORPHANS: usize = 4096;

pub(crate) struct State {
    pub(super) local: Local,
    pub(super) control: CongestionControl,
    pub(super) secret: Secret,
    pub(super) budget: Budget,
    pub(super) counters: Counters,
    pub(crate) sockets: Slab<TcpSocket>,
    pub(super) flows: HashMap<Flow, usize>,
    pub(super) listeners: HashMap<SocketAddr, Listener>,
    pub(super) datagrams: Datagrams,
    pub(super) pings: Pings,
    pub(super) paths: Paths,
    pub(super) fragments: Fragments,
    pub(super) schedule: Schedule,
    pub(super) ending: Ending,
    /// Whether the engine's half is gone or the stack was closed.
    pub(super) closed: bool,
}

/// Connections that end without their stream.
#[derive(Default)]
pub(super) struct Ending {
    /// Connections in TIME-WAIT, the oldest first.
    pub time_waits: SocketQueue,
    /// Connections whose stream was dropped and that are not closed.
    pub orphans: SocketQueue,
    /// Tasks that wait until orphans have sent their data.
    pub drain_wakers: Vec<Waker>,
}

/// Sockets and tasks with work to do.
#[derive(Default)]
pub(super) struct Schedule {
    /// Sockets that may have something to send.
    pub ready: VecDeque<usize>,
    /// Timers of sockets. Some are stale.
    pub timers: BinaryHeap<Reverse<(Time, usize)>>,
    /// Packets that do not belong to a socket.
    pub answers: VecDeque<(Vec<u8>, Offload)>,
    answer_bytes: usize,
    /// Tasks to wake when the state is unlocked.
    pub wakers: Vec<Waker>,
    /// Time until which the sending thread sleeps; `None` while it is awake.
    pub sleeps: Option<Time>,
    /// Whether the sending thread must return to the engine.
    pub woken: bool,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            local: Local::new(config.addresses, config.mtu),
            control: config.control,
            secret: Secret::new(config.secret),
            budget: Budget::new(config.memory),
            counters: Counters::default(),
            sockets: Slab::new(),
            flows: HashMap::new(),
            listeners: HashMap::new(),
            datagrams: Datagrams::default(),
            pings: Pings::default(),
            paths: Paths::default(),
            fragments: Fragments::default(),
            schedule: Schedule::default(),
            ending: Ending::default(),
            closed: false,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        if !self.ending.drain_wakers.is_empty() && self.is_drained() {
            self.schedule.wakers.append(&mut self.ending.drain_wakers);
        }
        mem::take(&mut self.schedule.wakers)
    }

    /// Whether the peers have acknowledged all data of orphans.
    fn is_drained(&self) -> bool {
        // In this state only the peer's FIN is missing.
        let done = |id| matches!(self.sockets[id].tcp.state(), tcp::State::FinWait2);
        self.closed || self.ending.orphans.iter().all(done)
    }

    /// Waits until all orphans have sent their data.
    pub(crate) fn poll_drained(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.is_drained() {
            return Poll::Ready(());
        }
        add_waker(&mut self.ending.drain_wakers, context);
        Poll::Pending
    }

    /// Whether no packet can be sent now.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        let schedule = &self.schedule;
        schedule.ready.is_empty() && schedule.answers.is_empty() && self.datagrams.ready.is_empty()
    }

    /// Time of the next timer.
    pub(crate) fn due(&self) -> Option<Time> {
        let timer = self.schedule.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(self.fragments.poll_timeout()).min()
    }

    /// Whether to wake the sending thread, because it sleeps although it has work.
    pub(crate) fn must_wake_sender(&mut self) -> bool {
        let Some(until) = self.schedule.sleeps else { return false };
        let due = self.due().is_some_and(|due| due < until);
        let wakes = self.schedule.woken || due || !self.has_nothing_to_send();
        if wakes {
            // One wakeup is enough.
            self.schedule.sleeps = None;
        }
        wakes
    }

    /// Updates a socket after an event: the queue of ready sockets, its timers, the tasks to wake,
    /// and its removal.
    pub(crate) fn update(&mut self, id: usize) {
        let most = self.local.max_packet_len();
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if !socket.queued && socket.tcp.wants_transmit(socket.room(most)) {
            socket.queued = true;
            self.schedule.ready.push_back(id);
        }
        self.update_timers(id);
    }

    /// The same without the queue of ready sockets, after the socket was polled.
    pub(crate) fn update_timers(&mut self, id: usize) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if let Some(due) = socket.tcp.poll_timeout()
            && socket.scheduled.is_none_or(|scheduled| due < scheduled)
        {
            socket.scheduled = Some(due);
            self.schedule.timers.push(Reverse((due, id)));
            if self.schedule.timers.len() > 2 * self.sockets.len() + MAX_STALE_TIMERS {
                self.drop_old_timers();
            }
        }
        let Some(socket) = self.sockets.get_mut(id) else { return };
        socket.wake(&mut self.schedule.wakers);
        if socket.tcp.state() == tcp::State::TimeWait && socket.waits.is_none() {
            socket.waits = Some(self.ending.time_waits.push(id));
            if self.ending.time_waits.len() > TIME_WAITS {
                self.end_oldest_time_wait();
            }
        }
        self.update_orphan(id);
        self.update_listener(id);
    }

    /// Records that a socket's stream was dropped.
    pub(crate) fn note_orphan(&mut self, id: usize) {
        self.sockets[id].orphan = Some(self.ending.orphans.push(id));
        self.update_orphan(id);
        if self.ending.orphans.len() > ORPHANS
            && let Some(oldest) = self.ending.orphans.pop()
        {
            self.sockets[oldest].tcp.abort();
            self.update(oldest);
        }
    }

    /// Removes a socket from the orphans if it has nothing more to send or receive.
    fn update_orphan(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if matches!(socket.tcp.state(), tcp::State::TimeWait | tcp::State::Closed) {
            self.ending.orphans.remove(socket.orphan.take());
        }
    }

    fn drop_old_timers(&mut self) {
        let timer = |(id, socket): (usize, &TcpSocket)| Some(Reverse((socket.scheduled?, id)));
        self.schedule.timers = self.sockets.iter().filter_map(timer).collect();
    }

    fn end_oldest_time_wait(&mut self) {
        let oldest = self.ending.time_waits.pop();
        if let Some(id) = oldest.filter(|id| !self.sockets[*id].owned) {
            self.remove(id);
        }
    }

    /// Runs the timers that are due, and drops incomplete packets that timed out.
    pub(crate) fn handle_timeouts(&mut self, now: Time) {
        self.expire_fragments(now);
        while let Some(Reverse((due, id))) = self.schedule.timers.peek().copied()
            && due <= now
        {
            self.schedule.timers.pop();
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            if socket.scheduled != Some(due) {
                continue;
            }
            socket.scheduled = None;
            if socket.tcp.poll_timeout().is_some_and(|due| due <= now) {
                socket.tcp.handle_timeout(now);
            }
            self.update(id);
        }
    }

    /// Queues a packet that does not belong to a socket.
    pub(crate) fn queue_answer(&mut self, packet: Vec<u8>, offload: Offload) {
        let schedule = &mut self.schedule;
        if schedule.answer_bytes + packet.len() > ANSWERS {
            self.counters.answers += 1;
            return;
        }
        schedule.answer_bytes += packet.len();
        schedule.answers.push_back((packet, offload));
    }

    /// Queues several packets, all of them or none.
    pub(crate) fn queue_answers(&mut self, packets: Vec<Vec<u8>>) {
        let len: usize = packets.iter().map(Vec::len).sum();
        if self.schedule.answer_bytes + len > ANSWERS {
            self.counters.answers += 1;
            return;
        }
        packets.into_iter().for_each(|packet| self.queue_answer(packet, Offload::None));
    }

    /// Removes the next queued answer.
    pub(crate) fn next_answer(&mut self) -> Option<(Vec<u8>, Offload)> {
        let answer = self.schedule.answers.pop_front()?;
        self.schedule.answer_bytes -= answer.0.len();
        Some(answer)
    }

    /// Returns the local address from which to send to `to`. Packets between local addresses are
    /// not supported, because the engine would route them to a peer.
    pub(crate) fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        if self.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.local.has(to) {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        self.local.address_for(to).ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
    }

    /// Whether a socket may be bound to this address.
    pub(crate) fn check_local(&self, at: SocketAddr) -> io::Result<()> {
        if self.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if at.ip().is_unspecified() || self.local.has(at.ip()) {
            return Ok(());
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    /// The bound addresses that match a packet to `local`, the most specific first.
    pub(crate) fn bound_addresses(local: SocketAddr) -> [SocketAddr; 3] {
        let family: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let all: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        [local.ip(), family, all].map(|ip| SocketAddr::new(ip, local.port()))
    }

    /// Returns a free port: the first in an unpredictable sequence for which `is_free` is true.
    pub(crate) fn choose_port(&mut self, is_free: impl Fn(&Self, u16) -> bool) -> io::Result<u16> {
        /// The ports of RFC 6335 section 6 and some more, as in Linux.
        const FIRST: u16 = 32_768;
        const COUNT: u16 = 28_232;
        let begin = self.secret.next_choice();
        for step in 0..u32::from(COUNT) {
            let port = FIRST + (begin.wrapping_add(step) % u32::from(COUNT)) as u16;
            if is_free(self, port) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}
