//! Hosts, the datagrams between them, and their times.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use packet::Endpoint;
use sim::{Datagram, Link, Network};
use wg::{
    Now, PublicKey, Time,
    config::{AllowedIpChange, DeviceChange, PeerChange},
    message::{DATA_OVERHEAD, Kind},
};

use super::{
    Host, Id,
    host::{inner, inner_packet},
};

/// The initial link between hosts.
pub(crate) const LINK: Link = Link { delay: Duration::from_millis(10), ..Link::CLEAN };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Initiation,
    Response,
    CookieReply,
    Keepalive,
    Data,
    /// Not a WireGuard message.
    Other,
}

/// A datagram that a host sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub at: Time,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub what: What,
    pub bytes: Vec<u8>,
}

impl Sent {
    /// Counter of transport data.
    pub(crate) fn counter(&self) -> u64 {
        u64::from_le_bytes(self.bytes[8..16].try_into().unwrap())
    }
}

pub(crate) struct World {
    pub hosts: Vec<Host>,
    pub network: Network,
    /// Every datagram that a host sent, in order.
    pub wire: Vec<Sent>,
    /// Seconds added to each host's wall clock, by its index.
    pub clock_skew: Vec<i64>,
    seed: u64,
    began: Duration,
    gate: Box<dyn FnMut(&Sent) -> bool>,
    number: u32,
}

/// The wall clock at the world's start.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let network = Network::new(seed, LINK);
        Self {
            hosts: Vec::new(),
            began: network.now(),
            network,
            wire: Vec::new(),
            clock_skew: Vec::new(),
            seed,
            gate: Box::new(|_| true),
            number: 0,
        }
    }

    /// Two hosts that are peers of each other.
    pub(crate) fn pair(seed: u64) -> Self {
        let mut world = Self::new(seed);
        let (a, b) = (world.add_host(), world.add_host());
        world.introduce(a, b);
        world.introduce(b, a);
        world
    }

    /// Two hosts with a session that the first one started.
    pub(crate) fn connected(seed: u64) -> Self {
        let mut world = Self::pair(seed);
        world.send(super::A, super::B);
        world.run(Duration::from_millis(100));
        assert_eq!(world.received(super::B).len(), 1, "the session carries data");
        world
    }

    pub(crate) fn add_host(&mut self) -> Id {
        let id = self.hosts.len();
        self.hosts.push(Host::new(id, self.seed));
        self.clock_skew.push(0);
        id
    }

    /// Adds `peer` to `host`, with its endpoint and its inner address.
    pub(crate) fn introduce(&mut self, host: Id, peer: Id) {
        let endpoint = self.hosts[peer].address;
        let change = PeerChange { endpoint: Some(endpoint), ..self.peer_change(peer) };
        self.change_peer(host, change);
    }

    /// The change that adds `peer` without an endpoint.
    pub(crate) fn peer_change(&self, peer: Id) -> PeerChange {
        let net = IpAddr::from(inner(peer)).into();
        PeerChange {
            allowed_ips: vec![AllowedIpChange { net, remove: false }],
            ..PeerChange::new(self.key(peer))
        }
    }

    pub(crate) fn change_peer(&mut self, host: Id, change: PeerChange) {
        self.apply(host, DeviceChange { peers: vec![change], ..Default::default() });
    }

    pub(crate) fn apply(&mut self, host: Id, change: DeviceChange) {
        self.act(host, |host, _| host.control.apply(change).unwrap());
    }

    /// Runs `action` on a host, then handles the resulting notices and datagrams.
    pub(crate) fn act<T>(&mut self, host: Id, action: impl FnOnce(&mut Host, Now) -> T) -> T {
        let now = self.now(host);
        let result = action(&mut self.hosts[host], now);
        self.hosts[host].work(now);
        self.collect(host);
        result
    }

    pub(crate) fn key(&self, host: Id) -> PublicKey {
        self.hosts[host].public_key()
    }

    /// The clocks of a host.
    pub(crate) fn now(&self, host: Id) -> Now {
        let wall = EPOCH + self.elapsed();
        let skew = self.clock_skew[host];
        let wall = if skew < 0 {
            wall.saturating_sub(Duration::from_secs(skew.unsigned_abs()))
        } else {
            wall + Duration::from_secs(skew.unsigned_abs())
        };
        Now { time: time(self.network.now()), wall }
    }

    /// Virtual time since the world's start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.network.now() - self.began
    }

    /// Sends an inner packet. Returns its number.
    pub(crate) fn send(&mut self, from: Id, to: Id) -> u32 {
        self.send_many(from, to, 1)[0]
    }

    /// Sends several inner packets with one reservation.
    pub(crate) fn send_many(&mut self, from: Id, to: Id, count: u32) -> Vec<u32> {
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
    pub(crate) fn send_padded(&mut self, from: Id, to: Id, len: usize) {
        let mut packet = inner_packet(inner(from).into(), inner(to).into(), self.number);
        self.number += 1;
        packet.resize(len, 0);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        self.act(from, |host, now| host.send(&[packet], now));
    }

    /// Numbers of the inner packets that a host received, in order.
    pub(crate) fn received(&self, host: Id) -> Vec<u32> {
        let number = |packet: &Vec<u8>| u32::from_be_bytes(packet[20..24].try_into().unwrap());
        self.hosts[host].received.iter().map(number).collect()
    }

    /// Asserts that packets arrive in both directions, now and in order.
    #[track_caller]
    pub(crate) fn assert_flows(&mut self, one: Id, other: Id) {
        for (from, to) in [(one, other), (other, one)] {
            let numbers = self.send_many(from, to, 3);
            self.run(Duration::from_millis(100));
            let received = self.received(to);
            assert!(received.ends_with(&numbers), "{from} to {to}: {numbers:?} in {received:?}");
        }
    }

    /// Delivers a datagram with the source `from`.
    pub(crate) fn inject(&mut self, bytes: &[u8], from: SocketAddr, to: Id) {
        self.network.deliver(Datagram::new(from, self.hosts[to].address, bytes));
    }

    /// Drops the datagrams for which `gate` returns `false`.
    pub(crate) fn gate(&mut self, gate: impl FnMut(&Sent) -> bool + 'static) {
        self.gate = Box::new(gate);
    }

    pub(crate) fn open_gate(&mut self) {
        self.gate(|_| true);
    }

    /// Drops the next datagram of a kind.
    pub(crate) fn lose_next(&mut self, what: What) {
        let mut lost = false;
        self.gate(move |sent| sent.what != what || std::mem::replace(&mut lost, true));
    }

    /// Datagrams that `host` sent from its present address.
    pub(crate) fn sent(&self, host: Id, what: What) -> Vec<&Sent> {
        let from = self.hosts[host].address;
        self.wire.iter().filter(|sent| sent.from == from && sent.what == what).collect()
    }

    /// Times of these datagrams, since the world's start.
    pub(crate) fn times(&self, host: Id, what: What) -> Vec<Duration> {
        let began = time(self.began);
        self.sent(host, what).iter().map(|sent| sent.at.since(began)).collect()
    }

    /// Advances the world by `duration`.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.network.now() + duration;
        while self.step(end) {}
        self.network.pass_until(end);
    }

    /// Handles the next event up to `end`. An arrival comes before a timer of the same time.
    fn step(&mut self, end: Duration) -> bool {
        if let Some(datagram) = self.network.poll_arrival() {
            self.receive(&datagram);
            return true;
        }
        let timer = (0..self.hosts.len())
            .filter_map(|id| self.hosts[id].control.poll_timeout().map(|time| (time, id)))
            .map(|(time, id)| (Duration::from_nanos(time.as_nanos()), id))
            .min();
        let arrival = self.network.next_arrival();
        match timer {
            Some((due, host)) if due <= end && arrival.is_none_or(|arrival| due < arrival) => {
                self.network.pass_until(due);
                self.act(host, Host::handle_timeout);
                true
            }
            _ => {
                let arrival = arrival.filter(|arrival| *arrival <= end);
                arrival.inspect(|arrival| self.network.pass_until(*arrival)).is_some()
            }
        }
    }

    fn receive(&mut self, datagram: &Datagram) {
        if let Some(host) = self.hosts.iter().position(|host| host.address == datagram.to) {
            let from = Endpoint::new(datagram.from);
            self.act(host, |host, now| host.receive(&datagram.bytes, from, now));
        }
    }

    /// Sends the datagrams of a host.
    fn collect(&mut self, host: Id) {
        let (at, from) = (time(self.network.now()), self.hosts[host].address);
        for (bytes, endpoint) in std::mem::take(&mut self.hosts[host].out) {
            let to = endpoint.remote.direct().expect("no host here is behind a relay");
            let sent = Sent { at, from, to, what: what(&bytes), bytes };
            if (self.gate)(&sent) {
                self.network.send(Datagram::new(from, sent.to, sent.bytes.as_slice()));
            }
            self.wire.push(sent);
        }
    }
}

fn time(since: Duration) -> Time {
    Time::from_nanos(since.as_nanos() as u64)
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
