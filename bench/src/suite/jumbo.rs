//! TCP over a path of jumbo frames, and over the same cable with the usual MTU. The cable carries
//! single frames as a wire does, and the receiving NIC's GRO coalesces them: passing on
//! super-packets would hide the cost of a frame.

use netns::INTERFACE;

use super::Turn;
use super::topology::Ends;
use crate::measure::{TCP_JUMBO, TCP_JUMBO_GAIN, TCP_USUAL};

/// The largest frame of most NICs.
const FRAME: u32 = 9000;

/// What a tunnel over IPv6 adds to a packet.
const OVERHEAD: u32 = 80;

impl Turn<'_> {
    pub(super) fn jumbo(&mut self) {
        let Ends { left, right, .. } = &self.ends;
        for end in [left, right] {
            end.host.run("ethtool -K eth0 tx-udp-segmentation off tso off gso off gro on");
        }
        let usual = self.stream("").gbps();
        self.note(&TCP_USUAL, usual);
        let Ends { left, right, .. } = &self.ends;
        for end in [left, right] {
            end.host.run(format!("ip link set eth0 mtu {FRAME}"));
        }
        for end in [left, right].into_iter().filter(|end| end.key.is_some()) {
            end.host.run(format!("ip link set {INTERFACE} mtu {}", FRAME - OVERHEAD));
        }
        let jumbo = self.stream("").gbps();
        self.note(&TCP_JUMBO, jumbo);
        self.note(&TCP_JUMBO_GAIN, jumbo / usual);
    }
}
