//! The MTU of a tunnel compared with those of the paths to its peers.

use std::net::SocketAddr;

use crate::{Facts, Finding, Fix, Setting, Severity, Tunnel, TunnelPeer};

/// Bytes that WireGuard and UDP add to an inner packet: data header 16, tag 16, UDP 8.
const OVERHEAD: u32 = 40;
/// The minimum MTU for IPv6 (RFC 8200, section 5).
const IPV6_MIN_MTU: u32 = 1280;
/// An unused MTU is reported from this number of bytes on: it means jumbo frames, not the 20 bytes
/// between IPv4 and IPv6.
const WORTHWHILE: u32 = 1000;

/// The longest inner packet that reaches a peer unfragmented, according to the routes of this host.
fn fits(peer: &TunnelPeer) -> Option<u32> {
    let ip = match peer.endpoint? {
        SocketAddr::V4(_) => 20,
        SocketAddr::V6(_) => 40,
    };
    Some(peer.path_mtu?.saturating_sub(OVERHEAD + ip))
}

fn least(tunnel: &Tunnel) -> Option<u32> {
    tunnel.peers.iter().filter_map(fits).min()
}

/// The smallest MTU that the path search found for any peer.
fn found(tunnel: &Tunnel) -> Option<u32> {
    tunnel.peers.iter().filter(|peer| !peer.is_looped).filter_map(|peer| peer.found_mtu).min()
}

/// Finds tunnels with an MTU that is larger than a path to a peer allows.
pub(crate) fn too_long(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, name) = (tunnel.mtu?, &tunnel.name);
        // The MTU of the route takes precedence because it does not change.
        let hop = least(tunnel).filter(|hop| *hop < mtu);
        let fits = hop.or(found(tunnel)).filter(|fits| *fits < mtu)?;
        Some(Finding {
            check: "mtu",
            on: name.clone(),
            severity: Severity::Slow,
            what: match hop {
                Some(hop) => {
                    format!("the MTU is {mtu}, but only {hop} bytes fit the path to a peer")
                }
                None => format!("the MTU is {mtu}, but only {fits} bytes were found to arrive"),
            },
            why: match hop {
                None => {
                    "TCP uses shorter segments, and other senders get ICMP messages; packets that \
                    may be fragmented are sent as two fragments, which some networks drop"
                }
                Some(_) => {
                    "a longer packet is sent as two fragments: if one is lost, both are, and some \
                    networks drop fragments"
                }
            }
            .into(),
            cost: "fragments do not pass some networks (RFC 8900, section 3); twice as many outer packets",
            fix: if fits < IPV6_MIN_MTU {
                Fix::Manual(format!(
                    "IPv6 in the tunnel needs {IPV6_MIN_MTU}: check the MTU of the interfaces on the \
                    path to the peer; without IPv6, ip link set {name} mtu {fits}"
                ))
            } else if hop.is_some() {
                Fix::Change(vec![Setting::mtu(name, fits)])
            } else {
                // A smaller MTU would prevent the search from finding a wider path later.
                Fix::Manual(format!(
                    "if the path does not change: ip link set {name} mtu {fits}, which affects all \
                    peers; MTU = {fits} in the file"
                ))
            },
        })
    };
    facts.tunnels.iter().filter_map(finding).collect()
}

/// Finds tunnels with an MTU that is far smaller than their paths allow.
pub(crate) fn unused(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, fits) = (tunnel.mtu?, least(tunnel)?);
        // Beyond the first hop the path is narrower.
        let is_narrow = found(tunnel).is_some_and(|found| found < mtu);
        (fits >= mtu + WORTHWHILE && !is_narrow).then(|| Finding {
            check: "mtu-unused",
            on: tunnel.name.clone(),
            severity: Severity::Note,
            what: format!("the MTU is {mtu}, but this host's routes to all peers allow {fits} bytes"),
            why:
                "longer packets cost less for each byte; the path beyond the first hop is not known \
                here, and both ends need the same MTU"
                    .into(),
            cost: "not measured here",
            fix: Fix::Manual(format!(
                "if the whole path allows it, on both ends: ip link set {} mtu {fits}",
                tunnel.name
            )),
        })
    };
    facts.tunnels.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    fn with(mtu: u32, path: u32, endpoint: &str) -> Facts {
        let mut facts = healthy();
        facts.tunnels[0].mtu = Some(mtu);
        facts.tunnels[0].peers[0].path_mtu = Some(path);
        facts.tunnels[0].peers[0].endpoint = Some(endpoint.parse().unwrap());
        facts
    }

    const V4: &str = "192.0.2.1:1";
    const V6: &str = "[2001:db8::1]:1";

    #[test]
    fn fitting_mtu_is_computed_to_the_byte() {
        for (mtu, path, endpoint, fix) in [
            (1440, 1500, V4, None),
            (1441, 1500, V4, Some(1440)),
            (1420, 1500, V6, None),
            (1421, 1500, V6, Some(1420)),
            (1420, 1400, V4, Some(1340)),
        ] {
            let found = too_long(&with(mtu, path, endpoint));
            let wanted = fix.map(|mtu| Fix::Change(vec![Setting::mtu("wg0", mtu)]));
            assert_eq!(found.first().map(|found| found.fix.clone()), wanted, "{mtu} {path}");
        }
    }

    #[test]
    fn mtu_below_the_ipv6_minimum_is_only_advice() {
        assert!(matches!(too_long(&with(1420, 1300, V4))[0].fix, Fix::Manual(_)));
    }

    #[test]
    fn narrowest_path_decides() {
        let mut facts = with(1420, 9000, V4);
        assert_eq!(unused(&facts)[0].severity, Severity::Note);
        let mut second = facts.tunnels[0].peers[0].clone();
        second.path_mtu = Some(1400);
        facts.tunnels[0].peers.push(second);
        assert!(unused(&facts).is_empty());
        assert_eq!(too_long(&facts).len(), 1);
    }

    #[test]
    fn searched_mtu_decides_if_it_is_smaller_than_that_of_the_first_hop() {
        for (path, found, text, fix) in [
            (Some(1500), Some(1420), None, None),
            (Some(1500), Some(1340), Some("1340 bytes were found"), None),
            (None, Some(1340), Some("1340 bytes were found"), None),
            (Some(1400), Some(1420), Some("1340 bytes fit"), Some(1340)),
            (Some(1400), Some(1300), Some("1340 bytes fit"), Some(1340)),
            (Some(1500), Some(1230), Some("1230 bytes were found"), None),
        ] {
            let mut facts = with(1420, 0, V4);
            facts.tunnels[0].peers[0].path_mtu = path;
            facts.tunnels[0].peers[0].found_mtu = found;
            let findings = too_long(&facts);
            let case = (path, found);
            assert_eq!(findings.len(), usize::from(text.is_some()), "{case:?}");
            let Some(text) = text else { continue };
            assert!(findings[0].what.contains(text), "{case:?}: {}", findings[0].what);
            match fix {
                Some(mtu) => {
                    assert_eq!(findings[0].fix, Fix::Change(vec![Setting::mtu("wg0", mtu)]));
                }
                None => assert!(matches!(findings[0].fix, Fix::Manual(_)), "{case:?}"),
            }
        }
    }

    #[test]
    fn advised_mtu_is_at_most_the_searched_one() {
        let mut facts = with(1420, 9000, V4);
        facts.tunnels[0].peers[0].found_mtu = Some(1420);
        assert_eq!(unused(&facts).len(), 1, "the search stops at the MTU");
        facts.tunnels[0].peers[0].found_mtu = Some(1400);
        assert!(unused(&facts).is_empty());
    }

    #[test]
    fn unknown_paths_are_not_reported() {
        let mut facts = with(1420, 600, V4);
        facts.tunnels[0].peers[0].path_mtu = None;
        assert!(too_long(&facts).is_empty() && unused(&facts).is_empty());
    }
}
