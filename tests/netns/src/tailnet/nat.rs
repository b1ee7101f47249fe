//! Boxes that hosts are behind, each by real rules of the kernel.
//!
//! How a box maps and filters are the words of RFC 4787 and, in short, of RFC 3489. Linux maps by
//! endpoint where it may keep the port, so that a mapping looks the same from everywhere; what is
//! called symmetric here takes a port by chance.

use super::gateway;
use crate::host::Host;

/// What most have: nothing new enters, and the port is kept.
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

/// Has a host hear no UDP any more; who sends it is told nothing of that.
///
/// # Panics
/// When the kernel refuses.
pub fn deafen(host: &Host) {
    let rules = host.write("deaf", DEAF);
    host.run(format!("nft -f {rules}"));
}

/// Has it hear again.
///
/// # Panics
/// When it was not deaf.
pub fn hears(host: &Host) {
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
    /// Whoever sends to its port reaches the host.
    FullCone,
    /// The same, and the host reaches itself by the outer address.
    Hairpin,
    /// Whom the host sent to does.
    AddressRestricted,
    /// Whom the host sent to does, from the same port: what most boxes are.
    PortRestricted,
    /// The same, but it answers what nobody asked for, and so takes note of it: what comes first
    /// from outside has the box move the port of what goes there later.
    WithoutInputDrop,
    /// The same as port-restricted, but each destination sees another port.
    Symmetric,
    /// A symmetric one that routes IPv6, of which nothing new enters.
    WithIpv6,
    /// A port-restricted one behind another.
    Double,
    /// A port-restricted one that forgets what is silent for 20 seconds.
    Forgetful,
    /// It passes no UDP.
    WithoutUdp,
    /// It passes HTTPS alone.
    OnlyHttps,
    /// A port-restricted one that routes IPv6, of which nothing new enters.
    ConeWithIpv6,
    /// Inside is IPv6 alone, of which nothing new enters.
    OnlyIpv6,
    /// The same, and IPv4 outside is reached by translation (NAT64), port-restricted.
    Nat64,
    /// It passes nothing, but is a proxy for HTTP's CONNECT to port 443.
    OnlyProxy,
}

impl Nat {
    /// All.
    pub const ALL: [Nat; 15] = [
        Nat::FullCone,
        Nat::Hairpin,
        Nat::AddressRestricted,
        Nat::PortRestricted,
        Nat::WithoutInputDrop,
        Nat::Symmetric,
        Nat::WithIpv6,
        Nat::Double,
        Nat::Forgetful,
        Nat::WithoutUdp,
        Nat::OnlyHttps,
        Nat::ConeWithIpv6,
        Nat::OnlyIpv6,
        Nat::Nat64,
        Nat::OnlyProxy,
    ];

    /// Whether it routes IPv6.
    pub fn has_ipv6(self) -> bool {
        matches!(self, Nat::WithIpv6 | Nat::ConeWithIpv6) || !self.has_ipv4()
    }

    /// Whether hosts behind it have an IPv4 address.
    pub fn has_ipv4(self) -> bool {
        !matches!(self, Nat::OnlyIpv6 | Nat::Nat64)
    }

    /// What programs behind it find in their environment.
    pub fn environment(self) -> Vec<String> {
        match self {
            Nat::OnlyProxy => vec![gateway::PROXY_VARIABLE.to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether a program that it takes is not installed; a test leaves it out then, which is
    /// announced.
    pub fn is_missing(self) -> bool {
        gateway::program(self).is_some_and(gateway::is_missing)
    }

    /// Makes a router between the devices `lan` and `wan` this box, before the host with this
    /// address.
    pub(super) fn set(self, router: &Host, inside: &str) {
        let to_the_host = match self {
            Nat::FullCone => format!("iifname wan meta l4proto udp dnat to {inside}"),
            Nat::Hairpin => format!("fib daddr type local meta l4proto udp dnat to {inside}"),
            Nat::AddressRestricted => {
                format!("iifname wan ip saddr @sent meta l4proto udp dnat to {inside}")
            }
            _ => String::new(),
        };
        let note = match self {
            Nat::AddressRestricted => "oifname wan meta l4proto udp update @sent { ip daddr }",
            _ => "",
        };
        let back = match self {
            Nat::Hairpin => "iifname lan oifname lan masquerade",
            _ => "",
        };
        let ports = match self {
            Nat::Symmetric | Nat::WithIpv6 => "fully-random",
            _ => "",
        };
        let input = match self {
            Nat::WithoutInputDrop => "",
            _ => "iifname wan ct state new drop",
        };
        let through = match self {
            Nat::WithoutUdp => "meta l4proto udp drop",
            Nat::OnlyProxy => "iifname lan drop",
            Nat::OnlyHttps => {
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
        if self == Nat::Forgetful {
            for kind in ["", "_stream"] {
                router.run(format!(
                    "echo 20 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout{kind}"
                ));
            }
        }
    }
}
