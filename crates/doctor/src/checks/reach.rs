//! Whether peers are reachable, as far as this host can determine.

use std::{net::SocketAddr, time::Duration};

use crate::{Facts, Finding, Fix, Severity, Tunnel};

/// The lifetime of a session after its handshake (WireGuard paper, section 6.1). A peer with a more
/// recent handshake is reachable.
const SESSION: Duration = Duration::from_mins(3);

/// Reports each tunnel's port and the number of peers that are reachable through it.
pub(crate) fn port(facts: &Facts) -> Vec<Finding> {
    facts.tunnels.iter().map(|tunnel| port_of(facts, tunnel)).collect()
}

fn port_of(facts: &Facts, tunnel: &Tunnel) -> Finding {
    let recent = tunnel.peers.iter().filter(|peer| {
        peer.last_handshake.is_some_and(|then| facts.clock.wall.saturating_sub(then) < SESSION)
    });
    let (recent, all) = (recent.count(), tunnel.peers.len());
    let finding = |severity, what, why: &str, cost, fix| Finding {
        check: "port",
        on: tunnel.name.clone(),
        severity,
        what,
        why: why.into(),
        cost,
        fix,
    };
    match tunnel.listen_port {
        None => finding(
            Severity::Broken,
            "no UDP port is bound".into(),
            "an interface has a socket only while it is up",
            "no packets are transported",
            Fix::Manual(format!("ip link set {} up", tunnel.name)),
        ),
        Some(port) => finding(
            Severity::Note,
            format!(
                "UDP port {port} is bound; {recent} of {all} peers completed a handshake within 3 minutes"
            ),
            "this host cannot determine whether a firewall or NAT blocks this port; a handshake \
            proves that it is reachable for one peer",
            "none",
            Fix::None,
        ),
    }
}

/// Finds peers with an endpoint that is routed through their own tunnel, and tunnels that received
/// their own datagrams that way earlier.
pub(crate) fn loops(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel, severity, what, fix| {
        Finding {
        check: "circle",
        on: tunnel.name.clone(),
        severity,
        what,
        why: "an encrypted datagram for the peer returns to the tunnel as a packet for the same peer, \
        and is dropped there (`out loop` in linerate show)"
            .into(),
        cost: "no packets reach the peer while its endpoint is routed through the tunnel",
        fix,
    }
    };
    let of_tunnel = |tunnel: &Tunnel| {
        let looped_peers = tunnel.peers.iter().filter(|peer| peer.is_looped);
        let endpoints: Vec<_> = looped_peers.filter_map(|peer| peer.endpoint).collect();
        let Tunnel { name, looped, .. } = tunnel;
        let Some(first) = endpoints.first() else {
            let what = format!("{looped} datagrams of {name} were routed back into {name}");
            return (*looped > 0).then(|| finding(tunnel, Severity::Note, what, Fix::None));
        };
        let (ip, len, default) = match first {
            SocketAddr::V4(v4) => (v4.ip().to_string(), 32, "0.0.0.0/0"),
            SocketAddr::V6(v6) => (v6.ip().to_string(), 128, "::/0"),
        };
        let what = format!("the route to the endpoint {first} leads into {name} itself");
        let fix = format!(
            "in the file, use {default} in AllowedIPs instead of several networks that together \
            contain all addresses, so that `linerate up` routes its own datagrams outside the \
            tunnel; or add a route to {ip}/{len} through the host's gateway"
        );
        Some(finding(tunnel, Severity::Broken, what, Fix::Manual(fix)))
    };
    facts.tunnels.iter().filter_map(of_tunnel).collect()
}

/// Finds peers that never answered although datagrams were sent to them.
pub(crate) fn silent_peers(facts: &Facts) -> Vec<Finding> {
    let of_tunnel = |tunnel: &Tunnel| {
        let silent = tunnel.peers.iter().filter(|peer| {
            // `loops` reports peers with a looped route.
            peer.endpoint.is_some()
                && !peer.is_looped
                && peer.tx_bytes > 0
                && peer.last_handshake.is_none()
        });
        let keys: Vec<&str> = silent.map(|peer| peer.key.as_str()).collect();
        let first = keys.first()?;
        Some(Finding {
            check: "silent-peer",
            on: tunnel.name.clone(),
            severity: Severity::Broken,
            what: match keys.len() {
                1 => format!("peer {first} has not answered any handshake"),
                count => {
                    format!("{count} peers have not answered any handshake, for example {first}")
                }
            },
            why: "the endpoint is wrong, a firewall or NAT drops the datagrams, or one end does \
                  not have the other's key"
                .into(),
            cost: "no packets reach the peer",
            fix: Fix::Manual(
                "compare keys and endpoints on both ends, and check with tcpdump whether the \
                datagrams arrive"
                    .into(),
            ),
        })
    };
    facts.tunnels.iter().filter_map(of_tunnel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TunnelPeer, facts::healthy};

    #[test]
    fn bound_port_is_noted_with_the_number_of_reachable_peers() {
        let mut facts = healthy();
        assert!(port(&facts)[0].what.contains("51820 is bound; 1 of 1"));
        let last = facts.tunnels[0].peers[0].last_handshake.unwrap();
        facts.clock.wall = last + SESSION - Duration::from_nanos(1);
        assert!(port(&facts)[0].what.contains("1 of 1"));
        facts.clock.wall = last + SESSION;
        assert!(port(&facts)[0].what.contains("0 of 1"));
        assert_eq!(port(&facts)[0].severity, Severity::Note);
        facts.tunnels[0].listen_port = None;
        assert_eq!(port(&facts)[0].severity, Severity::Broken);
    }

    #[test]
    fn route_into_the_tunnel_itself_is_found_instead_of_a_silent_peer() {
        let mut facts = healthy();
        assert!(loops(&facts).is_empty());
        facts.tunnels[0].looped = 3;
        let past = &loops(&facts)[0];
        assert_eq!((past.severity, &past.fix), (Severity::Note, &Fix::None));
        for (endpoint, default, host) in [
            ("192.0.2.1:51820", " 0.0.0.0/0 ", " 192.0.2.1/32 "),
            ("[2001:db8::1]:51820", " ::/0 ", " 2001:db8::1/128 "),
        ] {
            facts.tunnels[0].peers[0] = TunnelPeer {
                endpoint: Some(endpoint.parse().unwrap()),
                is_looped: true,
                tx_bytes: 148,
                ..TunnelPeer::default()
            };
            let found = loops(&facts);
            assert_eq!((found.len(), found[0].severity), (1, Severity::Broken));
            let Fix::Manual(fix) = &found[0].fix else { panic!("{found:?}") };
            assert!(fix.contains(default) && fix.contains(host), "{fix}");
            assert!(silent_peers(&facts).is_empty(), "it is reported already");
        }
    }

    #[test]
    fn only_a_peer_that_never_answered_a_sent_handshake_is_silent() {
        let mut facts = healthy();
        assert!(silent_peers(&facts).is_empty());
        let peer = &mut facts.tunnels[0].peers[0];
        (peer.last_handshake, peer.tx_bytes) = (None, 148);
        let sending = facts.clone();
        assert_eq!(silent_peers(&sending)[0].severity, Severity::Broken);
        facts.tunnels[0].peers[0].tx_bytes = 0;
        assert!(silent_peers(&facts).is_empty(), "nothing was sent");
    }
}
