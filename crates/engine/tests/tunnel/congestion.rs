//! Standing queues, on a machine that is too slow for its traffic.

use std::{collections::BTreeSet, time::Duration};

use packet::{ChecksumAt, Offload, SegmentProtocol};
use sim::Link;
use wg::DropReason;

use crate::support::{packet, pair, run};

const SIZE: usize = 1000;
const SEGMENTS: usize = 50;
const TURN: Duration = Duration::from_millis(2);

/// A UDP super-packet over IPv4. Each segment begins with its number; the first is `first`.
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
fn a_standing_queue_occasionally_loses_the_first_segment_of_a_super_packet() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
    run(&network, &mut [&mut a, &mut b], Duration::from_secs(1));
    assert_eq!(b.port.take().len(), 1);

    // Six leave in three turns, and sixteen fit the queue, so each waits at least six milliseconds.
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
    assert_eq!(
        arrived.len() + lost.len(),
        (pushed * SEGMENTS as u32) as usize,
        "no segment arrives twice"
    );
    assert_eq!(a.all_drops(), [(DropReason::OutCongestion, lost.len() as u64)]);
    assert_eq!(b.all_drops(), []);
}

/// Returns the packets that a slow receiver accepts, and its drops. It processes 64 datagrams in
/// each turn. `bulk` has the number of packets of a bulk transfer in each turn, for four periods of
/// `turns` turns. Each turn has one packet of another flow, too.
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

/// Returns the packets that a slow receiver accepts, and its drops. It processes 64 datagrams in
/// each turn; `turns` has the packets that are sent.
fn received_in_turns(
    turn: Duration,
    turns: impl Iterator<Item = Vec<Vec<u8>>>,
) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    b.introduce(a.identity(), "10.1.0.0/16");
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
fn a_standing_socket_queue_costs_only_the_bulk_transfer_packets() {
    // The queue grows by three packets in each turn, stands, and is emptied.
    let (packets, drops) = received_slowly((100, TURN), [66, 63, 63, 20], 0);
    let [(DropReason::InCongestion, dropped)] = drops[..] else { panic!("{drops:?}") };
    assert!((4..40).contains(&dropped), "{dropped}");
    assert_eq!(packets.iter().filter(|packet| is_lone(packet)).count(), 400);
    assert_eq!(packets.len() as u64, 100 * (66 + 63 + 63 + 20) + 400 - dropped);
}

#[test]
fn short_flows_lose_nothing_during_a_bulk_transfer() {
    // A third of the packets are single packets of other flows, as long as the bulk transfer's.
    // Another third are flows of two short packets.
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
    assert_eq!(from_others(&packets), expected, "only the bulk transfer gets the signal");
}

#[test]
fn a_bulk_transfer_with_ecn_is_marked_and_loses_nothing() {
    let (packets, drops) = received_slowly((100, TURN), [66, 63, 63, 20], 0b10);
    assert_eq!(drops, []);
    assert_eq!(packets.len(), 100 * (66 + 63 + 63 + 20) + 400);
    let marked = packets.iter().filter(|packet| !is_lone(packet) && packet[1] & 0b11 == 0b11);
    assert!((4..40).contains(&marked.count()));
}

#[test]
fn a_socket_queue_that_is_sometimes_empty_is_not_signalled() {
    let (packets, drops) = received_slowly((40, TURN), [66, 20, 66, 20], 0);
    assert!(drops.is_empty() && packets.len() == 40 * (66 + 20 + 66 + 20) + 160, "{drops:?}");
}

#[test]
fn a_late_receiver_that_empties_the_queue_sends_no_signal() {
    let (packets, drops) = received_slowly((100, 10 * TURN), [20, 40, 60, 20], 0);
    assert!(drops.is_empty() && packets.len() == 100 * (20 + 40 + 60 + 20) + 400, "{drops:?}");
}

#[test]
fn occasional_bursts_are_not_a_standing_queue() {
    let (packets, drops) = received_slowly((3, 100 * TURN), [66, 66, 66, 0], 0);
    assert!(drops.is_empty() && packets.len() > 3 * 3 * 60, "{drops:?}");
}
