//! Super-packets in a UDP tunnel, VXLAN or Geneve: each segment has the tunnel's headers.

use packet::{Offload, SegmentError, Segments, VNET_HEADER_LEN};
use proptest::prelude::*;

use super::{
    oracle::{TUNNEL_IPV4, TUNNEL_IPV6, Vnet, prepare, tunnelled},
    segment,
    spec::{Spec, slow_checksum},
    supers::super_packet,
};

/// Bytes of a VXLAN header and the inner Ethernet header (RFC 7348 section 5).
const VXLAN: usize = 8 + 14;

/// Puts the super-packet `carried` in a tunnel, with `between` bytes after the tunnel's UDP header.
fn in_tunnel(outer: &Spec, carried: &Spec, size: u16, between: usize, checksum: bool) -> Vec<u8> {
    let inside = super_packet(carried, size);
    let (header, inside) = inside.split_at(VNET_HEADER_LEN);
    let between = vec![0xa5; between];
    let (vnet, mut packet) = tunnelled(outer, &between, Vnet::read(header), inside, checksum);
    prepare(vnet, &mut packet);
    [vnet.write().as_slice(), &packet].concat()
}

fn new(written: &[u8]) -> Result<usize, SegmentError> {
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    let offload = Offload::parse(header).map_err(|_| SegmentError)?;
    Segments::new(packet, offload).map(|segments| segments.count())
}

#[test]
fn contradicting_tunnel_headers_are_refused() {
    let (outer, carried) =
        (Spec::new(false, false, vec![]), Spec::new(true, false, vec![7; 3_000]));
    let good = in_tunnel(&outer, &carried, 1_000, VXLAN, true);
    assert_eq!(new(&good), Ok(3));
    let with = |change: &dyn Fn(&mut Vnet)| {
        let mut vnet = Vnet::read(&good);
        change(&mut vnet);
        new(&[vnet.write().as_slice(), &good[VNET_HEADER_LEN..]].concat())
    };
    let refused = Err(SegmentError);
    assert_eq!(with(&|_| {}), Ok(3));
    assert_eq!(with(&|vnet| vnet.kind |= TUNNEL_IPV6), refused, "over both families");
    assert_eq!(with(&|vnet| vnet.kind ^= TUNNEL_IPV4 | TUNNEL_IPV6), refused, "over the other");
    assert_eq!(with(&|vnet| vnet.kind &= 0xe0), refused, "a tunnel of nothing");
    assert_eq!(with(&|vnet| vnet.outer += 4), refused, "within the outer UDP header");
    assert_eq!(with(&|vnet| vnet.inner = vnet.outer + 7), refused, "no room for UDP");
    assert_eq!(with(&|vnet| vnet.inner += 1), refused, "no IP header");
    assert_eq!(with(&|vnet| vnet.inner = vnet.start + 1), refused, "behind the transport");
    assert_eq!(with(&|vnet| vnet.inner = u16::MAX), refused, "behind the packet");
    let odd = in_tunnel(&outer, &carried, 1_000, VXLAN + 1, true);
    assert_eq!(new(&odd), refused, "half a word is summed");
}

#[test]
fn super_packets_in_a_tunnel_are_not_narrowed() {
    let (outer, carried) =
        (Spec::new(false, false, vec![]), Spec::new(true, false, vec![7; 3_000]));
    let written = in_tunnel(&outer, &carried, 1_000, VXLAN, true);
    let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
    let segments = Segments::new(packet, Offload::parse(header).unwrap()).unwrap();
    assert!(segments.within(600).is_none());
}

proptest! {
    /// The oracle computes the segments, and all checksums must be correct.
    #[test]
    fn each_segment_has_the_tunnel_headers(
        (tcp, ipv6, outer_ipv6, checksum) in any::<(bool, bool, bool, bool)>(),
        (ip_options, outer_options) in any::<(bool, bool)>(),
        (id, outer_id, sequence) in any::<(u16, u16, u32)>(),
        (size, len, words) in (1u16..3_000, 0usize..9_000, 0usize..40),
    ) {
        let payload = (0..len.max(1).min(usize::from(size) * 60)).map(|at| (at * 7) as u8).collect();
        let carried = Spec { id, ip_options, sequence, ..Spec::new(tcp, ipv6, payload) };
        let outer = Spec {
            id: outer_id, ip_options: outer_options, ..Spec::new(false, outer_ipv6, vec![])
        };
        let between = 2 * words;
        let written = in_tunnel(&outer, &carried, size, between, checksum);
        let segments = segment(&written);
        let alone = segment(&super_packet(&carried, size));
        prop_assert_eq!(segments.len(), alone.len());
        let udp = outer.headers() - 8;
        for (segment, alone) in segments.iter().zip(&alone) {
            prop_assert_eq!(&segment[outer.headers() + between..], &alone[..]);
            let field = &segment[udp + 6..udp + 8];
            if checksum {
                prop_assert!(field != [0, 0]);
                let addresses = if outer_ipv6 { &segment[8..40] } else { &segment[12..20] };
                let len = (segment.len() - udp) as u16;
                prop_assert_eq!(&segment[udp + 4..udp + 6], &len.to_be_bytes());
                let summed = [addresses, &[0, 17], &len.to_be_bytes(), &segment[udp..]].concat();
                prop_assert_eq!(slow_checksum(&summed), 0);
            } else {
                prop_assert_eq!(field, [0, 0]);
            }
        }
    }
}
