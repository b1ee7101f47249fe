//! What a TUN device says of a packet beside its bytes: the virtio-net header
//! (virtio 1.2 section 5.1.6; kernel `include/uapi/linux/virtio_net.h`).

/// Bytes of the header in front of each packet: `virtio_net_hdr_v1_hash_tunnel`, of which the kernel
/// reads and writes the first ten, but for what is in a UDP tunnel.
pub const VNET_HEADER_LEN: usize = 24;

const NEEDS_CSUM: u8 = 1;
/// The tunnel's UDP datagrams have a checksum.
const TUNNEL_CSUM: u8 = 8;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Says that CWR may stand on the first segment; not a type.
const GSO_ECN: u8 = 0x80;
/// The type is of what a UDP tunnel carries, over IPv4 or IPv6; neither is a type.
const GSO_TUNNEL_IPV4: u8 = 0x20;
const GSO_TUNNEL_IPV6: u8 = 0x40;

/// What is left to do to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// The transport checksum holds the sum of the pseudo-header only.
    Checksum(ChecksumAt),
    /// The packet stands for many: segments of `size` bytes of payload. Its
    /// checksum holds the sum of the pseudo-header.
    Segment {
        /// Which transport.
        protocol: SegmentProtocol,
        /// Payload of every segment but the last, in bytes; not zero.
        size: u16,
        /// Where the transport header and its checksum are.
        checksum: ChecksumAt,
        /// Around it, where it is in a UDP tunnel: VXLAN, Geneve.
        tunnel: Option<Tunnel>,
    },
}

/// The outer headers of a super-packet in a UDP tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Where the tunnel's UDP header begins.
    pub transport: u16,
    /// Where the IP header of what it carries begins.
    pub inner: u16,
    /// Whether its UDP datagrams have a checksum; it holds the sum of the pseudo-header then.
    pub checksum: bool,
    /// Whether it goes over IPv6.
    pub ipv6: bool,
}

/// Which transport a super-packet is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentProtocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either.
    Udp,
}

/// Where a transport checksum is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumAt {
    /// Where the summed bytes begin: the transport header.
    pub start: u16,
    /// From there, where the sum is stored.
    pub offset: u16,
}

/// A header that no packet can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadError;

impl Offload {
    /// Reads the header. `hdr_len` is not believed: it is wrong on forwarded
    /// packets.
    ///
    /// # Errors
    /// A type that was not asked for, or segments of no length.
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
        // Little-endian, whatever the machine is.
        let [transport, inner] = [20, 22].map(|at| u16::from_le(word(at)));
        let tunnel = Tunnel { transport, inner, checksum: flags & TUNNEL_CSUM != 0, ipv6 };
        Ok(Self::Segment { protocol, size, checksum, tunnel: Some(tunnel) })
    }

    /// The header's bytes, for a packet with `header_len` bytes of headers.
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
    fn headers_come_back_as_they_were_written() {
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
    fn segments_of_no_length_and_unknown_types_are_refused() {
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
