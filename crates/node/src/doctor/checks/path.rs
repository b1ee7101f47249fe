//! What fits the way to a peer.

use std::net::SocketAddr;

use crate::doctor::{Facts, Finding, Mend, Peer, Setting, Tunnel, Weight};

/// What WireGuard and UDP put around an inner packet, in bytes: data header 16, tag 16,
/// UDP 8.
const AROUND: u32 = 40;
/// The least MTU that IPv6 works over (RFC 8200 section 5).
const LEAST: u32 = 1280;
/// An MTU of which a way has at least this much left is worth raising, in bytes: jumbo
/// frames, not the 20 bytes between IPv4 and IPv6.
const WORTH: u32 = 1000;

/// The longest inner packet that goes to a peer in one piece.
fn fits(peer: &Peer) -> Option<u32> {
    let ip = match peer.endpoint? {
        SocketAddr::V4(_) => 20,
        SocketAddr::V6(_) => 40,
    };
    Some(peer.path_mtu?.saturating_sub(AROUND + ip))
}

fn least(tunnel: &Tunnel) -> Option<u32> {
    tunnel.peers.iter().filter_map(fits).min()
}

/// A tunnel whose longest packets do not fit the way to a peer.
pub(crate) fn too_long(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, fits) = (tunnel.mtu?, least(tunnel)?);
        (fits < mtu).then(|| Finding {
            check: "mtu",
            on: tunnel.name.clone(),
            weight: Weight::Slow,
            what: format!("the MTU is {mtu}, and only {fits} bytes fit the way to a peer"),
            why: "a longer packet leaves in two fragments: the loss of one loses both, and some \
                  networks drop fragments"
                .into(),
            cost: "fragments fail for some (RFC 8900 section 3); twice the packets outside",
            mend: if fits < LEAST {
                Mend::ByHand(format!(
                    "IPv6 in the tunnel needs {LEAST}: look at the MTU of the device that leads to \
                     the peer; without IPv6, ip link set {} mtu {fits}",
                    tunnel.name
                ))
            } else {
                Mend::Change(vec![Setting::mtu(&tunnel.name, fits)])
            },
        })
    };
    facts.tunnels.iter().filter_map(finding).collect()
}

/// A way that takes far longer packets than the tunnel makes.
pub(crate) fn unused(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel| {
        let (mtu, fits) = (tunnel.mtu?, least(tunnel)?);
        (fits >= mtu + WORTH).then(|| Finding {
            check: "mtu-unused",
            on: tunnel.name.clone(),
            weight: Weight::Note,
            what: format!("the MTU is {mtu}, and this host's way to each peer takes {fits} bytes"),
            why:
                "longer packets cost less for each byte; what lies behind the first hop cannot be \
                  seen from here, and both ends need the same MTU"
                    .into(),
            cost: "not measured here",
            mend: Mend::ByHand(format!(
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
    use crate::doctor::facts::healthy;

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
        for (mtu, path, endpoint, mend) in [
            (1440, 1500, V4, None),
            (1441, 1500, V4, Some(1440)),
            (1420, 1500, V6, None),
            (1421, 1500, V6, Some(1420)),
            (1420, 1400, V4, Some(1340)),
        ] {
            let found = too_long(&with(mtu, path, endpoint));
            let wanted = mend.map(|mtu| Mend::Change(vec![Setting::mtu("wg0", mtu)]));
            assert_eq!(found.first().map(|found| found.mend.clone()), wanted, "{mtu} {path}");
        }
    }

    #[test]
    fn what_ipv6_would_not_fit_is_not_applied() {
        assert!(matches!(too_long(&with(1420, 1300, V4))[0].mend, Mend::ByHand(_)));
    }

    #[test]
    fn the_narrowest_way_counts() {
        let mut facts = with(1420, 9000, V4);
        assert_eq!(unused(&facts)[0].weight, Weight::Note);
        let mut second = facts.tunnels[0].peers[0].clone();
        second.path_mtu = Some(1400);
        facts.tunnels[0].peers.push(second);
        assert!(unused(&facts).is_empty());
        assert_eq!(too_long(&facts).len(), 1);
    }

    #[test]
    fn nothing_is_said_of_ways_that_are_not_known() {
        let mut facts = with(1420, 600, V4);
        facts.tunnels[0].peers[0].path_mtu = None;
        assert!(too_long(&facts).is_empty() && unused(&facts).is_empty());
    }
}
