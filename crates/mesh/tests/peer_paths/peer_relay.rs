//! Two hosts that never reach each other directly, and a node that relays between them.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use ipc::Path;
use mesh::{
    peer_paths::{Event, Paths, PeerInfo, PeerRelay, To, Traffic, Via},
    peer_relay::Server,
};
use packet::Endpoint;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use tailnet::{
    disco::{Disco, Message, RelayEndpoint},
    geneve::{GENEVE_LEN, Geneve, Protocol, Vni},
    keys::{DiscoKey, DiscoPublic},
};

use crate::world::{MS, SECOND, node};

/// The index of the node that relays, and the address of its relay.
const RELAY: usize = 2;
const REGION: u16 = 1;

fn relay_at() -> SocketAddr {
    ([203, 0, 113, 99], 40_000).into()
}

fn host_at(host: usize) -> SocketAddr {
    ([203, 0, 113, host as u8 + 1], 7).into()
}

fn disco(byte: u8) -> Disco {
    Disco::new(DiscoKey::new(Box::new([byte; 32].into())))
}

struct World {
    hosts: [(Paths, Disco); 2],
    used: [Option<Path>; 2],
    /// The published paths of each host, in order.
    told: [Vec<Option<Path>>; 2],
    server: Server,
    server_is_up: bool,
    now: Duration,
    /// The messages in flight, with the time of arrival and the host.
    flying: VecDeque<(Duration, usize, Via, DiscoPublic, Message)>,
    talks: [bool; 2],
    next_talk: Duration,
}

impl World {
    /// Creates the world. `granted`: the hosts that may use the relay.
    fn new(granted: [bool; 2]) -> Self {
        let now = 100 * SECOND;
        let server = |now| {
            let rng = Box::new(ChaCha20Rng::seed_from_u64(5));
            Server::new(DiscoKey::new(Box::new([9; 32].into())), rng, now)
        };
        let hosts = [0, 1].map(|at| {
            let rng = Box::new(ChaCha20Rng::seed_from_u64(at as u64));
            (Paths::new(node(at), rng), disco(at as u8 + 1))
        });
        let mut world = Self {
            hosts,
            used: [None; 2],
            told: [vec![], vec![]],
            server: server(now),
            server_is_up: true,
            now,
            flying: VecDeque::new(),
            talks: [true, false],
            next_talk: now,
        };
        let keys = world.hosts.each_ref().map(|(_, disco)| disco.public());
        for at in 0..2 {
            let (paths, _) = &mut world.hosts[at];
            paths.set_own_endpoints(node(at), vec![host_at(at)], now);
            let relay =
                PeerRelay { node: node(RELAY), disco: disco(3).public(), home: Some(REGION) };
            paths.set_peer_relays(keys[at], Some(Vec::from_iter(granted[at].then_some(relay))));
            let info = PeerInfo {
                disco: keys[1 - at],
                home: Some(REGION),
                endpoints: vec![host_at(1 - at)],
                supports_peer_relays: true,
            };
            paths.set_peer(node(1 - at), &info, now);
        }
        world
    }

    fn fly(&mut self, to: usize, via: Via, from: DiscoPublic, message: Message) {
        self.flying.push_back((self.now + 20 * MS, to, via, from, message));
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += 5 * MS;
            while self.flying.front().is_some_and(|first| first.0 <= self.now) {
                let (_, to, via, from, message) = self.flying.pop_front().unwrap();
                self.hosts[to].0.handle_disco(from, via, &message, self.now);
            }
            if self.now >= self.next_talk {
                self.next_talk = self.now + 200 * MS;
                self.talk();
            }
            for at in 0..2 {
                self.hosts[at].0.handle_timeout(self.now);
                let next = self.hosts[at].0.poll_timeout();
                assert!(next.is_none_or(|next| next > self.now), "it is due already");
                self.drain(at);
            }
        }
    }

    fn talk(&mut self) {
        for at in 0..2 {
            if self.talks[at] {
                let traffic = Traffic { sent: 100, ..Traffic::default() };
                self.hosts[at].0.handle_wireguard(node(1 - at), traffic, self.now);
            }
        }
    }

    fn drain(&mut self, at: usize) {
        while let Some(event) = self.hosts[at].0.poll_event() {
            match event {
                Event::UsePath { path, .. } => {
                    self.used[at] = path;
                    self.told[at].push(path);
                }
                Event::RefreshEndpoints => {
                    self.hosts[at].0.set_own_endpoints(node(at), vec![host_at(at)], self.now);
                }
                _ => {}
            }
        }
        while let Some(transmit) = self.hosts[at].0.poll_transmit() {
            let from = self.hosts[at].1.public();
            match transmit.to {
                To::Relay { peer, region } if peer == node(1 - at) => {
                    let via = Via::Relay { region, from: node(at) };
                    self.fly(1 - at, via, from, transmit.message);
                }
                To::Relay { peer, .. } if peer == node(RELAY) && self.server_is_up => {
                    self.allocate(at, from, &transmit.message);
                }
                To::PeerRelay { addr, vni, control } if addr == relay_at() => {
                    self.arrive_at_relay(at, vni, control, transmit.disco, &transmit.message);
                }
                // Their NATs accept nothing.
                _ => {}
            }
        }
    }

    fn allocate(&mut self, at: usize, from: DiscoPublic, message: &Message) {
        let Message::AllocateRequest(request) = message else { panic!("{message:?}") };
        assert!(request.clients.contains(&from));
        let made = self.server.allocate(from, request.clients, self.now).unwrap();
        let nowhere: SocketAddr = ([203, 0, 113, 98], 1).into();
        let endpoint = RelayEndpoint {
            server: made.server,
            clients: made.clients,
            lamport: made.lamport,
            vni: made.vni,
            bind_lifetime: made.bind_lifetime,
            steady_lifetime: made.steady_lifetime,
            addresses: vec![nowhere, relay_at()],
        };
        let generation = request.generation;
        let answer = Message::AllocateResponse { generation, endpoint: Box::new(endpoint) };
        let via = Via::Relay { region: REGION, from: node(RELAY) };
        self.fly(at, via, disco(3).public(), answer);
    }

    fn arrive_at_relay(
        &mut self,
        at: usize,
        vni: Vni,
        control: bool,
        to: DiscoPublic,
        message: &Message,
    ) {
        if !self.server_is_up {
            return;
        }
        let via = Via::PeerRelay { at: relay_at(), vni };
        let from = Endpoint::new(host_at(at));
        if !control {
            let passed = self.server.forward(vni, host_at(at), (1, 100), self.now);
            if passed == Some(Endpoint::new(host_at(1 - at))) {
                self.fly(1 - at, via, self.hosts[at].1.public(), message.clone());
            }
            return;
        }
        let header = Geneve { control, protocol: Protocol::Disco, vni };
        let sealed = self.hosts[at].1.seal(to, message, [1; 24]);
        if let Some(answer) = self.server.handle_control(header, &sealed, from, self.now) {
            let (from, said) = self.hosts[at].1.open(&answer[GENEVE_LEN..]).unwrap();
            self.fly(at, via, from, said);
        }
    }

    fn is_passed(&self, at: usize) -> bool {
        matches!(self.used[at], Some(Path::PeerRelay { at, .. }) if at == relay_at())
    }
}

#[test]
fn unreachable_hosts_use_a_peer_relay_that_either_may_allocate() {
    for granted in [[true, true], [true, false], [false, true]] {
        let mut world = World::new(granted);
        world.talks = [true, true];
        world.run_for(5 * SECOND);
        assert!(world.is_passed(0) && world.is_passed(1), "{granted:?} {:?}", world.used);
        // The DERP relay was the first path, and no packet waited.
        assert_eq!(world.told[0][0], Some(Path::Relay(REGION)));
        let before = world.told.clone();
        world.run_for(600 * SECOND);
        assert_eq!(world.told, before, "{granted:?}: it does not hold");
        assert_eq!(world.server.sessions().count(), 1);
    }
}

#[test]
fn receiving_host_binds_and_answers() {
    let mut world = World::new([true, true]);
    world.run_for(10 * SECOND);
    assert!(world.is_passed(0), "{:?}", world.told);
    assert_eq!(world.server.sessions().count(), 1);
}

#[test]
fn no_relay_is_requested_without_a_grant() {
    let mut world = World::new([false, false]);
    world.run_for(60 * SECOND);
    assert_eq!(world.used[0], Some(Path::Relay(REGION)));
    assert_eq!(world.server.sessions().count(), 0);
}

#[test]
fn direct_path_is_used_before_and_after_a_peer_relay() {
    let mut world = World::new([true, true]);
    world.talks = [true, true];
    world.run_for(10 * SECOND);
    assert!(world.is_passed(0));
    // Finally a ping of the other host.
    let via = Via::Udp { remote: host_at(1), local: None };
    let from = world.hosts[1].1.public();
    let ping = Message::Ping { tx: [7; 12], node_key: Some(node(1)), padding: 0 };
    world.hosts[0].0.handle_disco(from, via, &ping, world.now);
    let pinged = std::iter::from_fn(|| world.hosts[0].0.poll_transmit()).find_map(|one| {
        match (one.to, one.message) {
            (To::Udp { .. }, Message::Ping { tx, .. }) => Some(tx),
            _ => None,
        }
    });
    let pong = Message::Pong { tx: pinged.unwrap(), source: host_at(0) };
    world.hosts[0].0.handle_disco(from, via, &pong, world.now + 10 * MS);
    world.run_for(5 * MS);
    assert_eq!(world.used[0], Some(Path::Direct(host_at(1))));
}

#[test]
fn silent_peer_relay_is_left_within_seven_seconds_and_found_again() {
    let mut world = World::new([true, true]);
    world.talks = [true, true];
    world.run_for(10 * SECOND);
    assert!(world.is_passed(0));
    world.server_is_up = false;
    world.run_for(7 * SECOND);
    assert_eq!(world.used, [Some(Path::Relay(REGION)); 2]);
    world.server_is_up = true;
    world.run_for(40 * SECOND);
    assert!(world.is_passed(0) && world.is_passed(1), "{:?}", world.told);
}

#[test]
fn idle_host_sends_nothing_to_peer_relays() {
    let mut world = World::new([true, true]);
    world.run_for(10 * SECOND);
    world.talks = [false, false];
    world.run_for(120 * SECOND);
    assert_eq!(world.hosts[0].0.poll_timeout(), None);
    assert_eq!(world.hosts[1].0.poll_timeout(), None);
}

#[test]
fn foreign_relay_endpoints_are_not_bound() {
    let mut world = World::new([false, false]);
    let keys = world.hosts.each_ref().map(|(_, disco)| disco.public());
    let endpoint = |clients| {
        let addresses = vec![relay_at()];
        Box::new(RelayEndpoint {
            server: disco(9).public(),
            clients,
            lamport: 1,
            vni: Vni::new(1).unwrap(),
            bind_lifetime: 30 * SECOND,
            steady_lifetime: 300 * SECOND,
            addresses,
        })
    };
    let relay = |from| Via::Relay { region: REGION, from };
    let udp = Via::Udp { remote: host_at(1), local: None };
    let stranger = DiscoPublic([8; 32]);
    let mut binds = |from, via, message: Message| {
        world.hosts[0].0.handle_disco(from, via, &message, world.now);
        let sent = std::iter::from_fn(|| world.hosts[0].0.poll_transmit());
        sent.filter(|one| matches!(one.message, Message::Bind(_))).count()
    };
    let call = |clients| Message::CallMeMaybeVia(endpoint(clients));
    assert_eq!(binds(keys[1], relay(node(1)), call([keys[1], stranger])), 0);
    assert_eq!(binds(keys[1], udp, call(keys)), 0);
    assert_eq!(binds(stranger, relay(node(5)), call(keys)), 0);
    let answer = Message::AllocateResponse { generation: 1, endpoint: endpoint(keys) };
    assert_eq!(binds(disco(3).public(), relay(node(RELAY)), answer), 0);
    assert_eq!(binds(keys[1], relay(node(1)), call([keys[1], keys[0]])), 1);
}

#[test]
fn flood_of_relay_calls_causes_few_datagrams() {
    let mut world = World::new([false, false]);
    let keys = world.hosts.each_ref().map(|(_, disco)| disco.public());
    let (mut sent, via) = (0, Via::Relay { region: REGION, from: node(1) });
    for number in 0..1000_u32 {
        let endpoint = RelayEndpoint {
            server: DiscoPublic([(number % 251) as u8 + 1; 32]),
            clients: keys,
            lamport: number.into(),
            vni: Vni::new(number).unwrap(),
            bind_lifetime: Duration::MAX,
            steady_lifetime: Duration::MAX,
            addresses: vec![host_at(7); 250],
        };
        let call = Message::CallMeMaybeVia(Box::new(endpoint));
        world.hosts[0].0.handle_disco(keys[1], via, &call, world.now);
        sent += std::iter::from_fn(|| world.hosts[0].0.poll_transmit()).count();
    }
    assert!((1..=100).contains(&sent), "{sent}");
}
