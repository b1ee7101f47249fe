//! What does not belong into the tunnel is dropped, counted by its reason, and
//! hurts nothing.

use std::time::Duration;

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

/// Data still flows.
fn assert_alive(network: &Network, a: &mut Host, b: &mut Host) {
    let last = packet("10.0.0.1", "10.0.0.2", 0, 999, 64);
    a.port.push(last.clone());
    run(network, &mut [a, b], SECOND);
    assert_eq!(b.port.take(), [last]);
}

#[test]
fn datagrams_of_every_wrong_kind_and_length_are_counted() {
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
fn random_datagrams_hurt_nothing() {
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
fn a_peer_cannot_send_from_an_address_that_is_not_its_own() {
    let (network, mut a, mut b) = connected(3);
    a.port.push(packet("10.0.0.77", "10.0.0.2", 0, 1, 64));
    a.port.push(packet("fd00::77", "fd00::2", 0, 2, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 0);
    assert_eq!(b.all_drops(), [(DropReason::InSpoofed, 2)]);
    assert_alive(&network, &mut a, &mut b);
}

/// An allowed IP inside another peer's: the longest prefix decides, both ways.
#[test]
fn a_peer_whose_network_holds_another_peers_cannot_speak_for_it() {
    let (network, mut a, mut b) = connected(4);
    let c = Host::new(&network, 3, |net| net);
    b.introduce((a.key, a.address), "10.7.0.0/16");
    b.introduce(c.who(), "10.7.7.0/24");
    a.port.push(packet("10.7.7.1", "10.0.0.2", 0, 1, 64));
    a.port.push(packet("10.7.8.1", "10.0.0.2", 0, 2, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take(), [packet("10.7.8.1", "10.0.0.2", 0, 2, 64)]);
    assert_eq!(b.all_drops(), [(DropReason::InSpoofed, 1)]);
}

#[test]
fn packets_that_lead_nowhere_are_counted_by_their_reason() {
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
