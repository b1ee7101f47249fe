//! What a TUN device says of a packet beside its bytes: the virtio-net header
//! (virtio 1.2 section 5.1.6; kernel `include/uapi/linux/virtio_net.h`).

/// Bytes of the header in front of each packet.
pub const VNET_HEADER_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Says that CWR may stand on the first segment; not a type.
const GSO_ECN: u8 = 0x80;

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
    },
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
pub struct InvalidOffload;

impl Offload {
    /// Reads the header. `hdr_len` is not believed: it is wrong on forwarded
    /// packets.
    ///
    /// # Errors
    /// A type that was not asked for, or segments of no length.
    pub fn parse(header: &[u8; VNET_HEADER_LEN]) -> Result<Self, InvalidOffload> {
        let [flags, kind, _, _, size @ .., _, _, _, _] = *header;
        let [.., start_low, start_high, offset_low, offset_high] = *header;
        let checksum = ChecksumAt {
            start: u16::from_ne_bytes([start_low, start_high]),
            offset: u16::from_ne_bytes([offset_low, offset_high]),
        };
        let size = u16::from_ne_bytes(size);
        let protocol = match kind & !GSO_ECN {
            GSO_NONE if flags & NEEDS_CSUM == 0 => return Ok(Self::None),
            GSO_NONE => return Ok(Self::Checksum(checksum)),
            GSO_TCPV4 => SegmentProtocol::Tcp4,
            GSO_TCPV6 => SegmentProtocol::Tcp6,
            GSO_UDP_L4 => SegmentProtocol::Udp,
            _ => return Err(InvalidOffload),
        };
        if size == 0 || flags & NEEDS_CSUM == 0 {
            return Err(InvalidOffload);
        }
        Ok(Self::Segment { protocol, size, checksum })
    }

    /// The header's bytes, for a packet with `header_len` bytes of headers.
    pub fn encode(&self, header_len: usize) -> [u8; VNET_HEADER_LEN] {
        let (kind, size, checksum) = match *self {
            Self::None => return [0; VNET_HEADER_LEN],
            Self::Checksum(checksum) => (GSO_NONE, 0, checksum),
            Self::Segment { protocol, size, checksum } => {
                let kind = match protocol {
                    SegmentProtocol::Tcp4 => GSO_TCPV4,
                    SegmentProtocol::Tcp6 => GSO_TCPV6,
                    SegmentProtocol::Udp => GSO_UDP_L4,
                };
                (kind, size, checksum)
            }
        };
        let mut header = [0; VNET_HEADER_LEN];
        header[0] = NEEDS_CSUM;
        header[1] = kind;
        header[2..4].copy_from_slice(&(header_len as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&size.to_ne_bytes());
        header[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
        header[8..].copy_from_slice(&checksum.offset.to_ne_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were_written() {
        let checksum = ChecksumAt { start: 20, offset: 16 };
        for offload in [
            Offload::None,
            Offload::Checksum(checksum),
            Offload::Segment { protocol: SegmentProtocol::Tcp4, size: 1380, checksum },
            Offload::Segment { protocol: SegmentProtocol::Tcp6, size: 1360, checksum },
            Offload::Segment { protocol: SegmentProtocol::Udp, size: 1, checksum },
        ] {
            assert_eq!(Offload::parse(&offload.encode(40)), Ok(offload));
        }
    }

    #[test]
    fn segments_of_no_length_and_unknown_types_are_refused() {
        let checksum = ChecksumAt { start: 20, offset: 16 };
        let good = Offload::Segment { protocol: SegmentProtocol::Tcp4, size: 9, checksum };
        let mut header = good.encode(40);
        header[1] |= GSO_ECN;
        assert_eq!(Offload::parse(&header), Ok(good), "the ECN bit is no type");
        header[1] = 3;
        assert_eq!(Offload::parse(&header), Err(InvalidOffload), "UFO");
        header = good.encode(40);
        header[4..6].fill(0);
        assert_eq!(Offload::parse(&header), Err(InvalidOffload));
        header = good.encode(40);
        header[0] = 0;
        assert_eq!(Offload::parse(&header), Err(InvalidOffload));
    }
}
