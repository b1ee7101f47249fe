use std::hint::black_box;

use packet::{Coalesce, Coalescer, IpPacket, Span};

use crate::{
    measure::{Times, table, work},
    packets::{self, tcp, udp},
};

const BOTH: Coalesce = Coalesce { tcp: true, udp: true };
const TCP_PAYLOAD: usize = 1420 - 20 - packets::TCP;
const UDP_PAYLOAD: usize = 1420 - 20 - packets::UDP;

/// Coalesces a batch of packets in a receive buffer.
pub(crate) fn coalesce() {
    let batches: [(&str, Vec<Vec<u8>>); 6] = [
        ("46 of a TCP flow", (0..46).map(|n| tcp(false, 1, n, TCP_PAYLOAD)).collect()),
        ("46 of a TCP flow, IPv6", (0..46).map(|n| tcp(true, 1, n, TCP_PAYLOAD - 20)).collect()),
        (
            "128 of 32 TCP flows in turns",
            (0..128).map(|n| tcp(false, n as u16 % 32, n / 32, TCP_PAYLOAD)).collect(),
        ),
        ("64 of a UDP flow", (0..64).map(|n| udp(false, 1, n, UDP_PAYLOAD)).collect()),
        ("64 acknowledgements of a TCP flow", (0..64).map(|n| tcp(false, 1, n, 0)).collect()),
        ("64 small UDP of 64 flows", (0..64).map(|n| udp(false, n as u16, n, 36)).collect()),
    ];
    let rows = batches.map(|(name, packets)| {
        let (buf, read) = buffer(&packets);
        let mut coalescer = Coalescer::default();
        let times = Times::of([work(|| run(&mut coalescer, black_box(&buf), &read))]);
        let supers = run(&mut coalescer, &buf, &read);
        [
            name.to_owned(),
            supers.to_string(),
            format!("{:.0}", times.ns(0)),
            format!("{:.1}", times.ns(0) / packets.len() as f64),
        ]
    });
    table("coalesce", ["batch", "super-packets", "ns", "ns a packet"], &rows);
}

fn run(coalescer: &mut Coalescer, buf: &[u8], packets: &[IpPacket]) -> usize {
    coalescer.clear();
    for packet in packets {
        coalescer.push(buf, packet, BOTH);
    }
    coalescer.finish().len()
}

/// Each packet has a WireGuard header before it and a tag after it.
fn buffer(packets: &[Vec<u8>]) -> (Vec<u8>, Vec<IpPacket>) {
    let mut buf = Vec::new();
    let mut spans = Vec::new();
    for packet in packets {
        buf.extend([0; 16]);
        spans.push(Span { start: buf.len(), len: packet.len() });
        buf.extend(packet);
        buf.extend([0; 16]);
    }
    let read = |span| IpPacket::read(&buf, span).expect("an IP packet");
    let packets = spans.into_iter().map(read).collect();
    (buf, packets)
}
