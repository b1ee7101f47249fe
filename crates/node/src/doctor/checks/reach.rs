//! Whether peers are reached, as far as can be told from here.

use std::time::Duration;

use crate::doctor::{Facts, Finding, Mend, Tunnel, Weight};

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
    let finding = |weight, what, why: &str, cost, mend| Finding {
        check: "port",
        on: tunnel.name.clone(),
        weight,
        what,
        why: why.into(),
        cost,
        mend,
    };
    match tunnel.listen_port {
        None => finding(
            Weight::Broken,
            "no UDP port is bound".into(),
            "an interface that is down has no socket",
            "nothing is carried",
            Mend::ByHand(format!("ip link set {} up", tunnel.name)),
        ),
        Some(port) => finding(
            Weight::Note,
            format!(
                "UDP port {port} is bound; {recent} of {all} peers shook hands within 3 minutes"
            ),
            "whether a firewall or a NAT on the way lets others reach this port cannot be told \
             from this host; a handshake is the proof that one peer does",
            "none",
            Mend::Nothing,
        ),
    }
}

/// Peers that something was sent to, and that never answered.
pub(crate) fn silent_peers(facts: &Facts) -> Vec<Finding> {
    let of_tunnel = |tunnel: &Tunnel| {
        let silent = tunnel.peers.iter().filter(|peer| {
            peer.endpoint.is_some() && peer.tx_bytes > 0 && peer.last_handshake.is_none()
        });
        let keys: Vec<&str> = silent.map(|peer| peer.key.as_str()).collect();
        let first = keys.first()?;
        Some(Finding {
            check: "silent-peer",
            on: tunnel.name.clone(),
            weight: Weight::Broken,
            what: match keys.len() {
                1 => format!("peer {first} has not answered one handshake"),
                count => format!("{count} peers have not answered one handshake, {first} first"),
            },
            why: "the endpoint is wrong, a firewall or NAT drops the datagrams, or one end does \
                  not have the other's key"
                .into(),
            cost: "nothing is carried to it",
            mend: Mend::ByHand(
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
    use crate::doctor::facts::healthy;

    #[test]
    fn a_port_that_is_bound_is_noted_with_who_was_reached() {
        let mut facts = healthy();
        assert!(port(&facts)[0].what.contains("51820 is bound; 1 of 1"));
        let last = facts.tunnels[0].peers[0].last_handshake.unwrap();
        facts.clock.wall = last + SESSION - Duration::from_nanos(1);
        assert!(port(&facts)[0].what.contains("1 of 1"));
        facts.clock.wall = last + SESSION;
        assert!(port(&facts)[0].what.contains("0 of 1"));
        assert_eq!(port(&facts)[0].weight, Weight::Note);
        facts.tunnels[0].listen_port = None;
        assert_eq!(port(&facts)[0].weight, Weight::Broken);
    }

    #[test]
    fn only_a_peer_that_was_called_and_never_answered_is_silent() {
        let mut facts = healthy();
        assert!(silent_peers(&facts).is_empty());
        let peer = &mut facts.tunnels[0].peers[0];
        (peer.last_handshake, peer.tx_bytes) = (None, 148);
        let calling = facts.clone();
        assert_eq!(silent_peers(&calling)[0].weight, Weight::Broken);
        facts.tunnels[0].peers[0].tx_bytes = 0;
        assert!(silent_peers(&facts).is_empty(), "nobody called");
    }
}
