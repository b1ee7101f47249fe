//! The headers of a UDP tunnel, VXLAN or Geneve, around each segment of what it carries (kernel
//! `skb_udp_tunnel_segment`). What is between UDP and the inner IP header is the same in all.
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

/// The headers outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    ipv6: bool,
    /// Where the UDP header begins.
    transport: usize,
    /// The sum of the pseudo-header but for its length, where there is a checksum.
    pseudo: Option<u16>,
}

impl Outer {
    /// Looks at them in a packet with the inner transport header at `inner`, which is behind
    /// the inner IP header.
    pub fn new(packet: &[u8], tunnel: Tunnel, inner: usize) -> Result<Self, SegmentError> {
        let transport = usize::from(tunnel.transport);
        let ipv6 = ip_header(packet, 0, transport)?;
        let has_room = transport + udp::HEADER_LEN <= usize::from(tunnel.inner);
        // What is summed before the inner transport must be whole words.
        if ipv6 != tunnel.ipv6 || !has_room || !(inner - transport).is_multiple_of(2) {
            return Err(SegmentError);
        }
        let udp = &packet[transport..];
        let len = u16::try_from(udp.len()).map_err(|_| SegmentError)?;
        let pseudo = tunnel.checksum.then(|| add(get_u16(udp, udp::CHECKSUM), !len));
        Ok(Self { ipv6, transport, pseudo })
    }

    /// Finishes the outer headers in `before`, the bytes in front of an inner transport that has
    /// `len` bytes and the sum `inner_sum`. The identification is `ahead` of the first.
    pub fn write(self, before: &mut [u8], len: u16, inner_sum: u16, ahead: u16) {
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
