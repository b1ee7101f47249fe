//! Traffic of hosts behind the ends of the tunnel, which forward it.
//!
//! ```text
//!   client               left                right               server
//!   eth0 10.11.0.2 ----- eth1    ~~tunnel~~  eth1 ----- 10.12.0.2 eth0
//!              10.11.0.1 |                        | 10.12.0.1
//! ```

use netns::{Host, address, cable, forward};

use super::Turn;
use super::topology::{End, Ends};
use crate::measure::{FORWARD_QUIC_DOWN, FORWARD_QUIC_UP, FORWARD_TCP};

/// Behind the left end and behind the right one.
const NETWORKS: [&str; 2] = ["10.11.0", "10.12.0"];

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
        self.quic_way(&FORWARD_QUIC_DOWN, "down", "plain");
        self.quic_way(&FORWARD_QUIC_UP, "up", "plain");
    }
}

/// A host with only this end's host beside it, which forwards for it.
fn host_behind(end: &End, name: &str, network: &str) -> Host {
    let host = Host::new(name);
    cable(&host, "eth0", &end.host, "eth1", 1500);
    address(&host, "eth0", &format!("{network}.2/24"));
    address(&end.host, "eth1", &format!("{network}.1/24"));
    host.run(format!("ip route add default via {network}.1"));
    forward(&end.host);
    host
}
