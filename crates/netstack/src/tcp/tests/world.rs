//! Two ends, their data, and the faults on their path.

use std::{net::SocketAddr, time::Duration};

pub(super) use sim::Link;
use sim::{Datagram, Network};

use crate::{
    budget::Budget,
    tcp::{
        CongestionControl, Connection, Failure, Header, Payload, Ports, Segment, Seq, Settings,
        State, flags, input::Verdict,
    },
    time::Time,
};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const MSS: u16 = 1380;
const PORTS: [u16; 2] = [40_000, 80];

/// Overhead of each segment in bytes: IP and tunnel headers.
pub(super) const AROUND: usize = 52;

/// A link of ten milliseconds.
pub(super) const CLEAN: Link =
    Link { delay: Duration::from_millis(10), overhead: AROUND, ..Link::CLEAN };

/// A fault of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub from: usize,
    /// Number of the segment among those of its sender.
    pub number: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Lost,
    Twice,
    /// The segment is delayed by this time, so later ones overtake it.
    Late(Duration),
}

pub(super) struct End {
    pub tcp: Option<Connection>,
    /// Data to write.
    pub data: Vec<u8>,
    written: usize,
    /// Whether it closes after all data.
    pub ends: bool,
    /// Whether it reads received data.
    pub reads: bool,
    pub received: Vec<u8>,
    pub failure: Option<Failure>,
    /// Segments that it has sent.
    pub sent: usize,
    /// Bytes of payload that it has sent.
    pub sent_bytes: usize,
}

/// A scenario's filter. It gets the number of the sender, the number of the segment, and the
/// segment, which it may change. Returns whether the segment is delivered.
pub(super) type Filter = Box<dyn FnMut(usize, usize, &mut Vec<u8>) -> bool>;

pub(super) struct World {
    pub now: Time,
    pub network: Network,
    pub ends: [End; 2],
    /// Decides which segments are delivered.
    pub filter: Filter,
    /// A fault of one of the delivered segments.
    pub fault: Option<Fault>,
    /// The longest transmission.
    pub most: usize,
    pub budget: Budget,
    /// Congestion control of each end.
    pub control: [CongestionControl; 2],
    mss: [u16; 2],
}

pub(super) fn settings(
    budget: &Budget,
    control: CongestionControl,
    initial: u32,
    mss: u16,
) -> Settings {
    Settings {
        control,
        mss,
        receive_buffer: 16 << 20,
        send_buffer: 16 << 20,
        budget: budget.clone(),
        initial: Seq(initial),
        timestamp_offset: initial,
    }
}

pub(super) fn ports(end: usize) -> Ports {
    Ports { local: PORTS[end], remote: PORTS[1 - end] }
}

/// The address of an end.
fn address(end: usize) -> SocketAddr {
    ([192, 0, 2, end as u8], PORTS[end]).into()
}

/// Data without repetitions.
pub(super) fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}

impl World {
    pub(super) fn new(seed: u64, link: Link) -> Self {
        let end = || End {
            tcp: None,
            data: Vec::new(),
            written: 0,
            ends: false,
            reads: true,
            received: Vec::new(),
            failure: None,
            sent: 0,
            sent_bytes: 0,
        };
        let network = Network::new(seed, link);
        Self {
            now: Time::new(network.now()),
            network,
            ends: [end(), end()],
            filter: Box::new(|_, _, _| true),
            fault: None,
            most: 65_515,
            budget: Budget::new(256 << 20),
            control: [CongestionControl::default(); 2],
            mss: [MSS; 2],
        }
    }

    /// The first end has sent a SYN. Sequence numbers soon wrap.
    pub(super) fn dialled(seed: u64, link: Link) -> Self {
        let mut world = Self::new(seed, link);
        world.dial(0);
        world
    }

    /// Both ends are connected.
    pub(super) fn connected(seed: u64, link: Link) -> Self {
        Self::with(CongestionControl::default(), seed, link)
    }

    /// Both ends are connected, with this congestion control.
    pub(super) fn with(control: CongestionControl, seed: u64, link: Link) -> Self {
        let mut world = Self::new(seed, Link { loss: 0, reordering: 0, ..link });
        world.control = [control; 2];
        world.dial(0);
        world.run_until(|world| world.both(State::Established));
        world.network.set_link(link);
        world
    }

    pub(super) fn dial(&mut self, end: usize) {
        let settings = settings(&self.budget, self.control[end], u32::MAX - 5000, self.mss[end]);
        self.ends[end].tcp = Some(Connection::connect(settings, ports(end), self.now));
    }

    pub(super) fn set_mss(&mut self, mss: [u16; 2]) {
        self.mss = mss;
    }

    pub(super) fn tcp(&mut self, end: usize) -> &mut Connection {
        self.ends[end].tcp.as_mut().unwrap()
    }

    pub(super) fn state(&self, end: usize) -> State {
        self.ends[end].tcp.as_ref().map_or(State::Closed, Connection::state)
    }

    pub(super) fn both(&self, state: State) -> bool {
        self.state(0) == state && self.state(1) == state
    }

    /// Adds data to write.
    pub(super) fn queue_data(&mut self, end: usize, len: usize) {
        let end = &mut self.ends[end];
        let all = data(end.data.len() + len);
        end.data = all;
    }

    /// Whether each end has received all data of the other.
    pub(super) fn all_received(&self) -> bool {
        let [a, b] = &self.ends;
        a.received.len() == b.data.len() && b.received.len() == a.data.len()
    }

    /// Checks that received data equals sent data.
    pub(super) fn check(&self) {
        let [a, b] = &self.ends;
        for (received, data) in [(&a.received, &b.data), (&b.received, &a.data)] {
            assert!(data.starts_with(received), "received data was not sent");
        }
    }

    /// Runs until `done`.
    pub(super) fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let begin = self.now;
        loop {
            self.pump();
            if done(self) {
                break;
            }
            assert!(self.step(), "no further event");
            assert!(self.now.since(begin) < Duration::from_secs(7200), "it takes too long");
        }
        self.check();
    }

    /// Runs for `duration`.
    pub(super) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.pump();
        while self.next_event().is_some_and(|next| next <= end) {
            self.step();
            self.pump();
        }
        self.now = end;
        self.network.pass_until(since_start(end));
        self.check();
    }

    fn next_event(&self) -> Option<Time> {
        let arrival = self.network.next_arrival().map(Time::new);
        let timeouts = self.ends.iter().filter_map(|end| end.tcp.as_ref()?.poll_timeout());
        timeouts.chain(arrival).min()
    }

    /// Handles the next event. Returns whether there was one.
    fn step(&mut self) -> bool {
        let Some(next) = self.next_event() else { return false };
        self.now = self.now.max(next);
        for tcp in self.ends.iter_mut().filter_map(|end| end.tcp.as_mut()) {
            if tcp.poll_timeout().is_some_and(|due| due <= self.now) {
                tcp.handle_timeout(self.now);
            }
        }
        self.network.pass_until(since_start(self.now));
        while let Some(datagram) = self.network.poll_arrival() {
            let to = usize::from(datagram.to == address(1));
            self.deliver(to, &datagram.bytes);
        }
        true
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let (header, len) = Header::parse(bytes).unwrap();
        let segment = Segment { header, payload: Payload::Whole(&bytes[len..]) };
        let end = &mut self.ends[to];
        let Some(tcp) = &mut end.tcp else {
            // The second end listens.
            if segment.header.flags == flags::SYN {
                let settings = settings(&self.budget, self.control[to], 7, self.mss[to]);
                let accepted = Connection::accept(settings, ports(to), &segment.header, self.now);
                end.tcp = Some(accepted);
            }
            return;
        };
        let verdict = tcp.handle_segment(self.now, &segment);
        assert_eq!(verdict, Verdict::Handled, "{:?}", segment.header);
    }

    /// Delivers a forged segment at once.
    pub(super) fn forge(&mut self, to: usize, change: impl FnOnce(&mut Header)) {
        let other = self.ends[1 - to].tcp.as_ref().unwrap();
        let mut header = other.header(self.now, flags::ACK);
        header.window = 1000;
        change(&mut header);
        let segment = Segment { header, payload: Payload::Whole(&[]) };
        let now = self.now;
        let _ = self.tcp(to).handle_segment(now, &segment);
    }

    /// Lets both ends write, read and send as much as they can.
    pub(super) fn pump(&mut self) {
        for from in [0, 1] {
            self.ends[from].exchange(self.now);
            let mut room = vec![0; 65_535];
            while let Some(tcp) = self.ends[from].tcp.as_mut()
                && tcp.wants_transmit(self.most)
                && let Some(outgoing) = tcp.poll_transmit(self.now, &mut room, self.most)
            {
                let len = outgoing.header + outgoing.payload;
                assert!(len <= self.most.max(usize::from(MSS) + 60), "longer than allowed");
                for segment in split(&room[..len], outgoing.header, outgoing.segment) {
                    self.launch(from, segment);
                }
                self.ends[from].exchange(self.now);
            }
            self.ends[from].exchange(self.now);
        }
    }

    fn launch(&mut self, from: usize, mut bytes: Vec<u8>) {
        let to = 1 - from;
        let (header, len) = Header::parse(&bytes).unwrap();
        let limit = usize::from(self.mss[to]);
        assert!(bytes.len() - 20 <= limit, "more than the peer's MSS: {header:?}");
        let number = self.ends[from].sent;
        self.ends[from].sent += 1;
        self.ends[from].sent_bytes += bytes.len() - len;
        if !(self.filter)(from, number, &mut bytes) {
            return;
        }
        let segment = Datagram::new(address(from), address(to), bytes);
        let hit = |fault: &Fault| (fault.from, fault.number) == (from, number);
        match self.fault.filter(hit).map(|fault| fault.kind) {
            Some(Kind::Lost) => return,
            Some(Kind::Late(by)) => return self.network.send_late(segment, by),
            Some(Kind::Twice) => self.network.send(segment.clone()),
            None => {}
        }
        self.network.send(segment);
    }
}

/// The time of the network.
pub(super) fn since_start(time: Time) -> Duration {
    Duration::from_nanos(time.as_nanos())
}

impl End {
    fn exchange(&mut self, now: Time) {
        let Some(tcp) = &mut self.tcp else { return };
        if self.failure.is_none() {
            self.failure = tcp.take_failure();
        }
        if let Some(written) = tcp.write(&self.data[self.written..]) {
            self.written += written;
        }
        let open = matches!(tcp.state(), State::Established | State::CloseWait);
        if self.ends && self.written == self.data.len() && open {
            tcp.shutdown(now);
        }
        while self.reads && tcp.readable() > 0 {
            let mut to = [0; 5000];
            let len = tcp.read(&mut to, now);
            self.received.extend_from_slice(&to[..len]);
        }
    }
}

/// The segments of a super-packet, computed by `packet`.
pub(super) fn split(bytes: &[u8], header: usize, segment: usize) -> Vec<Vec<u8>> {
    let (head, payload) = bytes.split_at(header);
    if payload.is_empty() {
        return vec![head.to_vec()];
    }
    let count = payload.len().div_ceil(segment);
    let cut = |(index, piece): (usize, &[u8])| {
        let (mut parsed, _) = Header::parse(head).unwrap();
        parsed.seq = parsed.seq + (index * segment) as u32;
        if index + 1 != count {
            parsed.flags &= !(flags::FIN | flags::PSH);
        }
        let mut bytes = vec![0; header];
        parsed.write(&mut bytes);
        bytes.extend_from_slice(piece);
        bytes
    };
    payload.chunks(segment).enumerate().map(cut).collect()
}
