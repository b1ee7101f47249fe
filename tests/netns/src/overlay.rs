//! VXLAN between two hosts, as in container overlays.

use crate::cable::address;
use crate::host::Host;

/// Overlay addresses of the first host and the second one.
pub const OVERLAY: [&str; 2] = ["10.13.0.1", "10.13.0.2"];

/// MTU in a tunnel of 1420 bytes, behind the headers of VXLAN, UDP and Ethernet and an IP header of
/// 20 or 40 bytes.
const MTU: [u32; 2] = [1370, 1350];

/// Creates `vx0` on both hosts, replacing an existing one, between addresses of theirs; `options` are
/// those of ip-link(8).
pub fn overlay(hosts: [&Host; 2], addresses: [&str; 2], options: &str) {
    for (own, far) in [(0, 1), (1, 0)] {
        let (host, local, remote) = (hosts[own], addresses[own], addresses[far]);
        let mtu = MTU[usize::from(local.contains(':'))];
        host.attempt("ip link delete vx0");
        host.run(format!(
            "ip link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote} {options}"
        ));
        host.run(format!("ip link set vx0 mtu {mtu} up"));
        address(host, "vx0", &format!("{}/24", OVERLAY[own]));
    }
}

/// Whether the kernel supports VXLAN.
pub fn has_vxlan() -> bool {
    Host::new("probe").attempt("ip link add vx0 type vxlan id 7 dstport 4789").ok
}
