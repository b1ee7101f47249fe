//! Joins consecutive packets of a flow into one super-packet without copying payload (GRO; the
//! rules are those of the kernel's `tcp_offload.c`, `udp_offload.c`, `gro.c` and its selftest
//! `net/gro.c`).
//!
//! ```text
//!   packets in a buffer           super-packets
//!   | h | aaaa |                  { vnet, h', [aaaa, aaaa, aa] }
//!   | h | bbb  |      ---->       { vnet, h', [bbb] }
//!   | h | aaaa |
//!   | h | aa   |
//! ```
//!
//! Packets of one flow stay in order: a packet joins the newest super-packet of its flow or starts
//! a new one. Packets that are not plain TCP or UDP remain unchanged.
//!
//! No payload is summed. The offload header marks the transport checksum as not yet computed,
//! because the AEAD tag has authenticated every byte. The kernel's WireGuard module skips the
//! check, too. A checksum that was wrong before encryption becomes correct.

use std::ops::Range;

use crate::{
    IpPacket, Span,
    checksum::{add, sum},
    flow,
    offload::{ChecksumAt, Offload, SegmentProtocol, VNET_HEADER_LEN},
    segment::write_ip_lengths,
    wire::{
        IpHeader, Version, get_u16, ipv4, ipv6, protocol, put_u16,
        tcp::{self, flags},
        udp,
    },
};

/// The longest headers: IPv6 and TCP with all options.
const MAX_HEADERS: usize = ipv6::HEADER_LEN + tcp::MAX_HEADER_LEN;
/// The most segments that the kernel accepts in a UDP super-packet (`UDP_MAX_SEGMENTS` before 6.9).
const MAX_UDP_SEGMENTS: usize = 64;
/// Number of the newest super-packets that are searched for a flow.
const LOOK_BACK: usize = 64;

/// Which transports may be coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// TCP over either family.
    pub tcp: bool,
    /// UDP over either family.
    pub udp: bool,
}

/// Collects packets into super-packets. It is reused for each batch.
#[derive(Debug, Default)]
pub struct Coalescer {
    /// Super-packets of this batch. Those of earlier batches follow; their memory is reused.
    supers: Vec<SuperPacket>,
    used: usize,
}

/// Packets that are delivered as one.
#[derive(Debug)]
pub struct SuperPacket {
    /// A hash of the flow. Packets with the same hash are compared by their headers.
    flow: u64,
    /// IP headers of the first packet.
    ip: IpHeader,
    head: Head,
    /// The virtio-net header, then the packet's headers.
    header: [u8; VNET_HEADER_LEN + MAX_HEADERS],
    payload: Vec<Span>,
    payload_len: usize,
    /// Payload length of the first packet, and of all except the last.
    size: usize,
    /// Whether another packet may join.
    open: bool,
}

/// Positions of the headers of a packet.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: Kind,
    ipv6: bool,
    /// Offset of the transport header.
    transport: usize,
    /// Bytes of all headers; 0 for a packet that remains unchanged.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The packet remains unchanged.
    Other,
    Tcp,
    Udp,
}

impl Coalescer {
    /// Removes all packets.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a packet of `buf`. All packets of a batch must be in the same `buf`.
    pub fn push(&mut self, buf: &[u8], packet: &IpPacket, coalesce: Coalesce) {
        let IpPacket { span, header: ip } = *packet;
        let packet = &buf[span.start..span.start + span.len];
        let head = Head::parse(&ip, packet).unwrap_or(Head::OTHER);
        let flow = head.flow(packet);
        let wanted = match head.kind {
            Kind::Tcp => coalesce.tcp,
            Kind::Udp => coalesce.udp,
            Kind::Other => false,
        };
        let recent = self.used.saturating_sub(LOOK_BACK);
        let mut recent = self.supers[recent..self.used].iter_mut().rev();
        if wanted {
            let newest = recent.find(|other| other.flow == flow && other.is_flow_of(&head, packet));
            if let Some(newest) = newest
                && newest.accepts(&head, packet)
            {
                newest.join(&head, packet, span);
                return;
            }
        } else if head.kind == Kind::Other {
            // This packet, for example a fragment, may belong to an open flow. The next packet of
            // the flow must not overtake it.
            let addresses = &packet[ip.addresses()];
            recent
                .filter(|other| {
                    other.open && addresses == other.head.addresses(other.packet_header())
                })
                .for_each(|other| other.open = false);
        }
        if self.used == self.supers.len() {
            self.supers.push(SuperPacket::empty(ip));
        }
        let newest = &mut self.supers[self.used];
        newest.ip = ip;
        newest.begin(flow, head, packet, span);
        self.used += 1;
    }

    /// Finishes the headers and returns the super-packets, in order.
    pub fn finish(&mut self) -> &[SuperPacket] {
        let supers = &mut self.supers[..self.used];
        supers.iter_mut().for_each(SuperPacket::finish);
        supers
    }
}

impl SuperPacket {
    /// The most packets of a super-packet. One gather write accepts this number.
    pub const MAX_PACKETS: usize = 128;

    /// The virtio-net header and the packet's headers, back to back.
    pub fn header(&self) -> &[u8] {
        &self.header[..VNET_HEADER_LEN + self.head.len]
    }

    /// The IP headers of the first packet.
    pub fn ip_header(&self) -> &IpHeader {
        &self.ip
    }

    /// Positions of the payload in the batch's buffer, in order.
    pub fn payload(&self) -> &[Span] {
        &self.payload
    }

    /// Positions of the packets in the batch's buffer, in order.
    pub fn packet_spans(&self) -> impl Iterator<Item = Span> {
        let len = self.head.len;
        self.payload.iter().map(move |span| Span { start: span.start - len, len: span.len + len })
    }

    /// Number of packets.
    pub fn packets(&self) -> usize {
        self.payload.len()
    }

    /// The kind of super-packet; `None` for a single packet.
    pub fn protocol(&self) -> Option<SegmentProtocol> {
        if self.packets() < 2 {
            return None;
        }
        match (self.head.kind, self.head.ipv6) {
            (Kind::Tcp, false) => Some(SegmentProtocol::Tcp4),
            (Kind::Tcp, true) => Some(SegmentProtocol::Tcp6),
            (Kind::Udp, _) => Some(SegmentProtocol::Udp),
            (Kind::Other, _) => None,
        }
    }

    fn empty(ip: IpHeader) -> Self {
        Self {
            flow: 0,
            ip,
            head: Head::OTHER,
            header: [0; VNET_HEADER_LEN + MAX_HEADERS],
            payload: Vec::new(),
            payload_len: 0,
            size: 0,
            open: false,
        }
    }

    fn begin(&mut self, flow: u64, head: Head, packet: &[u8], span: Span) {
        self.flow = flow;
        self.head = head;
        self.header[VNET_HEADER_LEN..][..head.len].copy_from_slice(&packet[..head.len]);
        self.payload.clear();
        self.payload.push(Span { start: span.start + head.len, len: span.len - head.len });
        self.payload_len = span.len - head.len;
        self.size = self.payload_len;
        self.open = match head.kind {
            Kind::Other => false,
            Kind::Udp => self.size > 0,
            Kind::Tcp => {
                let bits = packet[head.transport + tcp::FLAGS];
                self.size > 0 && bits & !flags::ECE == flags::ACK
            }
        };
    }

    fn packet_header(&self) -> &[u8] {
        &self.header[VNET_HEADER_LEN..][..self.head.len]
    }

    /// Whether a packet has the same addresses, protocol and ports.
    fn is_flow_of(&self, head: &Head, packet: &[u8]) -> bool {
        let ours = self.packet_header();
        self.head.kind == head.kind
            && self.head.ipv6 == head.ipv6
            && self.head.addresses(ours) == head.addresses(packet)
            && ours[self.head.transport..][..4] == packet[head.transport..][..4]
    }

    /// Whether a packet of the same flow may join.
    fn accepts(&self, head: &Head, packet: &[u8]) -> bool {
        let len = packet.len() - head.len;
        let fits = self.open
            && len > 0
            && len <= self.size
            && self.packets() < Self::MAX_PACKETS
            && u16::try_from(self.head.len + self.payload_len + len).is_ok();
        fits && self.same_ip(head, packet)
            && match head.kind {
                Kind::Tcp => self.same_tcp(head, packet),
                Kind::Udp => self.same_udp(head, packet),
                Kind::Other => false,
            }
    }

    /// Compares TTL, TOS with ECN, flow label and flags. The identification must count up, unless
    /// it is meaningless (RFC 6864 section 4.1).
    fn same_ip(&self, head: &Head, packet: &[u8]) -> bool {
        let ours = self.packet_header();
        if head.ipv6 {
            const REST: Range<usize> = ipv6::NEXT_HEADER..ipv6::SOURCE.start;
            return ours[ipv6::VERSION_CLASS_LABEL] == packet[ipv6::VERSION_CLASS_LABEL]
                && ours[REST] == packet[REST];
        }
        const FIRST: Range<usize> = ipv4::VERSION_IHL..ipv4::TOTAL_LEN.start;
        const REST: Range<usize> = ipv4::FRAGMENT.start..ipv4::CHECKSUM.start;
        let id = |header: &[u8]| get_u16(header, ipv4::ID);
        let follows = id(packet) == id(ours).wrapping_add(self.packets() as u16);
        ours[FIRST] == packet[FIRST]
            && ours[REST] == packet[REST]
            && (follows || ipv4::fragment(packet) & ipv4::DONT_FRAGMENT != 0)
    }

    /// Whether a segment continues the stream with the same acknowledgement, window, urgent
    /// pointer, options and flags. PSH and FIN may differ: they end the super-packet.
    fn same_tcp(&self, head: &Head, packet: &[u8]) -> bool {
        let ours = &self.packet_header()[head.transport.min(self.head.len)..];
        let theirs = &packet[head.transport..head.len];
        if ours.len() != theirs.len() {
            return false;
        }
        let bits = theirs[tcp::FLAGS] & !(flags::PSH | flags::FIN);
        tcp::sequence(theirs) == tcp::sequence(ours).wrapping_add(self.payload_len as u32)
            && bits == ours[tcp::FLAGS]
            && ours[tcp::DATA_OFFSET] == theirs[tcp::DATA_OFFSET]
            && ours[tcp::ACK] == theirs[tcp::ACK]
            && ours[tcp::WINDOW] == theirs[tcp::WINDOW]
            && ours[tcp::URGENT.start..] == theirs[tcp::URGENT.start..]
    }

    /// Both must have a checksum, or both must be without.
    fn same_udp(&self, head: &Head, packet: &[u8]) -> bool {
        let none = |header: &[u8]| header[udp::CHECKSUM] == [0, 0];
        self.packets() < MAX_UDP_SEGMENTS
            && none(&self.packet_header()[self.head.transport..]) == none(&packet[head.transport..])
    }

    fn join(&mut self, head: &Head, packet: &[u8], span: Span) {
        let len = span.len - head.len;
        self.payload.push(Span { start: span.start + head.len, len });
        self.payload_len += len;
        self.open = len == self.size;
        if head.kind == Kind::Tcp {
            let last = packet[head.transport + tcp::FLAGS] & (flags::PSH | flags::FIN);
            self.header[VNET_HEADER_LEN + head.transport + tcp::FLAGS] |= last;
            self.open &= last == 0;
        }
    }

    fn finish(&mut self) {
        let Head { kind, ipv6, transport, len } = self.head;
        let headers = &mut self.header[VNET_HEADER_LEN..][..len];
        let transport_len = (len - transport + self.payload_len) as u16;
        let field = match kind {
            Kind::Tcp => tcp::CHECKSUM,
            Kind::Udp => udp::CHECKSUM,
            Kind::Other => {
                self.header[..VNET_HEADER_LEN].fill(0);
                return;
            }
        };
        let alone = self.payload.len() == 1;
        if alone && kind == Kind::Udp && headers[transport..][field.clone()] == [0, 0] {
            self.header[..VNET_HEADER_LEN].fill(0);
            return;
        }
        let pseudo = self.head.pseudo_sum(headers, transport_len);
        let (ip, header) = headers.split_at_mut(transport);
        if !alone {
            write_ip_lengths(ip, transport_len, 0, ipv6);
            if kind == Kind::Udp {
                put_u16(header, udp::LENGTH, transport_len);
            }
        }
        put_u16(header, field.clone(), pseudo);
        let checksum = ChecksumAt { start: transport as u16, offset: field.start as u16 };
        let offload = match self.protocol() {
            None => Offload::Checksum(checksum),
            Some(protocol) => {
                Offload::Segment { protocol, size: self.size as u16, checksum, tunnel: None }
            }
        };
        self.header[..VNET_HEADER_LEN].copy_from_slice(&offload.encode(len));
    }
}

impl Head {
    const OTHER: Self = Self { kind: Kind::Other, ipv6: false, transport: 0, len: 0 };

    /// Parses the transport header. Returns `None` for fragments, IPv4 options, IPv6 extension
    /// headers and contradicting lengths. The same holds for a wrong IPv4 header checksum, which
    /// coalescing would correct.
    fn parse(ip: &IpHeader, packet: &[u8]) -> Option<Self> {
        let ipv6 = ip.version == Version::V6;
        if !ip.plain || !ipv6 && sum(&packet[..ipv4::HEADER_LEN]) != 0xffff {
            return None;
        }
        let transport = usize::from(ip.transport);
        let header = &packet[transport..];
        let (kind, len) = match ip.protocol {
            protocol::TCP if header.len() >= tcp::HEADER_LEN => {
                let len = tcp::header_len(header);
                (Kind::Tcp, if len < tcp::HEADER_LEN { return None } else { len })
            }
            protocol::UDP if header.len() >= udp::HEADER_LEN => {
                if usize::from(get_u16(header, udp::LENGTH)) != header.len() {
                    return None;
                }
                (Kind::Udp, udp::HEADER_LEN)
            }
            _ => return None,
        };
        (len <= header.len()).then_some(Self { kind, ipv6, transport, len: transport + len })
    }

    /// A hash of the flow; 0 for packets that remain unchanged.
    fn flow(&self, packet: &[u8]) -> u64 {
        if self.kind == Kind::Other {
            return 0;
        }
        let ports = &packet[self.transport..self.transport + 4];
        flow::hash(self.kind as u8, self.addresses(packet), ports)
    }

    /// Source and destination address, back to back.
    fn addresses<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[if self.ipv6 { ipv6::ADDRESSES } else { ipv4::ADDRESSES }]
    }

    /// The sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
    fn pseudo_sum(&self, headers: &[u8], transport_len: u16) -> u16 {
        let protocol = if self.kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
        add(add(sum(self.addresses(headers)), protocol.into()), transport_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with the ten bytes at position `number` of a stream between two addresses.
    fn packet(addresses: [u8; 8], number: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 50, 0, number, 0, 0, 64, protocol::TCP, 0, 0];
        packet.extend(addresses);
        let checksum = !sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend([
            0,
            1,
            0,
            80,
            0,
            0,
            0,
            10 * number,
            0,
            0,
            0,
            0,
            0x50,
            0x10,
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
        packet.extend([number; 10]);
        packet
    }

    /// Two such flows are easy to find, because the hash is fast and not secret.
    #[test]
    fn flows_with_equal_hashes_are_not_coalesced() {
        let one = packet([244, 177, 101, 34, 10, 0, 0, 1], 0);
        let other = packet([39, 242, 122, 32, 29, 87, 25, 239], 1);
        let flow = |packet: &[u8]| {
            let ip = IpHeader::parse(packet).unwrap();
            Head::parse(&ip, packet).unwrap().flow(packet)
        };
        assert_eq!(flow(&one), flow(&other), "found for this hash");
        let buf = [one, other].concat();
        let mut coalescer = Coalescer::default();
        for start in [0, 50] {
            let packet = IpPacket::read(&buf, Span { start, len: 50 }).unwrap();
            coalescer.push(&buf, &packet, Coalesce { tcp: true, udp: true });
        }
        assert_eq!(coalescer.finish().len(), 2);
    }
}
