use std::hint::black_box;

use packet::{ChecksumAt, MAX_PACKET, Offload, SegmentProtocol, Segments};

use crate::{
    measure::{Times, table, work},
    packets,
};

const MTU: usize = 1420;
/// Bytes of the header before a packet in a sealed batch, and of the tag after it.
const AROUND: usize = 16;

/// Segments a super-packet of maximal length into packets of the MTU, each at its position in a
/// batch. The baseline is a plain copy of the same bytes.
pub(crate) fn segment() {
    let rows = [
        ("TCP, IPv4", SegmentProtocol::Tcp4, false),
        ("TCP, IPv6", SegmentProtocol::Tcp6, true),
        ("UDP, IPv4", SegmentProtocol::Udp, false),
        ("UDP, IPv6", SegmentProtocol::Udp, true),
    ]
    .map(|(name, protocol, ipv6)| {
        let (packet, offload) = super_packet(protocol, ipv6);
        let Ok(segments) = Segments::new(&packet, offload) else { unreachable!("it is whole") };
        let count = segments.count();
        let mut batches = [vec![0; count * (MTU + 2 * AROUND)], vec![0; packet.len()]];
        let [batch, copy] = &mut batches;
        let times = Times::of([
            work(|| write(black_box(&packet), offload, batch)),
            work(|| black_box(&mut *copy).copy_from_slice(black_box(&packet))),
        ]);
        [
            name.to_owned(),
            count.to_string(),
            format!("{:.0}", times.ns(0)),
            format!("{:.1}", times.ns(0) / count as f64),
            format!("{:.1}", packet.len() as f64 / times.ns(0)),
            format!("{:.2}x", times.faster(0, 1)),
        ]
    });
    let headings = ["super-packet", "segments", "ns", "ns each", "GB/s", "of memcpy"];
    table("segment", headings, &rows);
}

fn write(packet: &[u8], offload: Offload, batch: &mut [u8]) {
    let Ok(segments) = Segments::new(packet, offload) else { return };
    for (index, room) in (0..segments.count()).zip(batch.chunks_mut(MTU + 2 * AROUND)) {
        segments.write(index, &mut room[AROUND..][..segments.segment_len(index)]);
    }
}

fn super_packet(protocol: SegmentProtocol, ipv6: bool) -> (Vec<u8>, Offload) {
    let start = if ipv6 { 40 } else { 20 };
    let (header, offset) = match protocol {
        SegmentProtocol::Udp => (packets::UDP, 6),
        _ => (packets::TCP, 16),
    };
    let payload = MAX_PACKET - start - header;
    let packet = match protocol {
        SegmentProtocol::Udp => packets::udp(ipv6, 1, 0, payload),
        _ => packets::tcp(ipv6, 1, 0, payload),
    };
    let size = (MTU - start - header) as u16;
    let checksum = ChecksumAt { start: start as u16, offset };
    (packet, Offload::Segment { protocol, size, checksum, tunnel: None })
}
