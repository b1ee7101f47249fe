//! Random events in random order.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use ipc::{AuxiliarySocket, Path};
use mesh::peer_paths::{
    Event, Paths, PeerInfo, PeerRelay, PublicEndpoint, SocketsToOpen, To, Traffic, Transmit, Via,
};
use proptest::prelude::*;
use tailnet::{
    disco::{Bind, BirthdayMessage, BirthdayStep, Message, RelayEndpoint, TxId},
    geneve::Vni,
    keys::{DiscoPublic, NodePublic},
};

use crate::{
    hostile::{OWN, START, addr, call, paths, ping, transmits, udp},
    world::MS,
};

/// An event.
#[derive(Clone, Debug)]
enum Step {
    Peer(u8, u8, Option<u16>, Vec<SocketAddr>),
    Remove(u8),
    Own(Vec<SocketAddr>),
    Disco(u8, Via, Message),
    /// Answers the last ping.
    Answer(bool),
    Traffic(u8, Traffic),
    Handshake(u8),
    Stale(u8),
    Gone(u16, u8),
    Change,
    Ping(u8),
    Pass(u64),
    /// Answers the last message to a relay.
    Challenge,
    /// Our public endpoint, and whether its port varies.
    PublicEndpoint(bool),
    /// The number of the requested sockets that were opened.
    Opened(u16),
    /// The peer sends a message of the last birthday probing.
    Birthday(u8),
}

/// Our key for disco messages.
const DISCO: DiscoPublic = DiscoPublic([77; 32]);

fn any_endpoint() -> impl Strategy<Value = Box<RelayEndpoint>> {
    let addresses = proptest::collection::vec(any_addr(), 1..4);
    (0..3_u8, 0..3_u8, 0..3_u64, 0..3_u32, addresses).prop_map(
        |(peer, server, lamport, vni, addresses)| {
            Box::new(RelayEndpoint {
                server: DiscoPublic([100 + server; 32]),
                clients: [DISCO, DiscoPublic([peer; 32])],
                lamport,
                vni: Vni::new(vni).unwrap(),
                bind_lifetime: Duration::from_secs(30),
                steady_lifetime: Duration::from_secs(300),
                addresses,
            })
        },
    )
}

fn any_addr() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (0..8_u32).prop_map(addr),
        (0..4_u16).prop_map(|at| ([0x2001, 0xdb8, 0, 0, 0, 0, 0, at], 41_641).into()),
        any::<SocketAddr>(),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let peer = || 0..3_u8;
    let addrs = || proptest::collection::vec(any_addr(), 0..6);
    let via = prop_oneof![
        any_addr().prop_map(udp),
        (any_addr(), 0..3_u32)
            .prop_map(|(at, vni)| Via::PeerRelay { at, vni: Vni::new(vni).unwrap() }),
        (any_addr(), 0..3_u32, 0..3_u16).prop_map(|(remote, number, index)| {
            Via::Auxiliary { remote, socket: AuxiliarySocket { number, index } }
        }),
        (0..3_u16, peer())
            .prop_map(|(region, from)| { Via::Relay { region, from: NodePublic([from; 32]) } }),
    ];
    let message = prop_oneof![
        any::<u32>().prop_map(ping),
        any::<TxId>().prop_map(|tx| Message::Ping { tx, node_key: None, padding: 9 }),
        (any::<TxId>(), any_addr()).prop_map(|(tx, source)| Message::Pong { tx, source }),
        addrs().prop_map(call),
        any_endpoint().prop_map(Message::CallMeMaybeVia),
        (1..3_u32, any_endpoint()).prop_map(|(generation, endpoint)| {
            Message::AllocateResponse { generation, endpoint }
        }),
        (0..3_u8, 0..3_u32, any_addr()).prop_map(|(step, number, at)| {
            let step = [BirthdayStep::Request, BirthdayStep::Accept, BirthdayStep::Start]
                [usize::from(step)];
            Message::Birthday(BirthdayMessage { step, number, at })
        }),
    ];
    let path = prop_oneof![any_addr().prop_map(Path::Direct), (0..3_u16).prop_map(Path::Relay)];
    let traffic = (0..2_u64, 0..2_u64, proptest::option::of(path));
    let traffic = traffic.prop_map(|(sent, received, received_from)| Traffic {
        sent,
        received,
        received_from,
    });
    prop_oneof![
        1 => (peer(), peer(), proptest::option::of(0..3_u16), addrs())
            .prop_map(|(key, disco, home, addrs)| Step::Peer(key, disco, home, addrs)),
        1 => peer().prop_map(Step::Remove),
        1 => addrs().prop_map(Step::Own),
        1 => (peer(), via, message).prop_map(|(from, via, message)| Step::Disco(from, via, message)),
        3 => any::<bool>().prop_map(Step::Answer),
        3 => (peer(), traffic).prop_map(|(peer, traffic)| Step::Traffic(peer, traffic)),
        1 => peer().prop_map(Step::Handshake),
        1 => peer().prop_map(Step::Stale),
        1 => (0..3_u16, peer()).prop_map(|(region, peer)| Step::Gone(region, peer)),
        1 => Just(Step::Change),
        2 => Just(Step::Challenge),
        1 => any::<bool>().prop_map(Step::PublicEndpoint),
        2 => (0..3_u16).prop_map(Step::Opened),
        2 => (0..3_u8).prop_map(Step::Birthday),
        1 => peer().prop_map(Step::Ping),
        6 => prop_oneof![0..300_u64, 0..10_000_u64, 0..200_000_u64].prop_map(Step::Pass),
    ]
}

struct Any {
    paths: Paths,
    now: Duration,
    used: [Option<Path>; 3],
    last: Option<Transmit>,
    /// The last binding.
    bind: Option<(DiscoPublic, SocketAddr, Bind)>,
    /// The last requested sockets, and the last birthday probing.
    opens: Option<Event>,
    birthday: Option<(NodePublic, DiscoPublic, u32)>,
    numbers: HashSet<TxId>,
}

impl Any {
    fn step(&mut self, step: Step) {
        let (paths, now) = (&mut self.paths, self.now);
        let key = |peer| NodePublic([peer; 32]);
        match step {
            Step::Peer(peer, disco, home, endpoints) => {
                let disco = DiscoPublic([disco; 32]);
                paths.set_peer(
                    key(peer),
                    &PeerInfo { disco, home, endpoints, supports_peer_relays: true },
                    now,
                );
            }
            Step::Remove(peer) => {
                paths.remove_peer(key(peer));
                self.used[usize::from(peer)] = None;
            }
            Step::Own(endpoints) => paths.set_own_endpoints(OWN, endpoints, now),
            Step::Disco(from, via, message) => {
                paths.handle_disco(DiscoPublic([from; 32]), via, &message, now);
            }
            Step::Answer(late) => self.answer(late),
            Step::Traffic(peer, traffic) => paths.handle_wireguard(key(peer), traffic, now),
            Step::Handshake(peer) => paths.handle_handshake_done(key(peer), now),
            Step::Stale(peer) => paths.handle_stale(key(peer), now),
            Step::Gone(region, peer) => paths.handle_peer_gone(region, key(peer), now),
            Step::Change => paths.handle_network_change(now),
            Step::Ping(peer) => _ = paths.ping(key(peer), now),
            Step::Pass(millis) => self.pass(millis),
            Step::PublicEndpoint(varies) => {
                paths.set_public_endpoint(Some(PublicEndpoint { at: addr(1), varies }));
            }
            Step::Opened(count) => {
                if let Some(Event::OpenSockets(SocketsToOpen { number, .. })) = self.opens {
                    paths.handle_sockets_opened(number, count, now);
                }
            }
            Step::Birthday(step) => {
                if let Some((peer, disco, number)) = self.birthday {
                    let step = [BirthdayStep::Request, BirthdayStep::Accept, BirthdayStep::Start]
                        [usize::from(step)];
                    let via = Via::Relay { region: 1, from: peer };
                    let message = Message::Birthday(BirthdayMessage { step, number, at: addr(2) });
                    paths.handle_disco(disco, via, &message, now);
                }
            }
            Step::Challenge => {
                if let Some((server, at, bind)) = self.bind.take() {
                    let via = Via::PeerRelay { at, vni: bind.vni };
                    paths.handle_disco(server, via, &Message::BindChallenge(bind), now);
                }
            }
        }
        self.drain();
    }

    fn answer(&mut self, late: bool) {
        let Some(Transmit { to, disco, message: Message::Ping { tx, .. } }) = self.last.take()
        else {
            return;
        };
        self.now += if late { 300 * MS } else { 3 * MS };
        let via = match to {
            To::Udp { addr, .. } => udp(addr),
            To::PeerRelay { addr, vni, .. } => Via::PeerRelay { at: addr, vni },
            To::BirthdayProbe(addr) => udp(addr),
            To::Auxiliary { addr, socket } => Via::Auxiliary { remote: addr, socket },
            To::Relay { region, peer } => Via::Relay { region, from: peer },
        };
        let pong = Message::Pong { tx, source: addr(1) };
        self.paths.handle_disco(disco, via, &pong, self.now);
    }

    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        let mut rounds = 0;
        while let Some(at) = self.paths.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.paths.handle_timeout(self.now);
            assert!(self.paths.poll_timeout().is_none_or(|next| next > self.now));
            self.drain();
            rounds += 1;
        }
        assert!(rounds < 2_000, "{rounds} in {millis} ms");
        self.now = end;
    }

    fn drain(&mut self) {
        while let Some(event) = self.paths.poll_event() {
            if let Event::OpenSockets(_) = event {
                self.opens = Some(event);
            }
            if let Event::UsePath { peer, path } = event {
                let used = &mut self.used[usize::from(peer.0[0])];
                assert_ne!(*used, path, "told twice");
                *used = path;
            }
        }
        let sent = transmits(&mut self.paths);
        assert!(sent.len() < 500, "{} at once", sent.len());
        for transmit in sent {
            if let (To::PeerRelay { addr, .. }, Message::Bind(bind)) =
                (transmit.to, &transmit.message)
            {
                self.bind = Some((transmit.disco, addr, *bind));
            }
            if let (To::Relay { peer, .. }, Message::Birthday(message)) =
                (transmit.to, &transmit.message)
            {
                self.birthday = Some((peer, transmit.disco, message.number));
            }
            if let Message::Ping { tx, .. } = transmit.message {
                assert!(self.numbers.insert(tx), "a number is used twice");
                self.last = Some(transmit);
            }
        }
        for peer in 0..3_u8 {
            if let Some(shown) = self.paths.view(NodePublic([peer; 32])) {
                assert!(shown.candidates.len() <= 16 + 16 + 8 + 1);
                assert_eq!(shown.path, self.used[usize::from(peer)]);
            }
        }
    }
}

proptest! {
    #[test]
    fn random_events_have_bounded_effects_and_end_idle(
        steps in proptest::collection::vec(any_step(), 0..120),
    ) {
        let mut any = Any {
            paths: paths(),
            now: START,
            used: [None; 3],
            last: None,
            bind: None,
            opens: None,
            birthday: None,
            numbers: HashSet::new(),
        };
        let node = NodePublic([0; 32]);
        let relay = PeerRelay { node, disco: DiscoPublic([0; 32]), home: Some(1) };
        any.paths.set_peer_relays(DISCO, Some(vec![relay]));
        steps.into_iter().for_each(|step| any.step(step));
        // Longer than the lifetime of a path from birthday probing.
        any.pass(400_000);
        prop_assert_eq!(any.paths.poll_timeout(), None);
    }
}
