//! Invalid input is dropped, counted by its reason, and has no other effect.

use std::{net::SocketAddr, time::Duration};

use packet::{Ecn, MAX_PACKET};
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::{Link, Network};
use wg::DropReason;

use crate::support::{Host, capture, packet, pair, run};

const SECOND: Duration = Duration::from_secs(1);

fn connected(seed: u64) -> (Network, Host, Host) {
    let (network, mut a, mut b) = pair(seed, Link::CLEAN);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 1);
    (network, a, b)
}

/// Checks that data still flows.
fn assert_alive(network: &Network, a: &mut Host, b: &mut Host) {
    let last = packet("10.0.0.1", "10.0.0.2", 0, 999, 64);
    a.port.push(last.clone());
    run(network, &mut [a, b], SECOND);
    assert_eq!(b.port.take(), [last]);
}

#[test]
fn datagrams_of_a_wrong_type_or_length_are_counted() {
    let (network, mut a, mut b) = connected(1);
    let data = capture(&network, &mut a, packet("10.0.0.1", "10.0.0.2", 0, 1, 64));
    let typed = |kind: u32, len: usize| {
        let mut bytes = vec![0; len];
        bytes[..4.min(len)].copy_from_slice(&kind.to_le_bytes()[..4.min(len)]);
        bytes
    };
    let mut forged = data.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut unknown = data.clone();
    unknown[4] ^= 1;
    for (bytes, reason) in [
        (vec![], DropReason::InMalformed),
        (typed(0, 64), DropReason::InMalformed),
        (typed(5, 64), DropReason::InMalformed),
        (typed(0x0100_0004, 64), DropReason::InMalformed),
        (typed(4, 3), DropReason::InMalformed),
        (typed(4, 31), DropReason::InMalformed),
        (typed(1, 147), DropReason::InMalformed),
        (typed(1, MAX_PACKET), DropReason::InMalformed),
        (typed(2, 93), DropReason::InMalformed),
        (typed(3, 63), DropReason::InMalformed),
        (typed(4, MAX_PACKET), DropReason::InUnknownIndex),
        (typed(1, 148), DropReason::HandshakeInvalidMac),
        (typed(2, 92), DropReason::HandshakeInvalidMac),
        (typed(3, 64), DropReason::HandshakeUnexpected),
        (unknown, DropReason::InUnknownIndex),
        (forged, DropReason::InForged),
    ] {
        let before = b.drops(reason);
        network.inject(a.address, b.address, Ecn::NotEct, &bytes);
        run(&network, &mut [&mut a, &mut b], Duration::from_millis(5));
        let kind = bytes.first().copied();
        assert_eq!(b.drops(reason), before + 1, "{reason:?} for {} bytes of {kind:?}", bytes.len());
    }
    network.inject(a.address, b.address, Ecn::NotEct, &data);
    network.inject(a.address, b.address, Ecn::NotEct, &data);
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!((b.port.take().len(), b.drops(DropReason::InReplayed)), (1, 1));
    assert_alive(&network, &mut a, &mut b);
}

#[test]
fn random_datagrams_do_not_disturb_traffic() {
    let (network, mut a, mut b) = connected(2);
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let data = capture(&network, &mut a, packet("10.0.0.1", "10.0.0.2", 0, 1, 64));
    for _ in 0..3_000 {
        let mut bytes = data.clone();
        bytes.resize(rng.next_u32() as usize % 300, 0);
        for _ in 0..rng.next_u32() % 4 {
            if !bytes.is_empty() {
                let at = rng.next_u32() as usize % bytes.len();
                bytes[at] = rng.next_u32() as u8;
            }
        }
        network.inject(a.address, b.address, Ecn::from_bits(rng.next_u32() as u8), &bytes);
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert!(b.port.take().len() <= 1, "at most the one true datagram");
    assert_alive(&network, &mut a, &mut b);
}

#[test]
fn a_peer_cannot_send_from_an_address_of_another_peer() {
    let (network, mut a, mut b) = connected(3);
    a.port.push(packet("10.0.0.77", "10.0.0.2", 0, 1, 64));
    a.port.push(packet("fd00::77", "fd00::2", 0, 2, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 0);
    assert_eq!(b.all_drops(), [(DropReason::InSpoofed, 2)]);
    assert_alive(&network, &mut a, &mut b);
}

/// An allowed IP inside another peer's network. The longest prefix decides in both directions.
#[test]
fn a_peer_with_a_wider_network_cannot_send_for_a_nested_peer() {
    let (network, mut a, mut b) = connected(4);
    let c = Host::new(&network, 3, |net| net);
    b.introduce((a.key, a.address), "10.7.0.0/16");
    b.introduce(c.identity(), "10.7.7.0/24");
    a.port.push(packet("10.7.7.1", "10.0.0.2", 0, 1, 64));
    a.port.push(packet("10.7.8.1", "10.0.0.2", 0, 2, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take(), [packet("10.7.8.1", "10.0.0.2", 0, 2, 64)]);
    assert_eq!(b.all_drops(), [(DropReason::InSpoofed, 1)]);
}

#[test]
fn packets_that_cannot_be_routed_are_counted_by_reason() {
    let (network, mut a, mut b) = connected(5);
    a.port.push(b"no IP packet".as_slice());
    a.port.push(packet("10.0.0.1", "10.0.0.3", 0, 1, 64));
    let mut long = packet("10.0.0.1", "10.0.0.2", 0, 1, 64);
    long[3] += 1;
    a.port.push(long);
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(a.all_drops(), [(DropReason::OutInvalid, 2), (DropReason::OutNoPeer, 1)]);
    assert_alive(&network, &mut a, &mut b);
}

/// A UDP packet over IPv4.
fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = packet(&from.ip().to_string(), &to.ip().to_string(), 0, 0, 8 + payload.len());
    packet[9] = 17;
    packet[20..22].copy_from_slice(&from.port().to_be_bytes());
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    packet[26..28].fill(0);
    packet[28..].copy_from_slice(payload);
    packet
}

#[test]
fn own_datagrams_do_not_enter_their_tunnel_but_other_traffic_does() {
    let (network, mut a, mut b) = connected(6);
    let data = capture(&network, &mut a, packet("10.0.0.1", "10.0.0.2", 0, 1, 64));
    a.introduce(b.identity(), "192.0.2.0/24");
    let (own, there) = (a.address, b.address);
    for own_data in [udp(own, there, &data), udp("10.0.0.1:1".parse().unwrap(), there, &data)] {
        a.port.push(own_data);
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(a.all_drops(), [(DropReason::OutLoop, 2)]);
    assert_eq!(b.port.take().len(), 0);

    // Packets that are not our own: of another WireGuard host behind this one, which has its own
    // session with the peer; to another port or host; and other traffic to the same port.
    let mut anothers = data.clone();
    anothers[4] ^= 1;
    let [mut port, mut host] = [there; 2];
    port.set_port(1);
    host.set_ip("192.0.2.77".parse().unwrap());
    let from = "10.0.0.1:51820".parse().unwrap();
    let fine = [
        udp(from, there, &anothers),
        udp(from, port, &data),
        udp(from, host, &data),
        udp(from, there, b"a question"),
        udp(from, there, b""),
    ];
    fine.iter().for_each(|packet| a.port.push(packet.clone()));
    run(&network, &mut [&mut a, &mut b], SECOND);
    let mut arrived = b.port.take();
    arrived.sort();
    let mut expected = fine.to_vec();
    expected.sort();
    assert_eq!(arrived, expected);
    assert_eq!(a.drops(DropReason::OutLoop), 2);
    assert_alive(&network, &mut a, &mut b);
}

#[test]
fn own_handshakes_are_not_staged_for_their_own_session() {
    let (network, mut a, mut b) = pair(7, Link::CLEAN);
    a.introduce(b.identity(), "192.0.2.0/24");
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 1, 64));
    a.step();
    a.step();
    let initiation = network.take_in_flight().pop().expect("a handshake began");
    assert_eq!(initiation[..4], [1, 0, 0, 0]);
    a.port.push(udp(a.address, b.address, &initiation));
    let mut anothers = initiation.clone();
    anothers[4] ^= 1;
    a.port.push(udp("10.0.0.1:51820".parse().unwrap(), b.address, &anothers));
    // Until the handshake is requested again.
    run(&network, &mut [&mut a, &mut b], 10 * SECOND);
    assert_eq!(a.all_drops(), [(DropReason::OutLoop, 1)]);
    assert_eq!(b.port.take().len(), 2, "what was staged, and another's handshake");
}
