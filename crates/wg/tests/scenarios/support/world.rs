//! Hosts, the links between them, and time.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use packet::Endpoint;
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use wg::{
    Now, PublicKey, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
    message::{DATA_OVERHEAD, Kind},
};

use super::{
    Host, Id,
    host::{inner, inner_packet},
};

/// What every link does to a datagram.
#[derive(Clone, Copy)]
pub struct Link {
    /// The least time on the way.
    pub delay: Duration,
    /// The most that is added to it: where it is longer than the time between
    /// two datagrams, they change places.
    pub jitter: Duration,
    /// Of 1,000 datagrams, how many are lost.
    pub loss: u32,
    /// Of 1,000 datagrams, how many arrive twice.
    pub duplication: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Initiation,
    Response,
    CookieReply,
    Keepalive,
    Data,
    /// No WireGuard message.
    Other,
}

/// A datagram on the wire.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at: Time,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub what: What,
    pub bytes: Vec<u8>,
}

impl Sent {
    /// The counter of transport data.
    pub fn counter(&self) -> u64 {
        u64::from_le_bytes(self.bytes[8..16].try_into().unwrap())
    }
}

pub struct World {
    pub hosts: Vec<Host>,
    pub link: Link,
    /// Every datagram that a host sent, in order.
    pub wire: Vec<Sent>,
    /// Added to each host's wall clock, by its number.
    pub clock_skew: Vec<i64>,
    seed: u64,
    rng: ChaCha20Rng,
    now: Time,
    began: Time,
    arrivals: BTreeMap<(Time, u64), Sent>,
    gate: Box<dyn FnMut(&Sent) -> bool>,
    serial: u64,
    number: u32,
}

/// Hosts see this wall clock at the world's start.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

impl World {
    pub fn new(seed: u64) -> Self {
        let began = Time::from_nanos(1_000_000_000_000);
        Self {
            hosts: Vec::new(),
            link: Link {
                delay: Duration::from_millis(10),
                jitter: Duration::ZERO,
                loss: 0,
                duplication: 0,
            },
            wire: Vec::new(),
            clock_skew: Vec::new(),
            seed,
            rng: ChaCha20Rng::seed_from_u64(seed),
            now: began,
            began,
            arrivals: BTreeMap::new(),
            gate: Box::new(|_| true),
            serial: 0,
            number: 0,
        }
    }

    /// Two hosts that know of each other.
    pub fn pair(seed: u64) -> Self {
        let mut world = Self::new(seed);
        let (a, b) = (world.add_host(), world.add_host());
        world.introduce(a, b);
        world.introduce(b, a);
        world
    }

    /// Two hosts with a session that the first one began.
    pub fn connected(seed: u64) -> Self {
        let mut world = Self::pair(seed);
        world.send(super::A, super::B);
        world.run(Duration::from_millis(100));
        assert_eq!(world.received(super::B).len(), 1, "the session carries data");
        world
    }

    pub fn add_host(&mut self) -> Id {
        let id = self.hosts.len();
        self.hosts.push(Host::new(id, self.seed));
        self.clock_skew.push(0);
        id
    }

    /// Makes `peer` a peer of `host`, with its endpoint and its inner address.
    pub fn introduce(&mut self, host: Id, peer: Id) {
        let endpoint = self.hosts[peer].address;
        let change = PeerChange { endpoint: Some(endpoint), ..self.peer_change(peer) };
        self.change_peer(host, change);
    }

    /// The change that makes `peer` a peer, without an endpoint.
    pub fn peer_change(&self, peer: Id) -> PeerChange {
        let net = IpAddr::from(inner(peer)).into();
        PeerChange {
            allowed_ips: vec![AllowedIpChange { net, remove: false }],
            ..PeerChange::new(self.key(peer))
        }
    }

    pub fn change_peer(&mut self, host: Id, change: PeerChange) {
        self.apply(host, DeviceChange { peers: vec![change], ..Default::default() });
    }

    pub fn apply(&mut self, host: Id, change: DeviceChange) {
        self.act(host, |host, _| host.control.apply(change).unwrap());
    }

    /// Does something to a host, and what follows from it.
    pub fn act<T>(&mut self, host: Id, action: impl FnOnce(&mut Host, Now) -> T) -> T {
        let now = self.now(host);
        let result = action(&mut self.hosts[host], now);
        self.hosts[host].work(now);
        self.collect(host);
        result
    }

    pub fn key(&self, host: Id) -> PublicKey {
        self.hosts[host].public_key()
    }

    /// The clocks of a host.
    pub fn now(&self, host: Id) -> Now {
        let wall = EPOCH + self.now.since(self.began);
        let skew = self.clock_skew[host];
        let wall = if skew < 0 {
            wall.saturating_sub(Duration::from_secs(skew.unsigned_abs()))
        } else {
            wall + Duration::from_secs(skew.unsigned_abs())
        };
        Now { time: self.now, wall }
    }

    /// How long the world has been running.
    pub fn elapsed(&self) -> Duration {
        self.now.since(self.began)
    }

    /// Sends an inner packet, and returns its number.
    pub fn send(&mut self, from: Id, to: Id) -> u32 {
        self.send_many(from, to, 1)[0]
    }

    /// Sends inner packets as one run.
    pub fn send_many(&mut self, from: Id, to: Id, count: u32) -> Vec<u32> {
        let numbers: Vec<u32> = (self.number..self.number + count).collect();
        self.number += count;
        let packets: Vec<_> = numbers
            .iter()
            .map(|number| inner_packet(inner(from).into(), inner(to).into(), *number))
            .collect();
        self.act(from, |host, now| host.send(&packets, now));
        numbers
    }

    /// Sends an inner packet of `len` bytes.
    pub fn send_padded(&mut self, from: Id, to: Id, len: usize) {
        let mut packet = inner_packet(inner(from).into(), inner(to).into(), self.number);
        self.number += 1;
        packet.resize(len, 0);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        self.act(from, |host, now| host.send(&[packet], now));
    }

    /// The numbers of the inner packets that a host received, in order.
    pub fn received(&self, host: Id) -> Vec<u32> {
        let number = |packet: &Vec<u8>| u32::from_be_bytes(packet[20..24].try_into().unwrap());
        self.hosts[host].received.iter().map(number).collect()
    }

    /// Whether packets pass both ways, now and in order.
    #[track_caller]
    pub fn assert_flows(&mut self, one: Id, other: Id) {
        for (from, to) in [(one, other), (other, one)] {
            let numbers = self.send_many(from, to, 3);
            self.run(Duration::from_millis(100));
            let received = self.received(to);
            assert!(received.ends_with(&numbers), "{from} to {to}: {numbers:?} in {received:?}");
        }
    }

    /// Puts a datagram on the wire as if `from` had sent it.
    pub fn inject(&mut self, bytes: &[u8], from: SocketAddr, to: Id) {
        let to = self.hosts[to].address;
        let sent = Sent { at: self.now, from, to, what: what(bytes), bytes: bytes.to_vec() };
        self.arrive(sent, self.now);
    }

    /// Lets only those datagrams pass for which `gate` says so.
    pub fn gate(&mut self, gate: impl FnMut(&Sent) -> bool + 'static) {
        self.gate = Box::new(gate);
    }

    pub fn open_gate(&mut self) {
        self.gate(|_| true);
    }

    /// Loses the next datagram of a kind.
    pub fn lose_next(&mut self, what: What) {
        let mut lost = false;
        self.gate(move |sent| sent.what != what || std::mem::replace(&mut lost, true));
    }

    /// What `host` sent, from its present address.
    pub fn sent(&self, host: Id, what: What) -> Vec<&Sent> {
        let from = self.hosts[host].address;
        self.wire.iter().filter(|sent| sent.from == from && sent.what == what).collect()
    }

    /// When `host` sent something, since the world's start.
    pub fn times(&self, host: Id, what: What) -> Vec<Duration> {
        self.sent(host, what).iter().map(|sent| sent.at.since(self.began)).collect()
    }

    /// Runs for a time.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// Works on the next event up to `end`.
    fn step(&mut self, end: Time) -> bool {
        let timer = (0..self.hosts.len())
            .filter_map(|id| self.hosts[id].control.poll_timeout().map(|time| (time, id)))
            .min();
        let arrival = self.arrivals.first_key_value().map(|((time, _), _)| *time);
        let timer_first = match (timer, arrival) {
            (Some((timer, _)), Some(arrival)) => timer < arrival,
            (timer, _) => timer.is_some(),
        };
        if timer_first && let Some((time, host)) = timer.filter(|(time, _)| *time <= end) {
            self.now = self.now.max(time);
            self.act(host, Host::handle_timeout);
            return true;
        }
        if arrival.is_none_or(|arrival| timer_first || arrival > end) {
            return false;
        }
        let ((time, _), sent) = self.arrivals.pop_first().expect("there is an arrival");
        self.now = self.now.max(time);
        if let Some(host) = self.hosts.iter().position(|host| host.address == sent.to) {
            let from = Endpoint::new(sent.from);
            self.act(host, |host, now| host.receive(&sent.bytes, from, now));
        }
        true
    }

    /// Puts on the wire what a host wants to send.
    fn collect(&mut self, host: Id) {
        let from = self.hosts[host].address;
        for (bytes, endpoint) in std::mem::take(&mut self.hosts[host].out) {
            let to = endpoint.remote.direct().expect("no host here is behind a relay");
            let sent = Sent { at: self.now, from, to, what: what(&bytes), bytes };
            self.wire.push(sent.clone());
            if !(self.gate)(&sent) || self.chance(self.link.loss) {
                continue;
            }
            if self.chance(self.link.duplication) {
                let time = self.transit();
                self.arrive(sent.clone(), time);
            }
            let time = self.transit();
            self.arrive(sent, time);
        }
    }

    fn arrive(&mut self, sent: Sent, time: Time) {
        self.serial += 1;
        self.arrivals.insert((time, self.serial), sent);
    }

    fn transit(&mut self) -> Time {
        let jitter = self.link.jitter.as_nanos() as u64;
        let jitter = if jitter == 0 { 0 } else { self.rng.next_u64() % jitter };
        self.now + self.link.delay + Duration::from_nanos(jitter)
    }

    fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.rng.next_u32() % 1000 < permille
    }
}

fn what(bytes: &[u8]) -> What {
    match Kind::of(bytes) {
        Some(Kind::Initiation) => What::Initiation,
        Some(Kind::Response) => What::Response,
        Some(Kind::CookieReply) => What::CookieReply,
        Some(Kind::Data) if bytes.len() == DATA_OVERHEAD => What::Keepalive,
        Some(Kind::Data) => What::Data,
        None => What::Other,
    }
}
