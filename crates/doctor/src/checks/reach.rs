//! Whether peers are reached, as far as can be told from here.

use std::{net::SocketAddr, time::Duration};

use crate::{Facts, Finding, Fix, Severity, Tunnel};

/// A session ends this long after its handshake (WireGuard paper, section 6.1): who shook
/// hands within that time was reached.
const SESSION: Duration = Duration::from_mins(3);

/// The port, and who was reached through it.
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
            "an interface that is down has no socket",
            "nothing is carried",
            Fix::Manual(format!("ip link set {} up", tunnel.name)),
        ),
        Some(port) => finding(
            Severity::Note,
            format!(
                "UDP port {port} is bound; {recent} of {all} peers shook hands within 3 minutes"
            ),
            "whether a firewall or a NAT on the way lets others reach this port cannot be told \
             from this host; a handshake is the proof that one peer does",
            "none",
            Fix::None,
        ),
    }
}

/// Peers whose endpoint is reached through the tunnel that leads to them, which can carry
/// nothing; and what came back into a tunnel that way earlier.
pub(crate) fn loops(facts: &Facts) -> Vec<Finding> {
    let finding = |tunnel: &Tunnel, severity, what, fix| Finding {
        check: "circle",
        on: tunnel.name.clone(),
        severity,
        what,
        why: "what is encrypted for a peer comes back to the tunnel as a packet for that peer, \
              and is dropped there (`out loop` in linerate show)"
            .into(),
        cost: "nothing is carried to the peer while its endpoint is reached through the tunnel",
        fix,
    };
    let of_tunnel = |tunnel: &Tunnel| {
        let circling = tunnel.peers.iter().filter(|peer| peer.is_looped);
        let endpoints: Vec<_> = circling.filter_map(|peer| peer.endpoint).collect();
        let Tunnel { name, looped, .. } = tunnel;
        let Some(first) = endpoints.first() else {
            let what = format!("{looped} datagrams of its own came back into {name}");
            return (*looped > 0).then(|| finding(tunnel, Severity::Note, what, Fix::None));
        };
        let (ip, len, default) = match first {
            SocketAddr::V4(v4) => (v4.ip().to_string(), 32, "0.0.0.0/0"),
            SocketAddr::V6(v6) => (v6.ip().to_string(), 128, "::/0"),
        };
        let what = format!("the way to the endpoint {first} leads into {name} itself");
        let fix = format!(
            "in the file, {default} in AllowedIPs in the place of networks that only together are \
             everything: `linerate up` then keeps its own datagrams out of the tunnel; or a route \
             to {ip}/{len} by the host's gateway"
        );
        Some(finding(tunnel, Severity::Broken, what, Fix::Manual(fix)))
    };
    facts.tunnels.iter().filter_map(of_tunnel).collect()
}

/// Peers that something was sent to, and that never answered.
pub(crate) fn silent_peers(facts: &Facts) -> Vec<Finding> {
    let of_tunnel = |tunnel: &Tunnel| {
        let silent = tunnel.peers.iter().filter(|peer| {
            // Why one whose way is a circle does not answer is known.
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
                1 => format!("peer {first} has not answered one handshake"),
                count => format!("{count} peers have not answered one handshake, {first} first"),
            },
            why: "the endpoint is wrong, a firewall or NAT drops the datagrams, or one end does \
                  not have the other's key"
                .into(),
            cost: "nothing is carried to it",
            fix: Fix::Manual(
                "compare keys and endpoint at both ends, and see with tcpdump whether the \
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
    fn a_port_that_is_bound_is_noted_with_who_was_reached() {
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
    fn a_way_into_the_tunnel_itself_is_found_and_is_why_the_peer_is_silent() {
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
            assert!(silent_peers(&facts).is_empty(), "it is told already");
        }
    }

    #[test]
    fn only_a_peer_that_was_called_and_never_answered_is_silent() {
        let mut facts = healthy();
        assert!(silent_peers(&facts).is_empty());
        let peer = &mut facts.tunnels[0].peers[0];
        (peer.last_handshake, peer.tx_bytes) = (None, 148);
        let calling = facts.clone();
        assert_eq!(silent_peers(&calling)[0].severity, Severity::Broken);
        facts.tunnels[0].peers[0].tx_bytes = 0;
        assert!(silent_peers(&facts).is_empty(), "nobody called");
    }
}
