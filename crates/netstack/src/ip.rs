//! Reads and writes IP headers.

use std::net::IpAddr;

pub(crate) use packet::wire::protocol::{ICMP, ICMPV6, TCP, UDP};
use packet::{
    Span, checksum,
    wire::{IpHeader, Version, get_u16, get_u32, ipv4, ipv6, put_u16},
};

use crate::tcp::Payload;

/// Hop limit of sent packets (RFC 1340 recommends 64).
const HOPS: u8 = 64;

/// A received packet, split into headers and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// The transport header, followed by the payload unless that is in separate pieces.
    pub transport: &'a [u8],
    /// The buffer and the pieces of a separate payload.
    pieces: Option<(&'a [u8], &'a [Span])>,
}

/// Reason for which a packet is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketError {
    /// A fragment.
    Fragment,
    /// Its header is invalid.
    Malformed,
}

impl<'a> Packet<'a> {
    /// A packet in one piece, with its parsed headers.
    pub(crate) fn whole(bytes: &'a [u8], header: &IpHeader) -> Result<Self, PacketError> {
        let (protocol, start) = match header.version {
            Version::V4 => {
                let len = usize::from(header.transport);
                let sound = (ipv4::HEADER_LEN..=header.total_len).contains(&len)
                    && checksum::sum(&bytes[..len]) == 0xffff;
                if !sound {
                    return Err(PacketError::Malformed);
                }
                if ipv4::fragment(bytes) & !ipv4::DONT_FRAGMENT != 0 {
                    return Err(PacketError::Fragment);
                }
                (header.protocol, len)
            }
            // Other extension headers are not supported.
            Version::V6 => match bytes[ipv6::NEXT_HEADER] {
                ipv6::extension::FRAGMENT => return Err(PacketError::Fragment),
                next => (next, ipv6::HEADER_LEN),
            },
        };
        let transport = &bytes[start..header.total_len];
        Ok(Self::new(bytes, header, (protocol, transport), None))
    }

    /// A reassembled packet.
    pub(crate) fn reassembled(
        addresses: (IpAddr, IpAddr),
        protocol: u8,
        transport: &'a [u8],
    ) -> Self {
        let (source, destination) = addresses;
        Self { source, destination, protocol, transport, pieces: None }
    }

    /// A coalesced packet. Its headers are a valid copy without options.
    pub(crate) fn coalesced(
        headers: &'a [u8],
        header: &IpHeader,
        pieces: (&'a [u8], &'a [Span]),
    ) -> Self {
        let transport = &headers[usize::from(header.transport)..];
        Self::new(headers, header, (header.protocol, transport), Some(pieces))
    }

    fn new(
        headers: &[u8],
        header: &IpHeader,
        (protocol, transport): (u8, &'a [u8]),
        pieces: Option<(&'a [u8], &'a [Span])>,
    ) -> Self {
        let (source, destination) = (header.source(headers), header.destination(headers));
        Self { source, destination, protocol, transport, pieces }
    }

    /// Bytes of a separate payload.
    pub(crate) fn separate_payload_len(&self) -> usize {
        self.pieces.map_or(0, |(_, spans)| spans.iter().map(|span| span.len).sum())
    }

    /// The payload after `header` bytes of transport header.
    pub(crate) fn payload(&self, header: usize) -> Payload<'a> {
        match self.pieces {
            Some((buf, spans)) => Payload::pieces(buf, spans),
            None => Payload::Whole(&self.transport[header..]),
        }
    }
}

/// A fragment of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The packet's protocol. In IPv6 the first fragment determines it (RFC 8200 section 4.5).
    pub protocol: u8,
    pub id: u32,
    /// The offset of the data after the packet's IP header, in bytes.
    pub start: usize,
    pub is_last: bool,
    pub data: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Reads a packet for which [`Packet::whole`] returned [`PacketError::Fragment`]. Returns
    /// `None` if it cannot be part of a packet: the end of its data is not a multiple of eight
    /// bytes, or exceeds the longest packet.
    pub(crate) fn parse(bytes: &'a [u8], header: &IpHeader) -> Option<Self> {
        let (protocol, id, start, is_last, data) = match header.version {
            Version::V4 => {
                let flags = ipv4::fragment(bytes);
                let sound = flags & !(ipv4::DONT_FRAGMENT | ipv4::MORE_FRAGMENTS) < 0x2000;
                let start = usize::from(flags & ipv4::FRAGMENT_OFFSET) * 8;
                let data = &bytes[usize::from(header.transport)..header.total_len];
                let id = u32::from(get_u16(bytes, ipv4::ID));
                let is_last = flags & ipv4::MORE_FRAGMENTS == 0;
                (bytes[ipv4::PROTOCOL], id, start, is_last, Some(data).filter(|_| sound)?)
            }
            Version::V6 => {
                let behind = bytes.get(ipv6::HEADER_LEN..header.total_len)?;
                let (fragment, data) = behind.split_at_checked(ipv6::extension::FRAGMENT_LEN)?;
                let offset = get_u16(fragment, ipv6::extension::OFFSET);
                let start = usize::from(offset & ipv6::extension::OFFSET_MASK);
                let id = get_u32(fragment, FRAGMENT_ID_V6);
                let next = fragment[ipv6::extension::NEXT_HEADER];
                (next, id, start, offset & MORE_FRAGMENTS_V6 == 0, data)
            }
        };
        let (source, destination) = (header.source(bytes), header.destination(bytes));
        let ends = !data.is_empty() && (is_last || data.len().is_multiple_of(8));
        let fits = ends && start + data.len() <= max_payload_len(source);
        fits.then_some(Self { source, destination, protocol, id, start, is_last, data })
    }
}

/// The identification of a fragment header (RFC 8200 section 4.5), and the flag next to its offset.
const FRAGMENT_ID_V6: std::ops::Range<usize> = 4..8;
const MORE_FRAGMENTS_V6: u16 = 1;

/// Addresses, protocol and transport header that an ICMP message quotes. The packet may be
/// truncated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Length of the packet according to its header, in bytes.
    pub total_len: usize,
    pub transport: &'a [u8],
}

impl<'a> Quoted<'a> {
    /// Reads the quoted part of a packet that this stack may have sent. Returns `None` for other
    /// extension headers than a fragment header, and for a later fragment, which has no ports.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = IpHeader::parse_truncated(bytes).ok()?;
        let is_cut = header.fragment != packet::wire::Fragment::Whole;
        if header.version == Version::V6 && !header.plain && !is_cut {
            return None;
        }
        if header.fragment == packet::wire::Fragment::Later {
            return None;
        }
        Some(Self {
            source: header.source(bytes),
            destination: header.destination(bytes),
            protocol: header.protocol,
            total_len: header.total_len,
            transport: bytes.get(header.transport.into()..)?,
        })
    }
}

/// Bytes of the IP header of packets to an address.
pub(crate) fn header_len(to: IpAddr) -> usize {
    if to.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// Writes the header of a packet with `len` bytes of payload to the beginning of `to`.
pub(crate) fn write_header(
    to: &mut [u8],
    (from, dest): (IpAddr, IpAddr),
    protocol: u8,
    len: usize,
) {
    match (from, dest) {
        (IpAddr::V4(from), IpAddr::V4(dest)) => {
            let to = &mut to[..ipv4::HEADER_LEN];
            to.fill(0);
            to[ipv4::VERSION_IHL] = ipv4::PLAIN;
            put_u16(to, ipv4::TOTAL_LEN, (ipv4::HEADER_LEN + len) as u16);
            // RFC 6864: packets that are never fragmented need no identification.
            put_u16(to, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
            to[ipv4::TTL] = HOPS;
            to[ipv4::PROTOCOL] = protocol;
            to[ipv4::SOURCE].copy_from_slice(&from.octets());
            to[ipv4::DESTINATION].copy_from_slice(&dest.octets());
            let sum = !checksum::sum(to);
            put_u16(to, ipv4::CHECKSUM, sum);
        }
        (IpAddr::V6(from), IpAddr::V6(dest)) => {
            let to = &mut to[..ipv6::HEADER_LEN];
            to[ipv6::VERSION_CLASS_LABEL].copy_from_slice(&[0x60, 0, 0, 0]);
            put_u16(to, ipv6::PAYLOAD_LEN, len as u16);
            to[ipv6::NEXT_HEADER] = protocol;
            to[ipv6::HOP_LIMIT] = HOPS;
            to[ipv6::SOURCE].copy_from_slice(&from.octets());
            to[ipv6::DESTINATION].copy_from_slice(&dest.octets());
        }
        _ => unreachable!("both addresses of a flow are of one family"),
    }
}

/// The longest payload of a family, in bytes.
pub(crate) fn max_payload_len(of: IpAddr) -> usize {
    usize::from(u16::MAX) - if of.is_ipv4() { ipv4::HEADER_LEN } else { 0 }
}

/// Data bytes of each fragment except the last, in a packet to this address with an MTU of `mtu`
/// bytes.
pub(crate) fn fragment_data_len(to: IpAddr, mtu: usize) -> usize {
    let extension = if to.is_ipv4() { 0 } else { ipv6::extension::FRAGMENT_LEN };
    (mtu - header_len(to) - extension) & !7
}

/// Writes the headers of a fragment with `len` bytes of data. `start` is the offset of the data
/// after the packet's IP header. Returns the length of the headers.
pub(crate) fn write_fragment_header(
    to: &mut [u8],
    addresses: (IpAddr, IpAddr),
    (protocol, id): (u8, u32),
    (start, len, is_last): (usize, usize, bool),
) -> usize {
    if addresses.0.is_ipv4() {
        write_header(to, addresses, protocol, len);
        let to = &mut to[..ipv4::HEADER_LEN];
        let more = if is_last { 0 } else { ipv4::MORE_FRAGMENTS };
        put_u16(to, ipv4::FRAGMENT, more | (start / 8) as u16);
        put_u16(to, ipv4::ID, id as u16);
        put_u16(to, ipv4::CHECKSUM, 0);
        let sum = !checksum::sum(to);
        put_u16(to, ipv4::CHECKSUM, sum);
        return ipv4::HEADER_LEN;
    }
    let header = ipv6::extension::FRAGMENT_LEN;
    write_header(to, addresses, ipv6::extension::FRAGMENT, header + len);
    let extension = &mut to[ipv6::HEADER_LEN..ipv6::HEADER_LEN + header];
    extension.fill(0);
    extension[ipv6::extension::NEXT_HEADER] = protocol;
    let more = if is_last { 0 } else { MORE_FRAGMENTS_V6 };
    put_u16(extension, ipv6::extension::OFFSET, start as u16 | more);
    extension[FRAGMENT_ID_V6].copy_from_slice(&id.to_be_bytes());
    ipv6::HEADER_LEN + header
}

/// The sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub(crate) fn pseudo_sum((from, dest): (IpAddr, IpAddr), protocol: u8, len: usize) -> u16 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => checksum::sum(&address.octets()),
        IpAddr::V6(address) => checksum::sum(&address.octets()),
    };
    let rest = checksum::add(protocol.into(), len as u16);
    checksum::add(checksum::add(of(from), of(dest)), rest)
}
