//! The virtio-net header: metadata of a packet that a TUN device reads or writes (virtio 1.2
//! section 5.1.6; kernel `include/uapi/linux/virtio_net.h`).

/// Bytes of the header before each packet: `virtio_net_hdr_v1_hash_tunnel`. The kernel uses only
/// the first ten bytes, except for packets in a UDP tunnel.
pub const VNET_HEADER_LEN: usize = 24;

const NEEDS_CSUM: u8 = 1;
/// The tunnel's UDP datagrams have a checksum.
const TUNNEL_CSUM: u8 = 8;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// CWR may be set on the first segment. This bit is a flag, not a type.
const GSO_ECN: u8 = 0x80;
/// The type describes the payload of a UDP tunnel over IPv4 or IPv6. These bits are flags, not
/// types.
const GSO_TUNNEL_IPV4: u8 = 0x20;
const GSO_TUNNEL_IPV6: u8 = 0x40;

/// The work that is left to do on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    #[default]
    None,
    /// The checksum field contains only the sum of the pseudo-header.
    Checksum(ChecksumAt),
    /// A super-packet: segments of `size` bytes of payload. The checksum field contains the sum of
    /// the pseudo-header.
    Segment {
        /// The transport protocol.
        protocol: SegmentProtocol,
        /// Payload of every segment except the last, in bytes; not zero.
        size: u16,
        /// Position of the transport header and its checksum.
        checksum: ChecksumAt,
        /// The outer headers, if the packet is in a UDP tunnel (VXLAN, Geneve).
        tunnel: Option<Tunnel>,
    },
}

/// The outer headers of a super-packet in a UDP tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Offset of the tunnel's UDP header.
    pub transport: u16,
    /// Offset of the inner IP header.
    pub inner: u16,
    /// Whether the tunnel's UDP datagrams have a checksum. The field then contains the sum of the
    /// pseudo-header.
    pub checksum: bool,
    /// Whether the tunnel uses IPv6.
    pub ipv6: bool,
}

/// The transport of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentProtocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6.
    Udp,
}

/// Position of a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumAt {
    /// Offset of the summed bytes: the transport header.
    pub start: u16,
    /// Offset of the checksum, relative to `start`.
    pub offset: u16,
}

/// The header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadError;

impl Offload {
    /// Reads the header. `hdr_len` is ignored, because it is wrong on forwarded packets.
    ///
    /// # Errors
    /// The type was not enabled, or the segment size is zero.
    pub fn parse(header: &[u8; VNET_HEADER_LEN]) -> Result<Self, OffloadError> {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let [flags, kind, ..] = *header;
        let checksum = ChecksumAt { start: word(6), offset: word(8) };
        let size = word(4);
        let protocol = match kind & !(GSO_ECN | GSO_TUNNEL_IPV4 | GSO_TUNNEL_IPV6) {
            GSO_NONE if kind & !GSO_ECN != GSO_NONE => return Err(OffloadError),
            GSO_NONE if flags & NEEDS_CSUM == 0 => return Ok(Self::None),
            GSO_NONE => return Ok(Self::Checksum(checksum)),
            GSO_TCPV4 => SegmentProtocol::Tcp4,
            GSO_TCPV6 => SegmentProtocol::Tcp6,
            GSO_UDP_L4 => SegmentProtocol::Udp,
            _ => return Err(OffloadError),
        };
        if size == 0 || flags & NEEDS_CSUM == 0 {
            return Err(OffloadError);
        }
        let ipv6 = match kind & (GSO_TUNNEL_IPV4 | GSO_TUNNEL_IPV6) {
            0 => return Ok(Self::Segment { protocol, size, checksum, tunnel: None }),
            GSO_TUNNEL_IPV4 => false,
            GSO_TUNNEL_IPV6 => true,
            _ => return Err(OffloadError),
        };
        // Little-endian on every machine.
        let [transport, inner] = [20, 22].map(|at| u16::from_le(word(at)));
        let tunnel = Tunnel { transport, inner, checksum: flags & TUNNEL_CSUM != 0, ipv6 };
        Ok(Self::Segment { protocol, size, checksum, tunnel: Some(tunnel) })
    }

    /// Returns the header of a packet with `header_len` bytes of headers.
    pub fn encode(&self, header_len: usize) -> [u8; VNET_HEADER_LEN] {
        let mut header = [0; VNET_HEADER_LEN];
        let (kind, size, checksum) = match *self {
            Self::None => return header,
            Self::Checksum(checksum) => (GSO_NONE, 0, checksum),
            Self::Segment { protocol, size, checksum, tunnel } => {
                let kind = match protocol {
                    SegmentProtocol::Tcp4 => GSO_TCPV4,
                    SegmentProtocol::Tcp6 => GSO_TCPV6,
                    SegmentProtocol::Udp => GSO_UDP_L4,
                };
                let around = match tunnel {
                    None => 0,
                    Some(Tunnel { transport, inner, checksum, ipv6 }) => {
                        header[0] = if checksum { TUNNEL_CSUM } else { 0 };
                        header[20..22].copy_from_slice(&transport.to_le_bytes());
                        header[22..].copy_from_slice(&inner.to_le_bytes());
                        if ipv6 { GSO_TUNNEL_IPV6 } else { GSO_TUNNEL_IPV4 }
                    }
                };
                (kind | around, size, checksum)
            }
        };
        header[0] |= NEEDS_CSUM;
        header[1] = kind;
        header[2..4].copy_from_slice(&(header_len as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&size.to_ne_bytes());
        header[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
        header[8..10].copy_from_slice(&checksum.offset.to_ne_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_headers_round_trip() {
        let checksum = ChecksumAt { start: 20, offset: 16 };
        let segment =
            |protocol, size, tunnel| Offload::Segment { protocol, size, checksum, tunnel };
        let tunnel = |checksum, ipv6| Some(Tunnel { transport: 20, inner: 300, checksum, ipv6 });
        for offload in [
            Offload::None,
            Offload::Checksum(checksum),
            segment(SegmentProtocol::Tcp4, 1380, None),
            segment(SegmentProtocol::Tcp6, 1360, None),
            segment(SegmentProtocol::Udp, 1, None),
            segment(SegmentProtocol::Tcp6, 1360, tunnel(false, false)),
            segment(SegmentProtocol::Udp, 1300, tunnel(true, true)),
        ] {
            assert_eq!(Offload::parse(&offload.encode(40)), Ok(offload));
        }
    }

    #[test]
    fn empty_segments_and_unknown_types_are_refused() {
        let checksum = ChecksumAt { start: 20, offset: 16 };
        let good =
            Offload::Segment { protocol: SegmentProtocol::Tcp4, size: 9, checksum, tunnel: None };
        let mut header = good.encode(40);
        header[1] |= GSO_ECN;
        assert_eq!(Offload::parse(&header), Ok(good), "the ECN bit is no type");
        header[1] = 3;
        assert_eq!(Offload::parse(&header), Err(OffloadError), "UFO");
        header = good.encode(40);
        header[4..6].fill(0);
        assert_eq!(Offload::parse(&header), Err(OffloadError));
        header = good.encode(40);
        header[0] = 0;
        assert_eq!(Offload::parse(&header), Err(OffloadError));
        header = good.encode(40);
        header[1] |= GSO_TUNNEL_IPV4 | GSO_TUNNEL_IPV6;
        assert_eq!(Offload::parse(&header), Err(OffloadError), "over both families");
        header[1] = GSO_TUNNEL_IPV4;
        assert_eq!(Offload::parse(&header), Err(OffloadError), "a tunnel of nothing");
    }
}
