//! Makes segments shorter than the sender intended, for a path with a smaller MTU. A TCP receiver
//! processes bytes, not segments, so neither end must be notified.

use super::{Plan, Segments, Work};
use crate::{
    checksum::{add, sum},
    offload::{ChecksumAt, SegmentProtocol},
    wire::{
        Fragment, IpHeader, Version, ipv4, ipv6, protocol,
        tcp::{self, flags},
    },
};

impl Segments<'_> {
    /// Returns the same bytes in segments of at most `most` bytes including headers. No segment
    /// becomes longer.
    ///
    /// Returns `None` if that is impossible: for other protocols than TCP, fragments, signed
    /// segments, segments with SYN, RST or urgent data, and a wrong checksum, which would be
    /// corrected.
    pub fn within(&self, most: usize) -> Option<Self> {
        let plan = match self.work {
            Work::Segment(plan) => Some(plan)
                .filter(|plan| plan.protocol != SegmentProtocol::Udp && plan.tunnel.is_none()),
            Work::Checksum { start, field } => Plan::of_packet(self.packet)
                .filter(|plan| plan.transport == start && start + tcp::CHECKSUM.start == field),
            Work::None => Plan::of_packet(self.packet).and_then(|plan| plan.summed(self.packet)),
        }?;
        const INDIVISIBLE: u8 = flags::SYN | flags::RST | flags::URG;
        if self.packet[plan.transport + tcp::FLAGS] & INDIVISIBLE != 0 {
            return None;
        }
        if is_signed(&self.packet[plan.transport + tcp::OPTIONS..plan.headers]) {
            return None;
        }
        let size = most.checked_sub(plan.headers).filter(|size| *size > 0)?;
        let plan = Plan { size: plan.size.min(size), ..plan };
        Some(Self { packet: self.packet, work: Work::Segment(plan) })
    }
}

/// Whether the TCP options contain a digest of the segment (RFC 2385, RFC 5925). It would not match
/// the parts.
fn is_signed(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const SIGNATURES: [u8; 2] = [19, 29];
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (END, _) => return false,
            (NOP, rest) => rest,
            (kind, _) if SIGNATURES.contains(&kind) => return true,
            (_, [len, ..]) => options.get(usize::from(*len).max(2)..).unwrap_or(&[]),
            (_, []) => return false,
        };
    }
    false
}

impl Plan {
    /// A plan with one segment, for a TCP packet with a checksum field that contains the sum of the
    /// pseudo-header.
    fn of_packet(packet: &[u8]) -> Option<Self> {
        let header = IpHeader::parse(packet).ok()?;
        let protocol = match header.version {
            Version::V4 if header.fragment == Fragment::Whole => SegmentProtocol::Tcp4,
            Version::V6 if header.plain => SegmentProtocol::Tcp6,
            _ => return None,
        };
        if header.protocol != protocol::TCP || header.transport(packet).len() < tcp::HEADER_LEN {
            return None;
        }
        let checksum = ChecksumAt { start: header.transport, offset: tcp::CHECKSUM.start as u16 };
        Self::new(packet, protocol, u16::MAX, checksum, None).ok()
    }

    /// The plan for a packet with a finished checksum. Returns `None` if the checksum is wrong.
    fn summed(self, packet: &[u8]) -> Option<Self> {
        let addresses = if self.ipv6 { ipv6::ADDRESSES } else { ipv4::ADDRESSES };
        let pseudo = add(sum(&packet[addresses]), protocol::TCP.into());
        let transport = &packet[self.transport..];
        let total = add(add(pseudo, transport.len() as u16), sum(transport));
        (total == 0xffff).then_some(Self { pseudo, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::is_signed;

    #[test]
    fn a_digest_is_found_and_malformed_options_end_the_search() {
        for signed in
            [&[19, 18][..], &[1, 1, 29, 4, 0, 0], &[8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 19, 18]]
        {
            assert!(is_signed(signed), "{signed:?}");
        }
        for plain in [&[][..], &[0, 19], &[1, 1, 8, 10, 19, 0, 0, 0, 29, 0, 0, 0], &[5], &[5, 0, 1]]
        {
            assert!(!is_signed(plain), "{plain:?}");
        }
    }
}
