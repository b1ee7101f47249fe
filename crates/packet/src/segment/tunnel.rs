//! Writes the headers of a UDP tunnel, VXLAN or Geneve, around each inner segment (kernel
//! `skb_udp_tunnel_segment`). The bytes between UDP and the inner IP header are the same in all
//! segments.
//!
//! ```text
//!   | IP | UDP | VXLAN, Ethernet | IP | TCP | payload ............... |
//!   | IP'| UDP'| VXLAN, Ethernet | IP'| TCP'| payload 0 |
//!   | IP'| UDP'| VXLAN, Ethernet | IP'| TCP'| payload 1 |
//! ```

use super::{SegmentError, finish, ip_header, write_ip_lengths};
use crate::{
    checksum::{add, sum},
    offload::Tunnel,
    wire::{get_u16, put_u16, udp},
};

/// The outer headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    ipv6: bool,
    /// Offset of the UDP header.
    transport: usize,
    /// The sum of the pseudo-header without its length; `None` without a checksum.
    pseudo: Option<u16>,
}

impl Outer {
    /// Reads the outer headers of a packet. `inner` is the offset of the inner transport header.
    pub(super) fn new(packet: &[u8], tunnel: Tunnel, inner: usize) -> Result<Self, SegmentError> {
        let transport = usize::from(tunnel.transport);
        let ipv6 = ip_header(packet, 0, transport)?;
        let has_room = transport + udp::HEADER_LEN <= usize::from(tunnel.inner);
        // The bytes that are summed before the inner transport header must be whole words.
        if ipv6 != tunnel.ipv6 || !has_room || !(inner - transport).is_multiple_of(2) {
            return Err(SegmentError);
        }
        let udp = &packet[transport..];
        let len = u16::try_from(udp.len()).map_err(|_| SegmentError)?;
        let pseudo = tunnel.checksum.then(|| add(get_u16(udp, udp::CHECKSUM), !len));
        Ok(Self { ipv6, transport, pseudo })
    }

    /// Finishes the outer headers in `before`, the bytes before the inner transport header. The
    /// inner transport has `len` bytes and the sum `inner_sum`. `ahead` is added to the
    /// identification.
    pub(super) fn write(self, before: &mut [u8], len: u16, inner_sum: u16, ahead: u16) {
        let (ip, udp) = before.split_at_mut(self.transport);
        let len = udp.len() as u16 + len;
        write_ip_lengths(ip, len, ahead, self.ipv6);
        put_u16(udp, udp::LENGTH, len);
        if let Some(pseudo) = self.pseudo {
            udp[udp::CHECKSUM].fill(0);
            let total = add(add(pseudo, len), add(sum(udp), inner_sum));
            put_u16(udp, udp::CHECKSUM, finish(total));
        }
    }
}
