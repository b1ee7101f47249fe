//! VXLAN inside the tunnel, as overlays over a VPN are: its datagrams are UDP that the kernel hands
//! out one by one, as it cannot describe them to a TUN device as one. Without UDP
//! checksums (RFC 7348 section 5).

use netns::{Family, Host, address};

use super::Turn;
use super::topology::Ends;
use crate::measure::VXLAN;

/// Of VXLAN's headers with those of UDP, IPv4 and Ethernet.
const HEADERS: u32 = 50;

impl Turn<'_> {
    pub(super) fn vxlan(&mut self) {
        let Ends { left, right, .. } = &self.ends;
        for (end, other, number) in [(left, right, 1), (right, left, 2)] {
            let (own, far) = (end.inner.of(Family::V4), other.inner.of(Family::V4));
            end.host.run(format!(
                "ip link add vx0 type vxlan id 7 dstport 4789 local {own} remote {far} noudpcsum"
            ));
            end.host.run(format!("ip link set vx0 mtu {} up", 1420 - HEADERS));
            address(&end.host, "vx0", &format!("10.13.0.{number}/24"));
        }
        self.target = "10.13.0.2".to_owned();
        let rate = self.stream("");
        self.note(&VXLAN, rate.gbps());
    }
}

/// Whether the kernel makes an interface of VXLAN.
pub(super) fn is_there() -> bool {
    Host::new("probe").attempt("ip link add vx0 type vxlan id 7 dstport 4789").ok
}
