//! Packets from a TUN device, compared with the oracle.

use packet::{Offload, Segments, VNET_HEADER_LEN};

use super::{
    oracle::{Vnet, prepare, split, tunnelled},
    spec::{ACK, Spec},
    take,
};

/// The longest packet, and a limit of segments for speed.
const MOST: usize = 65_535;
const SEGMENTS: usize = 500;

/// A packet with its virtio-net header, raw or built from fields. It is refused, or its segments
/// equal those of the oracle.
pub fn segment(data: &[u8]) {
    let mut rest = data;
    let [how] = take(&mut rest);
    let mut written = if how & 1 == 0 { rest.to_vec() } else { made(&mut rest, how & 2 != 0) };
    written.resize(written.len().clamp(VNET_HEADER_LEN, VNET_HEADER_LEN + MOST), 0);
    let (header, packet) = written.split_first_chunk_mut().expect("a header is there");
    let vnet = Vnet::read(header);
    prepare(vnet, packet);
    let expected = split(vnet, packet);
    let offload = Offload::parse(header).ok();
    let segments = offload.and_then(|offload| Segments::new(packet, offload).ok());
    let segments = segments.map(|segments| {
        let segment = |index| {
            let mut segment = vec![0xee; segments.segment_len(index)];
            segments.write(index, &mut segment);
            segment
        };
        (0..segments.count()).map(segment).collect::<Vec<_>>()
    });
    assert_eq!(segments, expected, "{vnet:?}");
}

/// A super-packet, optionally in a UDP tunnel, with a few bytes changed.
fn made(rest: &mut &[u8], is_carried: bool) -> Vec<u8> {
    let spec = take_spec(rest);
    let transport = if spec.tcp { 20 + spec.tcp_options.len() } else { 8 };
    let (kind, offset) = match (spec.tcp, spec.ipv6) {
        (true, false) => (1, 16),
        (true, true) => (4, 16),
        (false, _) => (5, 6),
    };
    let size = u16::from_le_bytes(take(rest)).max((spec.payload.len() / SEGMENTS) as u16);
    let [ecn_and_kind] = take(rest);
    let vnet = Vnet {
        flags: 1,
        // Rarely no super-packet, sometimes with the ECN flag, which allows CWR.
        kind: if ecn_and_kind < 16 { 0 } else { kind | ecn_and_kind & 0x80 },
        header_len: 0,
        size,
        start: (spec.headers() - transport) as u16,
        offset,
        ..Vnet::default()
    };
    let (vnet, packet) = match is_carried {
        false => (vnet, spec.build()),
        true => in_tunnel(rest, vnet, &spec.build()),
    };
    let mut written = [vnet.write().as_slice(), &packet].concat();
    while let [low, high, value, behind @ ..] = *rest {
        *rest = behind;
        let at = usize::from(u16::from_le_bytes([*low, *high])) % written.len();
        written[at] = *value;
    }
    written
}

/// The same within a tunnel.
fn in_tunnel(rest: &mut &[u8], vnet: Vnet, carried: &[u8]) -> (Vnet, Vec<u8>) {
    let [form, between, id] = take(rest);
    let outer = Spec {
        ip_options: form & 1 != 0,
        id: u16::from(id) << 8 | 0xf0,
        ..Spec::new(false, form & 2 != 0, Vec::new())
    };
    let between = vec![id; between.into()];
    let room = MOST - outer.headers() - between.len();
    let carried = &carried[..carried.len().min(room)];
    tunnelled(&outer, &between, vnet, carried, form & 4 != 0)
}

fn take_spec(rest: &mut &[u8]) -> Spec {
    let [form, host, tos, ttl, flags, options, fill] = take(rest);
    let word = |rest: &mut &[u8]| u16::from_le_bytes(take(rest));
    let (tcp, ipv6) = (form & 1 == 0, form & 2 == 0);
    let len = usize::from(word(rest));
    let mut spec = Spec {
        host,
        tos,
        ttl,
        flow_label: word(rest),
        id: word(rest),
        fragment: if form & 4 == 0 { 0 } else { 0x4000 },
        ip_options: form & 8 != 0,
        sequence: u32::from_le_bytes(take(rest)),
        ack: u32::from_le_bytes(take(rest)),
        window: word(rest),
        urgent: word(rest),
        flags: flags ^ ACK,
        reserved: form >> 4,
        tcp_options: vec![1; usize::from(options % 11) * 4],
        ..Spec::new(tcp, ipv6, Vec::new())
    };
    let len = len.min(MOST - spec.headers());
    spec.payload = (0..len).map(|at| (at * 7 + at / 256) as u8 ^ fill).collect();
    spec
}
