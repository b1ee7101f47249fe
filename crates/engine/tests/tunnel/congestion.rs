//! A queue that stands, on a machine too slow for what is sent.

use std::{collections::BTreeSet, time::Duration};

use packet::{ChecksumAt, Offload, SegmentProtocol};
use sim::Link;
use wg::DropReason;

use crate::support::{packet, pair, run};

const SIZE: usize = 1000;
const SEGMENTS: usize = 50;
const TURN: Duration = Duration::from_millis(2);

/// A UDP super-packet over IPv4 whose segments each begin with their number, from
/// `first` on.
fn super_packet(first: u32) -> (Vec<u8>, Offload) {
    let len = (8 + SIZE * SEGMENTS) as u16;
    let mut bytes = packet("10.0.0.1", "10.0.0.2", 0, 0, len.into());
    bytes[9] = 17;
    bytes[20..28].copy_from_slice(&[0x10, 0, 0x20, 0, (len >> 8) as u8, len as u8, 0, 0]);
    for (segment, number) in bytes[28..].chunks_mut(SIZE).zip(first..) {
        segment[..4].copy_from_slice(&number.to_be_bytes());
    }
    let checksum = ChecksumAt { start: 20, offset: 6 };
    (
        bytes,
        Offload::Segment {
            protocol: SegmentProtocol::Udp,
            size: SIZE as u16,
            checksum,
            tunnel: None,
        },
    )
}

fn number(segment: &[u8]) -> u32 {
    u32::from_be_bytes(*segment[28..].first_chunk().unwrap())
}

#[test]
fn a_queue_that_stands_loses_the_first_segment_of_a_super_packet_now_and_then_and_nothing_else() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
    run(&network, &mut [&mut a, &mut b], Duration::from_secs(1));
    assert_eq!(b.port.take().len(), 1);

    // Six leave in three turns, and sixteen find room: each waits for six milliseconds at least.
    let mut pushed = 0;
    let mut arrived = Vec::new();
    for turn in 0..100 {
        for _ in 0..if turn < 70 { 7 } else { 0 } {
            let (bytes, offload) = super_packet(pushed * SEGMENTS as u32);
            a.port.push_super(bytes, offload);
            pushed += 1;
        }
        a.step();
        network.pass(3 * TURN);
        (0..8).for_each(|_| b.step());
        arrived.extend(b.port.take().iter().map(|segment| number(segment)));
    }

    assert!(arrived.is_sorted(), "nothing is overtaken");
    let lost: BTreeSet<u32> = (0..pushed * SEGMENTS as u32).collect();
    let lost = &lost - &arrived.iter().copied().collect();
    assert!((2..40).contains(&lost.len()), "{} are lost", lost.len());
    assert!(lost.iter().all(|number| number % SEGMENTS as u32 == 0), "{lost:?}");
    assert_eq!(arrived.len() + lost.len(), (pushed * SEGMENTS as u32) as usize, "none comes twice");
    assert_eq!(a.all_drops(), [(DropReason::OutCongestion, lost.len() as u64)]);
    assert_eq!(b.all_drops(), []);
}

/// What a receiver gets that takes 64 datagrams in each turn, of so many turns of this length in
/// which as many packets of a bulk transfer come, with this type of service, and a lone packet.
fn received_slowly(
    (turns, turn): (u32, Duration),
    bulk: [u32; 4],
    tos: u8,
) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let mut number = 0;
    let counts = bulk.iter().flat_map(|count| (0..turns).map(|_| *count));
    let packets = counts.map(|count| {
        let mut packets = Vec::new();
        for at in 0..count {
            number += 1;
            packets.push(packet("10.0.0.1", "10.0.0.2", tos, number, 200));
            if at == count / 2 {
                packets.push(packet("fd00::1", "fd00::2", 0, number, 100));
            }
        }
        packets
    });
    received_in_turns(turn, packets)
}

/// What a receiver gets that takes 64 datagrams in each turn, in which these packets are sent.
fn received_in_turns(
    turn: Duration,
    turns: impl Iterator<Item = Vec<Vec<u8>>>,
) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    b.introduce(a.who(), "10.1.0.0/16");
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
    run(&network, &mut [&mut a, &mut b], Duration::from_secs(1));
    b.port.take();
    for packets in turns {
        packets.into_iter().for_each(|packet| a.port.push(packet));
        (0..4).for_each(|_| a.step());
        network.pass(turn);
        b.step();
    }
    (b.port.take(), b.all_drops())
}

fn is_lone(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6
}

#[test]
fn a_socket_whose_queue_stands_costs_a_bulk_transfer_a_packet_now_and_then_and_none_else() {
    // The queue grows by three in each turn, stands, and is gone.
    let (packets, drops) = received_slowly((100, TURN), [66, 63, 63, 20], 0);
    let [(DropReason::InCongestion, dropped)] = drops[..] else { panic!("{drops:?}") };
    assert!((4..40).contains(&dropped), "{dropped}");
    assert_eq!(packets.iter().filter(|packet| is_lone(packet)).count(), 400);
    assert_eq!(packets.len() as u64, 100 * (66 + 63 + 63 + 20) + 400 - dropped);
}

#[test]
fn flows_of_one_long_packet_or_of_short_ones_lose_nothing_beside_a_bulk_transfer() {
    // A third of what comes is of flows with one packet as long as the bulk transfer's, and a
    // third of flows with two short ones.
    let mut number = 0;
    let mut other = |payload| {
        number += 1;
        let from = format!("10.1.{}.{}", number / 200 % 200, number % 200);
        packet(&from, "10.0.0.2", 0, number, payload)
    };
    let mut turn = |all: usize| {
        let mut packets: Vec<_> = (0..all / 3).map(|_| other(200)).collect();
        packets.extend((0..all / 6).flat_map(|_| vec![other(40); 2]));
        let rest = all - packets.len();
        packets.extend(vec![packet("10.0.0.1", "10.0.0.2", 0, 0, 200); rest]);
        packets
    };
    let turns = [67, 64, 64, 20].into_iter().flat_map(|all| [all; 100]);
    let sent: Vec<_> = turns.map(&mut turn).collect();
    let from_others = |packets: &[Vec<u8>]| packets.iter().filter(|it| it[13] == 1).count();
    let expected: usize = sent.iter().map(|packets| from_others(packets)).sum();
    let (packets, drops) = received_in_turns(TURN, sent.into_iter());
    let [(DropReason::InCongestion, dropped)] = drops[..] else { panic!("{drops:?}") };
    assert!((4..40).contains(&dropped), "{dropped}");
    assert_eq!(from_others(&packets), expected, "the bulk transfer alone is told");
}

#[test]
fn a_bulk_transfer_that_knows_ecn_is_told_and_loses_nothing() {
    let (packets, drops) = received_slowly((100, TURN), [66, 63, 63, 20], 0b10);
    assert_eq!(drops, []);
    assert_eq!(packets.len(), 100 * (66 + 63 + 63 + 20) + 400);
    let told = packets.iter().filter(|packet| !is_lone(packet) && packet[1] & 0b11 == 0b11);
    assert!((4..40).contains(&told.count()));
}

#[test]
fn a_socket_whose_queue_empties_now_and_then_tells_nobody() {
    let (packets, drops) = received_slowly((40, TURN), [66, 20, 66, 20], 0);
    assert!(drops.is_empty() && packets.len() == 40 * (66 + 20 + 66 + 20) + 160, "{drops:?}");
}

#[test]
fn a_receiver_that_is_late_and_takes_all_tells_nobody() {
    let (packets, drops) = received_slowly((100, 10 * TURN), [20, 40, 60, 20], 0);
    assert!(drops.is_empty() && packets.len() == 100 * (20 + 40 + 60 + 20) + 400, "{drops:?}");
}

#[test]
fn bursts_that_come_now_and_then_are_not_a_queue_that_stands() {
    let (packets, drops) = received_slowly((3, 100 * TURN), [66, 66, 66, 0], 0);
    assert!(drops.is_empty() && packets.len() > 3 * 3 * 60, "{drops:?}");
}
