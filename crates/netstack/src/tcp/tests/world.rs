//! Two ends, what they want to say, and what befalls it on the way.

use std::{net::SocketAddr, time::Duration};

pub use sim::Link;
use sim::{Datagram, Network};

use crate::{
    budget::Budget,
    tcp::{
        CongestionControl, Connection, Failure, Header, Payload, Ports, Segment, Seq, Settings,
        State, flags, input::Verdict,
    },
    time::Time,
};

pub const MS: Duration = Duration::from_millis(1);
pub const MSS: u16 = 1380;
const PORTS: [u16; 2] = [40_000, 80];

/// Bytes around each segment: of IP and of a tunnel.
pub const AROUND: usize = 52;

/// A link of ten milliseconds.
pub const CLEAN: Link = Link { delay: Duration::from_millis(10), overhead: AROUND, ..Link::CLEAN };

/// What happens to one segment.
#[derive(Clone, Copy, Debug)]
pub struct Mishap {
    pub from: usize,
    /// Among those that this end sends.
    pub number: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Lost,
    Twice,
    /// So much later than it should; what was sent behind it comes first.
    Late(Duration),
}

pub struct End {
    pub tcp: Option<Connection>,
    /// What it still has to write.
    pub speech: Vec<u8>,
    said: usize,
    /// Whether it ends its half when all is said.
    pub ends: bool,
    /// Whether it reads what comes.
    pub reads: bool,
    pub heard: Vec<u8>,
    pub failure: Option<Failure>,
    /// Segments that it sent.
    pub sent: usize,
    /// Bytes of payload that it sent.
    pub sent_bytes: usize,
}

/// What a scenario does with a segment: by its number, from one end to the other.
pub type Filter = Box<dyn FnMut(usize, usize, &mut Vec<u8>) -> bool>;

pub struct World {
    pub now: Time,
    pub network: Network,
    pub ends: [End; 2],
    /// Whether a segment passes, and what else becomes of it.
    pub filter: Filter,
    /// What befalls one segment that passes.
    pub mishap: Option<Mishap>,
    /// The most that one transmission carries.
    pub most: usize,
    pub budget: Budget,
    /// What each end's connection is to have.
    pub control: [CongestionControl; 2],
    mss: [u16; 2],
}

pub fn settings(budget: &Budget, control: CongestionControl, initial: u32, mss: u16) -> Settings {
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

pub fn ports(end: usize) -> Ports {
    Ports { local: PORTS[end], remote: PORTS[1 - end] }
}

/// Where an end is on the network.
fn address(end: usize) -> SocketAddr {
    ([192, 0, 2, end as u8], PORTS[end]).into()
}

/// Bytes in which no part looks like another.
pub fn speech(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}

impl World {
    pub fn new(seed: u64, link: Link) -> Self {
        let end = || End {
            tcp: None,
            speech: Vec::new(),
            said: 0,
            ends: false,
            reads: true,
            heard: Vec::new(),
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
            mishap: None,
            most: 65_515,
            budget: Budget::new(256 << 20),
            control: [CongestionControl::default(); 2],
            mss: [MSS; 2],
        }
    }

    /// The first end has asked for a connection; sequence numbers are about to wrap.
    pub fn dialled(seed: u64, link: Link) -> Self {
        let mut world = Self::new(seed, link);
        world.dial(0);
        world
    }

    /// Both ends are connected.
    pub fn connected(seed: u64, link: Link) -> Self {
        Self::with(CongestionControl::default(), seed, link)
    }

    /// The same, with this congestion control at both.
    pub fn with(control: CongestionControl, seed: u64, link: Link) -> Self {
        let mut world = Self::new(seed, Link { loss: 0, reordering: 0, ..link });
        world.control = [control; 2];
        world.dial(0);
        world.run_until(|world| world.both(State::Established));
        world.network.set_link(link);
        world
    }

    pub fn dial(&mut self, end: usize) {
        let settings = settings(&self.budget, self.control[end], u32::MAX - 5000, self.mss[end]);
        self.ends[end].tcp = Some(Connection::connect(settings, ports(end), self.now));
    }

    pub fn set_mss(&mut self, mss: [u16; 2]) {
        self.mss = mss;
    }

    pub fn tcp(&mut self, end: usize) -> &mut Connection {
        self.ends[end].tcp.as_mut().unwrap()
    }

    pub fn state(&self, end: usize) -> State {
        self.ends[end].tcp.as_ref().map_or(State::Closed, Connection::state)
    }

    pub fn both(&self, state: State) -> bool {
        self.state(0) == state && self.state(1) == state
    }

    /// Has an end say so much more.
    pub fn say(&mut self, end: usize, len: usize) {
        let end = &mut self.ends[end];
        let all = speech(end.speech.len() + len);
        end.speech = all;
    }

    /// Whether each heard all that the other has said and has to say.
    pub fn all_heard(&self) -> bool {
        let [a, b] = &self.ends;
        a.heard.len() == b.speech.len() && b.heard.len() == a.speech.len()
    }

    /// Whether what was heard is what was said.
    pub fn check(&self) {
        let [a, b] = &self.ends;
        for (heard, speech) in [(&a.heard, &b.speech), (&b.heard, &a.speech)] {
            assert!(speech.starts_with(heard), "what was heard was not said");
        }
    }

    /// Lets time pass until `done`.
    pub fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let begin = self.now;
        loop {
            self.pump();
            if done(self) {
                break;
            }
            assert!(self.step(), "nothing would ever happen again");
            assert!(self.now.since(begin) < Duration::from_secs(7200), "it takes for ever");
        }
        self.check();
    }

    /// Lets `duration` pass.
    pub fn run_for(&mut self, duration: Duration) {
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

    /// Lets the next thing happen; whether there is one.
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
            // Somebody listens.
            if segment.header.flags == flags::SYN {
                let settings = settings(&self.budget, self.control[to], 7, self.mss[to]);
                let accepted = Connection::accept(settings, ports(to), &segment.header, self.now);
                end.tcp = Some(accepted);
            }
            return;
        };
        let verdict = tcp.handle_segment(self.now, &segment);
        assert_eq!(verdict, Verdict::Taken, "{:?}", segment.header);
    }

    /// Has a segment arrive at once, made by nobody.
    pub fn forge(&mut self, to: usize, change: impl FnOnce(&mut Header)) {
        let other = self.ends[1 - to].tcp.as_ref().unwrap();
        let mut header = other.header(self.now, flags::ACK);
        header.window = 1000;
        change(&mut header);
        let segment = Segment { header, payload: Payload::Whole(&[]) };
        let now = self.now;
        let _ = self.tcp(to).handle_segment(now, &segment);
    }

    /// Has both ends say, hear and send what they can.
    pub fn pump(&mut self) {
        for from in [0, 1] {
            self.ends[from].talk(self.now);
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
                self.ends[from].talk(self.now);
            }
            self.ends[from].talk(self.now);
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
        let hit = |mishap: &Mishap| (mishap.from, mishap.number) == (from, number);
        match self.mishap.filter(hit).map(|mishap| mishap.kind) {
            Some(Kind::Lost) => return,
            Some(Kind::Late(by)) => return self.network.send_late(segment, by),
            Some(Kind::Twice) => self.network.send(segment.clone()),
            None => {}
        }
        self.network.send(segment);
    }
}

/// As the network counts.
pub fn since_start(time: Time) -> Duration {
    Duration::from_nanos(time.as_nanos())
}

impl End {
    fn talk(&mut self, now: Time) {
        let Some(tcp) = &mut self.tcp else { return };
        if self.failure.is_none() {
            self.failure = tcp.take_failure();
        }
        if let Some(said) = tcp.write(&self.speech[self.said..]) {
            self.said += said;
        }
        let open = matches!(tcp.state(), State::Established | State::CloseWait);
        if self.ends && self.said == self.speech.len() && open {
            tcp.shutdown(now);
        }
        while self.reads && tcp.readable() > 0 {
            let mut to = [0; 5000];
            let len = tcp.read(&mut to, now);
            self.heard.extend_from_slice(&to[..len]);
        }
    }
}

/// What `packet` makes of a super-packet.
pub fn split(bytes: &[u8], header: usize, segment: usize) -> Vec<Vec<u8>> {
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
