//! Flows that share a link of some rate, with a queue before it that drops at its tail.
//!
//! ```text
//!   sender --+                      delay    +-- receiver
//!   sender --+--> queue --> link -- loss  ---+-- receiver
//!             <--------- delay --------------
//! ```

use std::{collections::BTreeMap, time::Duration};

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::world::{MSS, ports, settings, speech, split};
use crate::{
    budget::Budget,
    tcp::{CongestionControl, Connection, Header, Payload, Segment, flags},
    time::Time,
};

/// Bytes around each segment: of IP and of a tunnel.
const AROUND: u64 = 52;
/// Bytes of a super-packet, without its IP header.
const MOST: usize = 65_515;
/// Bytes that an application writes or reads at once.
const PIECE: usize = 16 * 1024;
/// Bytes after which what is said begins anew: a prime.
const VERSE: u64 = 65_537;

#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes a second.
    pub rate: u64,
    /// The time one way.
    pub delay: Duration,
    /// How long the queue may become.
    pub queue: Duration,
    /// Of 10,000 segments, how many are lost behind the link, and how many are late.
    pub loss: u32,
    pub reordering: u32,
    pub late: Duration,
    /// Senders hear, and are woken, at multiples of this only.
    pub turn: Duration,
}

impl Path {
    /// The sender's next turn.
    fn at_turn(&self, time: Time) -> Time {
        if self.turn.is_zero() {
            return time;
        }
        let turns = time.as_nanos().div_ceil(self.turn.as_nanos() as u64);
        Time::new(self.turn * turns as u32)
    }

    /// Megabits of payload a second that it carries.
    pub fn payload(&self) -> f64 {
        const FULL: f64 = 1368.0;
        self.rate as f64 * 8e-6 * FULL / (FULL + 32.0 + AROUND as f64)
    }
}

pub struct Flow {
    ends: [Option<Connection>; 2],
    /// Bytes that the sender has still to say.
    pub left: u64,
    said: u64,
    pub heard: u64,
    /// Segments that it sent.
    pub sent: u64,
}

pub struct Bottleneck {
    pub now: Time,
    pub path: Path,
    pub flows: Vec<Flow>,
    /// How long segments waited for the link.
    waits: Vec<Duration>,
    /// Bytes that senders sent at one time: when last, then how many, and the most.
    burst: (Time, usize, usize),
    flying: BTreeMap<(Time, u64), (usize, usize, Vec<u8>)>,
    free: Time,
    serial: u64,
    rng: ChaCha20Rng,
    budget: Budget,
    room: Vec<u8>,
    /// What is said, and the beginning of it once more.
    words: Vec<u8>,
}

impl Bottleneck {
    pub fn new(seed: u64, path: Path) -> Self {
        Self {
            now: Time::new(Duration::from_secs(1000)),
            path,
            flows: Vec::new(),
            waits: Vec::new(),
            burst: (Time::default(), 0, 0),
            flying: BTreeMap::new(),
            free: Time::default(),
            serial: 0,
            rng: ChaCha20Rng::seed_from_u64(seed),
            budget: Budget::new(256 << 20),
            room: vec![0; 65_535],
            words: [speech(VERSE as usize), speech(PIECE)].concat(),
        }
    }

    /// A flow joins that has without end to say.
    pub fn join(&mut self, control: CongestionControl) {
        let settings = settings(&self.budget, control, self.rng.next_u32(), MSS);
        let sender = Connection::connect(settings, ports(0), self.now);
        let ends = [Some(sender), None];
        let flow = Flow { ends, left: u64::MAX / 2, said: 0, heard: 0, sent: 0 };
        self.flows.push(flow);
        self.pump(self.flows.len() - 1);
    }

    /// Megabits a second of payload that each flow carries in so long.
    pub fn rates(&mut self, duration: Duration) -> Vec<f64> {
        let heard: Vec<u64> = self.flows.iter().map(|flow| flow.heard).collect();
        self.run(duration);
        let rate = |(flow, heard): (&Flow, u64)| {
            (flow.heard - heard) as f64 * 8e-6 / duration.as_secs_f64()
        };
        self.flows.iter().zip(heard).map(rate).collect()
    }

    /// The least, the mean and the longest wait for the link since this was asked last.
    pub fn waits(&mut self) -> (Duration, Duration, Duration) {
        let waits = std::mem::take(&mut self.waits);
        let [least, most] = [waits.iter().min(), waits.iter().max()].map(|wait| *wait.unwrap());
        (least, waits.iter().sum::<Duration>() / waits.len() as u32, most)
    }

    /// The most bytes that left senders at one time.
    pub fn burst(&self) -> usize {
        self.burst.2
    }

    pub fn sender(&self, flow: usize) -> &Connection {
        self.flows[flow].ends[0].as_ref().unwrap()
    }

    /// A flow has so much more to say.
    pub fn say(&mut self, flow: usize, bytes: u64) {
        self.flows[flow].left += bytes;
        self.pump(flow);
    }

    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            for flow in 0..self.flows.len() {
                let mut due = false;
                for (end, tcp) in self.flows[flow].ends.iter_mut().enumerate() {
                    let Some(tcp) = tcp else { continue };
                    let at = |due| if end == 0 { self.path.at_turn(due) } else { due };
                    if tcp.poll_timeout().is_some_and(|due| at(due) <= self.now) {
                        tcp.handle_timeout(self.now);
                        due = true;
                    }
                }
                if due {
                    self.pump(flow);
                }
            }
            while let Some(entry) = self.flying.first_entry()
                && entry.key().0 <= self.now
            {
                let (flow, to, bytes) = entry.remove();
                self.deliver(flow, to, &bytes);
                self.pump(flow);
            }
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Time> {
        let ends = |end: usize| {
            let ends = self.flows.iter().filter_map(move |flow| flow.ends[end].as_ref());
            ends.filter_map(Connection::poll_timeout)
        };
        let arrival = self.flying.keys().next().map(|(time, _)| *time);
        ends(0).map(|due| self.path.at_turn(due)).chain(ends(1)).chain(arrival).min()
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

    /// Has both ends of a flow say, hear and send what they can: as the stack does, which asks
    /// nobody to send who says that there is nothing.
    fn pump(&mut self, flow: usize) {
        for from in [0, 1] {
            self.flows[flow].talk(from, &self.words, self.now);
            let mut room = std::mem::take(&mut self.room);
            let end = self.flows[flow].ends[from].as_ref();
            let has_turn = end.is_some_and(|tcp| tcp.wants_transmit(MOST));
            while has_turn
                && let Some(tcp) = self.flows[flow].ends[from].as_mut()
                && let Some(outgoing) = tcp.poll_transmit(self.now, &mut room, MOST)
            {
                let len = outgoing.header + outgoing.payload;
                for segment in split(&room[..len], outgoing.header, outgoing.segment) {
                    self.launch(flow, from, segment);
                }
                self.flows[flow].talk(from, &self.words, self.now);
            }
            self.room = room;
        }
    }

    fn launch(&mut self, flow: usize, from: usize, bytes: Vec<u8>) {
        let Path { rate, delay, queue, loss, reordering, late, .. } = self.path;
        let mut arrival = self.now + delay;
        if from == 0 {
            self.flows[flow].sent += 1;
            let (since, sent, most) = self.burst;
            let sent = bytes.len() + if since == self.now { sent } else { 0 };
            self.burst = (self.now, sent, most.max(sent));
            let begin = self.now.max(self.free);
            let wait = begin.since(self.now);
            if wait > queue {
                return;
            }
            self.waits.push(wait);
            let nanos = (bytes.len() as u64 + AROUND) * 1_000_000_000 / rate;
            self.free = begin + Duration::from_nanos(nanos);
            if self.chance(loss) {
                return;
            }
            let late = if self.chance(reordering) { late } else { Duration::ZERO };
            arrival = self.free + delay + late;
        } else {
            arrival = self.path.at_turn(arrival);
        }
        self.serial += 1;
        self.flying.insert((arrival, self.serial), (flow, 1 - from, bytes));
    }

    fn chance(&mut self, of_ten_thousand: u32) -> bool {
        of_ten_thousand > 0 && self.rng.next_u32() % 10_000 < of_ten_thousand
    }
}

impl Flow {
    fn talk(&mut self, end: usize, words: &[u8], now: Time) {
        let Some(tcp) = &mut self.ends[end] else { return };
        if end == 0 {
            while self.left > 0 && tcp.is_connected() && tcp.write_room() > 0 {
                let len = self.left.min(tcp.write_room().min(PIECE) as u64);
                let piece = &words[(self.said % VERSE) as usize..][..len as usize];
                let said = tcp.write(piece).unwrap() as u64;
                self.said += said;
                self.left -= said;
            }
            return;
        }
        let mut to = [0; PIECE];
        while tcp.readable() > 0 {
            let len = tcp.read(&mut to, now);
            let said = &words[(self.heard % VERSE) as usize..][..len];
            assert!(to[..len] == *said, "what was heard was not said");
            self.heard += len as u64;
        }
    }
}
