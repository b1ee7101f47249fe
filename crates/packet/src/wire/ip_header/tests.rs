use std::net::SocketAddr;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::wire::FiveTuple;

/// The fields of a packet.
#[derive(Clone, Debug)]
struct Parts {
    addresses: (IpAddr, IpAddr),
    tos: u8,
    /// IPv4: flags and offset.
    fragment: u16,
    /// IPv4: words of options.
    options: usize,
    /// IPv6: the number of each extension header, with its length in words of eight bytes after the
    /// first. A fragment header has its offset and flag instead.
    extensions: Vec<(u8, u16)>,
    protocol: u8,
    transport: Vec<u8>,
}

impl Parts {
    fn new(from: &str, to: &str, protocol: u8, transport: &[u8]) -> Self {
        Self {
            addresses: (from.parse().unwrap(), to.parse().unwrap()),
            tos: 0,
            fragment: 0,
            options: 0,
            extensions: Vec::new(),
            protocol,
            transport: transport.to_vec(),
        }
    }

    fn udp_v6(extensions: &[(u8, u16)]) -> Self {
        let parts = Self::new("fd00::1", "fd00::2", 17, &[0x10, 0, 0, 53, 0, 8, 0, 0]);
        Self { extensions: extensions.to_vec(), ..parts }
    }

    fn write(&self) -> Vec<u8> {
        match self.addresses {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let len = 20 + 4 * self.options;
                let total = ((len + self.transport.len()) as u16).to_be_bytes();
                let fragment = self.fragment.to_be_bytes();
                let mut packet = vec![0x40 | (len / 4) as u8, self.tos, total[0], total[1], 0, 1];
                packet.extend([fragment[0], fragment[1], 64, self.protocol, 0, 0]);
                packet.extend([from.octets(), to.octets()].concat());
                packet.resize(len, 1);
                packet.extend(&self.transport);
                packet
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let (first, behind) = self.extension_headers();
                let len = ((behind.len() + self.transport.len()) as u16).to_be_bytes();
                let class = [0x60 | self.tos >> 4, self.tos << 4 | 0x0f];
                let mut packet = vec![class[0], class[1], 0xff, 0xff, len[0], len[1], first, 64];
                packet.extend([from.octets(), to.octets()].concat());
                packet.extend(behind);
                packet.extend(&self.transport);
                packet
            }
            _ => unreachable!("of one family"),
        }
    }

    /// The first protocol number, and the headers.
    fn extension_headers(&self) -> (u8, Vec<u8>) {
        self.extensions.iter().rfold(
            (self.protocol, Vec::new()),
            |(next, behind), (kind, value)| {
                let header = match kind {
                    44 => [&[next, 0][..], &value.to_be_bytes(), &[0, 0, 0, 9]].concat(),
                    _ => {
                        [&[next, *value as u8][..], &vec![1; 6 + 8 * usize::from(*value)]].concat()
                    }
                };
                (*kind, [header, behind].concat())
            },
        )
    }

    /// Bytes before the transport header.
    fn headers(&self) -> usize {
        match self.addresses.0 {
            IpAddr::V4(_) => 20 + 4 * self.options,
            IpAddr::V6(_) => 40 + self.extension_headers().1.len(),
        }
    }
}

/// The expected five-tuple of a packet.
fn tuple(protocol: u8, from: &str, to: &str) -> (u8, SocketAddr, SocketAddr) {
    (protocol, from.parse().unwrap(), to.parse().unwrap())
}

fn tuple_of(packet: &[u8]) -> (u8, SocketAddr, SocketAddr) {
    parts_of(FiveTuple::parse(&IpHeader::parse(packet).unwrap(), packet))
}

fn parts_of(tuple: FiveTuple) -> (u8, SocketAddr, SocketAddr) {
    let address = |bits: u128| match tuple.version() {
        Version::V4 => Ipv4Addr::from_bits(bits.try_into().unwrap()).into(),
        Version::V6 => Ipv6Addr::from_bits(bits).into(),
    };
    let source = SocketAddr::new(address(tuple.source()), tuple.source_port());
    let destination = SocketAddr::new(address(tuple.destination()), tuple.destination_port());
    (tuple.protocol(), source, destination)
}

#[test]
fn the_protocol_after_extension_headers_is_found() {
    for (extensions, at) in [
        (&[][..], 40),
        (&[(0, 0)], 48),
        (&[(60, 2)], 64),
        (&[(0, 1), (43, 3), (60, 0)], 96),
        (&[(0, 0); 8], 104),
    ] {
        let packet = Parts::udp_v6(extensions).write();
        let header = IpHeader::parse(&packet).unwrap();
        assert_eq!((header.protocol, header.transport), (17, at), "{extensions:?}");
        assert_eq!((header.fragment, header.plain), (Fragment::Whole, at == 40));
        assert_eq!(tuple_of(&packet), tuple(17, "[fd00::1]:4096", "[fd00::2]:53"));
    }
}

#[test]
fn truncated_or_too_many_extension_headers_hide_the_protocol() {
    let too_many = Parts::udp_v6(&[(0, 0); 9]).write();
    let mut cut_off = Parts::udp_v6(&[(60, 0)]).write();
    cut_off.truncate(47);
    cut_off[5] = 7;
    let mut too_long = Parts::udp_v6(&[(43, 0), (0, 0)]).write();
    too_long[41] = 255;
    for (packet, number) in [(too_many, 0), (cut_off, 60), (too_long, 0)] {
        let header = IpHeader::parse(&packet).unwrap();
        assert_eq!(header.protocol, number);
        assert!(!header.has_transport() && !header.plain);
        assert_eq!(header.ports(&packet), None);
        assert_eq!(tuple_of(&packet), tuple(number, "[fd00::1]:0", "[fd00::2]:0"));
    }
}

#[test]
fn only_the_first_fragment_has_ports() {
    let mut v4 = Parts::new("10.0.0.1", "10.0.0.2", 17, &[0x10, 0, 0, 53, 0, 8, 0, 0]);
    for (fragment, part, ports) in [
        (0x4000, Fragment::Whole, true),
        (0x8000, Fragment::Whole, true),
        (0x2000, Fragment::First, true),
        (0x2001, Fragment::Later, false),
        (0x1fff, Fragment::Later, false),
    ] {
        v4.fragment = fragment;
        let packet = v4.write();
        let header = IpHeader::parse(&packet).unwrap();
        assert_eq!((header.fragment, header.plain), (part, fragment == 0x4000), "{fragment:x}");
        assert_eq!(header.ports(&packet), ports.then_some([0x10, 0, 0, 53]), "{fragment:x}");
        let [from, to] = if ports { [4096, 53] } else { [0, 0] };
        let expected = tuple(17, &format!("10.0.0.1:{from}"), &format!("10.0.0.2:{to}"));
        assert_eq!(tuple_of(&packet), expected, "{fragment:x}");
    }
    for (offset, part, ports) in
        [(0, Fragment::First, true), (1, Fragment::First, true), (8, Fragment::Later, false)]
    {
        // The bytes after a later fragment's header are data. Bytes that look like ports or a
        // further extension header must be ignored.
        for extensions in [&[(44, offset)][..], &[(0, 0), (44, offset), (60, 0)]] {
            let packet = Parts::udp_v6(extensions).write();
            let header = IpHeader::parse(&packet).unwrap();
            assert_eq!((header.fragment, header.plain), (part, false), "{extensions:?}");
            assert_eq!(header.ports(&packet), ports.then_some([0x10, 0, 0, 53]));
            assert_eq!(tuple_of(&packet).1.port() != 0, ports, "{extensions:?}");
        }
    }
}

#[test]
fn all_fragments_of_a_packet_have_one_flow_hash() {
    let flow = |parts: &Parts| {
        let packet = parts.write();
        IpHeader::parse(&packet).unwrap().flow_hash(&packet)
    };
    let first = Parts::udp_v6(&[(44, 1), (60, 0)]);
    // A later fragment has the protocol number at which its first fragment begins. Further headers
    // are unknown.
    let later = Parts { protocol: 60, transport: vec![7; 40], ..Parts::udp_v6(&[(44, 8)]) };
    assert_eq!(flow(&first), flow(&later));
    let v4 = Parts::new("10.0.0.1", "10.0.0.2", 17, &[0x10, 0, 0, 53, 0, 8, 0, 0]);
    let [first, later] = [0x2000, 0x0009].map(|fragment| Parts { fragment, ..v4.clone() });
    assert_eq!(flow(&first), flow(&later));
    assert_ne!(flow(&first), flow(&v4), "the whole packet has ports");
}

#[test]
fn a_tuple_without_ports_has_zero_ports() {
    let echo = [8, 0, 0, 0, 0x12, 0x34, 0, 1];
    let v4 = |protocol| tuple_of(&Parts::new("10.0.0.1", "10.0.0.2", protocol, &echo).write());
    assert_eq!(v4(1), tuple(1, "10.0.0.1:0", "10.0.0.2:0"));
    assert_eq!(v4(47), tuple(47, "10.0.0.1:0", "10.0.0.2:0"));
    let v6 = Parts::new("fd00::1", "fd00::2", 58, &echo).write();
    assert_eq!(tuple_of(&v6), tuple(58, "[fd00::1]:0", "[fd00::2]:0"));
}

#[test]
fn every_field_of_a_tuple_is_compared_and_ipv4_differs_from_ipv6() {
    let key = |from: &str, to: &str, protocol, ports: [u8; 4]| {
        let packet = Parts::new(from, to, protocol, &ports).write();
        FiveTuple::parse(&IpHeader::parse(&packet).unwrap(), &packet)
    };
    let keys = [
        key("10.0.0.1", "10.0.0.2", 6, [0, 1, 0, 2]),
        key("10.0.0.2", "10.0.0.1", 6, [0, 1, 0, 2]),
        key("10.0.0.1", "10.0.0.2", 17, [0, 1, 0, 2]),
        key("10.0.0.1", "10.0.0.2", 6, [0, 2, 0, 1]),
        key("::10.0.0.1", "::10.0.0.2", 6, [0, 1, 0, 2]),
        key("1::10.0.0.1", "::10.0.0.2", 6, [0, 1, 0, 2]),
        key("::10.0.0.1", "1::10.0.0.2", 6, [0, 1, 0, 2]),
    ];
    for (at, one) in keys.iter().enumerate() {
        for (other_at, other) in keys.iter().enumerate() {
            assert_eq!(one == other, at == other_at, "{one:?} {other:?}");
        }
    }
}

#[test]
fn a_too_short_header_length_yields_no_ports() {
    let mut packet = Parts::new("10.0.0.1", "10.0.0.2", 6, &[0, 1, 0, 2]).write();
    packet[0] = 0x44;
    let header = IpHeader::parse(&packet).unwrap();
    assert!(!header.plain && !header.has_transport());
    assert_eq!(header.ports(&packet), None);
    assert_eq!(tuple_of(&packet), tuple(6, "10.0.0.1:0", "10.0.0.2:0"));
}

fn parts() -> impl Strategy<Value = Parts> {
    let extension = prop_oneof![
        (prop_oneof![Just(0u8), Just(43), Just(60)], 0u16..4),
        (Just(44u8), prop_oneof![Just(0u16), Just(1)]),
    ];
    let fragment = prop_oneof![Just(0u16), Just(0x4000), Just(0x2000)];
    let protocol = prop_oneof![Just(6u8), Just(17), Just(1), Just(58), Just(132), Just(47)];
    (
        (any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>()),
        (any::<u8>(), fragment, 0usize..11),
        vec(extension, 0..8),
        (protocol, vec(any::<u8>(), 0..60)),
    )
        .prop_map(|((v6, from, to), (tos, fragment, options), extensions, behind)| {
            let short = |octets: [u8; 16]| {
                IpAddr::from(*octets.first_chunk::<4>().expect("there are sixteen"))
            };
            Parts {
                addresses: if v6 { (from.into(), to.into()) } else { (short(from), short(to)) },
                tos,
                fragment,
                options,
                extensions,
                protocol: behind.0,
                transport: behind.1,
            }
        })
}

proptest! {
    #[test]
    fn written_packets_are_parsed(parts in parts(), padding in 0usize..20) {
        let mut packet = parts.write();
        let len = packet.len();
        packet.resize(len + padding, 0xee);
        let header = IpHeader::parse(&packet).unwrap();
        prop_assert_eq!((header.source(&packet), header.destination(&packet)), parts.addresses);
        prop_assert_eq!((header.total_len, header.protocol), (len, parts.protocol));
        prop_assert_eq!(usize::from(header.transport), parts.headers());
        prop_assert_eq!(header.ecn.bits(), parts.tos & 0b11);
        prop_assert_eq!(header.transport(&packet), &parts.transport[..]);
        let v6 = parts.addresses.0.is_ipv6();
        let fragment = if v6 {
            parts.extensions.iter().any(|(kind, _)| *kind == 44)
        } else {
            parts.fragment & 0x2000 != 0
        };
        prop_assert_eq!(header.fragment == Fragment::First, fragment);
        let bare = if v6 { parts.extensions.is_empty() } else { parts.options == 0 && !fragment };
        prop_assert_eq!(header.plain, bare);
        let has_ports = [6, 17, 132].contains(&parts.protocol);
        let ports = parts.transport.first_chunk().copied().filter(|_| has_ports);
        prop_assert_eq!(header.ports(&packet), ports);
        let key = FiveTuple::parse(&header, &packet);
        let (protocol, source, destination) = parts_of(key);
        prop_assert_eq!((source.ip(), destination.ip()), parts.addresses);
        prop_assert_eq!(protocol, parts.protocol);
        let [a, b, c, d] = ports.unwrap_or_default();
        let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        prop_assert_eq!((source.port(), destination.port()), ports);
        prop_assert_eq!(parts_of(key.reversed()), (protocol, destination, source));
        prop_assert_eq!(key.reversed().reversed(), key);
    }

    #[test]
    fn any_bytes_are_parsed_without_panic_and_trailing_bytes_are_ignored(
        first in prop_oneof![Just(0x45u8), Just(0x4f), Just(0x60), any::<u8>()],
        next in prop_oneof![Just(0u8), Just(43), Just(44), Just(60), Just(6), Just(1), Just(58)],
        len in 0u8..100,
        bytes in vec(prop_oneof![3 => 0u8..4, 1 => Just(44), 1 => Just(60), 2 => any::<u8>()], 0..120),
        behind: u8,
    ) {
        let mut packet = bytes;
        for (at, byte) in [(0, first), (2, 0), (3, len), (4, 0), (5, len), (6, next)] {
            packet.get_mut(at).into_iter().for_each(|field| *field = byte);
        }
        if packet.first().is_some_and(|first| first >> 4 == 4) {
            packet.get_mut(9).into_iter().for_each(|field| *field = next);
            packet.get_mut(6).into_iter().for_each(|field| *field = len & 0x20);
        }
        for cut in 0..=packet.len() {
            let bytes = &packet[..cut];
            let Ok(beginning) = IpHeader::parse_truncated(bytes) else { continue };
            let looks = |bytes: &[u8]| (
                beginning.flow_hash(bytes),
                beginning.ports(bytes),
                FiveTuple::parse(&beginning, bytes),
                beginning.transport(bytes).to_vec(),
            );
            let before = looks(bytes);
            let Ok(header) = IpHeader::parse(bytes) else { continue };
            prop_assert_eq!(header, beginning);
            let mut other = bytes.to_vec();
            other[header.total_len..].fill(behind);
            prop_assert_eq!(IpHeader::parse(&other), Ok(header));
            prop_assert_eq!(IpHeader::parse(&other[..header.total_len]), Ok(header));
            prop_assert_eq!(looks(&other), before.clone());
            prop_assert_eq!(looks(&other[..header.total_len]), before);
        }
    }
}
