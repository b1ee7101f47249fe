//! Traffic of hosts behind the ends of the tunnel, which forward it.
//!
//! ```text
//!   client               left                right               server
//!   eth0 10.11.0.2 ----- eth1    ~~tunnel~~  eth1 ----- 10.12.0.2 eth0
//!              10.11.0.1 |                        | 10.12.0.1
//! ```
//!
//! The hosts' packets arrive at eth1 in super-packets, as from a virtual machine or a container on
//! the same host. From a wire, single packets arrive: a NIC's GRO coalesces TCP by itself, but UDP
//! only with rx-udp-gro-forwarding (Linux 6.2). So QUIC is also sent as over a wire, with that
//! setting of the receiving device on and off.

use netns::{Host, address, cable, forward};

use super::Turn;
use super::topology::{End, Ends};
use crate::measure::{
    FORWARD_QUIC_DOWN, FORWARD_QUIC_UP, FORWARD_TCP, FORWARD_WIRE_DOWN, FORWARD_WIRE_DOWN_GAIN,
    FORWARD_WIRE_DOWN_OFF, FORWARD_WIRE_UP, FORWARD_WIRE_UP_GAIN, FORWARD_WIRE_UP_OFF, Measure,
};

/// Networks behind the left end and the right end.
const NETWORKS: [&str; 2] = ["10.11.0", "10.12.0"];

/// A direction of QUIC over a wire: with rx-udp-gro-forwarding, without, and the ratio.
type Direction = (&'static str, [&'static Measure; 3]);

const DIRECTIONS: [Direction; 2] = [
    ("down", [&FORWARD_WIRE_DOWN, &FORWARD_WIRE_DOWN_OFF, &FORWARD_WIRE_DOWN_GAIN]),
    ("up", [&FORWARD_WIRE_UP, &FORWARD_WIRE_UP_OFF, &FORWARD_WIRE_UP_GAIN]),
];

impl Turn<'_> {
    pub(super) fn forward(&mut self) {
        let Ends { left, right, .. } = &self.ends;
        let [behind_left, behind_right] = NETWORKS;
        let client = host_behind(left, "client", behind_left);
        let server = host_behind(right, "server", behind_right);
        for (end, other, network) in [(left, right, behind_right), (right, left, behind_left)] {
            end.add_peer(other, &format!(",{network}.0/24"));
            end.route_to(other, &format!("{network}.0/24"));
        }
        (self.client, self.server) = (client, server);
        self.target = format!("{behind_right}.2");
        let forth = self.stream("");
        self.note(&FORWARD_TCP, forth.gbps());
        let ways: [(&'static Measure, &str); 2] =
            [(&FORWARD_QUIC_DOWN, "down"), (&FORWARD_QUIC_UP, "up")];
        for (measure, way) in ways.into_iter().filter(|(one, _)| self.plan.wants(one)) {
            self.quic_way(measure, way, "plain");
        }
        self.send_as_over_a_wire();
        for (way, [with, without, gain]) in DIRECTIONS {
            self.coalesce("off");
            self.quic_way(without, way, "plain");
            self.coalesce("on");
            self.quic_way(with, way, "plain");
            let [with, without] = [with, without].map(|one| self.readings.borrow().of(one));
            self.note(gain, with / without);
        }
    }

    /// Segments the hosts' packets before the cable, and coalesces them by GRO behind it.
    fn send_as_over_a_wire(&self) {
        for host in [&self.client, &self.server] {
            host.run("ethtool -K eth0 tx-udp-segmentation off");
        }
        for end in [&self.ends.left, &self.ends.right] {
            end.host.run("ethtool -K eth1 gro on rx-gro-list off");
        }
    }

    fn coalesce(&self, wanted: &str) {
        for end in [&self.ends.left, &self.ends.right] {
            end.host.run(format!("ethtool -K eth1 rx-udp-gro-forwarding {wanted}"));
        }
    }
}

/// A host that is connected only to this end's host, which forwards for it.
fn host_behind(end: &End, name: &str, network: &str) -> Host {
    let host = Host::new(name);
    cable(&host, "eth0", &end.host, "eth1", 1500);
    address(&host, "eth0", &format!("{network}.2/24"));
    address(&end.host, "eth1", &format!("{network}.1/24"));
    host.run(format!("ip route add default via {network}.1"));
    forward(&end.host);
    host
}
