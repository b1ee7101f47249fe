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
    (bytes, Offload::Segment { protocol: SegmentProtocol::Udp, size: SIZE as u16, checksum })
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

    // Three leave in each turn, and sixteen find room, which is ten milliseconds.
    let mut pushed = 0;
    let mut arrived = Vec::new();
    for turn in 0..300 {
        for _ in 0..if turn < 200 { 4 } else { 0 } {
            let (bytes, offload) = super_packet(pushed * SEGMENTS as u32);
            a.port.push_super(bytes, offload);
            pushed += 1;
        }
        a.step();
        network.pass(TURN);
        (0..4).for_each(|_| b.step());
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
