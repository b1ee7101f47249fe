//! What fits the way to a peer.

use std::net::SocketAddr;

use crate::{Facts, Finding, Fix, Setting, Severity, Tunnel, TunnelPeer};

/// What WireGuard and UDP put around an inner packet, in bytes: data header 16, tag 16,
/// UDP 8.
const OVERHEAD: u32 = 40;
/// The least MTU that IPv6 works over (RFC 8200 section 5).
const IPV6_MIN_MTU: u32 = 1280;
/// An MTU of which a way has at least this much left is worth raising, in bytes: jumbo
/// frames, not the 20 bytes between IPv4 and IPv6.
const WORTHWHILE: u32 = 1000;

/// The longest inner packet that goes to a peer in one piece, as far as this host's routes
/// tell.
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

/// The least that was found to arrive at a peer, by search.
fn found(tunnel: &Tunnel) -> Option<u32> {
    tunnel.peers.iter().filter(|peer| !peer.is_looped).filter_map(|peer| peer.found_mtu).min()
}

/// A tunnel whose longest packets do not fit the way to a peer.
pub(crate) fn too_long(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, name) = (tunnel.mtu?, &tunnel.name);
        // First what the route says, which stays: the search finds the rest.
        let hop = least(tunnel).filter(|hop| *hop < mtu);
        let fits = hop.or(found(tunnel)).filter(|fits| *fits < mtu)?;
        Some(Finding {
            check: "mtu",
            on: name.clone(),
            severity: Severity::Slow,
            what: match hop {
                Some(hop) => {
                    format!("the MTU is {mtu}, and only {hop} bytes fit the way to a peer")
                }
                None => format!("the MTU is {mtu}, and only {fits} bytes were found to arrive"),
            },
            why: match hop {
                None => {
                    "TCP goes in shorter segments and other senders are told, packet by packet; \
                     what they let be fragmented leaves in two fragments, which some networks drop"
                }
                Some(_) => {
                    "a longer packet leaves in two fragments: the loss of one loses both, and some \
                     networks drop fragments"
                }
            }
            .into(),
            cost: "fragments fail for some (RFC 8900 section 3); twice the packets outside",
            fix: if fits < IPV6_MIN_MTU {
                Fix::Manual(format!(
                    "IPv6 in the tunnel needs {IPV6_MIN_MTU}: look at the MTU of the interfaces on the way \
                     to the peer; without IPv6, ip link set {name} mtu {fits}"
                ))
            } else if hop.is_some() {
                Fix::Change(vec![Setting::mtu(name, fits)])
            } else {
                // It would keep the path from being found wide again.
                Fix::Manual(format!(
                    "where the path stays so: ip link set {name} mtu {fits}, which holds for all \
                     of its peers; MTU = {fits} in the file"
                ))
            },
        })
    };
    facts.tunnels.iter().filter_map(finding).collect()
}

/// A way that takes far longer packets than the tunnel makes.
pub(crate) fn unused(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, fits) = (tunnel.mtu?, least(tunnel)?);
        // Behind the first hop it is narrower.
        let is_narrow = found(tunnel).is_some_and(|found| found < mtu);
        (fits >= mtu + WORTHWHILE && !is_narrow).then(|| Finding {
            check: "mtu-unused",
            on: tunnel.name.clone(),
            severity: Severity::Note,
            what: format!("the MTU is {mtu}, and this host's way to each peer takes {fits} bytes"),
            why:
                "longer packets cost less for each byte; what lies behind the first hop cannot be \
                  seen from here, and both ends need the same MTU"
                    .into(),
            cost: "not measured here",
            fix: Fix::Manual(format!(
                "where the whole way is known to take it, at both ends: ip link set {} mtu {fits}",
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
    fn a_packet_fits_to_the_byte() {
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
    fn what_ipv6_would_not_fit_is_not_applied() {
        assert!(matches!(too_long(&with(1420, 1300, V4))[0].fix, Fix::Manual(_)));
    }

    #[test]
    fn the_narrowest_way_counts() {
        let mut facts = with(1420, 9000, V4);
        assert_eq!(unused(&facts)[0].severity, Severity::Note);
        let mut second = facts.tunnels[0].peers[0].clone();
        second.path_mtu = Some(1400);
        facts.tunnels[0].peers.push(second);
        assert!(unused(&facts).is_empty());
        assert_eq!(too_long(&facts).len(), 1);
    }

    #[test]
    fn what_was_found_by_search_counts_where_it_is_less_than_the_first_hop_takes() {
        for (path, found, told, fix) in [
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
            assert_eq!(findings.len(), usize::from(told.is_some()), "{case:?}");
            let Some(told) = told else { continue };
            assert!(findings[0].what.contains(told), "{case:?}: {}", findings[0].what);
            match fix {
                Some(mtu) => {
                    assert_eq!(findings[0].fix, Fix::Change(vec![Setting::mtu("wg0", mtu)]));
                }
                None => assert!(matches!(findings[0].fix, Fix::Manual(_)), "{case:?}"),
            }
        }
    }

    #[test]
    fn no_wider_mtu_is_advised_than_was_found_to_arrive() {
        let mut facts = with(1420, 9000, V4);
        facts.tunnels[0].peers[0].found_mtu = Some(1420);
        assert_eq!(unused(&facts).len(), 1, "the search looks no further than the MTU");
        facts.tunnels[0].peers[0].found_mtu = Some(1400);
        assert!(unused(&facts).is_empty());
    }

    #[test]
    fn nothing_is_said_of_ways_that_are_not_known() {
        let mut facts = with(1420, 600, V4);
        facts.tunnels[0].peers[0].path_mtu = None;
        assert!(too_long(&facts).is_empty() && unused(&facts).is_empty());
    }
}
