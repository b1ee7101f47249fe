//! Coalescing and segmenting are inverse operations: the same packets come out, with each flow in
//! order. A slow oracle computes the packets that the kernel would make of a super-packet. It
//! shares no code with the crate.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod any;
mod coalesced;
mod gro;
mod oracle;
mod same;
mod spec;
mod streams;
mod supers;
mod tunnels;

use coalesced::coalesced;
use oracle::Vnet;
use packet::{Coalesce, Coalescer, Offload, Segments, VNET_HEADER_LEN};
use spec::Spec;

const BOTH: Coalesce = Coalesce { tcp: true, udp: true };

fn coalesce(packets: &[Vec<u8>], which: Coalesce) -> Vec<(Vec<u8>, usize)> {
    coalesced(&mut Coalescer::default(), packets, which)
}

/// The packets that the kernel would make of it, computed by the crate's segmenter and by the
/// oracle.
fn segment(written: &[u8]) -> Vec<Vec<u8>> {
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    let segments = Segments::new(packet, Offload::parse(header).unwrap()).unwrap();
    let segments: Vec<Vec<u8>> = (0..segments.count())
        .map(|index| {
            let mut segment = vec![0xee; segments.segment_len(index)];
            segments.write(index, &mut segment);
            segment
        })
        .collect();
    assert_eq!(oracle::split(Vnet::read(header), packet).unwrap(), segments);
    segments
}

fn round_trip(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    coalesce(packets, BOTH).iter().flat_map(|(written, _)| segment(written)).collect()
}

/// Number of packets in each super-packet. Checks that the packets come back unchanged.
fn carried(specs: &[Spec]) -> Vec<usize> {
    let packets: Vec<_> = specs.iter().map(Spec::build).collect();
    assert_eq!(round_trip(&packets), packets);
    counts(&packets)
}

fn counts(packets: &[Vec<u8>]) -> Vec<usize> {
    coalesce(packets, BOTH).iter().map(|(_, count)| *count).collect()
}

/// Creates `lens.len()` packets of a TCP stream. Sequence numbers and identifications wrap.
fn stream(ipv6: bool, lens: &[usize]) -> Vec<Spec> {
    let mut specs = Vec::new();
    let mut sequence = u32::MAX - 100;
    for (number, len) in lens.iter().enumerate() {
        let payload = (0..*len).map(|at| (at * 31 + number) as u8).collect();
        let id = 65_534u16.wrapping_add(number as u16);
        specs.push(Spec { id, sequence, ..Spec::new(true, ipv6, payload) });
        sequence = sequence.wrapping_add(*len as u32);
    }
    specs
}

/// Creates `lens.len()` datagrams of a UDP flow.
fn datagrams(ipv6: bool, lens: &[usize]) -> Vec<Spec> {
    let datagram = |(number, len): (usize, &usize)| Spec {
        id: 65_534u16.wrapping_add(number as u16),
        ..Spec::new(false, ipv6, vec![number as u8; *len])
    };
    lens.iter().enumerate().map(datagram).collect()
}
