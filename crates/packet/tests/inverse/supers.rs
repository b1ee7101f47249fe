//! The reverse direction: a super-packet from the kernel is segmented, and its segments coalesce to
//! the same super-packet.

use packet::{Offload, SegmentError, Segments, VNET_HEADER_LEN};
use proptest::prelude::*;

use super::{
    BOTH, coalesce,
    oracle::{Vnet, prepare},
    segment,
    spec::*,
    stream,
};

/// A packet with the virtio-net header of a super-packet with segments of `size` bytes.
pub(crate) fn super_packet(spec: &Spec, size: u16) -> Vec<u8> {
    let mut packet = spec.build();
    let header = if spec.tcp { 20 + spec.tcp_options.len() } else { 8 };
    let start = spec.headers() - header;
    let (kind, offset) = match (spec.tcp, spec.ipv6) {
        (true, false) => (1, 16),
        (true, true) => (4, 16),
        (false, _) => (5, 6),
    };
    let vnet = Vnet {
        flags: 1,
        kind,
        header_len: spec.headers() as u16,
        size,
        start: start as u16,
        offset,
        ..Vnet::default()
    };
    prepare(vnet, &mut packet);
    [vnet.write().as_slice(), &packet].concat()
}

fn new(written: &[u8]) -> Result<usize, SegmentError> {
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    Segments::new(packet, Offload::parse(header).unwrap()).map(|segments| segments.count())
}

#[test]
fn cwr_is_set_on_the_first_segment_only() {
    for ipv6 in [false, true] {
        let mut spec = stream(ipv6, &[3_000]).remove(0);
        spec.flags |= CWR | ECE | PSH | FIN;
        let flags: Vec<u8> = segment(&super_packet(&spec, 1_000))
            .iter()
            .map(|segment| segment[spec.headers() - spec.tcp_options.len() - 20 + 13])
            .collect();
        assert_eq!(flags, [ACK | ECE | CWR, ACK | ECE, ACK | ECE | PSH | FIN]);
    }
}

#[test]
fn ip_options_and_extension_headers_are_in_each_segment() {
    for (tcp, ipv6) in [(true, false), (true, true), (false, false), (false, true)] {
        let whole = Spec { ip_options: true, ..Spec::new(tcp, ipv6, vec![7; 2_500]) };
        let segments = segment(&super_packet(&whole, 1_000));
        let expected: Vec<_> = [1_000, 1_000, 500]
            .iter()
            .enumerate()
            .map(|(number, len)| {
                let sequence = whole.sequence + 1_000 * number as u32;
                let id = whole.id + number as u16;
                Spec { sequence, id, payload: vec![7; *len], ..whole.clone() }.build()
            })
            .collect();
        assert_eq!(segments, expected);
    }
}

#[test]
fn headers_that_contradict_the_offload_are_refused() {
    let written = |tcp, ipv6| super_packet(&Spec::new(tcp, ipv6, vec![1; 300]), 100);
    type Change = fn(&mut [u8]);
    let changes: [(&str, Vec<u8>, Change); 9] = [
        ("TCP over IPv4, with an IPv6 header", written(true, true), |w| w[1] = 1),
        ("TCP over IPv6, with an IPv4 header", written(true, false), |w| w[1] = 4),
        ("no version", written(true, false), |w| w[VNET_HEADER_LEN] = 0x55),
        ("options at the given transport offset", written(true, false), |w| {
            w[VNET_HEADER_LEN] = 0x46;
        }),
        ("an IPv4 header too short", written(false, false), |w| w[VNET_HEADER_LEN] = 0x44),
        ("the checksum elsewhere", written(true, false), |w| w[8] = 6),
        ("a TCP header too short", written(true, true), |w| w[VNET_HEADER_LEN + 40 + 12] = 0x40),
        ("the transport within the IP header", written(false, true), |w| w[6] = 20),
        ("an odd transport", written(false, true), |w| w[6] = 41),
    ];
    for (what, mut written, change) in changes {
        assert_eq!(new(&written), Ok(3), "before: {what}");
        change(&mut written);
        assert_eq!(new(&written), Err(SegmentError), "{what}");
    }
    for (tcp, ipv6) in [(true, false), (true, true), (false, false), (false, true)] {
        let whole = super_packet(&Spec::new(tcp, ipv6, vec![]), 100);
        assert_eq!(new(&whole), Ok(1), "headers alone are one segment");
        assert_eq!(new(&whole[..whole.len() - 1]), Err(SegmentError), "cut short");
    }
}

/// Segments of at most `most` bytes of a packet with its virtio-net header.
fn narrowed(written: &[u8], most: usize) -> Option<Vec<Vec<u8>>> {
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    let segments = Segments::new(packet, Offload::parse(header).unwrap()).unwrap();
    let segments = segments.within(most)?;
    let write = |index| {
        let mut segment = vec![0xee; segments.segment_len(index)];
        segments.write(index, &mut segment);
        segment
    };
    Some((0..segments.count()).map(write).collect())
}

/// A packet without an offload, or with a checksum offload.
fn single(spec: &Spec, finished: bool) -> Vec<u8> {
    let mut written = super_packet(spec, u16::MAX);
    written[1] = 0;
    if finished {
        written.truncate(VNET_HEADER_LEN);
        written[0] = 0;
        written.extend(spec.build());
    }
    written
}

#[test]
fn signed_urgent_and_connection_segments_are_not_narrowed() {
    let tcp = Spec::new(true, false, vec![7; 1_300]);
    assert_eq!(narrowed(&single(&tcp, true), 1_000).map(|segments| segments.len()), Some(2));
    let others = [
        Spec { flags: ACK | SYN, ..tcp.clone() },
        Spec { flags: ACK | RST, ..tcp.clone() },
        Spec { flags: ACK | URG, ..tcp.clone() },
        Spec { fragment: MF, ..tcp.clone() },
        Spec { fragment: 9, ..tcp.clone() },
        Spec { checksum: Checksum::OffBy(1), ..tcp.clone() },
        Spec { ip_options: true, ..Spec::new(true, true, vec![7; 1_300]) },
        Spec::new(false, false, vec![7; 1_300]),
        Spec::new(false, true, vec![7; 1_300]),
    ];
    for spec in others {
        assert_eq!(narrowed(&single(&spec, true), 1_000), None, "{spec:?}");
    }
    let udp = super_packet(&Spec::new(false, false, vec![7; 9_000]), 1_300);
    assert_eq!(narrowed(&udp, 1_000), None, "datagrams have the length they have");
    assert_eq!(narrowed(&single(&tcp, true), tcp.headers()), None, "no room for a byte");
}

proptest! {
    #[test]
    fn narrowed_tcp_equals_the_kernels_segments(
        (ipv6, finished, super_sized, ip_options, cwr) in any::<(bool, bool, bool, bool, bool)>(),
        (size, len, most) in (600usize..9_000, 1usize..30_000, 200usize..9_000),
        flags in prop_oneof![Just(0), Just(PSH), Just(FIN), Just(PSH | FIN)],
    ) {
        let len = if super_sized { len } else { len.min(8_000) };
        let payload = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        let flags = ACK | flags | if cwr { CWR } else { 0 };
        let ip_options = ip_options && (super_sized || !ipv6);
        let spec = Spec { ip_options, flags, ..Spec::new(true, ipv6, payload) };
        let written =
            if super_sized { super_packet(&spec, size as u16) } else { single(&spec, finished) };
        let fits = most - spec.headers();
        let size = if super_sized { size.min(fits) } else { fits };
        let expected = segment(&super_packet(&spec, size as u16));
        prop_assert_eq!(narrowed(&written, most), Some(expected));
    }

    /// Coalescing the segments restores the super-packet, up to the limits of one super-packet.
    #[test]
    fn segments_of_any_super_packet_coalesce_to_it(
        (tcp, ipv6, host, tos, ttl) in any::<(bool, bool, u8, u8, u8)>(),
        (id, df, flow_label) in any::<(u16, bool, u16)>(),
        (sequence, ack, window, urgent, reserved) in any::<(u32, u32, u16, u16, u8)>(),
        flags in prop_oneof![Just(0), Just(PSH), Just(FIN), Just(PSH | FIN)],
        ece: bool,
        options in 0usize..=10,
        (size, pieces, last) in (1usize..3_000, 0usize..64, 1usize..3_000),
    ) {
        let pieces = pieces.min(65_000 / size - 1).max(1);
        let len = size * pieces + last.min(size);
        let payload = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        let flags = ACK | flags | if ece { ECE } else { 0 };
        let tcp_options = vec![1; 4 * options];
        let fragment = if df { DF } else { 0 };
        let reserved = reserved & 0x0f;
        let spec = Spec {
            host, tos, ttl, flow_label, id, fragment, sequence, ack, window, urgent, flags,
            reserved, tcp_options, ..Spec::new(tcp, ipv6, payload)
        };
        let written = super_packet(&spec, size as u16);
        let again = coalesce(&segment(&written), BOTH);
        prop_assert_eq!(again, [(written, pieces + 1)]);
    }
}
