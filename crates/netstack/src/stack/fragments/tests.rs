use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THEM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn them_v6(low: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, low))
}

fn fragment(id: u32, start: usize, is_last: bool, data: &[u8]) -> Fragment<'_> {
    Fragment { source: THEM, destination: US, protocol: 17, id, start, is_last, data }
}

fn now() -> Time {
    Time::new(Duration::from_secs(1000))
}

fn whole(taken: &Outcome) -> Option<&[u8]> {
    if let Outcome::Whole(17, data) = taken { Some(data) } else { None }
}

/// 40 bytes in five fragments.
fn parts() -> (Vec<u8>, Vec<(usize, bool)>) {
    ((0..40).collect(), (0..5).map(|at| (at * 8, at == 4)).collect())
}

#[test]
fn a_packet_is_reassembled_from_any_order_of_fragments() {
    let (data, parts) = parts();
    let mut order = vec![0, 1, 2, 3, 4];
    // Heap's algorithm: all 120 permutations.
    let mut counters = [0; 5];
    let mut at = 0;
    let mut count = 0;
    let mut check = |order: &[usize]| {
        let mut fragments = Fragments::default();
        for (number, part) in order.iter().enumerate() {
            let (start, is_last) = parts[*part];
            let piece = fragment(7, start, is_last, &data[start..start + 8]);
            let (taken, dropped) = fragments.take(&piece, now());
            assert_eq!(whole(&taken), (number == 4).then_some(&data[..]), "{order:?}");
            assert_eq!(dropped, 0);
        }
        assert_eq!((fragments.used, fragments.packets.len()), (0, 0));
        assert!(fragments.order.is_empty() && fragments.sources.is_empty());
        count += 1;
    };
    check(&order);
    while at < 5 {
        if counters[at] < at {
            order.swap(if at % 2 == 0 { 0 } else { counters[at] }, at);
            check(&order);
            counters[at] += 1;
            at = 0;
        } else {
            counters[at] = 0;
            at += 1;
        }
    }
    assert_eq!(count, 120);
}

/// RFC 5722, RFC 8200 section 4.5.
#[test]
fn an_overlap_drops_the_packet_and_its_later_fragments() {
    let data = [7; 40];
    for (start, len, is_last) in [
        (0, 16, false),
        (8, 16, false),
        (8, 24, false),
        (16, 16, false),
        (0, 40, true),
        (24, 8, true),
        (32, 4, true),
        (40, 8, false),
        (48, 8, true),
    ] {
        let mut fragments = Fragments::default();
        for (start, is_last) in [(0, false), (16, false), (32, true)] {
            let piece = &[start as u8; 8];
            let (taken, _) = fragments.take(&fragment(7, start, is_last, piece), now());
            assert_eq!(taken, Outcome::Waiting);
        }
        let piece = fragment(7, start, is_last, &data[..len]);
        let taken = fragments.take(&piece, now()).0;
        assert_eq!(taken, Outcome::Overlap, "{start}, {len}, {is_last}");
        for (start, is_last) in [(8, false), (24, false), (0, false), (32, true)] {
            let piece = fragment(7, start, is_last, &data[..8]);
            assert_eq!(fragments.take(&piece, now()).0, Outcome::Waiting);
        }
        assert_eq!(fragments.used, SOURCE + PACKET);
        // Another packet is not affected.
        fragments.take(&fragment(8, 0, false, &data[..8]), now());
        let taken = fragments.take(&fragment(8, 8, true, &data[..5]), now()).0;
        assert_eq!(whole(&taken), Some(&data[..13]));
        assert!(fragments.expire(now() + LIFE).is_none(), "it was counted as an overlap");
        assert_eq!(fragments.used, 0);
    }
}

#[test]
fn a_duplicate_fragment_is_not_an_overlap() {
    let (data, parts) = parts();
    let mut fragments = Fragments::default();
    for _ in 0..3 {
        for &(start, is_last) in &parts[1..] {
            let piece = fragment(7, start, is_last, &data[start..start + 8]);
            assert_eq!(fragments.take(&piece, now()).0, Outcome::Waiting);
        }
    }
    assert_eq!(fragments.used, SOURCE + PACKET + 4 * (PIECE + 8));
    let taken = fragments.take(&fragment(7, 0, false, &data[..8]), now()).0;
    assert_eq!(whole(&taken), Some(&data[..]));
}

#[test]
fn packets_are_identified_by_all_fields_of_the_key() {
    let base = fragment(7, 0, false, &[1; 8]);
    let other = [
        Fragment { id: 8, ..base },
        Fragment { source: Ipv4Addr::new(10, 0, 0, 3).into(), ..base },
        Fragment { destination: Ipv4Addr::new(10, 0, 0, 3).into(), ..base },
        Fragment { protocol: 1, ..base },
    ];
    for other in other {
        let mut fragments = Fragments::default();
        fragments.take(&base, now());
        let behind = Fragment { start: 8, is_last: true, ..other };
        assert_eq!(fragments.take(&behind, now()).0, Outcome::Waiting);
    }
    // In IPv6 the first fragment determines the protocol.
    let (source, destination) = (them_v6(1), them_v6(2));
    let mut fragments = Fragments::default();
    let base = Fragment { source, destination, ..base };
    fragments.take(&Fragment { start: 8, is_last: true, protocol: 6, ..base }, now());
    assert!(whole(&fragments.take(&base, now()).0).is_some());
}

#[test]
fn a_packet_times_out_a_minute_after_its_first_fragment() {
    let mut fragments = Fragments::default();
    assert_eq!(fragments.poll_timeout(), None);
    fragments.take(&fragment(7, 0, false, b"the head"), now());
    fragments.take(&fragment(8, 8, false, &[0; 8]), now() + Duration::from_secs(10));
    fragments.take(&fragment(7, 8, false, &[0; 8]), now() + Duration::from_secs(59));
    assert_eq!(fragments.poll_timeout(), Some(now() + LIFE));
    assert!(fragments.expire(now() + Duration::from_secs(59)).is_none());
    let first = fragments.expire(now() + LIFE).unwrap().unwrap();
    assert_eq!((&*first.first, first.source, first.protocol), (&b"the head"[..], THEM, 17));
    assert!(fragments.expire(now() + LIFE).is_none());
    let taken = fragments.take(&fragment(7, 16, true, &[0; 8]), now() + LIFE).0;
    assert_eq!(taken, Outcome::Waiting, "it begins anew");
    assert!(fragments.expire(now() + 2 * LIFE).unwrap().is_none(), "the first is missing");
}

#[test]
fn memory_is_bounded_in_total_and_per_source_and_the_oldest_is_evicted() {
    let data = [7; 1392];
    let cost = PACKET + PIECE + data.len();
    let mut fragments = Fragments::default();
    let modest = Fragment { source: them_v6(0), ..fragment(1, 0, false, &data) };
    fragments.take(&modest, now());
    let mut dropped = 0;
    for id in 0..10_000 {
        let source = IpAddr::from(Ipv4Addr::new(10, 0, 0, 9));
        let (_, made_way) =
            fragments.take(&Fragment { source, ..fragment(id, 0, false, &data) }, now());
        dropped += made_way;
    }
    assert_eq!(dropped, 10_000 - (SHARE / cost) as u64);
    assert!(fragments.used <= SHARE + cost + 2 * SOURCE);
    // The newest packets remain, and so does the earlier packet of another source.
    let source = Ipv4Addr::new(10, 0, 0, 9).into();
    let behind = Fragment { source, ..fragment(9999, data.len(), true, &data) };
    assert!(matches!(fragments.take(&behind, now()).0, Outcome::Whole(..)));
    let behind = Fragment { start: data.len(), is_last: true, ..modest };
    assert!(matches!(fragments.take(&behind, now()).0, Outcome::Whole(..)));
    // A host with a /64 has one share.
    for low in 0..5000 {
        fragments.take(&Fragment { source: them_v6(low), ..modest }, now());
    }
    assert!(fragments.sources[&them_v6(0)].used <= SHARE);
    for host in 0..5000_u32 {
        let source = IpAddr::from(Ipv4Addr::from_bits(0x0a01_0000 + host));
        fragments.take(&Fragment { source, ..fragment(1, 0, false, &data) }, now());
        assert!(fragments.used <= MEMORY);
    }
    assert!(fragments.used > MEMORY - cost - SOURCE);
}

#[test]
fn a_packet_of_too_many_fragments_is_dropped() {
    let mut fragments = Fragments::default();
    let dropped: u64 =
        (0..=PIECES).map(|at| fragments.take(&fragment(7, at * 8, false, &[0; 8]), now()).1).sum();
    assert_eq!((dropped, fragments.used), (1, SOURCE + PACKET));
    // Further fragments do not start another packet.
    let (taken, dropped) = fragments.take(&fragment(7, 0, false, &[0; 8]), now());
    assert_eq!((taken, dropped, fragments.used), (Outcome::Waiting, 0, SOURCE + PACKET));
    assert!(fragments.expire(now() + LIFE).is_none(), "it is not late as well");
    assert_eq!(fragments.used, 0);
}

#[test]
fn dropped_packets_are_evicted_without_being_counted_again() {
    let mut fragments = Fragments::default();
    let most = (SHARE / PACKET) as u32;
    let dropped: u64 =
        (0..2 * most).map(|id| fragments.refuse(&fragment(id, 0, false, &[0; 8]), now())).sum();
    assert_eq!(dropped, u64::from(2 * most));
    assert!(fragments.used <= SHARE + SOURCE);
    assert_eq!(fragments.refuse(&fragment(2 * most - 1, 8, false, &[0; 8]), now()), 0);
}
