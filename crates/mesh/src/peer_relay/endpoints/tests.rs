use std::net::IpAddr;

use packet::Local;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng as _};
use tailnet::geneve::GENEVE_LEN;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn key(byte: u8) -> DiscoKey {
    DiscoKey::new(Box::new(Zeroizing::new([byte; 32])))
}

fn at(port: u16) -> Endpoint {
    let local = Local { addr: IpAddr::from([10, 0, 0, 1]), interface: 2 };
    Endpoint { local: Some(local), ..Endpoint::new(([192, 0, 2, 1], port).into()) }
}

fn address(endpoint: Endpoint) -> SocketAddr {
    endpoint.remote.direct().unwrap()
}

/// A relay and two clients.
struct World {
    server: Server,
    clients: [Disco; 2],
    now: Duration,
}

impl World {
    fn new() -> Self {
        let rng = Box::new(ChaCha8Rng::seed_from_u64(7));
        let now = Duration::from_secs(1000);
        let clients = [Disco::new(key(1)), Disco::new(key(2))];
        Self { server: Server::new(key(9), rng, now), clients, now }
    }

    fn keys(&self) -> [DiscoPublic; 2] {
        self.clients.each_ref().map(Disco::public)
    }

    fn allocate(&mut self) -> Allocation {
        let keys = self.keys();
        self.server.allocate(keys[0], keys, self.now).unwrap()
    }

    fn control(&mut self, vni: Vni, sealed: &[u8], from: Endpoint) -> Option<Message> {
        let header = Geneve { control: true, protocol: Protocol::Disco, vni };
        let answer = self.server.handle_control(header, sealed, from, self.now)?;
        assert_eq!(Geneve::read(&answer), Some(header));
        let mut openers = self.clients.iter_mut();
        openers.find_map(|client| client.open(&answer[GENEVE_LEN..]).ok()).map(|(_, said)| said)
    }

    fn send(
        &mut self,
        client: usize,
        vni: Vni,
        message: &Message,
        from: Endpoint,
    ) -> Option<Message> {
        let sealed = self.clients[client].seal(self.server.key(), message, [4; 24]);
        self.control(vni, &sealed, from)
    }

    fn begin(&mut self, client: usize, vni: Vni, from: Endpoint) -> Bind {
        self.begin_as(client, vni, 3, from)
    }

    /// Begins a handshake with this generation.
    fn begin_as(&mut self, client: usize, vni: Vni, generation: u32, from: Endpoint) -> Bind {
        let other = self.keys()[1 - client];
        let bind = Bind { vni, generation, other, challenge: [0; 32] };
        match self.send(client, vni, &Message::Bind(bind), from) {
            Some(Message::BindChallenge(challenge)) => challenge,
            other => panic!("{other:?}"),
        }
    }

    fn bind(&mut self, client: usize, vni: Vni, from: Endpoint) {
        let challenge = self.begin(client, vni, from);
        assert_eq!(self.send(client, vni, &Message::BindAnswer(challenge), from), None);
    }

    fn bound(&mut self) -> Vni {
        let vni = self.allocate().vni;
        self.bind(0, vni, at(1));
        self.bind(1, vni, at(2));
        vni
    }

    fn forward(&mut self, vni: Vni, from: Endpoint) -> Option<Endpoint> {
        self.server.forward(vni, address(from), (2, 300), self.now)
    }
}

#[test]
fn bound_clients_reach_only_each_other() {
    let mut world = World::new();
    let vni = world.bound();
    // It is sent from the socket that received the other client.
    assert_eq!(world.forward(vni, at(1)), Some(at(2)));
    assert_eq!(world.forward(vni, at(2)), Some(at(1)));
    assert_eq!(world.forward(vni, at(3)), None);
    assert_eq!(world.forward(Vni::new(77).unwrap(), at(1)), None);
    let sessions: Vec<_> = world.server.sessions().collect();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].clients[0].address, Some(address(at(1))));
    let counted = sessions[0].clients.map(|client| (client.datagrams, client.bytes));
    assert_eq!(counted, [(2, 300); 2]);
}

#[test]
fn nothing_is_relayed_before_both_are_bound() {
    let mut world = World::new();
    let vni = world.allocate().vni;
    world.bind(0, vni, at(1));
    assert_eq!(world.forward(vni, at(1)), None);
    world.begin(1, vni, at(2));
    assert_eq!(world.forward(vni, at(1)), None);
    assert_eq!(world.forward(vni, at(2)), None);
}

#[test]
fn two_clients_share_one_endpoint_for_all_requests() {
    let mut world = World::new();
    let first = world.allocate();
    let [a, b] = world.keys();
    assert_eq!(world.server.allocate(b, [b, a], world.now), Ok(first));
    assert!(first.clients[0] < first.clients[1]);
    let other = world.server.allocate(a, [a, DiscoPublic([7; 32])], world.now).unwrap();
    assert!(other.lamport > first.lamport && other.vni != first.vni);
}

#[test]
fn equal_zero_or_relay_clients_get_no_endpoint() {
    let mut world = World::new();
    let ([a, _], own) = (world.keys(), world.server.key());
    for clients in [[a, a], [a, DiscoPublic::default()], [a, own]] {
        assert_eq!(world.server.allocate(a, clients, world.now), Err(AllocateError::BadClients));
    }
}

#[test]
fn challenge_is_valid_only_for_its_address_and_client() {
    let mut world = World::new();
    let vni = world.allocate().vni;
    let challenge = world.begin(0, vni, at(1));
    world.bind(1, vni, at(2));
    // From another address; with a changed byte; by the other client.
    let neighbour = Endpoint { local: at(1).local, ..Endpoint::new(([192, 0, 2, 9], 1).into()) };
    for elsewhere in [at(8), neighbour] {
        world.send(0, vni, &Message::BindAnswer(challenge), elsewhere);
        assert_eq!(world.forward(vni, elsewhere), None);
    }
    let mut changed = challenge;
    changed.challenge[31] ^= 1;
    world.send(0, vni, &Message::BindAnswer(changed), at(1));
    world.send(1, vni, &Message::BindAnswer(challenge), at(1));
    assert_eq!(world.forward(vni, at(1)), None);
    world.send(0, vni, &Message::BindAnswer(challenge), at(1));
    assert_eq!(world.forward(vni, at(1)), Some(at(2)));
}

#[test]
fn challenge_is_valid_only_for_the_last_generation() {
    let mut world = World::new();
    let vni = world.allocate().vni;
    world.bind(1, vni, at(2));
    let former = world.begin_as(0, vni, 3, at(1));
    let latest = world.begin_as(0, vni, 4, at(1));
    world.send(0, vni, &Message::BindAnswer(former), at(1));
    assert_eq!(world.forward(vni, at(1)), None, "another handshake has begun");
    world.send(0, vni, &Message::BindAnswer(Bind { generation: 4, ..former }), at(1));
    assert_eq!(world.forward(vni, at(1)), None, "it was made for another generation");
    world.send(0, vni, &Message::BindAnswer(latest), at(1));
    assert_eq!(world.forward(vni, at(1)), Some(at(2)));
}

#[test]
fn replayed_answer_does_not_bind_again() {
    let mut world = World::new();
    let vni = world.allocate().vni;
    world.bind(1, vni, at(2));
    let former = world.begin(0, vni, at(1));
    world.send(0, vni, &Message::BindAnswer(former), at(1));
    assert_eq!(world.forward(vni, at(2)), Some(at(1)));
    world.bind(0, vni, at(5));
    // An attacker replays the recorded answer.
    world.send(0, vni, &Message::BindAnswer(former), at(1));
    assert_eq!(world.forward(vni, at(2)), Some(at(5)));
    assert_eq!(world.forward(vni, at(1)), None);
}

#[test]
fn strangers_and_malformed_binds_get_no_answer() {
    let mut world = World::new();
    let vni = world.allocate().vni;
    let [a, b] = world.keys();
    let good = Bind { vni, generation: 3, other: b, challenge: [0; 32] };
    let server = world.server.key();
    let stranger = Disco::new(key(5)).seal(server, &Message::Bind(good), [1; 24]);
    assert_eq!(world.control(vni, &stranger, at(1)), None);
    for bad in [
        Bind { generation: 0, ..good },
        Bind { other: a, ..good },
        Bind { vni: Vni::new(99).unwrap(), ..good },
    ] {
        assert_eq!(world.send(0, vni, &Message::Bind(bad), at(1)), None, "{bad:?}");
    }
    assert_eq!(world.send(0, Vni::new(99).unwrap(), &Message::Bind(good), at(1)), None);
    let ping = Message::Ping { tx: [0; 12], node_key: None, padding: 0 };
    assert_eq!(world.send(0, vni, &ping, at(1)), None);
    let mut forged = world.clients[0].seal(server, &Message::Bind(good), [1; 24]);
    forged[70] ^= 1;
    assert_eq!(world.control(vni, &forged, at(1)), None);
    for len in 0..forged.len() {
        assert_eq!(world.control(vni, &forged[..len], at(1)), None);
    }
}

#[test]
fn binding_from_another_address_moves_the_client() {
    let mut world = World::new();
    let vni = world.bound();
    world.begin(0, vni, at(5));
    assert_eq!(world.forward(vni, at(1)), Some(at(2)), "it has not moved yet");
    world.bind(0, vni, at(5));
    assert_eq!(world.forward(vni, at(1)), None);
    assert_eq!(world.forward(vni, at(2)), Some(at(5)));
}

#[test]
fn endpoint_waits_30_seconds_for_both_clients() {
    let mut world = World::new();
    let before = world.allocate();
    world.bind(0, before.vni, at(1));
    world.now += 30 * SECOND;
    world.begin(1, before.vni, at(2));
    world.now += SECOND;
    let other = world.keys()[0];
    let late = Bind { vni: before.vni, generation: 3, other, challenge: [0; 32] };
    assert_eq!(world.send(1, before.vni, &Message::Bind(late), at(2)), None);
    let after = world.allocate();
    assert!(after.lamport > before.lamport && after.vni != before.vni);
}

#[test]
fn bound_endpoint_expires_300_seconds_after_one_client_is_silent() {
    let mut world = World::new();
    let vni = world.bound();
    for _ in 0..5 {
        world.now += 250 * SECOND;
        assert!(world.forward(vni, at(1)).is_some());
        assert!(world.forward(vni, at(2)).is_some());
    }
    world.now += 200 * SECOND;
    assert!(world.forward(vni, at(1)).is_some());
    world.now += 101 * SECOND;
    assert_eq!(world.forward(vni, at(1)), None, "no data came from the other client");
    let due = world.server.poll_timeout().unwrap();
    world.server.handle_timeout(due.max(world.now));
    assert_eq!(world.server.sessions().count(), 0);
    assert_eq!(world.server.poll_timeout(), None);
}

#[test]
fn challenge_is_valid_until_the_second_change_of_the_secret() {
    for (changes, is_good) in [(1, true), (2, false)] {
        let mut world = World::new();
        let vni = world.bound();
        let challenge = world.begin(0, vni, at(5));
        for _ in 0..changes {
            world.now += 121 * SECOND;
            world.begin(1, vni, at(2));
        }
        world.send(0, vni, &Message::BindAnswer(challenge), at(5));
        assert_eq!(world.forward(vni, at(5)).is_some(), is_good, "{changes} changes");
    }
}

#[test]
fn endpoints_are_limited_in_total_and_per_client() {
    let mut world = World::new();
    let client = |number: usize| {
        let mut bytes = [3; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        DiscoPublic(bytes)
    };
    let mut made = 0;
    for asker in 0..5 {
        let mut fits = 0;
        for other in 0..MAX_PER_CLIENT + 10 {
            let clients = [client(asker), client(1000 + other)];
            fits += usize::from(world.server.allocate(clients[0], clients, world.now).is_ok());
        }
        assert!(fits <= MAX_PER_CLIENT);
        made += fits;
    }
    assert_eq!((made, world.server.sessions().count()), (MAX_ENDPOINTS, MAX_ENDPOINTS));
    world.now += 31 * SECOND;
    world.allocate();
    assert_eq!(world.server.sessions().count(), 1);
}
