//! Shorter segments than the sender thought of, for a path that it does not know to be
//! narrow. A TCP receiver sees bytes, not segments, so that nobody has to be told.

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
    /// The same bytes in segments of at most `most` bytes, headers included, and none
    /// longer than it would be. `None` where that cannot be done: it is no TCP, or a
    /// fragment, or one of the packets that stand for more than their bytes (SYN, RST,
    /// urgent data), or signed, or its checksum is wrong, which would be mended.
    pub fn within(&self, most: usize) -> Option<Self> {
        let plan = match self.work {
            Work::Segment(plan) => Some(plan)
                .filter(|plan| plan.protocol != SegmentProtocol::Udp && plan.tunnel.is_none()),
            Work::Checksum { start, field } => Plan::of_packet(self.packet)
                .filter(|plan| plan.transport == start && start + tcp::CHECKSUM.start == field),
            Work::None => Plan::of_packet(self.packet).and_then(|plan| plan.summed(self.packet)),
        }?;
        const APART: u8 = flags::SYN | flags::RST | flags::URG;
        if self.packet[plan.transport + tcp::FLAGS] & APART != 0 {
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

/// Whether TCP's options hold a digest of the segment (RFC 2385, RFC 5925), which no part of it
/// would have.
fn is_signed(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const SIGNATURES: [u8; 2] = [19, 29];
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (END, _) => return false,
            (NOTHING, rest) => rest,
            (kind, _) if SIGNATURES.contains(&kind) => return true,
            (_, [len, ..]) => options.get(usize::from(*len).max(2)..).unwrap_or(&[]),
            (_, []) => return false,
        };
    }
    false
}

impl Plan {
    /// One segment, of a TCP packet whose checksum holds the sum of the pseudo-header.
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

    /// The same, where the checksum is finished already, and right.
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
    fn a_digest_is_found_among_the_options_and_bad_options_end_the_search() {
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
