//! Coalescing and segmenting are each other's inverse: whatever packets go in,
//! the same packets come out, each flow in order. A slow, independent check of
//! checksums stands beside it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::HashMap;

use packet::{Coalesce, Coalescer, Offload, Segments, Span, VNET_HEADER_LEN, checksum};
use proptest::prelude::*;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

const BOTH: Coalesce = Coalesce { tcp: true, udp: true };

/// What a packet is made of.
#[derive(Clone, Debug)]
struct Spec {
    ipv6: bool,
    tcp: bool,
    host: u8,
    tos: u8,
    ttl: u8,
    id: u16,
    /// The IPv4 fragment field.
    fragment: u16,
    ip_options: bool,
    sequence: u32,
    ack: u32,
    window: u16,
    flags: u8,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
    zero_checksum: bool,
}

impl Spec {
    fn new(tcp: bool, ipv6: bool, payload: Vec<u8>) -> Self {
        Self {
            ipv6,
            tcp,
            host: 1,
            tos: 0,
            ttl: 64,
            id: 7,
            fragment: 0,
            ip_options: false,
            sequence: 1_000,
            ack: 5,
            window: 500,
            flags: ACK,
            tcp_options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            payload,
            zero_checksum: false,
        }
    }

    /// The packet, with valid checksums.
    fn build(&self) -> Vec<u8> {
        let mut transport = if self.tcp { self.tcp_header() } else { self.udp_header() };
        transport.extend(&self.payload);
        let (addresses, protocol) = (self.addresses(), if self.tcp { 6 } else { 17 });
        let mut summed = addresses.clone();
        summed.extend([0, protocol]);
        summed.extend((transport.len() as u16).to_be_bytes());
        summed.extend(&transport);
        let field = if self.tcp { 16 } else { 6 };
        let checksum = match slow_checksum(&summed) {
            0 => 0xffff,
            checksum => checksum,
        };
        if self.tcp || !self.zero_checksum {
            transport[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let mut packet = self.ip_header(protocol, transport.len());
        packet.extend(transport);
        packet
    }

    fn addresses(&self) -> Vec<u8> {
        let len = if self.ipv6 { 16 } else { 4 };
        let mut addresses = vec![10; 2 * len];
        addresses[len - 1] = self.host;
        addresses[2 * len - 1] = 200;
        addresses
    }

    fn ip_header(&self, protocol: u8, payload: usize) -> Vec<u8> {
        if self.ipv6 {
            let mut header =
                vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0, 0, 0, protocol, self.ttl];
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            header.extend(self.addresses());
            return header;
        }
        let options: &[u8] = if self.ip_options { &[1, 1, 1, 0] } else { &[] };
        let mut header = vec![0x45 + (options.len() / 4) as u8, self.tos, 0, 0];
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, protocol, 0, 0]);
        header.extend(self.addresses());
        header.extend(options);
        let total = (header.len() + payload) as u16;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        let checksum = slow_checksum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn tcp_header(&self) -> Vec<u8> {
        let mut header = vec![0, self.host, 0, 80];
        header.extend(self.sequence.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        header.extend([(((20 + self.tcp_options.len()) / 4) << 4) as u8, self.flags]);
        header.extend(self.window.to_be_bytes());
        header.extend([0, 0, 0, 0]);
        header.extend(&self.tcp_options);
        header
    }

    fn udp_header(&self) -> Vec<u8> {
        let mut header = vec![0, self.host, 0, 53];
        header.extend((8 + self.payload.len() as u16).to_be_bytes());
        header.extend([0, 0]);
        header
    }
}

fn slow_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Coalesces packets as they would stand in a receive buffer. Returns what would
/// be written to the TUN, header and packet, and how many packets each carries.
fn coalesce(packets: &[Vec<u8>], which: Coalesce) -> Vec<(Vec<u8>, usize)> {
    let mut buf = Vec::new();
    let mut coalescer = Coalescer::default();
    let spans: Vec<Span> = packets
        .iter()
        .map(|packet| {
            buf.extend([0xee; 16]);
            let span = Span { start: buf.len(), len: packet.len() };
            buf.extend(packet);
            span
        })
        .collect();
    for span in spans {
        coalescer.push(&buf, span, which);
    }
    let gather = |packet: &packet::SuperPacket| {
        let mut written = packet.header().to_vec();
        for span in packet.payload() {
            written.extend(&buf[span.start..span.start + span.len]);
        }
        (written, packet.packets())
    };
    coalescer.finish().iter().map(gather).collect()
}

/// What the kernel makes of it, by our own segmenter.
fn segment(written: &[u8]) -> Vec<Vec<u8>> {
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    let segments = Segments::new(packet, Offload::parse(header).unwrap()).unwrap();
    (0..segments.count())
        .map(|index| {
            let mut segment = vec![0; segments.segment_len(index)];
            segments.write(index, &mut segment);
            segment
        })
        .collect()
}

/// Each flow's packets in order; `None` for what has no flow.
fn by_flow(packets: &[Vec<u8>]) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<_, Vec<_>> = HashMap::new();
    for packet in packets {
        let (addresses, at) = if packet[0] >> 4 == 6 { (8..40, 40) } else { (12..20, 20) };
        let mut flow = packet[addresses].to_vec();
        flow.extend(&packet[at..at + 4]);
        flows.entry(flow).or_default().push(packet.clone());
    }
    flows
}

fn round_trip(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    coalesce(packets, BOTH).iter().flat_map(|(written, _)| segment(written)).collect()
}

/// How many packets each super-packet carries.
fn carried(specs: &[Spec]) -> Vec<usize> {
    let packets: Vec<_> = specs.iter().map(Spec::build).collect();
    assert_eq!(round_trip(&packets), packets);
    coalesce(&packets, BOTH).iter().map(|(_, count)| *count).collect()
}

/// `lens.len()` packets of a TCP stream.
fn stream(ipv6: bool, lens: &[usize]) -> Vec<Spec> {
    let mut specs = Vec::new();
    let mut sequence = u32::MAX - 100;
    for (number, len) in lens.iter().enumerate() {
        let payload = (0..*len).map(|at| (at * 31 + number) as u8).collect();
        let id = 65_534u16.wrapping_add(number as u16);
        specs.push(Spec { sequence, id, ..Spec::new(true, ipv6, payload) });
        sequence = sequence.wrapping_add(*len as u32);
    }
    specs
}

#[test]
fn a_stream_becomes_one_super_packet_across_the_wrap_of_sequence_and_id() {
    for ipv6 in [false, true] {
        assert_eq!(carried(&stream(ipv6, &[100; 20])), [20]);
        assert_eq!(carried(&stream(ipv6, &[100, 100, 40, 100, 100])), [3, 2]);
        assert_eq!(carried(&stream(ipv6, &[100, 101])), [1, 1]);
        assert_eq!(carried(&stream(ipv6, &[1400; 60])), [46, 14]);
    }
}

#[test]
fn push_and_fin_end_a_super_packet_and_stand_on_its_last_segment() {
    for flag in [PSH, FIN, PSH | FIN] {
        let mut specs = stream(false, &[100; 4]);
        specs[1].flags |= flag;
        assert_eq!(carried(&specs), [2, 2]);
    }
}

#[test]
fn what_differs_is_not_merged() {
    type Change = fn(&mut Spec);
    let changes: [(&str, Change); 15] = [
        ("SYN", |s| s.flags |= SYN),
        ("URG", |s| s.flags |= URG),
        ("CWR", |s| s.flags |= CWR),
        ("ECE", |s| s.flags |= ECE),
        ("no ACK", |s| s.flags = 0),
        ("TOS", |s| s.tos = 0x10),
        ("ECN", |s| s.tos = 0x03),
        ("TTL", |s| s.ttl = 63),
        ("acknowledgement", |s| s.ack += 1),
        ("window", |s| s.window += 1),
        ("options", |s| s.tcp_options[7] += 1),
        ("more options", |s| s.tcp_options.extend([1, 1, 1, 1])),
        ("a gap", |s| s.sequence = s.sequence.wrapping_add(1)),
        ("no payload", |s| s.payload.clear()),
        ("other host", |s| s.host = 2),
    ];
    for (what, change) in changes {
        for ipv6 in [false, true] {
            let mut specs = stream(ipv6, &[100, 100]);
            change(&mut specs[1]);
            assert_eq!(carried(&specs), [1, 1], "{what}, IPv6: {ipv6}");
        }
    }
    let v4_only: [(&str, Change); 5] = [
        ("a fragment", |s| s.fragment = 0x2000),
        ("a last fragment", |s| s.fragment = 10),
        ("don't fragment", |s| s.fragment = 0x4000),
        ("IP options", |s| s.ip_options = true),
        ("identification", |s| s.id = s.id.wrapping_add(1)),
    ];
    for (what, change) in v4_only {
        let mut specs = stream(false, &[100, 100]);
        change(&mut specs[1]);
        assert_eq!(carried(&specs), [1, 1], "{what}");
    }
}

#[test]
fn a_flow_with_ece_still_coalesces() {
    let mut specs = stream(false, &[100; 3]);
    specs.iter_mut().for_each(|spec| spec.flags |= ECE);
    assert_eq!(carried(&specs), [3]);
}

#[test]
fn an_acknowledgement_in_between_is_not_overtaken() {
    let mut specs = stream(false, &[100, 100, 100, 100]);
    specs.insert(2, Spec { sequence: specs[2].sequence, ..Spec::new(true, false, vec![]) });
    assert_eq!(carried(&specs), [2, 1, 2]);
}

#[test]
fn interleaved_flows_each_become_one() {
    let one = stream(false, &[100; 10]);
    let other = one.iter().cloned().map(|spec| Spec { host: 9, ..spec });
    let mixed: Vec<_> = one.iter().cloned().zip(other).flat_map(|(a, b)| [a, b]).collect();
    let packets: Vec<_> = mixed.iter().map(Spec::build).collect();
    assert_eq!(coalesce(&packets, BOTH).len(), 2);
    assert_eq!(by_flow(&round_trip(&packets)), by_flow(&packets));
}

#[test]
fn udp_coalesces_to_64_and_each_transport_can_be_left_out() {
    let specs: Vec<_> =
        (0..70).map(|n| Spec { id: n, ..Spec::new(false, false, vec![n as u8; 200]) }).collect();
    assert_eq!(carried(&specs), [64, 6]);
    let packets: Vec<_> = specs.iter().map(Spec::build).collect();
    assert_eq!(coalesce(&packets, Coalesce { tcp: true, udp: false }).len(), 70);
    let packets: Vec<_> = stream(true, &[50; 5]).iter().map(Spec::build).collect();
    assert_eq!(coalesce(&packets, Coalesce { tcp: false, udp: true }).len(), 5);
}

/// VXLAN and other overlays send UDP over IPv4 without checksum.
#[test]
fn udp_without_checksum_coalesces_and_one_alone_stays_without() {
    let spec = |n| Spec { id: n, zero_checksum: true, ..Spec::new(false, false, vec![1; 300]) };
    assert_eq!(carried(&[spec(0)]), [1]);
    let packets: Vec<_> = (0..4).map(|n| spec(n).build()).collect();
    assert_eq!(coalesce(&packets, BOTH).len(), 1);
    let expected: Vec<_> =
        (0..4).map(|n| Spec { zero_checksum: false, ..spec(n) }.build()).collect();
    assert_eq!(round_trip(&packets), expected, "the kernel puts checksums on segments");
    let mixed = [spec(0).build(), Spec { zero_checksum: false, ..spec(1) }.build()];
    assert_eq!(coalesce(&mixed, BOTH).len(), 2);
}

#[test]
fn congestion_window_reduced_stands_on_the_first_segment_only() {
    let mut spec = stream(false, &[3_000]).remove(0);
    spec.flags |= CWR | PSH | FIN;
    let mut packet = spec.build();
    let transport_len = (packet.len() - 20) as u16;
    let pseudo = checksum::add(checksum::add(checksum::sum(&packet[12..20]), 6), transport_len);
    packet[36..38].copy_from_slice(&pseudo.to_be_bytes());
    let checksum = packet::ChecksumAt { start: 20, offset: 16 };
    let protocol = packet::SegmentProtocol::Tcp4;
    let offload = Offload::Segment { protocol, size: 1_000, checksum };
    let segments = Segments::new(&packet, offload).unwrap();
    let flags: Vec<u8> = (0..segments.count())
        .map(|index| {
            let mut segment = vec![0; segments.segment_len(index)];
            segments.write(index, &mut segment);
            segment[33]
        })
        .collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | PSH | FIN]);
}

fn spec() -> impl Strategy<Value = Spec> {
    let header = (any::<bool>(), any::<bool>(), 0u8..3, 0u8..4, 63u8..65);
    let fields = (0u16..4, prop_oneof![9 => Just(0u16), 3 => Just(0x4000), 1 => 0u16..0x2004]);
    let flags = prop_oneof![
        6 => Just(ACK),
        2 => Just(ACK | PSH),
        1 => Just(ACK | FIN),
        1 => any::<u8>(),
    ];
    let rest = (flags, 0usize..4, 0usize..6, any::<u8>(), prop::bool::weighted(0.05));
    (header, fields, rest).prop_map(|((ipv6, tcp, host, ecn, ttl), (id, fragment), rest)| {
        let (flags, options, words, fill, ip_options) = rest;
        Spec {
            host,
            tos: if ecn == 3 { 3 } else { 0 },
            ttl: if host == 0 { ttl } else { 64 },
            id,
            fragment,
            ip_options,
            flags,
            tcp_options: vec![1; 4 * options],
            ..Spec::new(tcp, ipv6, vec![fill; 40 * words + usize::from(fill % 7 == 0)])
        }
    })
}

proptest! {
    /// Streams of several flows with everything that may stand in a header: the
    /// sequence numbers mostly go on, the identifications too.
    #[test]
    fn any_packets_come_back_each_flow_in_order(
        specs in proptest::collection::vec((spec(), prop::bool::weighted(0.9)), 1..60)
    ) {
        let mut next: HashMap<(bool, bool, u8), (u32, u16)> = HashMap::new();
        let packets: Vec<_> = specs
            .into_iter()
            .map(|(mut spec, goes_on)| {
                let flow = (spec.ipv6, spec.tcp, spec.host);
                let (sequence, id) = next.get(&flow).copied().unwrap_or((u32::MAX - 300, 0));
                if goes_on {
                    (spec.sequence, spec.id) = (sequence, id);
                }
                // With "don't fragment" the identification says nothing, and the
                // kernel numbers segments as it likes.
                if spec.fragment == 0x4000 {
                    spec.id = id;
                }
                let after = spec.sequence.wrapping_add(spec.payload.len() as u32);
                next.insert(flow, (after, spec.id.wrapping_add(1)));
                spec.build()
            })
            .collect();
        prop_assert_eq!(by_flow(&round_trip(&packets)), by_flow(&packets));
    }

    #[test]
    fn no_bytes_and_no_header_make_them_panic(
        packet in proptest::collection::vec(any::<u8>(), 1..200),
        version in prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()],
        header: [u8; VNET_HEADER_LEN],
    ) {
        let mut packet = packet;
        packet[0] = version;
        coalesce(&[packet.clone(), packet.clone()], BOTH);
        let mut plausible = header;
        plausible[0] = 1;
        plausible[6..8].copy_from_slice(&u16::from(header[6]).to_ne_bytes());
        plausible[8..].copy_from_slice(&u16::from(header[8] % 20).to_ne_bytes());
        for header in [header, plausible] {
            if let Ok(offload) = Offload::parse(&header)
                && let Ok(segments) = Segments::new(&packet, offload)
            {
                for index in 0..segments.count().min(300) {
                    let mut segment = vec![0; segments.segment_len(index)];
                    segments.write(index, &mut segment);
                }
            }
        }
    }
}
