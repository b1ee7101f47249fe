use packet::{Coalesce, VNET_HEADER_LEN};

use super::{BOTH, carried, coalesce, counts, datagrams, round_trip, same, spec::*, stream};

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
fn a_super_packet_has_at_most_65535_bytes_and_128_packets() {
    for ipv6 in [false, true] {
        let room = 65_535 - stream(ipv6, &[1])[0].headers();
        for (last, expected) in [(room % 9_000, vec![8]), (room % 9_000 + 1, vec![7, 1])] {
            let mut lens = vec![9_000; 7];
            lens.push(last);
            assert_eq!(carried(&stream(ipv6, &lens)), expected);
        }
        assert_eq!(carried(&stream(ipv6, &[10; 300])), [128, 128, 44]);
        assert_eq!(carried(&datagrams(ipv6, &[10; 130])), [64, 64, 2]);
        assert_eq!(carried(&datagrams(ipv6, &[1_392; 50])), [47, 3]);
    }
}

#[test]
fn push_and_fin_end_a_super_packet_and_are_set_on_its_last_segment() {
    for ipv6 in [false, true] {
        for flag in [PSH, FIN, PSH | FIN] {
            let mut specs = stream(ipv6, &[100; 4]);
            specs[1].flags |= flag;
            assert_eq!(carried(&specs), [2, 2]);
            specs[0].flags |= flag;
            assert_eq!(carried(&specs), [1, 1, 2]);
        }
    }
}

type Change = fn(&mut Spec);

/// Changes of a TCP packet.
const TCP_CHANGES: [(&str, Change); 13] = [
    ("SYN", |s| s.flags |= SYN),
    ("RST", |s| s.flags |= RST),
    ("URG", |s| s.flags |= URG),
    ("CWR", |s| s.flags |= CWR),
    ("ECE", |s| s.flags |= ECE),
    ("no ACK", |s| s.flags = 0),
    ("the bit AE of accurate ECN", |s| s.reserved = 1),
    ("acknowledgement", |s| s.ack += 1),
    ("window", |s| s.window += 1),
    ("urgent pointer", |s| s.urgent += 1),
    ("options", |s| s.tcp_options[7] += 1),
    ("more options", |s| s.tcp_options.extend([1, 1, 1, 1])),
    ("a gap", |s| s.sequence = s.sequence.wrapping_add(1)),
];

/// Changes of a packet of either transport.
const CHANGES: [(&str, Change); 6] = [
    ("TOS", |s| s.tos = 0x10),
    ("ECN", |s| s.tos = 0x03),
    ("TTL", |s| s.ttl = 63),
    ("no payload", |s| s.payload.clear()),
    ("a longer payload", |s| s.payload.push(0)),
    ("other host", |s| s.host = 2),
];

const IPV4_CHANGES: [(&str, Change); 7] = [
    ("a fragment", |s| s.fragment = MF),
    ("a last fragment", |s| s.fragment = 10),
    ("a last fragment far behind", |s| s.fragment = 0x100),
    ("the reserved flag", |s| s.fragment = 0x8000),
    ("don't fragment", |s| s.fragment = DF),
    ("identification", |s| s.id = s.id.wrapping_add(1)),
    ("a header checksum that is wrong", |s| s.ip_checksum_off_by = 1),
];

#[test]
fn packets_with_different_headers_are_not_coalesced() {
    let same_family = |change: &(&'static str, Change), specs: [Vec<Spec>; 2], which: usize| {
        for mut specs in specs {
            change.1(&mut specs[which]);
            let ipv6 = specs[0].ipv6;
            let counts = carried(&specs);
            assert_eq!(counts, [1, 1], "{} in the packet {which}, IPv6: {ipv6}", change.0);
        }
    };
    let tcp = || [false, true].map(|ipv6| stream(ipv6, &[100, 100]));
    let udp = || [false, true].map(|ipv6| datagrams(ipv6, &[100, 100]));
    for change in TCP_CHANGES.iter().chain(&CHANGES) {
        same_family(change, tcp(), 1);
    }
    for change in &CHANGES {
        same_family(change, udp(), 1);
    }
    // Also with the longer header first.
    let options: (&str, Change) = ("IP options, or an extension header", |s| s.ip_options = true);
    for which in [0, 1] {
        same_family(&options, tcp(), which);
        same_family(&options, udp(), which);
        for change in &IPV4_CHANGES {
            let [tcp, udp] = [tcp(), udp()].map(|[ipv4, _]| ipv4);
            same_family(change, [tcp, udp], which);
        }
    }
    for transport in [stream(true, &[100, 100]), datagrams(true, &[100, 100])] {
        let mut specs = transport;
        specs[1].flow_label = 1;
        assert_eq!(carried(&specs), [1, 1], "flow label");
    }
}

/// Options and extension headers are never coalesced, not even if they are equal.
#[test]
fn packets_with_options_or_extension_headers_and_fragments_are_unchanged() {
    for change in
        [|s: &mut Spec| s.ip_options = true, |s: &mut Spec| s.fragment = MF] as [Change; 2]
    {
        for mut specs in [stream(false, &[100; 3]), datagrams(false, &[100; 3])] {
            specs.iter_mut().for_each(change);
            assert_eq!(carried(&specs), [1, 1, 1]);
        }
    }
    for mut specs in [stream(true, &[100; 3]), datagrams(true, &[100; 3])] {
        specs.iter_mut().for_each(|spec| spec.ip_options = true);
        assert_eq!(carried(&specs), [1, 1, 1]);
    }
}

#[test]
fn flags_that_end_coalescing_do_so_even_if_all_packets_have_them() {
    for flag in [SYN, RST, URG, CWR] {
        for ipv6 in [false, true] {
            let mut specs = stream(ipv6, &[100; 2]);
            specs.iter_mut().for_each(|spec| spec.flags |= flag);
            assert_eq!(carried(&specs), [1, 1], "flag {flag:#x}, IPv6: {ipv6}");
        }
    }
}

/// Each wrong field hides the beginning or the end of the payload.
#[test]
fn packets_with_wrong_headers_are_unchanged() {
    type Lie = fn(&mut [u8]);
    let lies: [(&str, bool, Lie); 4] = [
        ("a TCP header shorter than it can be", true, |packet| packet[20 + 12] = 0x40),
        ("a TCP header longer than the packet", true, |packet| packet[20 + 12] = 0xf0),
        ("a UDP length below the packet's", false, |packet| packet[20 + 5] -= 4),
        // The checksum is correct for 20 bytes, which is one word too few.
        ("IPv4 options in place of the transport", true, |packet| {
            packet[0] = 0x46;
            packet[10..12].fill(0);
            let checksum = slow_checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }),
    ];
    for (what, tcp, lie) in lies {
        let specs = if tcp { stream(false, &[20; 2]) } else { datagrams(false, &[20; 2]) };
        let mut packets: Vec<_> = specs.iter().map(Spec::build).collect();
        packets.iter_mut().for_each(|packet| lie(packet));
        let written = coalesce(&packets, BOTH);
        let untouched = |packet: &Vec<u8>| ([&[0; VNET_HEADER_LEN], &packet[..]].concat(), 1);
        let expected: Vec<_> = packets.iter().map(untouched).collect();
        assert_eq!(written, expected, "{what}");
    }
}

#[test]
fn a_fragment_in_between_is_not_overtaken() {
    for tcp in [true, false] {
        let mut specs = if tcp { stream(false, &[100; 4]) } else { datagrams(false, &[100; 4]) };
        specs[1].fragment = MF;
        assert_eq!(carried(&specs), [1, 1, 2]);
    }
}

#[test]
fn marks_of_all_packets_are_preserved() {
    for ipv6 in [false, true] {
        for ecn in 0..4 {
            for mut specs in [stream(ipv6, &[100; 3]), datagrams(ipv6, &[100; 3])] {
                specs.iter_mut().for_each(|spec| spec.tos = 0xb8 | ecn);
                assert_eq!(carried(&specs), [3], "ECN {ecn}");
            }
        }
        let mut specs = stream(ipv6, &[100; 3]);
        specs.iter_mut().for_each(|spec| {
            spec.flags |= ECE;
            spec.reserved = 1;
            spec.urgent = 77;
        });
        assert_eq!(carried(&specs), [3]);
    }
}

#[test]
fn every_length_of_tcp_options_coalesces() {
    for ipv6 in [false, true] {
        for words in 0..=10 {
            let mut specs = stream(ipv6, &[100; 3]);
            specs.iter_mut().for_each(|spec| spec.tcp_options = vec![1; 4 * words]);
            assert_eq!(carried(&specs), [3], "{words} words");
        }
    }
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
    let written = coalesce(&packets, BOTH);
    assert_eq!(written.len(), 2);
    same::check(&packets, &written);
}

#[test]
fn coalescing_can_be_disabled_for_each_transport() {
    let packets: Vec<_> = datagrams(false, &[200; 5]).iter().map(Spec::build).collect();
    assert_eq!(coalesce(&packets, Coalesce { tcp: true, udp: false }).len(), 5);
    let packets: Vec<_> = stream(true, &[50; 5]).iter().map(Spec::build).collect();
    assert_eq!(coalesce(&packets, Coalesce { tcp: false, udp: true }).len(), 5);
}

/// VXLAN and other overlays send UDP over IPv4 without checksum.
#[test]
fn udp_without_checksum_coalesces_and_a_single_one_is_unchanged() {
    for ipv6 in [false, true] {
        let right = datagrams(ipv6, &[300; 4]);
        let none = |spec: &Spec| Spec { checksum: Checksum::Zero, ..spec.clone() };
        assert_eq!(carried(&[none(&right[0])]), [1]);
        let packets: Vec<_> = right.iter().map(|spec| none(spec).build()).collect();
        assert_eq!(counts(&packets), [4]);
        let expected: Vec<_> = right.iter().map(Spec::build).collect();
        assert_eq!(round_trip(&packets), expected, "the kernel puts checksums on segments");
        for mixed in [[none(&right[0]), right[1].clone()], [right[0].clone(), none(&right[1])]] {
            assert_eq!(carried(&mixed), [1, 1]);
        }
    }
}

/// All ones is the same number, and zero means no checksum in UDP.
#[test]
fn a_udp_checksum_that_computes_to_zero_is_all_ones() {
    for ipv6 in [false, true] {
        let mut specs = datagrams(ipv6, &[100, 100]);
        specs[1].payload[..2].fill(0);
        let field = specs[1].headers() - 2;
        let checksum = specs[1].build()[field..][..2].to_vec();
        specs[1].payload[..2].copy_from_slice(&checksum);
        assert_eq!(specs[1].build()[field..][..2], [0xff, 0xff]);
        assert_eq!(carried(&specs), [2]);
        assert_eq!(carried(&specs[1..]), [1]);
    }
}

/// As documented: the AEAD has authenticated all bytes, and no sum is computed.
#[test]
fn a_wrong_transport_checksum_is_corrected() {
    for ipv6 in [false, true] {
        for right in [stream(ipv6, &[100; 3]), datagrams(ipv6, &[100; 3])] {
            let mut wrong = right.clone();
            wrong[1].checksum = Checksum::OffBy(1);
            let wrong: Vec<_> = wrong.iter().map(Spec::build).collect();
            let right: Vec<_> = right.iter().map(Spec::build).collect();
            assert_eq!(round_trip(&wrong), right);
            assert_eq!(round_trip(&wrong[1..2]), right[1..2]);
        }
    }
}
