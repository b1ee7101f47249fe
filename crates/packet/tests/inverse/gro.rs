//! The cases of the kernel's selftest `net/gro.c` (6.18) for both families. Each case has the
//! expected number of packets in each super-packet.

use super::{carried, counts, round_trip, spec::*, stream};

struct Case {
    /// Name of the case in the selftest.
    name: &'static str,
    /// Payload lengths of the stream.
    lens: &'static [usize],
    change: fn(&mut [Spec]),
    carried: &'static [usize],
}

const fn case(
    name: &'static str,
    lens: &'static [usize],
    change: fn(&mut [Spec]),
    carried: &'static [usize],
) -> Case {
    Case { name, lens, change, carried }
}

/// Length of every packet, except for at most one.
const LEN: usize = 100;
/// Segment size of the selftest's "large" case.
const MSS: usize = 4096 - 40 - 20;

const BOTH_FAMILIES: [Case; 16] = [
    case("data: packets of the same size", &[LEN; 2], |_| {}, &[2]),
    case("data: a large one, then a smaller one", &[LEN, LEN / 2], |_| {}, &[2]),
    case("data: a small one, then a larger one", &[LEN / 2, LEN], |_| {}, &[1, 1]),
    case("ack: pure and duplicate", &[0; 3], |p| p[2].ack += 1, &[1, 1, 1]),
    case("flags: PSH ends coalescing", &[LEN; 5], |p| p[2].flags |= PSH, &[3, 2]),
    case("flags: SYN ends coalescing", &[LEN, LEN, 0, LEN, LEN], |p| p[2].flags |= SYN, &[2, 1, 2]),
    case("flags: RST ends coalescing", &[LEN, LEN, 0, LEN, LEN], |p| p[2].flags |= RST, &[2, 1, 2]),
    case("flags: URG ends coalescing", &[LEN, LEN, 0, LEN, LEN], |p| p[2].flags |= URG, &[2, 1, 2]),
    // The kernel makes one super-packet of the two with CWR. This crate does not: only the first
    // segment of a super-packet may have CWR.
    case(
        "flags: CWR ends coalescing",
        &[LEN; 5],
        |p| p[1..3].iter_mut().for_each(|p| p.flags |= CWR),
        &[1, 1, 1, 2],
    ),
    case("tcp: a wrong sequence number", &[LEN; 2], |p| p[1].sequence ^= 1, &[1, 1]),
    case(
        "tcp: different timestamps, then paddings",
        &[LEN; 5],
        |p| {
            p[2..].iter_mut().for_each(|p| p.tcp_options[7] = 100);
            p[3].tcp_options = vec![1, 8, 10, 0, 0, 0, 100, 0, 0, 0, 2, 1];
            p[4].tcp_options = vec![8, 10, 0, 0, 0, 100, 0, 0, 0, 2, 1, 1];
        },
        &[2, 1, 1, 1],
    ),
    case("tcp: different options", &[LEN; 3], |p| p[2].tcp_options = vec![1, 3, 3, 0], &[2, 1]),
    case("ip: different ECN", &[LEN; 2], |p| p[1].tos ^= 0x02, &[1, 1]),
    case("ip: different TOS", &[LEN; 2], |p| p[1].tos ^= 0xf0, &[1, 1]),
    case("ip: different TTL", &[LEN; 2], |p| p[1].ttl = 7, &[1, 1]),
    case("ip: fragments", &[LEN; 4], fragment, &[2, 1, 1]),
];

fn fragment(specs: &mut [Spec]) {
    specs[2].fragment = DF | MF;
    specs[2].ip_options = specs[2].ipv6;
}

const IPV4: [Case; 7] = [
    case("ip: options", &[LEN; 3], |p| p[1].ip_options = true, &[1, 1, 1]),
    case("ip: DF, incrementing", &[LEN; 2], |p| identify(p, DF, &[8, 9]), &[2]),
    case("ip: DF, fixed", &[LEN; 2], |p| identify(p, DF, &[8, 8]), &[2]),
    case("ip: no DF, incrementing", &[LEN; 2], |p| identify(p, 0, &[8, 9]), &[2]),
    // 6.18 coalesces them and marks the identification as fixed. The header of a TUN device lacks
    // this mark, so the device would count the identification up.
    case("ip: no DF, fixed", &[LEN; 2], |p| identify(p, 0, &[8, 8]), &[1, 1]),
    // The kernel does not coalesce the third. Here an identification with DF is meaningless (RFC
    // 6864 section 4.1).
    case("ip: DF, two incrementing, one fixed", &[LEN; 3], |p| identify(p, DF, &[8, 9, 9]), &[3]),
    case("ip: DF, two fixed, one incrementing", &[LEN; 3], |p| identify(p, DF, &[8, 8, 9]), &[3]),
];

fn identify(specs: &mut [Spec], fragment: u16, ids: &[u16]) {
    for (spec, id) in specs.iter_mut().zip(ids) {
        (spec.fragment, spec.id) = (fragment, *id);
    }
}

fn specs(case: &Case, ipv6: bool) -> Vec<Spec> {
    let mut specs = stream(ipv6, case.lens);
    (case.change)(&mut specs);
    specs
}

#[test]
fn the_cases_of_both_families() {
    for case in &BOTH_FAMILIES {
        for ipv6 in [false, true] {
            assert_eq!(carried(&specs(case, ipv6)), case.carried, "{}, IPv6: {ipv6}", case.name);
        }
    }
}

#[test]
fn the_cases_of_ipv4() {
    for case in &IPV4 {
        let packets: Vec<_> = specs(case, false).iter().map(Spec::build).collect();
        assert_eq!(counts(&packets), case.carried, "{}", case.name);
    }
}

/// The kernel coalesces equal extension headers. This crate does not coalesce any.
#[test]
fn extension_headers_are_never_coalesced() {
    for flow_label in [0, 1] {
        let mut specs = stream(true, &[LEN; 2]);
        specs.iter_mut().for_each(|spec| spec.ip_options = true);
        specs[1].flow_label = flow_label;
        assert_eq!(carried(&specs), [1, 1]);
    }
}

/// The one case with a different outcome: see the crate's `coalesce`.
#[test]
fn a_changed_checksum_coalesces_and_is_repaired() {
    for ipv6 in [false, true] {
        let right = stream(ipv6, &[LEN; 2]);
        let mut wrong = right.clone();
        wrong[1].checksum = Checksum::OffBy(0xffff);
        let wrong: Vec<_> = wrong.iter().map(Spec::build).collect();
        assert_eq!(counts(&wrong), [2]);
        assert_eq!(round_trip(&wrong), right.iter().map(Spec::build).collect::<Vec<_>>());
    }
}

#[test]
fn a_super_packet_may_have_the_length_of_the_longest_ip_packet() {
    for ipv6 in [false, true] {
        let most = 65_535 - if ipv6 { 40 } else { 20 } - 20;
        let (count, remainder) = (most / MSS, most % MSS);
        for (last, expected) in [(remainder, vec![17, 1]), (remainder + 1, vec![16, 1, 1])] {
            let mut lens = vec![MSS; count];
            lens.extend([last, last]);
            let mut specs = stream(ipv6, &lens);
            specs.iter_mut().for_each(|spec| spec.tcp_options.clear());
            // The second to last packet is short. The last one continues as if it were not.
            let next = specs[count].sequence.wrapping_add(MSS as u32);
            specs[count + 1].sequence = next;
            assert_eq!(carried(&specs), expected, "IPv6: {ipv6}");
        }
    }
}
