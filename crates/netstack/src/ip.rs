//! The IP header: read where packets arrive, written where they leave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{Span, checksum, ip::IpHeader};

use crate::tcp::Payload;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;
/// The next header of an IPv6 fragment (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;
/// Bytes of the headers that are written.
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// The IPv4 flag "don't fragment", in the byte it stands in.
const DONT_FRAGMENT: u8 = 0x40;
/// Routers until a packet is dropped (RFC 1340 recommends 64).
const HOPS: u8 = 64;

/// A packet that arrived, cut into its headers and its payload.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// The transport header, and behind it the payload where that is not apart.
    pub transport: &'a [u8],
    /// The buffer and the pieces of the payload, where it is apart.
    pieces: Option<(&'a [u8], &'a [Span])>,
}

/// Why a packet is not worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPacket {
    /// A fragment.
    Fragment,
    /// Its header cannot be.
    Malformed,
}

impl<'a> Packet<'a> {
    /// A packet in one piece.
    pub fn whole(bytes: &'a [u8]) -> Result<Self, NoPacket> {
        let header = IpHeader::parse(bytes).map_err(|_| NoPacket::Malformed)?;
        let (protocol, len) = match header.source {
            IpAddr::V4(_) => {
                let len = usize::from(bytes[0] & 0x0f) * 4;
                let sound = (IPV4_HEADER..=header.total_len).contains(&len)
                    && checksum::sum(&bytes[..len]) == 0xffff;
                if !sound {
                    return Err(NoPacket::Malformed);
                }
                if bytes[6] & !DONT_FRAGMENT != 0 || bytes[7] != 0 {
                    return Err(NoPacket::Fragment);
                }
                (bytes[9], len)
            }
            IpAddr::V6(_) if bytes[6] == FRAGMENT => return Err(NoPacket::Fragment),
            IpAddr::V6(_) => (bytes[6], IPV6_HEADER),
        };
        Ok(Self::new(header, protocol, &bytes[len..header.total_len], None))
    }

    /// A packet whose headers were copied out: they are sound, and without options.
    pub fn coalesced(headers: &'a [u8], (buf, spans): (&'a [u8], &'a [Span])) -> Option<Self> {
        let (protocol, len) = match headers.first()? >> 4 {
            4 => (headers.get(9)?, IPV4_HEADER),
            _ => (headers.get(6)?, IPV6_HEADER),
        };
        let (source, destination) = addresses(headers)?;
        let transport = headers.get(len..)?;
        let pieces = Some((buf, spans));
        Some(Self { source, destination, protocol: *protocol, transport, pieces })
    }

    fn new(
        header: IpHeader,
        protocol: u8,
        transport: &'a [u8],
        pieces: Option<(&'a [u8], &'a [Span])>,
    ) -> Self {
        let IpHeader { source, destination, .. } = header;
        Self { source, destination, protocol, transport, pieces }
    }

    /// Bytes of the payload that stand elsewhere.
    pub fn payload_apart(&self) -> usize {
        self.pieces.map_or(0, |(_, spans)| spans.iter().map(|span| span.len).sum())
    }

    /// What stands behind `header` bytes of transport header.
    pub fn payload(&self, header: usize) -> Payload<'a> {
        match self.pieces {
            Some((buf, spans)) => Payload::pieces(buf, spans),
            None => Payload::Whole(&self.transport[header..]),
        }
    }
}

fn addresses(header: &[u8]) -> Option<(IpAddr, IpAddr)> {
    if header[0] >> 4 == 4 {
        let at = |from: usize| header.get(from..)?.first_chunk::<4>().copied();
        return Some((Ipv4Addr::from(at(12)?).into(), Ipv4Addr::from(at(16)?).into()));
    }
    let at = |from: usize| header.get(from..)?.first_chunk::<16>().copied();
    Some((Ipv6Addr::from(at(8)?).into(), Ipv6Addr::from(at(24)?).into()))
}

/// Addresses, protocol and ports that an ICMP message quotes; the packet may end early.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Bytes that the packet had, by its header.
    pub total_len: usize,
    pub transport: &'a [u8],
}

impl<'a> Quoted<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let (protocol, len, total_len) = match bytes.first()? >> 4 {
            4 => (bytes.get(9)?, usize::from(bytes[0] & 0x0f) * 4, word(2)?.into()),
            6 => (bytes.get(6)?, IPV6_HEADER, IPV6_HEADER + usize::from(word(4)?)),
            _ => return None,
        };
        let (source, destination) = addresses(bytes)?;
        let transport = bytes.get(len..)?;
        Some(Self { source, destination, protocol: *protocol, total_len, transport })
    }
}

/// Bytes of the header to an address.
pub fn header_len(to: IpAddr) -> usize {
    if to.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER }
}

/// Writes the header of a packet with `len` bytes of payload to the beginning of `to`.
pub fn write_header(to: &mut [u8], (from, dest): (IpAddr, IpAddr), protocol: u8, len: usize) {
    match (from, dest) {
        (IpAddr::V4(from), IpAddr::V4(dest)) => {
            let total = ((IPV4_HEADER + len) as u16).to_be_bytes();
            // RFC 6864: what is never fragmented needs no identification.
            to[..12].copy_from_slice(&[
                0x45,
                0,
                total[0],
                total[1],
                0,
                0,
                DONT_FRAGMENT,
                0,
                HOPS,
                protocol,
                0,
                0,
            ]);
            to[12..16].copy_from_slice(&from.octets());
            to[16..20].copy_from_slice(&dest.octets());
            let sum = !checksum::sum(&to[..IPV4_HEADER]);
            to[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(dest)) => {
            let len = (len as u16).to_be_bytes();
            to[..8].copy_from_slice(&[0x60, 0, 0, 0, len[0], len[1], protocol, HOPS]);
            to[8..24].copy_from_slice(&from.octets());
            to[24..40].copy_from_slice(&dest.octets());
        }
        _ => unreachable!("both addresses of a flow are of one family"),
    }
}

/// The sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub fn pseudo_sum((from, dest): (IpAddr, IpAddr), protocol: u8, len: usize) -> u16 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => checksum::sum(&address.octets()),
        IpAddr::V6(address) => checksum::sum(&address.octets()),
    };
    let rest = checksum::add(protocol.into(), len as u16);
    checksum::add(checksum::add(of(from), of(dest)), rest)
}
