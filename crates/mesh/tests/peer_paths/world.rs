//! Two hosts behind NATs, a relay and a STUN server, on virtual time.
//!
//! ```text
//!   host -- box ----- network ----- box -- host
//!     \            STUN server            /
//!      `-------------- relay ------------'
//! ```
//!
//! Data stands for WireGuard packets: each datagram uses the last published path. Traffic is
//! reported once a second, or at once if it goes through the relay.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipc::{AuxiliarySocket, Path};
use mesh::peer_paths::{
    Event, Paths, PeerInfo, PublicEndpoint, SocketsToOpen, To, Traffic, Transmit, Via,
};
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::{Datagram, Dependence, Nat, Network, Realm, Socket};
use tailnet::{
    disco::Message,
    keys::{DiscoPublic, NodePublic},
};

pub(crate) use crate::plan::{Plan, Start};
use crate::stock::{Node, Stock};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const INNER: &str = "10.0.0.2:51820";

const DISCO: u8 = 0;
const STUN: u8 = 1;
const MAPPED: u8 = 2;
const DATA: u8 = 3;

pub(crate) struct World {
    pub network: Network,
    pub hosts: [Host; 2],
    pub plan: Plan,
    pub rng: ChaCha20Rng,
    observer: Socket,
    relayed: BTreeMap<(Duration, u64), Relayed>,
    leaving: [VecDeque<Leaving>; 2],
    /// The time when each learns of the other.
    introductions: [Option<Duration>; 2],
    serial: u64,
    /// The contents of disco datagrams.
    sealed: Vec<(DiscoPublic, DiscoPublic, Message)>,
    pub relay_works: bool,
    /// Whether the network loses every disco datagram, as under load.
    pub loses_disco: bool,
    pub began: Duration,
}

pub(crate) struct Host {
    pub paths: Box<dyn Node>,
    /// The network of the host, and whether its NAT maps each destination to another port.
    behind: Option<(Realm, bool)>,
    /// The sockets for birthday probing, and the address of the next one.
    pub auxiliary: Vec<(AuxiliarySocket, Socket)>,
    next_port: u16,
    /// The times of the birthday probes.
    pub calls: Vec<Duration>,
    pub disco: DiscoPublic,
    pub sockets: Vec<Socket>,
    /// Whether it sends by itself, and whether it answers.
    pub talks: bool,
    pub answers: bool,
    pub used: Option<Path>,
    /// The published paths with their times.
    pub told: Vec<(Duration, Option<Path>)>,
    pub events: Vec<Event>,
    /// The time of the last received data, and their number.
    pub data: Option<Duration>,
    pub count: u64,
    /// The number of disco datagrams that were sent over UDP and through the relay.
    pub spent: [u64; 2],
    traffic: Traffic,
    next_data: Duration,
    next_report: Duration,
}

/// A datagram that has not been sent yet.
struct Leaving {
    at: Duration,
    to: SocketAddr,
    bytes: Vec<u8>,
    hops: Option<u8>,
}

enum Relayed {
    Disco(usize, usize),
    Data(usize),
    /// To this host: the other is not connected.
    Gone(usize),
}

pub(crate) fn outer(number: usize) -> IpAddr {
    [203, 0, 113, number as u8 + 1].into()
}

pub(crate) fn node(number: usize) -> NodePublic {
    NodePublic([number as u8 + 1; 32])
}

impl World {
    /// Creates two hosts with the same private address, each behind one of the NATs.
    pub(crate) fn new(plan: Plan, boxes: [Nat; 2]) -> Self {
        let network = Network::new(plan.seed, plan.link);
        let realms = boxes.map(|_| Realm::INTERNET);
        let realms = [0, 1].map(|at| network.add_nat(realms[at], boxes[at], &[outer(at)]));
        let sockets = realms.map(|realm| vec![network.bind(realm, INNER.parse().unwrap())]);
        let varies = boxes.map(|nat| nat.mapping != Dependence::EndpointIndependent);
        let mut world = Self::apart(plan, network, sockets);
        for at in 0..2 {
            world.hosts[at].behind = Some((realms[at], varies[at]));
        }
        world.join();
        world
    }

    /// Creates two hosts with these sockets.
    pub(crate) fn with_sockets(plan: Plan, network: Network, sockets: [Vec<Socket>; 2]) -> Self {
        let mut world = Self::apart(plan, network, sockets);
        world.join();
        world
    }

    fn apart(plan: Plan, network: Network, sockets: [Vec<Socket>; 2]) -> Self {
        let observer = network.bind(Realm::INTERNET, "198.51.100.1:3478".parse().unwrap());
        let mut number = 0;
        let began = network.now();
        let hosts = sockets.map(|sockets| {
            number += 1;
            Host::new(number - 1, plan, sockets, began)
        });
        Self {
            network,
            hosts,
            plan,
            rng: ChaCha20Rng::seed_from_u64(plan.seed),
            observer,
            relayed: BTreeMap::new(),
            leaving: Default::default(),
            introductions: [None; 2],
            serial: 0,
            sealed: Vec::new(),
            relay_works: true,
            loses_disco: false,
            began,
        }
    }

    /// Both determine their endpoints, and get their maps.
    fn join(&mut self) {
        (0..2).for_each(|at| self.start(at));
        self.run_for(4 * self.plan.link.delay.max(MS));
        self.began = self.network.now();
        self.introductions = self.plan.start.knows.map(|later| Some(self.began + later));
        self.run_for(Duration::ZERO);
    }

    /// Adds the other host to a host's map.
    pub(crate) fn introduce(&mut self, at: usize) {
        let now = self.network.now();
        let other = &self.hosts[1 - at];
        let mut endpoints: Vec<_> = other.sockets.iter().map(|socket| socket.address).collect();
        if self.plan.map_is_whole {
            endpoints.push(SocketAddr::new(outer(1 - at), 51820));
        }
        let info = PeerInfo {
            disco: other.disco,
            home: Some(1 + (1 - at) as u16),
            endpoints,
            supports_peer_relays: true,
        };
        self.hosts[at].paths.set_peer(node(1 - at), &info, now);
    }

    /// Restarts a host with another disco key, which the other learns at once.
    pub(crate) fn restart(&mut self, at: usize) {
        let now = self.network.now();
        let old = &self.hosts[at];
        let (sockets, talks, disco) = (old.sockets.clone(), old.talks, old.disco.0[0] + 16);
        let behind = old.behind;
        let plan = Plan { seed: self.plan.seed + u64::from(disco), ..self.plan };
        let mut host = Host::new(at, plan, sockets, now);
        (host.talks, host.disco) = (talks, DiscoPublic([disco; 32]));
        host.behind = behind;
        self.hosts[at] = host;
        self.start(at);
        self.introduce(at);
        self.introduce(1 - at);
    }

    /// Lets a host query the STUN server several times, as netcheck does.
    pub(crate) fn refresh(&mut self, at: usize) {
        for socket in self.hosts[at].sockets.iter().filter(|socket| socket.address.is_ipv4()) {
            (0..3).for_each(|_| socket.send(self.observer.address, &[STUN]));
        }
    }

    /// Sets a host's endpoints without an answer, as if UDP is blocked.
    fn start(&mut self, at: usize) {
        let local = self.hosts[at].sockets.iter().map(|socket| socket.address).collect();
        self.hosts[at].paths.set_own_endpoints(node(at), local, self.network.now());
        self.refresh(at);
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.network.now() + time;
        self.run(end, |_| false);
    }

    /// Runs until `done` returns true, or until `end`. Returns the last result.
    pub(crate) fn run(&mut self, end: Duration, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let now = self.network.now();
            if now >= end {
                return false;
            }
            let mut next = end;
            next = next.min(self.network.next_arrival().unwrap_or(end));
            next = next.min(self.relayed.first_key_value().map_or(end, |((at, _), _)| *at));
            for leaving in &self.leaving {
                next = next.min(leaving.front().map_or(end, |first| first.at));
            }
            next = self.introductions.iter().flatten().fold(next, |next, at| next.min(*at));
            for host in &self.hosts {
                next = next.min(host.paths.poll_timeout().unwrap_or(end));
                next = next.min(host.next_report);
                if host.wants_to_talk(now) {
                    next = next.min(host.next_data);
                }
            }
            self.network.pass_until(next.max(now));
        }
    }

    /// Processes expired timers.
    fn settle(&mut self) {
        let now = self.network.now();
        while let Some(datagram) = self.observer.receive() {
            let mapped = [&[MAPPED], datagram.from.to_string().as_bytes()].concat();
            self.observer.send(datagram.from, &mapped);
        }
        while let Some(entry) = self.relayed.first_entry()
            && entry.key().0 <= now
        {
            let relayed = entry.remove();
            self.arrive_by_relay(relayed, now);
        }
        for at in 0..2 {
            while let Some(first) = self.leaving[at].pop_front_if(|first| first.at <= now) {
                self.hosts[at].send(first.to, &first.bytes, first.hops);
            }
            if self.introductions[at].take_if(|at| *at <= now).is_some() {
                self.introduce(at);
            }
            for socket in self.hosts[at].sockets.clone() {
                while let Some(datagram) = socket.receive() {
                    self.arrive(at, &datagram, now);
                }
            }
            for (auxiliary, socket) in self.hosts[at].auxiliary.clone() {
                while let Some(datagram) = socket.receive() {
                    self.arrive_at_auxiliary(at, auxiliary, &datagram, now);
                }
            }
            self.hosts[at].paths.handle_timeout(now);
            assert!(self.hosts[at].paths.poll_timeout().is_none_or(|next| next > now));
            self.drain(at, now);
            self.talk(at, now);
            self.report(at, now);
            self.drain(at, now);
        }
    }

    fn arrive_by_relay(&mut self, relayed: Relayed, now: Duration) {
        match relayed {
            Relayed::Disco(to, index) => {
                let via = Via::Relay { region: 1 + to as u16, from: node(1 - to) };
                self.open(to, via, index, now);
            }
            Relayed::Data(to) => {
                self.hosts[to].note_data(Path::Relay(1 + to as u16), now);
            }
            Relayed::Gone(to) => {
                let region = 1 + (1 - to) as u16;
                self.hosts[to].paths.handle_peer_gone(region, node(1 - to), now);
            }
        }
    }

    fn arrive(&mut self, at: usize, datagram: &Datagram, now: Duration) {
        let (kind, rest) = datagram.bytes.split_first().unwrap();
        match *kind {
            DISCO => {
                let index = u64::from_le_bytes(rest.try_into().unwrap()) as usize;
                let via = Via::Udp { remote: datagram.from, local: None };
                self.open(at, via, index, now);
            }
            MAPPED => {
                let mapped: SocketAddr = std::str::from_utf8(rest).unwrap().parse().unwrap();
                let mut own: Vec<_> =
                    self.hosts[at].sockets.iter().map(|socket| socket.address).collect();
                own.push(mapped);
                own.dedup();
                self.hosts[at].paths.set_own_endpoints(node(at), own, now);
                if let Some((_, varies)) = self.hosts[at].behind
                    && self.plan.birthday
                {
                    self.hosts[at].paths.set_public_endpoint(PublicEndpoint { at: mapped, varies });
                }
            }
            DATA => self.hosts[at].note_data(Path::Direct(datagram.from), now),
            other => panic!("{other} means nothing to a host"),
        }
    }

    fn arrive_at_auxiliary(
        &mut self,
        at: usize,
        to: AuxiliarySocket,
        datagram: &Datagram,
        now: Duration,
    ) {
        let (kind, rest) = datagram.bytes.split_first().unwrap();
        if *kind == DATA {
            let path = Path::Auxiliary { at: datagram.from, number: to.number };
            self.hosts[at].note_data(path, now);
        } else {
            let index = u64::from_le_bytes(rest.try_into().unwrap()) as usize;
            let via = Via::Auxiliary { remote: datagram.from, socket: to };
            self.open(at, via, index, now);
        }
    }

    /// Opens auxiliary sockets of a host.
    fn open_auxiliary(&mut self, at: usize, opening: SocketsToOpen) {
        let SocketsToOpen { disco, number, to, count, hops, tx, .. } = opening;
        let index = self.sealed.len() as u64;
        let message = Message::Ping { tx, node_key: Some(node(at)), padding: 0 };
        self.sealed.push((self.hosts[at].disco, disco, message));
        let bytes = [&[DISCO][..], &index.to_le_bytes()].concat();
        let inner: SocketAddr = INNER.parse().unwrap();
        let host = &mut self.hosts[at];
        let (realm, _) = host.behind.unwrap();
        for index in 0..count {
            host.next_port += 1;
            let socket = self.network.bind(realm, SocketAddr::new(inner.ip(), host.next_port));
            socket.send_with_ttl(to, &bytes, hops);
            host.auxiliary.push((AuxiliarySocket { number, index }, socket));
        }
        host.paths.handle_sockets_opened(number, count, self.network.now());
    }

    fn open(&mut self, at: usize, via: Via, index: usize, now: Duration) {
        let (from, to, message) = self.sealed[index].clone();
        if to == self.hosts[at].disco {
            self.hosts[at].paths.handle_disco(from, via, &message, now);
        }
    }

    fn drain(&mut self, at: usize, now: Duration) {
        while let Some(event) = self.hosts[at].paths.poll_event() {
            match event {
                Event::UsePath { path, .. } => {
                    self.hosts[at].used = path;
                    self.hosts[at].told.push((now, path));
                }
                Event::RefreshEndpoints => self.refresh(at),
                Event::OpenSockets(opening) => self.open_auxiliary(at, opening),
                Event::RetainSocket(kept) => self.hosts[at]
                    .auxiliary
                    .retain(|(one, _)| one.number != kept.number || *one == kept),
                Event::CloseSockets(number) => {
                    self.hosts[at].auxiliary.retain(|(one, _)| one.number != number);
                }
                _ => {}
            }
            self.hosts[at].events.push(event);
        }
        while let Some(transmit) = self.hosts[at].paths.poll_transmit() {
            self.transmit(at, transmit, now);
        }
    }

    fn transmit(&mut self, at: usize, transmit: Transmit, now: Duration) {
        let index = self.sealed.len();
        let host = &mut self.hosts[at];
        self.sealed.push((host.disco, transmit.disco, transmit.message));
        match transmit.to {
            To::Udp { addr, hops, .. } => {
                host.spent[0] += 1;
                let bytes = [&[DISCO][..], &(index as u64).to_le_bytes()].concat();
                if !self.loses_disco {
                    self.leave(at, Leaving { at: now, to: addr, bytes, hops });
                }
            }
            To::BirthdayProbe(addr) => {
                host.calls.push(now);
                let bytes = [&[DISCO][..], &(index as u64).to_le_bytes()].concat();
                self.leave(at, Leaving { at: now, to: addr, bytes, hops: None });
            }
            To::Auxiliary { addr, socket } => {
                let bytes = [&[DISCO][..], &(index as u64).to_le_bytes()].concat();
                host.auxiliary.iter().filter(|(one, _)| *one == socket).for_each(|(_, socket)| {
                    socket.send(addr, &bytes);
                });
            }
            To::PeerRelay { .. } => panic!("there is none"),
            To::Relay { .. } => {
                host.spent[1] += 1;
                self.relay(now, Relayed::Disco(1 - at, index));
            }
        }
    }

    fn leave(&mut self, host: usize, mut leaving: Leaving) {
        let lag = self.plan.start.lag * (self.rng.next_u32() % 256) / 256;
        let last = self.leaving[host].back().map_or(leaving.at, |last| last.at);
        leaving.at = last.max(leaving.at + lag);
        self.leaving[host].push_back(leaving);
    }

    fn relay(&mut self, now: Duration, relayed: Relayed) {
        if !self.relay_works {
            return;
        }
        let Start { connects, stall, .. } = self.plan.start;
        let (Relayed::Disco(to, _) | Relayed::Data(to) | Relayed::Gone(to)) = relayed;
        let is_there = |host: usize| now >= self.began + connects[host];
        let (to, relayed) = match relayed {
            Relayed::Disco(..) if !is_there(to) => (1 - to, Relayed::Gone(1 - to)),
            relayed => (to, relayed),
        };
        if is_there(to) {
            self.serial += 1;
            let at = now.max(self.began + stall) + self.plan.relay[to];
            self.relayed.insert((at, self.serial), relayed);
        }
    }

    fn talk(&mut self, at: usize, now: Duration) {
        let host = &mut self.hosts[at];
        if !host.wants_to_talk(now) || now < host.next_data {
            return;
        }
        host.next_data = now + self.plan.pace;
        match host.used {
            Some(Path::Direct(addr)) => {
                host.traffic.sent += 100;
                host.send(addr, &[DATA], None);
            }
            Some(Path::Relay(_)) => {
                let traffic = Traffic { sent: 100, ..Traffic::default() };
                host.paths.handle_wireguard(node(1 - at), traffic, now);
                self.relay(now, Relayed::Data(1 - at));
            }
            Some(Path::Auxiliary { at, number }) => {
                host.traffic.sent += 100;
                let socket = host.auxiliary.iter().find(|(one, _)| one.number == number);
                socket.unwrap().1.send(at, &[DATA]);
            }
            Some(Path::PeerRelay { .. }) | None => {}
        }
    }

    fn report(&mut self, at: usize, now: Duration) {
        let host = &mut self.hosts[at];
        if now >= host.next_report {
            host.next_report = now + SECOND;
            let traffic = std::mem::take(&mut host.traffic);
            if traffic != Traffic::default() {
                host.paths.handle_wireguard(node(1 - at), traffic, now);
            }
        }
    }

    pub(crate) fn both_direct(&self) -> bool {
        self.hosts.iter().all(Host::is_direct)
    }
}

impl Host {
    fn new(at: usize, plan: Plan, sockets: Vec<Socket>, now: Duration) -> Self {
        let rng = ChaCha20Rng::seed_from_u64(plan.seed << 1 | at as u64);
        let paths: Box<dyn Node> = if plan.stock && at == 1 {
            Box::new(Stock::new(node(at)))
        } else {
            Box::new(Paths::new(node(at), Box::new(rng)))
        };
        Self {
            paths,
            behind: None,
            auxiliary: Vec::new(),
            next_port: 20_000,
            calls: Vec::new(),
            disco: DiscoPublic([at as u8 + 1; 32]),
            sockets,
            talks: false,
            answers: at == 1,
            used: None,
            told: Vec::new(),
            events: Vec::new(),
            data: None,
            count: 0,
            spent: [0; 2],
            traffic: Traffic::default(),
            next_data: now,
            next_report: now,
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.used, Some(Path::Direct(_) | Path::Auxiliary { .. }))
    }

    /// By itself, or as an answer.
    fn wants_to_talk(&self, now: Duration) -> bool {
        self.talks || self.answers && self.data.is_some_and(|data| now < data + SECOND)
    }

    fn note_data(&mut self, from: Path, now: Duration) {
        self.data = Some(now);
        self.count += 1;
        self.traffic.received += 100;
        self.traffic.received_from = Some(from);
    }

    fn send(&self, to: SocketAddr, bytes: &[u8], hops: Option<u8>) {
        let same = |socket: &&Socket| socket.address.is_ipv4() == to.is_ipv4();
        let Some(socket) = self.sockets.iter().find(same) else { return };
        match hops {
            Some(hops) => socket.send_with_ttl(to, bytes, hops),
            None => socket.send(to, bytes),
        }
    }
}
