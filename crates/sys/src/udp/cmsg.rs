//! Control messages: the ancillary data of a datagram (cmsg(3)).
//!
//! ```text
//!   | len: usize | level: i32 | type: i32 | data ... | padding to usize |  next
//! ```

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use packet::{Ecn, Local, Tos};

/// Bytes for the control messages of a datagram. IPv4 on a dual-stack socket needs the most:
/// IPV6_PKTINFO (40), IP_PKTINFO (32), IP_TOS (24), SO_RXQ_OVFL (24), UDP_GRO (24), SO_TIMESTAMPNS
/// (32). The rest is reserved for additions in later kernels.
const ROOM: usize = 224;
/// Length of the length field in bytes.
const WORD: usize = size_of::<usize>();
/// Length of the header before the data in bytes.
const HEADER: usize = WORD + 8;

/// The control messages of one datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    pub(super) bytes: [u8; ROOM],
}

impl Control {
    pub(super) const EMPTY: Self = Self { bytes: [0; ROOM] };

    /// Writes the control messages for sending: the source, the TOS byte if it is not zero, and
    /// the segment size in case of several datagrams. Returns their length. `v4` is whether the
    /// destination is an IPv4 address.
    pub(super) fn write(
        &mut self,
        v4: bool,
        local: Option<Local>,
        tos: Tos,
        segment: Option<u16>,
    ) -> usize {
        let mut len = 0;
        match local.map(|local| (local.addr, scope(&local).to_ne_bytes())) {
            Some((IpAddr::V4(addr), interface)) if v4 => {
                // struct in_pktinfo: interface, spec_dst, addr.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&interface);
                info[4..8].copy_from_slice(&addr.octets());
                len = self.push(len, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            Some((IpAddr::V6(addr), interface)) if !v4 => {
                // struct in6_pktinfo: addr, interface.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&addr.octets());
                info[16..].copy_from_slice(&interface);
                len = self.push(len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            _ => {}
        }
        if tos != Tos::default() {
            let tos = i32::from(tos.bits()).to_ne_bytes();
            len = if v4 {
                self.push(len, libc::IPPROTO_IP, libc::IP_TOS, &tos)
            } else {
                self.push(len, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &tos)
            };
        }
        if let Some(segment) = segment {
            len = self.push(len, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        len
    }

    fn push(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let end = at + HEADER + data.len();
        self.bytes[at..][..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.bytes[at + WORD..][..4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + WORD + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..end].copy_from_slice(data);
        end.next_multiple_of(WORD)
    }

    /// Parses the first `len` bytes, written by the kernel.
    pub(super) fn parse(&self, len: usize) -> Ancillary {
        let mut ancillary = Ancillary::default();
        let mut rest = &self.bytes[..len.min(ROOM)];
        while let Some((level, kind, data, next)) = split(rest) {
            ancillary.take(level, kind, data);
            rest = next;
        }
        ancillary
    }
}

/// The interface that is sent together with a source address: only for a link-local address, which
/// is otherwise ambiguous. For all others the routing table chooses, as in the kernel module. If
/// an interface was set, IPv4 would assume that destinations without a route are on that link.
pub(super) fn scope(local: &Local) -> u32 {
    let link_local = match local.addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    if link_local { local.interface } else { 0 }
}

/// Splits off the first message (level, type, data).
fn split(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let len = usize::from_ne_bytes(*bytes.first_chunk()?);
    let level = i32::from_ne_bytes(*bytes.get(WORD..)?.first_chunk()?);
    let kind = i32::from_ne_bytes(*bytes.get(WORD + 4..)?.first_chunk()?);
    let data = bytes.get(HEADER..len)?;
    Some((level, kind, data, bytes.get(len.next_multiple_of(WORD)..).unwrap_or_default()))
}

/// The ancillary data of a received datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ancillary {
    /// Its local address and interface.
    pub(super) local: Option<Local>,
    /// Its ECN mark.
    pub(super) ecn: Ecn,
    /// The socket's drop counter, if it is not zero.
    pub(super) drops: Option<u32>,
    /// The length of each datagram except the last, if several were coalesced.
    pub(super) stride: Option<usize>,
    /// The time at which the kernel received it, since the Unix epoch.
    pub(super) received_at: Option<Duration>,
}

impl Ancillary {
    fn take(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            // spec_dst is the source address for replies, also of a broadcast.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let (Some(interface), Some(addr)) = (u32_at(data, 0), u32_at(data, 4)) {
                    let addr = IpAddr::V4(Ipv4Addr::from(addr.to_ne_bytes()));
                    self.local = Some(Local { addr, interface });
                }
            }
            // With IPv4, a dual-stack socket gets this in addition to IP_PKTINFO, with the
            // IPv4-mapped address.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let (Some(addr), Some(interface)) = (data.first_chunk(), u32_at(data, 16)) {
                    let addr = Ipv6Addr::from(*addr as [u8; 16]).to_canonical();
                    self.local = self.local.or(Some(Local { addr, interface }));
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.ecn = data.first().map_or(self.ecn, |&tos| Ecn::from_bits(tos));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.ecn = u32_at(data, 0).map_or(self.ecn, |class| Ecn::from_bits(class as u8));
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.drops = u32_at(data, 0),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                if let (Some(seconds), Some(nanos)) = (u64_at(data, 0), u64_at(data, 8)) {
                    self.received_at =
                        Some(Duration::from_secs(seconds) + Duration::from_nanos(nanos));
                }
            }
            // An int. It is absent for a single datagram.
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.stride = u32_at(data, 0).map(|stride| stride as usize);
            }
            _ => {}
        }
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(addr: &str) -> Local {
        Local { addr: addr.parse().unwrap(), interface: 7 }
    }

    #[test]
    fn control_messages_round_trip() {
        for (v4, source, ecn) in [
            (true, Some(local("192.0.2.1")), Ecn::Ce),
            (false, Some(local("2001:db8::1")), Ecn::Ect0),
            (true, Some(local("169.254.1.1")), Ecn::Ect0),
            (false, Some(local("fe80::1")), Ecn::Ect0),
            (false, None, Ecn::Ect1),
            (true, None, Ecn::NotEct),
        ] {
            let mut control = Control::EMPTY;
            let len = control.write(v4, source, ecn.into(), None);
            let written = source.map(|local| Local { interface: scope(&local), ..local });
            assert_eq!(
                control.parse(len),
                Ancillary { local: written, ecn, ..Ancillary::default() }
            );
            assert_eq!(len == 0, source.is_none() && ecn == Ecn::NotEct);
        }
    }

    #[test]
    fn interface_is_set_only_with_a_link_local_source() {
        let scopes =
            ["192.0.2.1", "2001:db8::1", "169.254.1.1", "fe80::1"].map(|a| scope(&local(a)));
        assert_eq!(scopes, [0, 0, 7, 7]);
    }

    #[test]
    fn source_of_the_other_family_is_omitted() {
        let mut control = Control::EMPTY;
        assert_eq!(control.write(true, Some(local("2001:db8::1")), Tos::default(), None), 0);
        assert_eq!(control.write(false, Some(local("192.0.2.1")), Tos::default(), None), 0);
    }

    #[test]
    fn ipv4_information_takes_precedence_over_its_mapped_form_in_any_order() {
        let mut mapped = [0; 20];
        mapped[..16].copy_from_slice(&Ipv4Addr::new(192, 0, 2, 9).to_ipv6_mapped().octets());
        mapped[16] = 7;
        let mut plain = [0; 12];
        plain[0] = 7;
        plain[4..8].copy_from_slice(&[192, 0, 2, 1]);
        for v4_first in [true, false] {
            let mut control = Control::EMPTY;
            let mut len = 0;
            for v4 in [v4_first, !v4_first] {
                len = if v4 {
                    control.push(len, libc::IPPROTO_IP, libc::IP_PKTINFO, &plain)
                } else {
                    control.push(len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &mapped)
                };
            }
            assert_eq!(control.parse(len).local.unwrap().addr, Ipv4Addr::new(192, 0, 2, 1));
        }
        let mut control = Control::EMPTY;
        let len = control.push(0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &mapped);
        assert_eq!(control.parse(len).local.unwrap().addr, Ipv4Addr::new(192, 0, 2, 9));
    }

    #[test]
    fn message_with_an_invalid_length_ends_the_list() {
        let mut control = Control::EMPTY;
        let len = control.write(true, Some(local("192.0.2.1")), Ecn::Ce.into(), None);
        for lie in [0, 1, HEADER - 1, ROOM + 1, usize::MAX] {
            control.bytes[..WORD].copy_from_slice(&lie.to_ne_bytes());
            assert_eq!(control.parse(len), Ancillary::default());
        }
        for cut in 0..len {
            control.parse(cut);
        }
    }
}
