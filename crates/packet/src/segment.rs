//! Splits a super-packet into segments. Each is written complete at its final position (TSO and
//! USO; kernel `net/ipv4/tcp_offload.c`, `udp_offload.c`).
//!
//! ```text
//!   | IP | TCP | payload .......................... |
//!   | IP'| TCP'| payload 0 |   id + i, sequence + i * size, lengths,
//!   | IP'| TCP'| payload 1 |   FIN and PSH on the last only, CWR on the first
//!   | IP'| TCP'| pay 2 |       only, both checksums finished
//! ```

mod narrow;
mod tunnel;

use tunnel::Outer;

use crate::{
    checksum::{add, copy_sum, sum},
    offload::{ChecksumAt, Offload, SegmentProtocol, Tunnel},
    wire::{
        get_u16, ipv4, ipv6, put_u16, put_u32,
        tcp::{self, flags},
        udp,
    },
};

/// A packet cannot be segmented, because its headers contradict its offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentError;

/// A packet and its division into segments. A packet without segmentation offload has one segment,
/// itself.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Copy.
    None,
    /// Copy and finish the checksum.
    Checksum { start: usize, field: usize },
    /// Segment.
    Segment(Plan),
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    protocol: SegmentProtocol,
    ipv6: bool,
    /// Offset of the IP header. It follows the headers of a tunnel.
    network: usize,
    /// Offset of the transport header.
    transport: usize,
    /// Bytes of all headers.
    headers: usize,
    /// Payload of every segment except the last, in bytes.
    size: usize,
    /// The sum of the pseudo-header without its length.
    pseudo: u16,
    /// The outer headers of a tunnel.
    tunnel: Option<Outer>,
}

impl<'a> Segments<'a> {
    /// Reads a packet, which must be an IP packet of the length in its header.
    ///
    /// # Errors
    /// The headers contradict `offload`.
    pub fn new(packet: &'a [u8], offload: Offload) -> Result<Self, SegmentError> {
        let work = match offload {
            Offload::None => return Ok(Self::whole(packet)),
            Offload::Checksum(ChecksumAt { start, offset }) => {
                let start = usize::from(start);
                let field = start + usize::from(offset);
                if !start.is_multiple_of(2) || !offset.is_multiple_of(2) || field + 2 > packet.len()
                {
                    return Err(SegmentError);
                }
                Work::Checksum { start, field }
            }
            Offload::Segment { protocol, size, checksum, tunnel } => {
                Work::Segment(Plan::new(packet, protocol, size, checksum, tunnel)?)
            }
        };
        Ok(Self { packet, work })
    }

    /// A packet that is one segment.
    pub fn whole(packet: &'a [u8]) -> Self {
        Self { packet, work: Work::None }
    }

    /// The packet before segmentation.
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        match &self.work {
            Work::None | Work::Checksum { .. } => 1,
            Work::Segment(plan) => (self.packet.len() - plan.headers).div_ceil(plan.size).max(1),
        }
    }

    /// Length of the segment at `index`, in bytes.
    pub fn segment_len(&self, index: usize) -> usize {
        match &self.work {
            Work::None | Work::Checksum { .. } => self.packet.len(),
            Work::Segment(plan) => plan.headers + plan.payload(self.packet, index).len(),
        }
    }

    /// Writes the segment at `index` to `to`.
    ///
    /// # Panics
    /// If the length of `to` is not [`Segments::segment_len`].
    pub fn write(&self, index: usize, to: &mut [u8]) {
        match &self.work {
            Work::None => to.copy_from_slice(self.packet),
            Work::Checksum { start, field } => {
                let (head, tail) = to.split_at_mut(*start);
                head.copy_from_slice(&self.packet[..*start]);
                let sum = copy_sum(tail, &self.packet[*start..]);
                // For TCP and UDP, a checksum of zero is sent as all ones. Both are the same
                // number, and zero means no checksum in UDP.
                let field = *field - *start;
                put_u16(tail, field..field + 2, finish(sum));
            }
            Work::Segment(plan) => plan.write(self.packet, index, to),
        }
    }
}

impl Plan {
    fn new(
        packet: &[u8],
        protocol: SegmentProtocol,
        size: u16,
        checksum: ChecksumAt,
        tunnel: Option<Tunnel>,
    ) -> Result<Self, SegmentError> {
        let transport = usize::from(checksum.start);
        let network = tunnel.map_or(0, |tunnel| tunnel.inner.into());
        let ipv6 = ip_header(packet, network, transport)?;
        let header = packet.get(transport..).ok_or(SegmentError)?;
        let (field, headers) = match protocol {
            SegmentProtocol::Tcp4 | SegmentProtocol::Tcp6 => {
                let offset = header.get(tcp::DATA_OFFSET).ok_or(SegmentError)?;
                let len = usize::from(offset >> 4) * 4;
                (tcp::CHECKSUM, if len < tcp::HEADER_LEN { usize::MAX } else { len })
            }
            SegmentProtocol::Udp => (udp::CHECKSUM, udp::HEADER_LEN),
        };
        let family_fits = match protocol {
            SegmentProtocol::Tcp4 => !ipv6,
            SegmentProtocol::Tcp6 => ipv6,
            SegmentProtocol::Udp => true,
        };
        if !family_fits
            || size == 0
            || usize::from(checksum.offset) != field.start
            || headers > header.len()
        {
            return Err(SegmentError);
        }
        let len = u16::try_from(header.len()).map_err(|_| SegmentError)?;
        let given = get_u16(header, field);
        Ok(Self {
            protocol,
            ipv6,
            network,
            transport,
            headers: transport + headers,
            size: size.into(),
            pseudo: add(given, !len),
            tunnel: tunnel.map(|tunnel| Outer::new(packet, tunnel, transport)).transpose()?,
        })
    }

    fn payload<'a>(&self, packet: &'a [u8], index: usize) -> &'a [u8] {
        let payload = &packet[self.headers..];
        &payload[index * self.size..payload.len().min((index + 1) * self.size)]
    }

    fn write(&self, packet: &[u8], index: usize, to: &mut [u8]) {
        let (headers, payload) = to.split_at_mut(self.headers);
        headers.copy_from_slice(&packet[..self.headers]);
        let payload_sum = copy_sum(payload, self.payload(packet, index));
        let (before, transport) = headers.split_at_mut(self.transport);
        let transport_len = (transport.len() + payload.len()) as u16;
        write_ip_lengths(&mut before[self.network..], transport_len, index as u16, self.ipv6);
        let field = match self.protocol {
            SegmentProtocol::Tcp4 | SegmentProtocol::Tcp6 => {
                let ahead = (index * self.size) as u32;
                let sequence = tcp::sequence(transport).wrapping_add(ahead);
                put_u32(transport, tcp::SEQUENCE, sequence);
                let last = self.headers + (index + 1) * self.size >= packet.len();
                if !last {
                    transport[tcp::FLAGS] &= !(flags::FIN | flags::PSH);
                }
                if index != 0 {
                    transport[tcp::FLAGS] &= !flags::CWR;
                }
                tcp::CHECKSUM
            }
            SegmentProtocol::Udp => {
                put_u16(transport, udp::LENGTH, transport_len);
                udp::CHECKSUM
            }
        };
        transport[field.clone()].fill(0);
        let pseudo = add(self.pseudo, transport_len);
        let total = add(pseudo, add(sum(transport), payload_sum));
        put_u16(transport, field, finish(total));
        if let Some(tunnel) = self.tunnel {
            // With a finished checksum, the sum of a segment is the complement of its
            // pseudo-header's sum.
            tunnel.write(before, transport_len, !pseudo, index as u16);
        }
    }
}

/// Checks the IP header between `network` and `transport`. Returns whether it is IPv6.
fn ip_header(packet: &[u8], network: usize, transport: usize) -> Result<bool, SegmentError> {
    let len = transport.checked_sub(network).ok_or(SegmentError)?;
    let (ipv6, fits) = match packet.get(network) {
        Some(ipv4::PLAIN..=0x4f) => (false, len == ipv4::header_len(&packet[network..])),
        // Extension headers may be present.
        Some(0x60..=0x6f) => (true, len >= ipv6::HEADER_LEN && len.is_multiple_of(4)),
        _ => return Err(SegmentError),
    };
    if fits { Ok(ipv6) } else { Err(SegmentError) }
}

/// Sets the lengths of an IP header that is followed by `transport_len` bytes. For IPv4 it also
/// adds `ahead` to the identification and sets the header checksum.
pub(crate) fn write_ip_lengths(ip: &mut [u8], transport_len: u16, ahead: u16, ipv6: bool) {
    let behind = ip.len() as u16 + transport_len;
    if ipv6 {
        put_u16(ip, ipv6::PAYLOAD_LEN, behind - ipv6::HEADER_LEN as u16);
        return;
    }
    put_u16(ip, ipv4::TOTAL_LEN, behind);
    let id = get_u16(ip, ipv4::ID);
    put_u16(ip, ipv4::ID, id.wrapping_add(ahead));
    ip[ipv4::CHECKSUM].fill(0);
    let checksum = !sum(ip);
    put_u16(ip, ipv4::CHECKSUM, checksum);
}

/// The checksum for a sum. It is never zero, because zero means no checksum in UDP.
fn finish(sum: u16) -> u16 {
    match !sum {
        0 => 0xffff,
        checksum => checksum,
    }
}
