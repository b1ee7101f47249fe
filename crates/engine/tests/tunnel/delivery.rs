//! Packets pass the tunnel unchanged and in order.

use std::{collections::HashSet, time::Duration};

use packet::{Ecn, wire::IpHeader};
use sim::Link;
use wg::DropReason;

use crate::support::{Host, capture, packet, pair, run};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn packets_of_both_families_and_all_lengths_arrive_in_order() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    let packets: Vec<_> = (0..400u32)
        .map(|n| match n % 2 {
            0 => packet("10.0.0.1", "10.0.0.2", 0, n, (n as usize * 7) % 1400),
            _ => packet("fd00::1", "fd00::2", 0, n, (n as usize * 7) % 1380),
        })
        .collect();
    packets[..100].iter().for_each(|packet| a.port.push(packet.clone()));
    run(&network, &mut [&mut a, &mut b], SECOND);
    packets[100..].iter().for_each(|packet| a.port.push(packet.clone()));
    run(&network, &mut [&mut a, &mut b], SECOND);
    // These are two flows, so the order between them is not defined.
    let received = b.port.take();
    for version in [4, 6] {
        let of = |packets: &[Vec<u8>]| -> Vec<_> {
            packets.iter().filter(|packet| packet[0] >> 4 == version).cloned().collect()
        };
        assert_eq!(of(&received), of(&packets));
    }
    assert_eq!((a.all_drops(), b.all_drops()), (vec![], vec![]));
}

#[test]
fn second_threads_lose_nothing_and_preserve_the_order() {
    let (network, mut a, mut b) = pair(6, Link::CLEAN);
    a.start_seconds();
    b.start_seconds();
    let packets: Vec<_> = (0..4_000)
        .map(|n| packet("10.0.0.1", "10.0.0.2", 0, n, (n as usize * 37) % 4_000))
        .collect();
    a.port.push(packets[0].clone());
    run(&network, &mut [&mut a, &mut b], SECOND);
    for packets in packets[1..].chunks(300) {
        packets.iter().for_each(|packet| a.port.push(packet.clone()));
        b.port.push(packet("10.0.0.2", "10.0.0.1", 0, 0, 64));
        run(&network, &mut [&mut a, &mut b], Duration::from_millis(3));
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take(), packets);
    assert_eq!(a.port.take().len(), packets[1..].chunks(300).len());
    assert_eq!((a.all_drops(), b.all_drops()), (vec![], vec![]));
}

#[test]
fn staged_packets_leave_before_later_ones() {
    let (network, mut a, mut b) = pair(2, Link { delay: Duration::from_millis(40), ..Link::CLEAN });
    for n in 0..100 {
        a.port.push(packet("10.0.0.1", "10.0.0.2", 0, n, 100));
        run(&network, &mut [&mut a, &mut b], Duration::from_millis(1));
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    let expected: Vec<_> = (0..100).map(|n| packet("10.0.0.1", "10.0.0.2", 0, n, 100)).collect();
    assert_eq!(b.port.take(), expected);
}

#[test]
fn packets_of_one_batch_go_to_their_peers() {
    let (network, mut a, mut b) = pair(3, Link::CLEAN);
    let mut c = Host::new(&network, 3, |net| net);
    a.introduce(c.identity(), "10.0.3.0/24");
    c.introduce(a.identity(), "10.0.0.1/32");
    for n in 0..60 {
        let to = if n % 3 == 0 { "10.0.3.7" } else { "10.0.0.2" };
        a.port.push(packet("10.0.0.1", to, 0, n, 64));
    }
    run(&network, &mut [&mut a, &mut b, &mut c], SECOND);
    assert_eq!((b.port.take().len(), c.port.take().len()), (40, 20));
}

#[test]
fn network_faults_never_duplicate_or_corrupt_inner_packets() {
    for seed in 0..8 {
        let rough = Link {
            jitter: Duration::from_millis(30),
            loss: 500,
            duplication: 1_000,
            ..Link::CLEAN
        };
        let (network, mut a, mut b) = pair(100 + seed, rough);
        let sent: Vec<_> = (0..2_000).map(|n| packet("10.0.0.1", "10.0.0.2", 0, n, 200)).collect();
        // A lost handshake message is repeated after five seconds.
        a.port.push(sent[0].clone());
        run(&network, &mut [&mut a, &mut b], 20 * SECOND);
        for packets in sent[1..].chunks(20) {
            packets.iter().for_each(|packet| a.port.push(packet.clone()));
            run(&network, &mut [&mut a, &mut b], Duration::from_millis(5));
        }
        run(&network, &mut [&mut a, &mut b], SECOND);
        let received = b.port.take();
        let distinct: HashSet<_> = received.iter().collect();
        assert_eq!(distinct.len(), received.len(), "seed {seed}: nothing twice");
        let known: HashSet<_> = sent.iter().collect();
        assert!(distinct.is_subset(&known), "seed {seed}: nothing corrupt");
        assert!(received.len() > 1_750, "seed {seed}: {} of 2000 with 5 % loss", received.len());
        assert!(b.drops(DropReason::InReplayed) > 100, "seed {seed}: duplicates are counted");
    }
}

#[test]
fn outer_congestion_marks_are_copied_to_inner_packets() {
    let (network, mut a, mut b) = pair(4, Link::CLEAN);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    b.port.take();
    network.set_link(Link { congested: true, ..Link::CLEAN });
    for (number, tos) in [0b00, 0b01, 0b10, 0b11].into_iter().enumerate() {
        a.port.push(packet("10.0.0.1", "10.0.0.2", tos, number as u32, 64));
        a.port.push(packet("fd00::1", "fd00::2", tos, number as u32, 64));
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    let received = b.port.take();
    for version in [4, 6] {
        let of_version = received.iter().filter(|packet| packet[0] >> 4 == version);
        let ecn: Vec<_> = of_version.map(|p| IpHeader::parse(p).unwrap().ecn).collect();
        assert_eq!(ecn, [Ecn::NotEct, Ecn::Ce, Ecn::Ce, Ecn::Ce]);
    }
    assert_eq!(b.all_drops(), []);
}

#[test]
fn an_outer_mark_on_a_packet_without_ecn_drops_it() {
    let (network, mut a, mut b) = pair(5, Link::CLEAN);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0b10, 0, 64));
    run(&network, &mut [&mut a, &mut b], SECOND);
    b.port.take();
    let captured = capture(&network, &mut a, packet("10.0.0.1", "10.0.0.2", 0, 1, 64));
    network.inject(a.address, b.address, Ecn::Ce, &captured);
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take(), Vec::<Vec<u8>>::new());
    assert_eq!(b.all_drops(), [(DropReason::InCongestion, 1)]);
}
