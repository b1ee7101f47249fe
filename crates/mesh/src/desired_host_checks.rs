//! Checks of the desired state of the host. The agent parses data from the network. The steward
//! runs as root, and therefore rejects values that would redirect the machine's own traffic, or
//! that its tools could misinterpret.

use std::{
    collections::BTreeSet,
    fmt::Display,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipc::{DesiredDns, DesiredHost};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// All addresses.
pub const ALL: [IpNet; 2] = [v4([0; 4], 0), v6(0, 0)];
/// The addresses of tailnets: 100.64.0.0/10 (RFC 6598) and fd7a:115c:a1e0::/48, Tailscale's unique
/// local prefix.
pub const TAILNETS: [IpNet; 2] = [v4([100, 64, 0, 0], 10), v6(0xfd7a_115c_a1e0 << 80, 48)];
/// Networks that no node may have or route: this host, its links, and groups of hosts.
const RESERVED: [IpNet; 8] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    // Multicast and the reserved range above it.
    v4([224, 0, 0, 0], 3),
    // Includes IPv4 addresses that are embedded in IPv6.
    v6(0, 64),
    v6(0xfe80 << 112, 10),
    v6(0xfec0 << 112, 10),
    v6(0xff00 << 112, 8),
];
/// The minimum lengths of routed prefixes, for IPv4 and IPv6: shorter ones cover most of the
/// Internet, for which exit nodes exist. The shortest private networks are 10.0.0.0/8 and fc00::/7.
const SHORTEST: (u8, u8) = (8, 7);
/// The maximum number of addresses of a node.
const ADDRESSES: usize = 16;
/// The maximum number of routes.
const ROUTES: usize = 1 << 16;
/// The maximum number of offered networks.
const OFFERED: usize = 1 << 10;
/// The maximum number of domains of each kind. systemd-resolved accepts 256 search domains.
const DOMAINS: usize = 256;
/// The maximum number of reported problems.
const MAX_PROBLEMS: usize = 8;

/// Returns the accepted part of the desired state, and a line for each rejected value. `is_in_use`
/// returns whether this machine has or reaches an address without the tailnet.
pub fn accept(
    desired: &DesiredHost,
    ranges: &[IpNet],
    is_in_use: impl Fn(&IpNet) -> bool,
) -> (DesiredHost, Vec<String>) {
    let mut rejected = Rejections::default();
    let addresses = rejected.filter(&desired.addresses, ADDRESSES, "address", |net| {
        is_address(net, ranges, &is_in_use)
    });
    let offered = |net: &IpNet| !RESERVED.iter().any(|reserved| reserved.contains(net));
    let mut names = desired.names.as_ref().map(|names| {
        let is_own = |server: &IpAddr| addresses.iter().any(|own| own.addr() == *server);
        DesiredDns {
            servers: rejected.filter(&names.servers, ADDRESSES, "DNS server", is_own),
            search: rejected.filter(&names.search, DOMAINS, "domain", |name| is_domain(name)),
            domains: rejected.filter(&names.domains, DOMAINS, "domain", |name| is_domain(name)),
        }
    });
    // Without servers the settings are useless. Without domains the servers would get all queries.
    names.take_if(|names| {
        let had_domains = desired.names.as_ref().is_some_and(|desired| !desired.domains.is_empty());
        names.servers.is_empty() || had_domains && names.domains.is_empty()
    });
    let accepted = DesiredHost {
        routes: rejected.filter(&desired.routes, ROUTES, "route", is_route),
        offered: rejected.filter(&desired.offered, OFFERED, "offered network", offered),
        addresses,
        names,
        ..*desired
    };
    (accepted, rejected.problems)
}

/// Returns whether a node may have this address: an address of a tailnet, one of the `ranges` that
/// the user configured, or a private one for which `is_in_use` is false.
pub fn is_address(net: &IpNet, ranges: &[IpNet], is_in_use: impl Fn(&IpNet) -> bool) -> bool {
    let is_private = match net.addr() {
        IpAddr::V4(address) => address.is_private(),
        IpAddr::V6(address) => address.is_unique_local(),
    };
    let is_named = || ranges.iter().any(|range| range.contains(net));
    net.prefix_len() == net.max_prefix_len()
        && !is_reserved(net)
        && (TAILNETS.iter().any(|all| all.contains(net))
            || is_named()
            || is_private && !is_in_use(net))
}

/// Returns whether a network may be routed to a node.
pub fn is_route(net: &IpNet) -> bool {
    let shortest = if net.addr().is_ipv4() { SHORTEST.0 } else { SHORTEST.1 };
    net.prefix_len() >= shortest && !is_reserved(net)
}

/// Returns whether a text is a domain name of letters, digits, `-` and `_` (RFC 1035 section 2.3.1,
/// RFC 8552).
pub fn is_domain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && label.bytes().all(is_letter)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Returns whether a network overlaps with one that no node may have.
pub(crate) fn is_reserved(net: &IpNet) -> bool {
    RESERVED.iter().any(|reserved| reserved.contains(net) || net.contains(reserved))
}

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(bits: u128, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), prefix))
}

#[derive(Default)]
struct Rejections {
    problems: Vec<String>,
}

impl Rejections {
    fn filter<T: Clone + Ord + Display>(
        &mut self,
        all: &[T],
        most: usize,
        what: &str,
        is_good: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        if all.len() > most {
            self.push(format!("{what}: the maximum of {most} is exceeded"));
        }
        let mut seen = BTreeSet::new();
        let mut good = Vec::new();
        for one in all.iter().take(most) {
            if !is_good(one) {
                let shown: String = one.to_string().escape_debug().take(64).collect();
                self.push(format!("{what} {shown}: refused"));
            } else if seen.insert(one) {
                good.push(one.clone());
            }
        }
        good
    }

    fn push(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Calls `accept` for a machine without other networks.
    fn accepted(desired: &DesiredHost) -> (DesiredHost, Vec<String>) {
        accept(desired, &[], |_| false)
    }

    #[test]
    fn addresses_of_tailnets_configured_ranges_and_unused_private_networks_pass() {
        let in_use = nets(&["192.168.1.7/24", "10.1.1.1/32", "fd00:1::/64"]);
        let ranges = nets(&["203.0.113.0/24"]);
        let is_in_use = |net: &IpNet| in_use.iter().any(|network| network.contains(net));
        let is_good = |text: &str| is_address(&text.parse().unwrap(), &ranges, is_in_use);
        for address in [
            "100.64.0.1/32",
            "100.127.255.254/32",
            "fd7a:115c:a1e0::1/128",
            "10.1.1.2/32",
            "172.16.0.1/32",
            "192.168.2.1/32",
            "fd00:2::1/128",
            "203.0.113.9/32",
        ] {
            assert!(is_good(address), "{address}");
        }
        for address in [
            "8.8.8.8/32",
            "100.128.0.1/32",
            "203.0.114.9/32",
            "172.32.0.1/32",
            "2001:db8::1/128",
            // A neighbour, a next hop, and an address on the link.
            "192.168.1.1/32",
            "10.1.1.1/32",
            "fd00:1::9/128",
            "203.0.113.0/24",
        ] {
            assert!(!is_good(address), "{address}");
        }
    }

    #[test]
    fn state_of_a_usual_tailnet_is_accepted_unchanged() {
        let desired = DesiredHost {
            addresses: nets(&["100.64.0.1/32", "fd7a:115c:a1e0::1/128"]),
            routes: nets(&["100.64.0.2/32", "10.0.0.0/8", "192.168.1.0/24", "fd00::/8"]),
            offered: nets(&["0.0.0.0/0", "::/0", "192.168.7.0/24"]),
            exit: true,
            names: Some(DesiredDns {
                servers: vec!["100.64.0.1".parse().unwrap()],
                search: vec!["tail.net".into()],
                domains: vec!["64.100.in-addr.arpa".into(), "_tcp.corp".into()],
            }),
            ..DesiredHost::default()
        };
        assert_eq!(accepted(&desired), (desired, vec![]));
    }

    #[test]
    fn values_that_redirect_the_hosts_own_traffic_are_refused() {
        let desired = DesiredHost {
            addresses: nets(&[
                "127.0.0.1/32",
                "0.0.0.0/32",
                "192.168.1.5/24",
                "::1/128",
                "::ffff:127.0.0.1/128",
                "fe80::1/128",
                "255.255.255.255/32",
            ]),
            routes: nets(&[
                "0.0.0.0/0",
                "0.0.0.0/1",
                "128.0.0.0/1",
                "127.0.0.1/32",
                "169.254.169.254/32",
                "32.0.0.0/3",
                "8.0.0.0/5",
                "64.0.0.0/7",
                "2000::/3",
                "fe80::/64",
                "fe00::/7",
                "::/8",
                "ff02::1/128",
                "224.0.0.251/32",
            ]),
            offered: nets(&["127.0.0.0/8"]),
            ..DesiredHost::default()
        };
        let (part, problems) = accepted(&desired);
        assert_eq!(part, DesiredHost::default());
        assert_eq!(problems.len(), MAX_PROBLEMS);
    }

    #[test]
    fn domain_that_tools_could_misinterpret_is_refused() {
        let long = "a".repeat(64);
        for bad in ["-x", "a\nnameserver 6.6.6.6", "a b", "", ".", "a..b", "~.", "\u{1b}[2J", &long]
        {
            assert!(!is_domain(bad), "{bad:?}");
        }
        let names = |domains: &[&str], servers: &[&str]| DesiredDns {
            servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
            search: vec!["a.net".into(), "a.net".into(), "--set=x".into()],
            domains: domains.iter().map(ToString::to_string).collect(),
        };
        let desired = |names| DesiredHost {
            addresses: nets(&["100.64.0.1/32"]),
            names: Some(names),
            ..DesiredHost::default()
        };
        let (part, problems) = accepted(&desired(names(&["a.net"], &["100.64.0.1", "6.6.6.6"])));
        let names_of_it = part.names.unwrap();
        assert_eq!((names_of_it.servers.len(), names_of_it.search), (1, vec!["a.net".to_owned()]));
        assert_eq!(problems.len(), 2, "{problems:?}");
        // All names must not go to a server that was meant for some domains.
        assert_eq!(accepted(&desired(names(&["-x"], &["100.64.0.1"]))).0.names, None);
        assert_eq!(accepted(&desired(names(&["a.net"], &["6.6.6.6"]))).0.names, None);
    }

    #[test]
    fn long_lists_are_truncated() {
        let one = |number: u32| IpNet::from(IpAddr::from(std::net::Ipv4Addr::from(number)));
        let desired = DesiredHost {
            addresses: (0x0a00_0000..0x0a00_0100).map(one).collect(),
            routes: (0x0a00_0000..0x0a02_0000).map(one).collect(),
            offered: (0x0a00_0000..0x0a00_2000).map(one).collect(),
            ..DesiredHost::default()
        };
        let (part, problems) = accepted(&desired);
        assert_eq!((part.addresses.len(), part.routes.len()), (ADDRESSES, ROUTES));
        assert_eq!((part.offered.len(), problems.len()), (OFFERED, 3));
    }
}
