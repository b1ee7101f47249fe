//! The status of a node and of the other nodes.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use mesh::local_json;

use super::plain;

/// The status of this node and of the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether the coordinator is connected. Peers are reachable without it.
    pub is_connected: bool,
    /// This node's full name, without a dot at its end.
    pub name: String,
    /// This node's addresses.
    pub addresses: Vec<IpAddr>,
    /// The other nodes.
    pub peers: Vec<Peer>,
    /// The problems of this node, one sentence each.
    pub health: Vec<String>,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its full name, without a dot at its end.
    pub name: String,
    /// The name that the machine reports.
    pub hostname: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The subnets that are reached through it, if routes are accepted.
    pub routes: Vec<IpNet>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The login name of its owner, such as an email address; empty if the node has tags.
    pub owner: String,
    /// Whether it is connected to the coordinator.
    pub is_online: bool,
    /// The path to it.
    pub path: Path,
    /// Bytes that were received from it.
    pub received: u64,
    /// Bytes that were sent to it.
    pub sent: u64,
}

/// The path to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Directly to this address.
    Direct(SocketAddr),
    /// Through a peer that relays: its address and the number of the session, such as
    /// `192.0.2.1:7:vni:3`.
    PeerRelay(String),
    /// Through the relays of this region.
    Relay(String),
    /// No path is known.
    None,
}

impl Status {
    /// The node that has an address.
    pub fn node_at(&self, address: IpAddr) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.addresses.contains(&address))
    }
}

impl From<local_json::Status> for Status {
    fn from(status: local_json::Status) -> Self {
        let owner = |peer: &local_json::PeerStatus| match status.user.get(&peer.user_id) {
            Some(user) if peer.tags.is_empty() => plain(&user.login_name),
            _ => String::new(),
        };
        let peers =
            status.peer.values().map(|peer| Peer { owner: owner(peer), ..peer_status(peer) });
        Self {
            is_connected: status.own.online,
            name: name(&status.own),
            addresses: status.tailscale_ips.clone(),
            peers: peers.collect(),
            health: status.health.iter().map(|text| plain(text)).collect(),
        }
    }
}

fn peer_status(peer: &local_json::PeerStatus) -> Peer {
    let path = match (peer.cur_addr.parse(), &*peer.peer_relay, &*peer.relay) {
        (Ok(address), _, _) => Path::Direct(address),
        (Err(_), "", "") => Path::None,
        (Err(_), "", region) => Path::Relay(plain(region)),
        (Err(_), relay, _) => Path::PeerRelay(plain(relay)),
    };
    Peer {
        name: name(peer),
        hostname: plain(&peer.host_name),
        addresses: peer.tailscale_ips.clone(),
        routes: peer.primary_routes.clone(),
        tags: peer.tags.iter().map(|tag| plain(tag)).collect(),
        owner: String::new(),
        is_online: peer.online,
        path,
        received: peer.rx_bytes,
        sent: peer.tx_bytes,
    }
}

fn name(node: &local_json::PeerStatus) -> String {
    plain(node.dns_name.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use ::tailnet::keys::NodePublic;

    use super::*;

    #[test]
    fn status_finds_the_node_of_an_address_without_control_characters() {
        let desk: IpAddr = [100, 64, 0, 2].into();
        let peer = local_json::PeerStatus {
            dns_name: "desk\u{1b}[2J.rig.test.".into(),
            tailscale_ips: vec![desk],
            cur_addr: "192.0.2.1:7".into(),
            relay: "eu".into(),
            user_id: 1,
            ..local_json::PeerStatus::default()
        };
        let far = local_json::PeerStatus { cur_addr: String::new(), ..peer.clone() };
        let user =
            tailnet::map_messages::UserProfile { login_name: "ann".into(), ..Default::default() };
        let status = Status::from(local_json::Status {
            peer: [(NodePublic([1; 32]), peer)].into(),
            user: [(1, user)].into(),
            ..local_json::Status::default()
        });
        let found = status.node_at(desk).unwrap();
        assert_eq!((&*found.name, &*found.owner), ("desk[2J.rig.test", "ann"));
        assert_eq!(found.path, Path::Direct("192.0.2.1:7".parse().unwrap()));
        assert_eq!(peer_status(&far).path, Path::Relay("eu".into()));
        let by_peer = local_json::PeerStatus { peer_relay: "192.0.2.9:7:vni:3".into(), ..far };
        assert_eq!(peer_status(&by_peer).path, Path::PeerRelay("192.0.2.9:7:vni:3".into()));
        assert_eq!(status.node_at([100, 64, 0, 3].into()), None);
    }
}
