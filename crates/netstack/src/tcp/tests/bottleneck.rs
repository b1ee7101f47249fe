//! Flows that share a link with a limited rate. The queue before the link drops at its tail.
//!
//! ```text
//!   sender --+                      delay    +-- receiver
//!   sender --+--> queue --> link -- loss  ---+-- receiver
//!             <--------- delay --------------
//! ```

use std::{net::SocketAddr, time::Duration};

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::{Datagram, Link, Network};

use super::world::{AROUND, MSS, data, ports, settings, since_start, split};
use crate::{
    budget::Budget,
    tcp::{CongestionControl, Connection, Header, Payload, Segment, flags},
    time::Time,
};

/// Bytes of a super-packet without its IP header.
const MAX_SUPER_PACKET: usize = 65_515;
/// Bytes that an application writes or reads at once.
const PIECE: usize = 16 * 1024;
/// Period of the data, in bytes: a prime.
const PERIOD: u64 = 65_537;

/// Megabits of payload per second that a link carries.
pub(super) fn payload(link: Link) -> f64 {
    const FULL: f64 = 1368.0;
    link.rate.unwrap() as f64 * 8e-6 * FULL / (FULL + 32.0 + AROUND as f64)
}

pub(super) struct Flow {
    ends: [Option<Connection>; 2],
    /// Bytes that the sender has not written yet.
    pub left: u64,
    written: u64,
    pub received: u64,
    /// Segments that the sender has sent.
    pub sent: u64,
}

pub(super) struct Bottleneck {
    pub now: Time,
    pub flows: Vec<Flow>,
    /// Senders receive acknowledgements and run only at multiples of this time.
    pub turn: Duration,
    network: Network,
    /// Link from senders to receivers.
    link: Link,
    /// Waits of segments for the link.
    waits: Vec<Duration>,
    /// Bytes that senders sent at one time: the last such time, its bytes, and the maximum.
    burst: (Time, usize, usize),
    rng: ChaCha20Rng,
    budget: Budget,
    room: Vec<u8>,
    /// The data: one period, followed by its beginning.
    data: Vec<u8>,
}

impl Bottleneck {
    pub(super) fn new(seed: u64, link: Link) -> Self {
        let network = Network::new(seed, Link { delay: link.delay, ..Link::CLEAN });
        network.set_link_to(address(0, 1).ip(), link);
        Self {
            now: Time::new(network.now()),
            flows: Vec::new(),
            turn: Duration::ZERO,
            network,
            link,
            waits: Vec::new(),
            burst: (Time::default(), 0, 0),
            rng: ChaCha20Rng::seed_from_u64(seed),
            budget: Budget::new(256 << 20),
            room: vec![0; 65_535],
            data: [data(PERIOD as usize), data(PIECE)].concat(),
        }
    }

    /// Changes the link for segments that are sent later.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Link)) {
        change(&mut self.link);
        self.network.set_link_to(address(0, 1).ip(), self.link);
    }

    /// Megabits of payload per second that the link carries.
    pub(super) fn payload(&self) -> f64 {
        payload(self.link)
    }

    /// Adds a flow with unlimited data.
    pub(super) fn join(&mut self, control: CongestionControl) {
        let settings = settings(&self.budget, control, self.rng.next_u32(), MSS);
        let sender = Connection::connect(settings, ports(0), self.now);
        let ends = [Some(sender), None];
        let flow = Flow { ends, left: u64::MAX / 2, written: 0, received: 0, sent: 0 };
        self.flows.push(flow);
        self.pump(self.flows.len() - 1);
    }

    /// Runs for `duration`. Returns the megabits of payload per second of each flow.
    pub(super) fn rates(&mut self, duration: Duration) -> Vec<f64> {
        let received: Vec<u64> = self.flows.iter().map(|flow| flow.received).collect();
        self.run(duration);
        let rate = |(flow, received): (&Flow, u64)| {
            (flow.received - received) as f64 * 8e-6 / duration.as_secs_f64()
        };
        self.flows.iter().zip(received).map(rate).collect()
    }

    /// The minimum, mean and maximum wait for the link since the last call.
    pub(super) fn waits(&mut self) -> (Duration, Duration, Duration) {
        let waits = std::mem::take(&mut self.waits);
        let [least, most] = [waits.iter().min(), waits.iter().max()].map(|wait| *wait.unwrap());
        (least, waits.iter().sum::<Duration>() / waits.len() as u32, most)
    }

    /// The most bytes that senders sent at one time.
    pub(super) fn burst(&self) -> usize {
        self.burst.2
    }

    pub(super) fn sender(&self, flow: usize) -> &Connection {
        self.flows[flow].ends[0].as_ref().unwrap()
    }

    /// Adds bytes to a flow's data.
    pub(super) fn queue_data(&mut self, flow: usize, bytes: u64) {
        self.flows[flow].left += bytes;
        self.pump(flow);
    }

    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.network.pass_until(since_start(self.now));
            (0..self.flows.len()).for_each(|flow| self.handle_timeouts(flow));
            while let Some(datagram) = self.network.poll_arrival() {
                let flow = usize::from(datagram.to.port());
                let to = usize::from(datagram.to == address(flow, 1));
                self.deliver(flow, to, &datagram.bytes);
                self.pump(flow);
            }
        }
        self.now = end;
        self.network.pass_until(since_start(end));
    }

    fn handle_timeouts(&mut self, flow: usize) {
        let mut due = false;
        for end in [0, 1] {
            let Some(timeout) = self.flows[flow].timeout(end) else { continue };
            let timeout = if end == 0 { self.at_turn(timeout) } else { timeout };
            if timeout <= self.now
                && let Some(tcp) = &mut self.flows[flow].ends[end]
            {
                tcp.handle_timeout(self.now);
                due = true;
            }
        }
        if due {
            self.pump(flow);
        }
    }

    /// The next time at which senders run.
    fn at_turn(&self, time: Time) -> Time {
        if self.turn.is_zero() {
            return time;
        }
        let turns = time.as_nanos().div_ceil(self.turn.as_nanos() as u64);
        Time::new(self.turn * turns as u32)
    }

    fn next_event(&self) -> Option<Time> {
        let ends = |end| self.flows.iter().filter_map(move |flow| flow.timeout(end));
        let arrival = self.network.next_arrival().map(Time::new);
        ends(0).map(|due| self.at_turn(due)).chain(ends(1)).chain(arrival).min()
    }

    fn deliver(&mut self, flow: usize, to: usize, bytes: &[u8]) {
        let (header, len) = Header::parse(bytes).unwrap();
        let segment = Segment { header, payload: Payload::Whole(&bytes[len..]) };
        match &mut self.flows[flow].ends[to] {
            Some(tcp) => drop(tcp.handle_segment(self.now, &segment)),
            end => {
                assert_eq!(segment.header.flags, flags::SYN);
                let settings = settings(&self.budget, CongestionControl::Cubic, 7, MSS);
                *end = Some(Connection::accept(settings, ports(1), &segment.header, self.now));
            }
        }
    }

    /// Lets both ends of a flow write, read and send as much as they can. Like the stack, it does
    /// not poll a connection without anything to send.
    fn pump(&mut self, flow: usize) {
        for from in [0, 1] {
            self.flows[flow].exchange(from, &self.data, self.now);
            let mut room = std::mem::take(&mut self.room);
            let end = self.flows[flow].ends[from].as_ref();
            let has_turn = end.is_some_and(|tcp| tcp.wants_transmit(MAX_SUPER_PACKET));
            while has_turn
                && let Some(tcp) = self.flows[flow].ends[from].as_mut()
                && let Some(outgoing) = tcp.poll_transmit(self.now, &mut room, MAX_SUPER_PACKET)
            {
                let len = outgoing.header + outgoing.payload;
                for segment in split(&room[..len], outgoing.header, outgoing.segment) {
                    self.launch(flow, from, segment);
                }
                self.flows[flow].exchange(from, &self.data, self.now);
            }
            self.room = room;
        }
    }

    fn launch(&mut self, flow: usize, from: usize, bytes: Vec<u8>) {
        let datagram = Datagram::new(address(flow, from), address(flow, 1 - from), bytes);
        if from == 1 {
            let arrival = self.now + self.link.delay;
            return self.network.send_late(datagram, self.at_turn(arrival).since(arrival));
        }
        self.flows[flow].sent += 1;
        let (since, sent, most) = self.burst;
        let sent = datagram.bytes.len() + if since == self.now { sent } else { 0 };
        self.burst = (self.now, sent, most.max(sent));
        let wait = self.network.wait_to(datagram.to.ip());
        if wait <= self.link.queue {
            self.waits.push(wait);
        }
        self.network.send(datagram);
    }
}

/// The address of an end of a flow.
fn address(flow: usize, end: usize) -> SocketAddr {
    ([192, 0, 2, end as u8], flow as u16).into()
}

impl Flow {
    fn timeout(&self, end: usize) -> Option<Time> {
        self.ends[end].as_ref()?.poll_timeout()
    }

    fn exchange(&mut self, end: usize, data: &[u8], now: Time) {
        let Some(tcp) = &mut self.ends[end] else { return };
        if end == 0 {
            while self.left > 0 && tcp.is_connected() && tcp.write_room() > 0 {
                let len = self.left.min(tcp.write_room().min(PIECE) as u64);
                let piece = &data[(self.written % PERIOD) as usize..][..len as usize];
                let written = tcp.write(piece).unwrap() as u64;
                self.written += written;
                self.left -= written;
            }
            return;
        }
        let mut to = [0; PIECE];
        while tcp.readable() > 0 {
            let len = tcp.read(&mut to, now);
            let expected = &data[(self.received % PERIOD) as usize..][..len];
            assert!(to[..len] == *expected, "received data was not sent");
            self.received += len as u64;
        }
    }
}
