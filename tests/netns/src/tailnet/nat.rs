//! NAT boxes in front of hosts, each by real rules of the kernel.
//!
//! Mapping and filtering are named as in RFC 4787 and, in short, RFC 3489. Linux's mapping depends
//! on the endpoint but preserves the port if possible, so that it appears the same from everywhere;
//! the boxes called symmetric here take a random port.

use super::gateway;
use crate::host::Host;

/// Rules of most boxes: new flows from outside are dropped, and the port is preserved.
const RULES: &str = "
table ip nat {
  set sent {
    type ipv4_addr
    flags dynamic, timeout
    timeout 2m
  }
  chain in {
    type nat hook prerouting priority dstnat
    TO_THE_HOST
  }
  chain out {
    type nat hook postrouting priority srcnat
    NOTE
    BACK
    oifname wan masquerade PORTS
  }
}
table inet filter {
  chain in {
    type filter hook input priority filter
    INPUT
  }
  chain through {
    type filter hook forward priority filter
    iifname wan ct status & dnat == 0 ct state new drop
    THROUGH
  }
}
";

/// Drops all UDP packets that arrive at a host. The sender gets no ICMP error.
///
/// # Panics
/// If the kernel refuses.
pub fn drop_udp(host: &Host) {
    let rules = host.write("deaf", DEAF);
    host.run(format!("nft -f {rules}"));
}

/// Undoes [`drop_udp`].
///
/// # Panics
/// If it was not in effect.
pub fn accept_udp(host: &Host) {
    host.run("nft delete table inet deaf");
}

const DEAF: &str = "
table inet deaf {
  chain in {
    type filter hook input priority filter
    iifname eth0 meta l4proto udp drop
  }
}
";

/// A box between a host and the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nat {
    /// Every sender reaches the host at its mapped port.
    FullCone,
    /// The same, and the host can reach itself by the outer address.
    Hairpin,
    /// Only addresses to which the host has sent reach it.
    AddressRestricted,
    /// Only addresses and ports to which the host has sent reach it, as with most boxes.
    PortRestricted,
    /// The same, but the box itself answers unexpected packets and creates a flow for them. If a
    /// packet from outside arrives first, the box therefore moves the port of later packets to that
    /// address.
    WithoutInputDrop,
    /// As port-restricted, but with another port for each destination.
    Symmetric,
    /// A symmetric one that routes IPv6, without new flows from outside.
    WithIpv6,
    /// A port-restricted one behind another.
    Double,
    /// A port-restricted one that deletes flows that are silent for 20 seconds.
    Forgetful,
    /// It drops UDP.
    WithoutUdp,
    /// It only allows HTTPS.
    OnlyHttps,
    /// A port-restricted one that routes IPv6, without new flows from outside.
    ConeWithIpv6,
    /// Only IPv6 inside, without new flows from outside.
    OnlyIpv6,
    /// The same, with IPv4 outside by translation (NAT64), port-restricted.
    Nat64,
    /// It forwards nothing, but is a proxy for HTTP's CONNECT to port 443.
    OnlyProxy,
}

impl Nat {
    /// All.
    pub const ALL: [Self; 15] = [
        Self::FullCone,
        Self::Hairpin,
        Self::AddressRestricted,
        Self::PortRestricted,
        Self::WithoutInputDrop,
        Self::Symmetric,
        Self::WithIpv6,
        Self::Double,
        Self::Forgetful,
        Self::WithoutUdp,
        Self::OnlyHttps,
        Self::ConeWithIpv6,
        Self::OnlyIpv6,
        Self::Nat64,
        Self::OnlyProxy,
    ];

    /// Whether it routes IPv6.
    pub fn has_ipv6(self) -> bool {
        matches!(self, Self::WithIpv6 | Self::ConeWithIpv6) || !self.has_ipv4()
    }

    /// Whether hosts behind it have an IPv4 address.
    pub fn has_ipv4(self) -> bool {
        !matches!(self, Self::OnlyIpv6 | Self::Nat64)
    }

    /// Environment variables of programs behind it.
    pub fn environment(self) -> Vec<String> {
        match self {
            Self::OnlyProxy => vec![gateway::PROXY_VARIABLE.to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether a program that it needs is not installed; then the test skips it, which is
    /// announced.
    pub fn is_missing(self) -> bool {
        gateway::program(self).is_some_and(gateway::is_missing)
    }

    /// Configures this box on a router with the devices `lan` and `wan`, in front of the host with
    /// this address.
    pub(super) fn set(self, router: &Host, inside: &str) {
        let to_the_host = match self {
            Self::FullCone => format!("iifname wan meta l4proto udp dnat to {inside}"),
            Self::Hairpin => format!("fib daddr type local meta l4proto udp dnat to {inside}"),
            Self::AddressRestricted => {
                format!("iifname wan ip saddr @sent meta l4proto udp dnat to {inside}")
            }
            _ => String::new(),
        };
        let note = match self {
            Self::AddressRestricted => "oifname wan meta l4proto udp update @sent { ip daddr }",
            _ => "",
        };
        let back = match self {
            Self::Hairpin => "iifname lan oifname lan masquerade",
            _ => "",
        };
        let ports = match self {
            Self::Symmetric | Self::WithIpv6 => "fully-random",
            _ => "",
        };
        let input = match self {
            Self::WithoutInputDrop => "",
            _ => "iifname wan ct state new drop",
        };
        let through = match self {
            Self::WithoutUdp => "meta l4proto udp drop",
            Self::OnlyProxy => "iifname lan drop",
            Self::OnlyHttps => {
                "iifname lan tcp dport != 443 drop; iifname lan meta l4proto != tcp drop"
            }
            _ => "",
        };
        let rules = RULES
            .replace("TO_THE_HOST", &to_the_host)
            .replace("NOTE", note)
            .replace("BACK", back)
            .replace("PORTS", ports)
            .replace("INPUT", input)
            .replace("THROUGH", through);
        let file = router.write("rules", &rules);
        router.run(format!("nft -f {file}"));
        if self == Self::Forgetful {
            for kind in ["", "_stream"] {
                router.run(format!(
                    "echo 20 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout{kind}"
                ));
            }
        }
    }
}
