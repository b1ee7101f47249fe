use std::collections::HashMap;

use packet::{Coalesce, Offload, Segments, VNET_HEADER_LEN, wire::IpHeader};
use proptest::prelude::*;

use super::{BOTH, coalesce, same, segment, spec::*};

/// Packets of a few flows with any header fields. Most fields are equal in all packets.
fn spec() -> impl Strategy<Value = Spec> {
    let header = (any::<bool>(), any::<bool>(), 0u8..3, rarely(0u8..4), rarely(63u8..65));
    let fragment = prop_oneof![9 => Just(0u16), 3 => Just(DF), 1 => any::<u16>()];
    let ip = (fragment, rarely(any::<u16>()), seldom(any::<u16>()), prop::bool::weighted(0.05));
    let flags = prop_oneof![
        6 => Just(ACK),
        2 => Just(ACK | PSH),
        1 => Just(ACK | FIN),
        1 => any::<u8>(),
    ];
    let tcp = (flags, rarely(0usize..11), seldom(0u32..2), seldom(any::<u16>()), seldom(0u8..16));
    let checksum = prop_oneof![
        6 => Just(Checksum::Right),
        2 => Just(Checksum::Zero),
        1 => any::<u16>().prop_map(Checksum::OffBy),
    ];
    let payload = (0usize..6, any::<u8>(), checksum);
    (header, ip, tcp, payload).prop_map(|(header, ip, tcp, (words, fill, checksum))| {
        let (ipv6, is_tcp, host, tos, ttl) = header;
        let (fragment, flow_label, ip_checksum_off_by, ip_options) = ip;
        let (flags, options, ack, urgent, reserved) = tcp;
        let payload = vec![fill; 40 * words + usize::from(fill % 7 == 0)];
        Spec {
            host,
            tos,
            ttl: 64 + ttl,
            flow_label,
            fragment,
            ip_checksum_off_by,
            ip_options,
            ack,
            urgent,
            flags,
            reserved,
            tcp_options: vec![1; 4 * options],
            checksum,
            ..Spec::new(is_tcp, ipv6, payload)
        }
    })
}

/// Mostly the default.
fn rarely<T: Default + Clone + std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = T> {
    prop_oneof![9 => Just(T::default()), 1 => strategy]
}

/// Nearly always the default.
fn seldom<T: Default + Clone + std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = T> {
    prop_oneof![39 => Just(T::default()), 1 => strategy]
}

proptest! {
    /// Streams of several flows. Most sequence numbers and identifications are consecutive.
    #[test]
    fn any_packets_round_trip_with_each_flow_in_order(
        specs in proptest::collection::vec((spec(), prop::bool::weighted(0.9)), 1..60),
        which in (prop::bool::weighted(0.9), prop::bool::weighted(0.9)),
    ) {
        let mut next: HashMap<(bool, bool, u8), (u32, u16)> = HashMap::new();
        let packets: Vec<_> = specs
            .into_iter()
            .map(|(mut spec, goes_on)| {
                let flow = (spec.ipv6, spec.tcp, spec.host);
                let (sequence, id) = next.get(&flow).copied().unwrap_or((u32::MAX - 300, 65_530));
                if goes_on {
                    (spec.sequence, spec.id) = (sequence, id);
                }
                let after = spec.sequence.wrapping_add(spec.payload.len() as u32);
                next.insert(flow, (after, spec.id.wrapping_add(1)));
                spec.build()
            })
            .collect();
        let written = coalesce(&packets, Coalesce { tcp: which.0, udp: which.1 });
        same::check(&packets, &written);
        written.iter().for_each(|(written, _)| drop(segment(written)));
    }

    #[test]
    fn any_bytes_with_any_header_do_not_panic(
        packet in proptest::collection::vec(any::<u8>(), 1..200),
        version in prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()],
        header: [u8; VNET_HEADER_LEN],
        has_length: bool,
    ) {
        let mut packet = packet;
        packet[0] = version;
        if has_length && packet.len() >= 40 {
            let len = packet.len() as u16;
            let (at, len) = if version == 0x60 { (4, len - 40) } else { (2, len) };
            packet[at..at + 2].copy_from_slice(&len.to_be_bytes());
        }
        // Other bytes than IP packets do not leave the tunnel.
        if let Ok(header) = IpHeader::parse(&packet) {
            let whole = packet[..header.total_len].to_vec();
            coalesce(&[whole.clone(), whole], BOTH);
        }
        let mut plausible = header;
        plausible[0] = 1;
        plausible[6..8].copy_from_slice(&u16::from(header[6]).to_ne_bytes());
        plausible[8..10].copy_from_slice(&u16::from(header[8] % 20).to_ne_bytes());
        plausible[20..22].copy_from_slice(&u16::from(header[20] % 80).to_le_bytes());
        plausible[22..].copy_from_slice(&u16::from(header[22]).to_le_bytes());
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
