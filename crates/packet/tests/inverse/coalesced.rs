//! Passes packets through a coalescer.

use packet::{Coalesce, Coalescer, IpPacket, Span, SuperPacket};

/// Coalesces packets in a receive buffer. Returns the bytes that would be written to the TUN
/// device, header and packet, with the number of packets in each.
pub(super) fn coalesced(
    coalescer: &mut Coalescer,
    packets: &[Vec<u8>],
    which: Coalesce,
) -> Vec<(Vec<u8>, usize)> {
    let (mut buf, mut spans) = (Vec::new(), Vec::new());
    coalescer.clear();
    for packet in packets {
        buf.extend([0xee; 16]);
        spans.push(Span { start: buf.len(), len: packet.len() });
        buf.extend(packet);
    }
    for span in &spans {
        let packet = IpPacket::read(&buf, *span).expect("an IP packet");
        assert_eq!(packet.span, *span, "as long as its header says");
        coalescer.push(&buf, &packet, which);
    }
    let supers = coalescer.finish();
    let mut packet_spans: Vec<Span> = supers.iter().flat_map(SuperPacket::packet_spans).collect();
    packet_spans.sort_by_key(|span| span.start);
    assert_eq!(packet_spans, spans, "every packet is in one super-packet");
    let gather = |packet: &SuperPacket| {
        let mut written = packet.header().to_vec();
        for span in packet.payload() {
            written.extend(&buf[span.start..span.start + span.len]);
        }
        (written, packet.packets())
    };
    supers.iter().map(gather).collect()
}
