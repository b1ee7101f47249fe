//! The tests by name, and the plan of a turn.

use std::time::Duration;

use netns::Implementation::Linerate;
use netns::{CoordinatorKind, Iperf, Rate, Tailnet};

use crate::contender::{Carrier, Contender, HEADSCALE, TAILSCALED};
use crate::measure::Measure;

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// TCP one stream each way, four, 32, both ways; processor time and memory.
    Tcp,
    /// Round trips, idle and during a full stream.
    Ping,
    /// QUIC down and up, without its AEAD.
    Quic,
    /// Floods of small and large datagrams.
    Udp,
    /// Share of the peak that is carried during a flood.
    Overload,
    /// TCP connections a second.
    Connections,
    /// TCP over a link without segmentation offloads.
    Plain,
    /// TCP with the delay and loss of real distances.
    Far,
    /// QUIC down and up with TLS, as in practice.
    QuicTls,
    /// TCP and QUIC between hosts behind the ends of the tunnel.
    Forward,
    /// TCP in VXLAN in the tunnel.
    Vxlan,
    /// TCP over a path of jumbo frames.
    Jumbo,
    /// TCP to the last of 1, 10, 100 and 1000 peers.
    Peers,
    /// Handshakes a second of 10,000 peers, and the memory of each.
    Handshakes,
    /// TCP through userspace networking, compared with tailscaled.
    Proxy,
    /// Two members of a tailnet of headscale, compared with tailscaled.
    Tailnet,
    /// Two members behind NAT boxes, compared with tailscaled.
    Nat,
    /// Coordination and relaying, compared with headscale and Tailscale's derper.
    Server,
    /// Coordination of 10,000 nodes.
    ServerMany,
}

impl Test {
    /// All tests in the order of a turn: TCP first, to measure its memory alone.
    pub const ALL: [Self; 19] = [
        Self::Tcp,
        Self::Ping,
        Self::Quic,
        Self::Udp,
        Self::Overload,
        Self::Connections,
        Self::QuicTls,
        Self::Plain,
        Self::Far,
        Self::Forward,
        Self::Vxlan,
        Self::Jumbo,
        Self::Peers,
        Self::Handshakes,
        Self::Proxy,
        Self::Tailnet,
        Self::Nat,
        Self::Server,
        Self::ServerMany,
    ];

    /// Name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Ping => "ping",
            Self::Quic => "quic",
            Self::Udp => "udp",
            Self::Overload => "overload",
            Self::Connections => "connections",
            Self::Plain => "plain",
            Self::Far => "far",
            Self::QuicTls => "quic-tls",
            Self::Forward => "forward",
            Self::Vxlan => "vxlan",
            Self::Jumbo => "jumbo",
            Self::Peers => "peers",
            Self::Handshakes => "handshakes",
            Self::Proxy => "proxy",
            Self::Tailnet => "tailnet",
            Self::Nat => "nat",
            Self::Server => "server",
            Self::ServerMany => "server-10k",
        }
    }

    /// The tests that run by default: five rounds of two contenders take ten minutes.
    pub fn usual() -> Vec<Self> {
        use Test::{Forward, Handshakes, Jumbo, Peers, QuicTls, Vxlan};
        let is_left_out = |test: &Self| {
            matches!(test, QuicTls | Forward | Vxlan | Jumbo | Peers | Handshakes)
                || test.yardstick().is_some()
        };
        Self::ALL.into_iter().filter(|test| !is_left_out(test)).collect()
    }

    /// The test of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|test| test.name() == name)
    }

    /// The contender that the bars refer to, if it is not Tailscale's wireguard-go.
    pub fn yardstick(self) -> Option<&'static str> {
        match self {
            Self::Proxy | Self::Tailnet | Self::Nat => Some(TAILSCALED),
            Self::Server | Self::ServerMany => Some(HEADSCALE),
            _ => None,
        }
    }

    /// Whether the test starts its own ends.
    pub(super) fn has_own_ends(self) -> bool {
        self.yardstick().is_some()
    }

    /// Whether the test changes its hosts in a way that would affect other tests.
    pub(super) fn has_own_hosts(self) -> bool {
        use Test::{Far, Forward, Handshakes, Jumbo, Peers, Plain, Vxlan};
        matches!(self, Plain | Far | Forward | Vxlan | Jumbo | Peers | Handshakes)
            || self.has_own_ends()
    }

    /// Why the test cannot measure this contender; `None` if it can.
    pub(super) fn reason_to_skip(
        self,
        contender: &Contender,
        is_linked: bool,
    ) -> Option<&'static str> {
        match (self, &contender.carrier) {
            (Self::Server, Carrier::Headscale(_)) => None,
            (Self::ServerMany, Carrier::Headscale(_)) => Some("it does not support 650 nodes"),
            (_, Carrier::Headscale(_)) => Some("it carries nothing"),
            (Self::Server | Self::ServerMany, Carrier::Daemon(one))
                if one.implementation == Linerate =>
            {
                let is_there = CoordinatorKind::Linerate.program().is_some();
                (!is_there).then_some("linerate-server is not built")
            }
            (Self::Server | Self::ServerMany, _) => Some("it is not a coordinator"),
            (Self::Proxy, Carrier::Tailscaled(_)) => None,
            (Self::Proxy, Carrier::Daemon(one)) if one.implementation == Linerate => None,
            (Self::Proxy, _) => Some("it has no userspace networking"),
            (Self::Tailnet | Self::Nat, _) if !Tailnet::can_start() => {
                Some("headscale is not built")
            }
            (Self::Tailnet | Self::Nat, Carrier::Tailscaled(_)) => None,
            (Self::Tailnet | Self::Nat, Carrier::Daemon(one)) if one.implementation == Linerate => {
                None
            }
            (Self::Tailnet | Self::Nat, _) => Some("it joins no tailnet"),
            (
                Self::Plain
                | Self::Far
                | Self::Forward
                | Self::Vxlan
                | Self::Jumbo
                | Self::Peers
                | Self::Handshakes,
                Carrier::Tailscaled(_),
            ) => Some("its peers come from a control server"),
            (Self::Peers | Self::Handshakes, Carrier::Bare) => Some("a bare cable has no peers"),
            (Self::Far, Carrier::Bare) => Some(ONLY_TUNNELS),
            (Self::Vxlan, _) if !netns::has_vxlan() => Some("the kernel has no VXLAN"),
            (_, Carrier::Bare) if is_linked => Some(ONLY_TUNNELS),
            _ => None,
        }
    }
}

const ONLY_TUNNELS: &str = "the emulated link moves the datagrams of a tunnel only";

/// The plan of every turn.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tests.
    pub tests: Vec<Test>,
    /// The length of each measurement.
    pub seconds: u32,
    /// Only as long as needed to show that traffic passes.
    pub is_brief: bool,
    /// The measures, or `None` for all. The parts of a measure are included.
    pub only: Option<&'static [&'static Measure]>,
    /// The link between the hosts, in the syntax of [`Shape::parse`]; `None` for the bare cable.
    ///
    /// [`Shape::parse`]: crate::link::Shape::parse
    pub link: Option<String>,
}

/// Duration of a brief measurement, and the time before and after it.
const BRIEF: Duration = Duration::from_millis(100);
const BRIEF_EDGE: Duration = Duration::from_millis(50);

/// Bytes of a brief stream: enough for the kernel to account processor time of the daemons.
const BRIEF_BYTES: u64 = 32 << 20;

impl Plan {
    /// Whether the plan has this measure.
    pub(super) fn wants(&self, measure: &Measure) -> bool {
        self.only.is_none_or(|only| only.iter().any(|one| one.key == measure.key))
    }

    /// The length of a measurement that need not be in whole seconds.
    pub(super) fn time(&self) -> Duration {
        if self.is_brief { BRIEF } else { Duration::from_secs(self.seconds.into()) }
    }

    /// Time of traffic before and after a measurement; `usual` unless brief.
    pub(super) fn edge(&self, usual: Duration) -> Duration {
        if self.is_brief { BRIEF_EDGE } else { usual }
    }

    /// Runs a stream to its end.
    pub(super) fn stream(&self, iperf: &Iperf<'_>) -> Rate {
        if self.is_brief { iperf.carry(BRIEF_BYTES) } else { iperf.run() }
    }

    /// The link, borrowed.
    pub(super) fn link(&self) -> Option<&str> {
        self.link.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::Test;

    #[test]
    fn each_test_has_its_own_name() {
        for test in Test::ALL {
            assert_eq!(Test::named(test.name()), Some(test));
        }
    }
}
