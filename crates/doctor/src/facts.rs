//! The input of the checks. Nothing here queries the system.

use std::{cmp::Ordering, collections::BTreeMap, net::SocketAddr, time::Duration};

use ipnet::IpNet;
use sys::{BufferSizes, ethtool::Feature};

use host::LostChange;

/// The state of a host, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The running kernel.
    pub kernel: Kernel,
    /// The probed offloads, each with the kernel's error if it refused.
    pub offloads: Vec<(&'static str, Result<(), String>)>,
    /// The buffer sizes of a test socket.
    pub buffers: Option<BufferSizes>,
    /// Kernel settings.
    pub sysctls: Sysctls,
    /// Chains of packet filters that drop forwarded packets by default.
    pub forward_drops: Vec<DroppingChain>,
    /// Devices that carry the datagrams of tunnels or receive packets to forward.
    pub interfaces: Vec<Interface>,
    /// The wall clock.
    pub clock: Clock,
    /// The running tunnels.
    pub tunnels: Vec<Tunnel>,
    /// Checks that were not possible, each as a sentence with the reason.
    pub unknown: Vec<String>,
}

/// A chain that drops forwarded packets unless one of its rules accepts them.
#[derive(Clone, Debug)]
pub enum DroppingChain {
    /// An nftables chain: family, table and name.
    Nft(String),
    /// FORWARD in legacy iptables tables: the program that lists them.
    Legacy(&'static str),
}

/// The kernel's release, `6.18.4-arch1`, and its first three numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The output of `uname -r`.
    pub release: String,
    /// Major, minor and patch; absent numbers are 0.
    pub version: [u32; 3],
}

impl Kernel {
    /// Parses a release.
    pub fn parse(release: &str) -> Self {
        let mut version = [0; 3];
        let numbers = release.split(|c: char| !c.is_ascii_digit());
        for (to, number) in version.iter_mut().zip(numbers) {
            *to = number.parse().unwrap_or(0);
        }
        Self { release: release.trim().to_owned(), version }
    }

    /// Whether it is this version or a newer one.
    pub fn is_from(&self, major: u32, minor: u32) -> bool {
        self.version[..2].cmp(&[major, minor]) != Ordering::Less
    }
}

/// Kernel settings by their path under `/proc/sys`: `net/ipv4/ip_forward`.
#[derive(Clone, Debug, Default)]
pub struct Sysctls(pub BTreeMap<String, String>);

impl Sysctls {
    /// A setting as a number; `None` if this kernel does not have the setting.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.parse().ok()
    }

    /// Whether a setting exists and is not 0.
    pub fn is_on(&self, key: &str) -> bool {
        self.number(key).is_some_and(|number| number != 0)
    }

    /// Whether the host forwards packets of either family.
    pub fn forwards(&self) -> bool {
        self.is_on("net/ipv4/ip_forward") || self.is_on("net/ipv6/conf/all/forwarding")
    }
}

/// A network interface.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The name of its driver; empty if it is unknown.
    pub driver: String,
    /// Its features, by the kernel's names.
    pub features: BTreeMap<String, Feature>,
    /// Whether it carries the datagrams of a tunnel.
    pub outer: bool,
    /// Whether it receives packets that this host forwards.
    pub forwards: bool,
}

impl Interface {
    /// Whether this feature is on.
    pub fn has(&self, feature: &str) -> bool {
        self.features.get(feature).is_some_and(|feature| feature.active)
    }
}

/// The wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The wall-clock time since the Unix epoch.
    pub wall: Duration,
    /// The time when this program was installed, a lower bound of the actual time.
    pub installed: Option<Duration>,
    /// Whether the clock is synchronised; `None` if the kernel does not know.
    pub synchronised: Option<bool>,
}

/// An interface that a daemon serves.
#[derive(Clone, Debug, Default)]
pub struct Tunnel {
    /// Its name.
    pub name: String,
    /// Its MTU; `None` without an interface on this host, as for a proxy.
    pub mtu: Option<u32>,
    /// The UDP port, while one is bound.
    pub listen_port: Option<u16>,
    /// The mark of its datagrams; 0 means no mark.
    pub fwmark: u32,
    /// Networks behind this host that its peers may reach (`OfferRoutes`, `--advertise-routes`).
    pub offers: Vec<IpNet>,
    /// Changes by `linerate up` that another program has undone since.
    pub lost: Vec<LostChange>,
    /// Bytes of the socket's receive buffer, if the daemon is linerate and has a socket.
    pub receive_buffer: Option<u64>,
    /// Bytes of the socket's send buffer, under the same conditions.
    pub send_buffer: Option<u64>,
    /// Datagrams lost because that buffer was full.
    pub overflow: u64,
    /// Number of the tunnel's datagrams that were routed back into it.
    pub looped: u64,
    /// Offloads that the kernel refused, with the number of refusals.
    pub demotions: Vec<(String, u64)>,
    /// Its peers.
    pub peers: Vec<TunnelPeer>,
    /// Its state as a tailnet node, if it is one.
    pub member: Option<Member>,
}

/// The reported state of a tailnet node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// The agent does not answer; contains the reason.
    NoAnswer(String),
    /// The agent answers.
    Answers {
        /// `Running` or another state of tailscale's `ipn/backend.go`.
        state: String,
        /// The problems that it reports.
        health: Vec<String>,
        /// Peers to which packets are currently relayed.
        relayed: Vec<String>,
    },
}

/// A peer of a tunnel.
#[derive(Clone, Debug, Default)]
pub struct TunnelPeer {
    /// Its public key.
    pub key: String,
    /// Its address and port.
    pub endpoint: Option<SocketAddr>,
    /// Its networks in the tunnel.
    pub allowed_ips: Vec<IpNet>,
    /// Whether the endpoint is routed into the tunnel and to the peer itself.
    pub is_looped: bool,
    /// MTU of the route to the endpoint, as far as this host knows.
    pub path_mtu: Option<u32>,
    /// The largest packet inside the tunnel that arrives at the peer, if the daemon has searched
    /// for it;
    /// at most the tunnel's MTU.
    pub found_mtu: Option<u32>,
    /// The time of the last handshake since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes sent to it.
    pub tx_bytes: u64,
}

/// A host without findings.
#[cfg(test)]
pub(super) fn healthy() -> Facts {
    let on = Feature { active: true, changeable: true };
    let features = [
        "rx-gro",
        "tx-checksum-ip-generic",
        "rx-udp-gro-forwarding",
        "tx-udp-segmentation",
        "tx-tcp-segmentation",
    ];
    let mut features: BTreeMap<_, _> = features.map(|name| (name.to_owned(), on)).into();
    features.insert("rx-gro-list".into(), Feature { active: false, changeable: true });
    let now = Duration::from_secs(1_800_000_000);
    let peer = TunnelPeer {
        key: "peer".into(),
        endpoint: Some(([192, 0, 2, 1], 51820).into()),
        allowed_ips: Vec::new(),
        is_looped: false,
        path_mtu: Some(1500),
        found_mtu: None,
        last_handshake: Some(now - Duration::from_mins(1)),
        tx_bytes: 1,
    };
    let names = ["tun-tso", "tun-uso", "tun-tcp-gro", "tun-udp-gro", "udp-gso", "udp-gro"];
    Facts {
        kernel: Kernel::parse("6.18.4"),
        offloads: names.map(|name| (name, Ok(()))).into(),
        buffers: Some(BufferSizes { receive: 4 << 20, send: 4 << 20, wanted: 4 << 20 }),
        sysctls: Sysctls::default(),
        forward_drops: Vec::new(),
        interfaces: vec![Interface {
            name: "eth0".into(),
            driver: "veth".into(),
            features,
            outer: true,
            forwards: false,
        }],
        clock: Clock {
            wall: now,
            installed: Some(now - Duration::from_hours(1)),
            synchronised: Some(true),
        },
        tunnels: vec![Tunnel {
            name: "wg0".into(),
            mtu: Some(1420),
            listen_port: Some(51820),
            receive_buffer: Some(4 << 20),
            send_buffer: Some(4 << 20),
            peers: vec![peer],
            ..Tunnel::default()
        }],
        unknown: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_forms_are_parsed() {
        for (release, version) in [
            ("6.18.44-fc-v595\n", [6, 18, 44]),
            ("7.0-rc3", [7, 0, 0]),
            ("5.15.0-1051-aws", [5, 15, 0]),
            ("nonsense", [0, 0, 0]),
        ] {
            assert_eq!(Kernel::parse(release).version, version, "{release}");
        }
        let kernel = Kernel::parse("6.2.0");
        assert!(kernel.is_from(6, 2) && kernel.is_from(5, 9) && !kernel.is_from(6, 10));
    }
}
