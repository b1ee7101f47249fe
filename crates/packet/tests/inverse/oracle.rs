//! Computes the packets that a TUN device and the kernel make of a packet with a virtio-net header.
//! The code is slow, follows the rules literally, and shares nothing with the code under test.
//! Sources: virtio 1.2 section 5.1.6, RFC 791, 768, 8200 and 9293, kernel `net/ipv4/tcp_offload.c`
//! and `udp_offload.c`.

use super::spec::{CWR, FIN, PSH, Spec, slow_checksum};

const NEEDS_CSUM: u8 = 1;
const TCP_IPV4: u8 = 1;
const TCP_IPV6: u8 = 4;
const UDP: u8 = 5;
/// Flags of a type: it describes the payload of a UDP tunnel over IPv4 or IPv6.
pub(super) const TUNNEL_IPV4: u8 = 0x20;
pub(super) const TUNNEL_IPV6: u8 = 0x40;
/// The tunnel's UDP datagrams have a checksum.
const TUNNEL_CSUM: u8 = 8;

/// The virtio-net header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vnet {
    pub flags: u8,
    pub kind: u8,
    pub header_len: u16,
    pub size: u16,
    pub start: u16,
    pub offset: u16,
    /// Offsets of a tunnel's UDP header and of the inner IP header.
    pub outer: u16,
    pub inner: u16,
}

impl Vnet {
    pub(super) fn read(header: &[u8]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let [flags, kind] = [header[0], header[1]];
        let [header_len, size, start, offset] = [2, 4, 6, 8].map(word);
        let [outer, inner] = [20, 22].map(|at| word(at).to_le());
        Self { flags, kind, header_len, size, start, offset, outer, inner }
    }

    pub(super) fn write(&self) -> [u8; 24] {
        let words = [self.header_len, self.size, self.start, self.offset].map(u16::to_ne_bytes);
        let mut header = [0; 24];
        header[..2].copy_from_slice(&[self.flags, self.kind]);
        header[2..10].copy_from_slice(&words.concat());
        header[20..].copy_from_slice(&[self.outer, self.inner].map(u16::to_le_bytes).concat());
        header
    }

    /// The header of the inner packet; `None` without a tunnel.
    fn carried(&self) -> Option<Self> {
        let tunnel = self.kind & (TUNNEL_IPV4 | TUNNEL_IPV6);
        let start = self.start.checked_sub(self.inner)?;
        (tunnel != 0).then_some(Self { kind: self.kind & !tunnel, start, ..*self })
    }

    fn field(&self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }
}

/// The segments of `packet`; `None` if it contradicts its header. The transport checksum is
/// computed, not read.
pub(super) fn split(vnet: Vnet, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    if vnet.kind & (TUNNEL_IPV4 | TUNNEL_IPV6) != 0 {
        return split_tunnel(vnet, packet);
    }
    let kind = vnet.kind & 0x7f;
    let needs_checksum = vnet.flags & NEEDS_CSUM != 0;
    let start = usize::from(vnet.start);
    if kind == 0 && !needs_checksum {
        return Some(vec![packet.to_vec()]);
    }
    if kind == 0 {
        let even = vnet.start.is_multiple_of(2) && vnet.offset.is_multiple_of(2);
        let mut whole = (even && vnet.field() + 2 <= packet.len()).then(|| packet.to_vec())?;
        let given = word(packet, vnet.field());
        finish(&mut whole, start, vnet.field(), given);
        return Some(vec![whole]);
    }
    let (ip_len, headers) = headers(vnet, packet)?;
    if !needs_checksum || vnet.size == 0 || ip_len != start {
        return None;
    }
    let mut pieces: Vec<&[u8]> = packet[headers..].chunks(vnet.size.into()).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let last = pieces.len() - 1;
    let segment = |(index, piece)| {
        let mut segment = [&packet[..headers], piece].concat();
        ip_header(&mut segment, start, index);
        match kind {
            UDP => put(&mut segment, start + 4, (8 + piece.len()) as u16),
            _ => {
                let ahead = (index * usize::from(vnet.size)) as u32;
                tcp_header(&mut segment[start..], ahead, index == 0, index == last);
            }
        }
        let pseudo = pseudo(&segment, start, kind == UDP);
        finish(&mut segment, start, vnet.field(), pseudo);
        segment
    };
    Some(pieces.into_iter().enumerate().map(segment).collect())
}

/// The segments of a tunnel's payload, each after a copy of the tunnel's headers.
fn split_tunnel(vnet: Vnet, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (outer, inner) = (usize::from(vnet.outer), usize::from(vnet.inner));
    let version = match vnet.kind & (TUNNEL_IPV4 | TUNNEL_IPV6) {
        TUNNEL_IPV4 => 4,
        TUNNEL_IPV6 => 6,
        _ => return None,
    };
    let ip_fits = match packet.first()? >> 4 {
        4 => outer >= 20 && usize::from(packet[0] & 0xf) * 4 == outer,
        _ => outer >= 40 && outer.is_multiple_of(4),
    };
    let words = usize::from(vnet.start).checked_sub(outer)?.is_multiple_of(2);
    let super_sized = vnet.kind & 0x1f != 0;
    if packet[0] >> 4 != version || !ip_fits || outer + 8 > inner || !words || !super_sized {
        return None;
    }
    let carried = split(vnet.carried()?, packet.get(inner..)?)?;
    let around = |(index, carried): (usize, Vec<u8>)| {
        let mut segment = [&packet[..inner], &carried].concat();
        ip_header(&mut segment, outer, index);
        let len = segment.len() - outer;
        put(&mut segment, outer + 4, len as u16);
        if vnet.flags & TUNNEL_CSUM != 0 {
            let pseudo = pseudo(&segment, outer, true);
            finish(&mut segment, outer, outer + 6, pseudo);
        }
        segment
    };
    Some(carried.into_iter().enumerate().map(around).collect())
}

/// Puts `carried`, which `vnet` describes, into a tunnel: after the headers of `outer` and the
/// bytes `between`.
pub(super) fn tunnelled(
    outer: &Spec,
    between: &[u8],
    vnet: Vnet,
    carried: &[u8],
    checksum: bool,
) -> (Vnet, Vec<u8>) {
    let mut packet = Spec { payload: [between, carried].concat(), ..outer.clone() }.build();
    let udp = outer.headers() - 8;
    put(&mut packet, udp + 6, 0);
    let inner = (outer.headers() + between.len()) as u16;
    let vnet = Vnet {
        flags: vnet.flags | if checksum { TUNNEL_CSUM } else { 0 },
        kind: vnet.kind | if outer.ipv6 { TUNNEL_IPV6 } else { TUNNEL_IPV4 },
        start: vnet.start + inner,
        outer: udp as u16,
        inner,
        ..vnet
    };
    (vnet, packet)
}

/// Sets the checksum fields of a super-packet and of its tunnel to the sum of the pseudo-header, as
/// its sender does.
pub(super) fn prepare(vnet: Vnet, packet: &mut [u8]) {
    if let Some(carried) = vnet.carried() {
        if let Some(packet) = packet.get_mut(vnet.inner.into()..) {
            prepare(carried, packet);
        }
        let outer = usize::from(vnet.outer);
        let version = packet.first().map_or(0, |first| first >> 4);
        let least = if version == 6 { 40 } else { 20 };
        if vnet.flags & TUNNEL_CSUM != 0 && outer >= least && outer + 8 <= packet.len() {
            let sum = pseudo(packet, outer, true);
            put(packet, outer + 6, sum);
        }
        return;
    }
    let start = usize::from(vnet.start);
    if headers(vnet, packet).is_some_and(|(ip_len, _)| ip_len == start) {
        let sum = pseudo(packet, start, vnet.kind & 0x7f == UDP);
        put(packet, vnet.field(), sum);
    }
}

/// Offsets of the ends of the IP header and of the transport header of a super-packet.
fn headers(vnet: Vnet, packet: &[u8]) -> Option<(usize, usize)> {
    let start = usize::from(vnet.start);
    let version = packet.first()? >> 4;
    let ip_len = match version {
        4 => usize::from(packet[0] & 0xf) * 4,
        // Extension headers may be present; they consist of four-byte words.
        6 if start.is_multiple_of(4) => start.max(40),
        _ => return None,
    };
    let (offset, transport) = match (vnet.kind & 0x7f, version) {
        (TCP_IPV4, 4) | (TCP_IPV6, 6) => (16, usize::from(packet.get(start + 12)? >> 4) * 4),
        (UDP, _) => (6, 8),
        _ => return None,
    };
    let long_enough = ip_len >= 20 && (vnet.kind & 0x7f == UDP || transport >= 20);
    let whole = packet.len() >= start + transport;
    (long_enough && whole && vnet.offset == offset).then_some((ip_len, start + transport))
}

fn ip_header(packet: &mut [u8], len: usize, index: usize) {
    let total = packet.len();
    if packet[0] >> 4 == 6 {
        put(packet, 4, (total - 40) as u16);
        return;
    }
    put(packet, 2, total as u16);
    let id = word(packet, 4).wrapping_add(index as u16);
    put(packet, 4, id);
    put(packet, 10, 0);
    let checksum = slow_checksum(&packet[..len]);
    put(packet, 10, checksum);
}

fn tcp_header(header: &mut [u8], ahead: u32, first: bool, last: bool) {
    let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    header[4..8].copy_from_slice(&sequence.wrapping_add(ahead).to_be_bytes());
    if !first {
        header[13] &= !CWR;
    }
    if !last {
        header[13] &= !(FIN | PSH);
    }
}

/// The sum of the pseudo-header for a transport from `start` to the end of the packet.
pub(super) fn pseudo(packet: &[u8], start: usize, udp: bool) -> u16 {
    let addresses = if packet[0] >> 4 == 6 { &packet[8..40] } else { &packet[12..20] };
    let len = ((packet.len() - start) as u32).to_be_bytes();
    !slow_checksum(&[addresses, &[0, if udp { 17 } else { 6 }], &len].concat())
}

/// Writes the checksum of the bytes from `start` to `field`. A sum of zero becomes all ones.
fn finish(packet: &mut [u8], start: usize, field: usize, pseudo: u16) {
    put(packet, field, pseudo);
    let checksum = match slow_checksum(&packet[start..]) {
        0 => 0xffff,
        checksum => checksum,
    };
    put(packet, field, checksum);
}

/// A packet with a correct transport checksum, which is never zero for UDP.
pub(super) fn repaired(packet: &[u8], start: usize, udp: bool) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let pseudo = pseudo(&packet, start, udp);
    finish(&mut packet, start, start + if udp { 6 } else { 16 }, pseudo);
    packet
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
