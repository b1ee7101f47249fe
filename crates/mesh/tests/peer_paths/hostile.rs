//! Floods, lies and invalid messages at one host without a network.

use std::{net::SocketAddr, time::Duration};

use ipc::Path;
use mesh::peer_paths::{Event, Paths, PeerInfo, To, Traffic, Transmit, Via};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use tailnet::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
};

use crate::world::{MS, SECOND};

pub(crate) const OWN: NodePublic = NodePublic([9; 32]);
const PEER: NodePublic = NodePublic([1; 32]);
const DISCO: DiscoPublic = DiscoPublic([1; 32]);
pub(crate) const START: Duration = SECOND.saturating_mul(1_000);

pub(crate) fn addr(number: u32) -> SocketAddr {
    let [a, b, c, d] = number.to_be_bytes();
    ([192 | a, b, c, d], 41_641).into()
}

pub(crate) fn paths() -> Paths {
    Paths::new(OWN, Box::new(ChaCha20Rng::seed_from_u64(1)))
}

fn info(endpoints: Vec<SocketAddr>) -> PeerInfo {
    PeerInfo { disco: DISCO, home: Some(1), endpoints, supports_peer_relays: true }
}

/// Returns a host that knows its endpoints, with one peer.
fn with_peer(endpoints: Vec<SocketAddr>) -> Paths {
    let mut paths = paths();
    paths.set_own_endpoints(OWN, vec![addr(999)], START);
    paths.set_peer(PEER, &info(endpoints), START);
    paths
}

pub(crate) fn transmits(paths: &mut Paths) -> Vec<Transmit> {
    std::iter::from_fn(|| paths.poll_transmit()).collect()
}

fn events(paths: &mut Paths) -> Vec<Event> {
    std::iter::from_fn(|| paths.poll_event()).collect()
}

pub(crate) fn udp(remote: SocketAddr) -> Via {
    Via::Udp { remote, local: None }
}

fn relay(from: NodePublic) -> Via {
    Via::Relay { region: 1, from }
}

pub(crate) fn ping(number: u32) -> Message {
    let mut tx = TxId::default();
    tx[..4].copy_from_slice(&number.to_le_bytes());
    Message::Ping { tx, node_key: Some(PEER), padding: 0 }
}

pub(crate) fn call(endpoints: Vec<SocketAddr>) -> Message {
    Message::CallMeMaybe { endpoints }
}

const SENT: Traffic = Traffic { sent: 1, received: 0, received_from: None };

/// Returns the IDs of the pings to `to` that are not priming pings.
fn pings_to(transmits: &[Transmit], to: SocketAddr) -> Vec<TxId> {
    let reaches = |to: To, addr| matches!(to, To::Udp { addr: a, hops: None, .. } if a == addr);
    let tx = |transmit: &Transmit| match &transmit.message {
        Message::Ping { tx, .. } if reaches(transmit.to, to) => Some(*tx),
        _ => None,
    };
    transmits.iter().filter_map(tx).collect()
}

/// Lets the peer prove that it is at `at`.
fn prove(paths: &mut Paths, at: SocketAddr, now: Duration) {
    paths.handle_timeout(now);
    let number = now.as_millis() as u32;
    paths.handle_disco(DISCO, udp(at), &ping(number), now);
    let tx = pings_to(&transmits(paths), at)[0];
    paths.handle_disco(DISCO, udp(at), &Message::Pong { tx, source: addr(999) }, now + MS);
    assert!(events(paths).contains(&Event::UsePath { peer: PEER, path: Some(Path::Direct(at)) }));
}

#[test]
fn thousand_idle_peers_cost_nothing() {
    let mut paths = paths();
    for number in 0..1_000_u32 {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        key[31] = 1;
        let info = PeerInfo { disco: DiscoPublic(key), ..info(vec![addr(number)]) };
        paths.set_peer(NodePublic(key), &info, START);
    }
    assert_eq!(events(&mut paths).len(), 1_000);
    paths.set_own_endpoints(OWN, vec![addr(2_000)], START);
    paths.handle_network_change(START);
    assert_eq!(paths.poll_timeout(), None);
    assert_eq!(transmits(&mut paths), []);
    assert_eq!(events(&mut paths), []);
}

#[test]
fn unknown_keys_and_wrong_key_pairs_are_ignored() {
    let mut paths = with_peer(vec![]);
    events(&mut paths);
    let stranger = DiscoPublic([7; 32]);
    let other = NodePublic([7; 32]);
    let tx = [7; 12];
    for (disco, via, message) in [
        (stranger, udp(addr(1)), ping(1)),
        (stranger, relay(PEER), ping(1)),
        (stranger, relay(PEER), call(vec![addr(1)])),
        (DISCO, relay(other), ping(1)),
        (DISCO, relay(other), call(vec![addr(1)])),
        (DISCO, udp(addr(1)), call(vec![addr(1)])),
        (DISCO, udp(addr(1)), Message::Pong { tx, source: addr(1) }),
        (DISCO, udp(addr(1)), Message::Ping { tx, node_key: Some(other), padding: 0 }),
    ] {
        paths.handle_disco(disco, via, &message, START);
        assert_eq!(transmits(&mut paths), [], "{via:?} {message:?}");
    }
    assert_eq!(events(&mut paths), []);
    assert_eq!(paths.view(PEER).unwrap().candidates, []);
}

#[test]
fn ping_is_answered_once_to_its_source() {
    let mut paths = with_peer(vec![]);
    paths.handle_disco(DISCO, udp(addr(1)), &ping(1), START);
    let sent = transmits(&mut paths);
    let to = To::Udp { addr: addr(1), source: None, hops: None };
    let tx = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let pong = Message::Pong { tx, source: addr(1) };
    assert_eq!(sent[0], Transmit { to, disco: DISCO, message: pong });
    assert_eq!(pings_to(&sent, addr(1)).len(), 1, "no path, so it is pinged at once");
    paths.handle_disco(DISCO, udp(addr(2)), &ping(1), START);
    assert_eq!(transmits(&mut paths), []);
    paths.handle_disco(DISCO, relay(PEER), &ping(2), START);
    let source = "127.3.3.40:1".parse().unwrap();
    let tx = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let to = To::Relay { region: 1, peer: PEER };
    let message = Message::Pong { tx, source };
    assert_eq!(transmits(&mut paths)[0], Transmit { to, disco: DISCO, message });
}

#[test]
fn flood_of_pings_is_answered_partly_without_memory_growth() {
    let mut paths = with_peer(vec![]);
    for number in 0..10_000_u32 {
        let now = START + MS * (number / 10);
        paths.handle_disco(DISCO, udp(addr(number)), &ping(number), now);
        paths.handle_timeout(now);
    }
    // A burst of 64 answers, one each 30 ms, and a ping for each.
    assert!(transmits(&mut paths).len() <= 2 * (64 + 34));
    assert!(paths.view(PEER).unwrap().candidates.len() <= 8);
}

#[test]
fn addresses_of_a_long_call_are_pinged_partly() {
    let mut paths = with_peer(vec![]);
    let mut all = 0;
    for number in 0..1_000_u32 {
        let now = START + 10 * MS * number;
        let many = (0..1_000).map(|at| addr(number * 1_000 + at)).collect();
        paths.handle_disco(DISCO, relay(PEER), &call(many), now);
        paths.handle_timeout(now);
        all += transmits(&mut paths).len();
        assert!(paths.view(PEER).unwrap().candidates.len() <= 16);
    }
    // Five calls in ten seconds, with five datagrams to each address.
    assert!(all <= 5 * (16 * 5 + 2), "{all}");
}

#[test]
fn unusable_addresses_are_not_candidates() {
    let mut paths = with_peer(vec![]);
    let nowhere = [
        "[fe80::1]:41641",
        "[fd7a:115c:a1e0::1]:41641",
        "[ff02::1]:41641",
        "[::]:41641",
        "224.0.0.1:41641",
        "255.255.255.255:41641",
        "0.0.0.0:41641",
        "127.0.0.1:41641",
        "[::1]:41641",
        "[::ffff:127.0.0.1]:41641",
        "169.254.169.254:80",
        "192.0.2.1:0",
    ];
    let nowhere = nowhere.map(|text| text.parse().unwrap()).to_vec();
    paths.handle_disco(DISCO, relay(PEER), &call(nowhere), START);
    let mapped = vec!["[::ffff:192.0.2.7]:41641".parse().unwrap()];
    assert_eq!(paths.view(PEER).unwrap().candidates, []);
    paths.handle_disco(DISCO, relay(PEER), &call(mapped), START);
    let candidates = paths.view(PEER).unwrap().candidates;
    assert_eq!(candidates[0].addr, "192.0.2.7:41641".parse().unwrap());
    paths.handle_disco(DISCO, relay(PEER), &call(vec![]), START);
    assert_eq!(paths.view(PEER).unwrap().candidates, []);
}

#[test]
fn path_is_proven_only_by_the_pong_of_its_ping() {
    let mut paths = with_peer(vec![]);
    events(&mut paths);
    paths.handle_disco(DISCO, udp(addr(1)), &ping(1), START);
    let tx = pings_to(&transmits(&mut paths), addr(1))[0];
    let pong = Message::Pong { tx, source: addr(999) };
    paths.handle_disco(DISCO, relay(PEER), &pong, START + MS);
    paths.handle_disco(DISCO, udp(addr(1)), &pong, START + 6 * SECOND);
    assert_eq!(events(&mut paths), []);
    paths.handle_disco(DISCO, udp(addr(1)), &ping(2), START + 7 * SECOND);
    let tx = pings_to(&transmits(&mut paths), addr(1))[0];
    let pong = Message::Pong { tx, source: addr(999) };
    paths.handle_disco(DISCO, udp(addr(1)), &pong, START + 7 * SECOND + MS);
    let direct = Event::UsePath { peer: PEER, path: Some(Path::Direct(addr(1))) };
    assert_eq!(events(&mut paths), [direct]);
    assert_eq!(paths.view(PEER).unwrap().latency, Some(MS));
}

#[test]
fn nodes_with_the_same_disco_key_are_distinguished() {
    let mut paths = with_peer(vec![]);
    let thief = NodePublic([2; 32]);
    paths.set_peer(thief, &info(vec![]), START);
    prove(&mut paths, addr(1), START);
    paths.remove_peer(thief);
    prove(&mut paths, addr(2), START + 60 * SECOND);
}

#[test]
fn call_waits_a_second_for_fresh_endpoints() {
    let is_call = |sent: &Transmit| matches!(sent.message, Message::CallMeMaybe { .. });
    for (age, asks) in [(26, false), (28, true)] {
        let mut paths = with_peer(vec![addr(1)]);
        events(&mut paths);
        let now = START + age * SECOND;
        paths.handle_wireguard(PEER, SENT, now);
        let sent = transmits(&mut paths);
        assert_eq!(sent[0].to, To::Udp { addr: addr(1), source: None, hops: Some(4) });
        assert_eq!(sent.iter().any(is_call), !asks);
        assert_eq!(events(&mut paths).contains(&Event::RefreshEndpoints), asks);
        paths.handle_timeout(now + 400 * MS);
        assert!(!transmits(&mut paths).iter().any(is_call));
        // A first or repeated call, because the arrival was not confirmed.
        paths.handle_timeout(now + SECOND);
        assert!(transmits(&mut paths).iter().any(is_call));
    }
    let mut paths = with_peer(vec![addr(1)]);
    let now = START + 28 * SECOND;
    paths.handle_wireguard(PEER, SENT, now);
    transmits(&mut paths);
    paths.set_own_endpoints(OWN, vec![addr(3)], now + MS);
    let sent = transmits(&mut paths);
    let to = To::Relay { region: 1, peer: PEER };
    assert_eq!(sent[0], Transmit { to, disco: DISCO, message: call(vec![addr(3)]) });
}

/// Lets the peer confirm the messages through the relay.
fn answer_by_relay(paths: &mut Paths, now: Duration) {
    let sent = transmits(paths);
    let by_relay = sent.iter().filter(|sent| matches!(sent.to, To::Relay { .. }));
    for sent in by_relay {
        if let Message::Ping { tx, .. } = sent.message {
            paths.handle_disco(DISCO, relay(PEER), &Message::Pong { tx, source: addr(999) }, now);
        }
    }
}

#[test]
fn unconfirmed_calls_are_repeated_and_pings_are_rare() {
    let mut paths = with_peer(vec![addr(1)]);
    let [mut calls, mut pings] = [0, 0];
    for step in 0..6_000 {
        let now = START + 100 * MS * step;
        paths.set_own_endpoints(OWN, vec![addr(3)], now);
        paths.handle_wireguard(PEER, SENT, now);
        paths.handle_timeout(now);
        let sent = transmits(&mut paths);
        let is_call = |sent: &&Transmit| matches!(sent.message, Message::CallMeMaybe { .. });
        calls += sent.iter().filter(is_call).count();
        let full = |sent: &&Transmit| matches!(sent.to, To::Udp { hops: None, .. });
        pings += sent.iter().filter(full).count();
        assert!(pings == 0 || step > 95, "pinged after {step} tenths of a second");
    }
    // Two rounds of four pings, and rounds of nine calls.
    assert_eq!(pings, 8);
    assert!((81..=126).contains(&calls), "{calls} calls");
}

#[test]
fn address_is_not_pinged_again_within_five_seconds_without_a_call() {
    let mut paths = with_peer(vec![addr(1)]);
    paths.handle_wireguard(PEER, SENT, START);
    answer_by_relay(&mut paths, START + MS);
    for step in 1..24 {
        paths.handle_timeout(START + 100 * MS * step);
    }
    assert_eq!(pings_to(&transmits(&mut paths), addr(1)).len(), 4);
    let now = START + 3 * SECOND;
    paths.set_peer(PEER, &info(vec![addr(1), addr(2)]), now);
    answer_by_relay(&mut paths, now + MS);
    paths.handle_timeout(now + 100 * MS);
    let sent = transmits(&mut paths);
    assert_eq!([1, 2].map(|at| pings_to(&sent, addr(at)).len()), [0, 1]);
    let now = START + 5 * SECOND + SECOND / 2;
    for step in 0..20 {
        paths.handle_timeout(START + 4 * SECOND + 75 * MS * step);
    }
    transmits(&mut paths);
    paths.handle_disco(DISCO, relay(PEER), &call(vec![addr(1)]), now);
    paths.handle_timeout(now + 600 * MS);
    assert!(!pings_to(&transmits(&mut paths), addr(1)).is_empty());
}

#[test]
fn lost_initiation_is_repeated_when_a_path_is_proven() {
    for lost in [true, false] {
        let mut paths = with_peer(vec![addr(1)]);
        paths.handle_wireguard(PEER, SENT, START);
        events(&mut paths);
        if !lost {
            paths.handle_handshake_done(PEER, START + MS);
        }
        paths.handle_disco(DISCO, udp(addr(1)), &ping(1), START + 2 * MS);
        let tx = pings_to(&transmits(&mut paths), addr(1))[0];
        let pong = Message::Pong { tx, source: addr(999) };
        paths.handle_disco(DISCO, udp(addr(1)), &pong, START + 3 * MS);
        assert_eq!(paths.view(PEER).unwrap().path, Some(Path::Direct(addr(1))));
        assert_eq!(events(&mut paths).contains(&Event::HandshakeNow(PEER)), lost);
    }
}

#[test]
fn path_that_answers_pings_without_data_is_replaced_by_the_relay() {
    let mut paths = with_peer(vec![addr(1)]);
    prove(&mut paths, addr(1), START);
    paths.handle_stale(PEER, START + 8 * SECOND);
    let relay = Event::UsePath { peer: PEER, path: Some(Path::Relay(1)) };
    assert_eq!(events(&mut paths)[0], relay);
    // The peer still answers.
    paths.handle_disco(DISCO, udp(addr(1)), &ping(2), START + 8 * SECOND);
    let tx = pings_to(&transmits(&mut paths), addr(1))[0];
    let pong = Message::Pong { tx, source: addr(999) };
    paths.handle_disco(DISCO, udp(addr(1)), &pong, START + 8 * SECOND + MS);
    assert_eq!(paths.view(PEER).unwrap().path, Some(Path::Relay(1)));
    prove(&mut paths, addr(1), START + 45 * SECOND);
}

#[test]
fn new_path_is_not_blamed_for_losses_of_the_previous_one() {
    let direct = Some(Path::Direct(addr(1)));
    for answered in [true, false] {
        let mut paths = with_peer(vec![addr(1)]);
        paths.handle_wireguard(PEER, SENT, START);
        prove(&mut paths, addr(1), START + 4 * SECOND);
        paths.handle_stale(PEER, START + 5 * SECOND);
        assert_eq!(paths.view(PEER).unwrap().path, direct);
        if answered {
            paths.handle_handshake_done(PEER, START + 6 * SECOND);
        }
        // The peer answers pings.
        paths.handle_timeout(START + 7 * SECOND + MS);
        let tx = pings_to(&transmits(&mut paths), addr(1))[0];
        let pong = Message::Pong { tx, source: addr(999) };
        paths.handle_disco(DISCO, udp(addr(1)), &pong, START + 7 * SECOND + 2 * MS);
        paths.handle_wireguard(PEER, SENT, START + 12 * SECOND);
        let relay = Some(Path::Relay(1));
        assert_eq!(paths.view(PEER).unwrap().path, if answered { direct } else { relay });
    }
}

#[test]
fn absent_peer_is_reached_through_the_region_it_sent_from() {
    let mut paths = with_peer(vec![]);
    events(&mut paths);
    let elsewhere = Via::Relay { region: 5, from: PEER };
    paths.handle_disco(DISCO, elsewhere, &ping(1), START);
    assert_eq!(events(&mut paths), []);
    paths.handle_peer_gone(1, PEER, START);
    let told = |region| Event::UsePath { peer: PEER, path: Some(Path::Relay(region)) };
    assert_eq!(events(&mut paths), [told(5)]);
    paths.handle_peer_gone(5, PEER, START);
    assert_eq!(events(&mut paths), [told(1)]);
}

#[test]
fn peer_with_unknown_home_is_reached_through_ours() {
    let mut paths = paths();
    paths.set_home(Some(3), START);
    paths.set_peer(PEER, &PeerInfo { home: None, ..info(vec![addr(1)]) }, START);
    let told = |path| Event::UsePath { peer: PEER, path: Some(path) };
    assert_eq!(events(&mut paths), [told(Path::Relay(3))]);
    paths.handle_peer_gone(3, PEER, START);
    assert_eq!(events(&mut paths), [told(Path::Direct(addr(1)))]);
    paths.set_peer(PEER, &info(vec![addr(1)]), START);
    assert_eq!(events(&mut paths), [told(Path::Relay(1))]);
}

#[test]
fn peer_without_relay_uses_its_last_address() {
    let mut paths = with_peer(vec![addr(1)]);
    let told = |path| Event::UsePath { peer: PEER, path: Some(path) };
    assert_eq!(events(&mut paths), [told(Path::Relay(1))]);
    paths.set_relay(2, false, START);
    assert_eq!(events(&mut paths), []);
    paths.set_relay(1, false, START);
    assert_eq!(events(&mut paths), [told(Path::Direct(addr(1)))]);
    paths.set_relay(1, true, START);
    assert_eq!(events(&mut paths), [told(Path::Relay(1))]);
}

#[test]
fn first_path_starts_the_waiting_handshake() {
    for wanted in [false, true] {
        let mut paths = paths();
        paths.set_peer(PEER, &PeerInfo { home: None, ..info(vec![]) }, START);
        if wanted {
            paths.handle_wireguard(PEER, SENT, START);
        }
        events(&mut paths);
        paths.set_peer(PEER, &info(vec![]), START + SECOND);
        let told = events(&mut paths);
        assert_eq!(told[0], Event::UsePath { peer: PEER, path: Some(Path::Relay(1)) });
        assert_eq!(told.contains(&Event::HandshakeNow(PEER)), wanted);
    }
}

#[test]
fn user_ping_uses_the_data_path() {
    let mut paths = with_peer(vec![]);
    assert_eq!(paths.ping(NodePublic([7; 32]), START), None);
    let number = paths.ping(PEER, START).unwrap();
    let sent = transmits(&mut paths);
    let Message::Ping { tx, .. } = sent[0].message else { panic!("{sent:?}") };
    let source = "127.3.3.40:1".parse().unwrap();
    paths.handle_disco(DISCO, relay(PEER), &Message::Pong { tx, source }, START + 30 * MS);
    let pong = |number, via, latency| Event::Pong { peer: PEER, number, via, latency };
    assert!(events(&mut paths).contains(&pong(number, Path::Relay(1), 30 * MS)));
    prove(&mut paths, addr(1), START + SECOND);
    let number = paths.ping(PEER, START + SECOND).unwrap();
    let tx = pings_to(&transmits(&mut paths), addr(1))[0];
    let message = Message::Pong { tx, source: addr(999) };
    paths.handle_disco(DISCO, udp(addr(1)), &message, START + SECOND + 5 * MS);
    assert!(events(&mut paths).contains(&pong(number, Path::Direct(addr(1)), 5 * MS)));
}
