//! TCP over a path of jumbo frames, and beside it over the same cable with the usual MTU. The
//! cable carries frame by frame as a wire does, and the receiving NIC's GRO coalesces them: one
//! that hands on super-packets as they are would hide what a frame costs.

use netns::INTERFACE;

use super::Turn;
use super::topology::Ends;
use crate::measure::{TCP_JUMBO, TCP_JUMBO_GAIN, TCP_USUAL};

/// Frames that NICs carry at most, as a rule.
const FRAME: u32 = 9000;

/// What a tunnel adds to a packet, by IPv6.
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
