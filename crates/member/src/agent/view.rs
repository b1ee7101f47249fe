//! The state of the agent as programs see it: answers to requests that change nothing.

mod why;

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use mesh::local_json::{
    ExitNodeStatus, Notify, PeerStatus, State, Status, TailnetStatus, Timestamp, WatchMask, WhoIs,
};
use serde_json::{Value, json};
use sys::clock;
use tailnet::{
    map_messages::{Node, UserProfile},
    raw_json::Json,
};

use super::{
    applied_settings::AppliedSettings,
    clock::Clock,
    coordinator::Coordinator,
    local_api::{Request, WhoIsQuery},
    peer_paths::{Mesh, direct},
    problems::Problems,
    this_node::ThisNode,
};

/// A peer is active for this time after something was sent to it (`ipnstate.go`).
const ACTIVE_TIME: std::time::Duration = std::time::Duration::from_secs(120);
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-linerate");

/// The parts of the agent that programs see.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub node: &'a ThisNode,
    pub coordinator: &'a Coordinator,
    pub mesh: &'a Mesh,
    pub applied: &'a AppliedSettings,
    pub problems: &'a Problems,
    pub clock: Clock,
}

impl View<'_> {
    /// Answers a request that changes nothing. Returns any other request.
    pub(super) fn answer(self, request: Request) -> Option<Request> {
        // Programs may be gone.
        match request {
            Request::Status { peers, reply } => drop(reply.send(Ok(Box::new(self.status(peers))))),
            Request::Prefs { reply } => {
                drop(reply.send(Ok(Box::new(self.node.prefs().clone()))));
            }
            Request::CheckPrefs { prefs, reply } => drop(reply.send(self.node.check_prefs(&prefs))),
            Request::WhoIs { query, reply } => drop(reply.send(Ok(self.whois(&query)))),
            Request::DerpMap { reply } => drop(reply.send(Ok(self.derp_map()))),
            Request::DnsConfig { reply } => drop(reply.send(Ok(json!(self.node.map().dns())))),
            Request::NetMap { reply } => drop(reply.send(Ok(self.net_map()))),
            Request::Node { id, reply } => {
                let map = self.node.map();
                let mut nodes = map.node().into_iter().chain(map.peers());
                drop(reply.send(Ok(json!(nodes.find(|node| node.id == id)))));
            }
            Request::TkaStatus { reply } => {
                drop(reply.send(Ok(self.coordinator.tka().status(self.node))));
            }
            Request::Forwarding { reply } => drop(reply.send(Ok(String::new()))),
            Request::Why { target, reply } => drop(reply.send(Ok(self.why(&target)))),
            Request::Netcheck { reply } => drop(reply.send(Ok(self.netcheck()))),
            request => return Some(request),
        }
        None
    }

    fn node_state(&self) -> State {
        self.coordinator.node_state(self.node, self.clock.wall)
    }

    fn net_map(&self) -> Value {
        let map = self.node.map();
        json!({
            "SelfNode": map.node(),
            "Peers": map.peers().collect::<Vec<_>>(),
            "Domain": map.domain(),
            "DERPMap": map.derp_map(),
            "DNS": map.dns(),
            "UserProfiles": map.users(),
        })
    }

    /// The first notification of a program.
    pub(super) fn first_notification(&self, mask: WatchMask) -> Notify {
        let mut first = Notify { version: VERSION.to_owned(), ..Notify::default() };
        if mask.has(WatchMask::INITIAL_STATE) {
            first.session_id = format!("{:x}", clock::boottime_nanos());
            first.state = Some(self.node_state());
            let page = Some(self.coordinator.login_page().to_owned());
            first.browse_to_url = page.filter(|page| !page.is_empty());
        }
        if mask.has(WatchMask::INITIAL_PREFS) {
            first.prefs = Some(Box::new(self.node.prefs().clone()));
        }
        if mask.has(WatchMask::INITIAL_STATUS) {
            first.initial_status = Some(Box::new(self.status(true)));
        }
        first
    }

    /// The state of this node, with or without peers.
    fn status(&self, peers: bool) -> Status {
        let state = self.node_state();
        let own = self.node.map().node();
        let own_status = own.map(|node| self.own_status(node));
        let addresses = own.map(|node| node.addresses.iter().map(IpNet::addr).collect());
        let peer = match peers {
            // A peer with this node's own key is invalid.
            true => {
                let others = self.node.map().peers().filter(|peer| peer.key != self.node.key());
                others.map(|peer| (peer.key, self.peer_status(peer))).collect()
            }
            false => BTreeMap::new(),
        };
        let mut health: Vec<String> = self.problems.texts().cloned().collect();
        health.extend(self.node.map().problems());
        let suffix = self.node.map().suffix().to_owned();
        let tailnet = own.map(|_| TailnetStatus {
            name: self.node.map().domain().to_owned(),
            magic_dns_suffix: suffix.clone(),
            magic_dns_enabled: self.node.map().dns().proxied,
        });
        Status {
            version: VERSION.to_owned(),
            tun: self.applied.has_interface(),
            backend_state: state,
            have_node_key: self.node.has_key(),
            auth_url: self.coordinator.login_page().to_owned(),
            tailscale_ips: addresses.unwrap_or_default(),
            own: own_status.unwrap_or_else(|| PeerStatus {
                public_key: self.node.key(),
                host_name: sys::process::hostname(),
                os: "linux".to_owned(),
                ..PeerStatus::default()
            }),
            exit_node_status: self.exit_status(),
            health,
            coordinator_problem: self.problems.text("control").to_owned(),
            magic_dns_suffix: suffix,
            current_tailnet: tailnet,
            port_mapping: self.mesh.network().port_mapping().json(self.clock.now),
            cert_domains: self.node.map().dns().cert_domains.clone(),
            extra_records: self.node.map().dns().extra_records.clone(),
            peer,
            user: self.node.map().users().clone(),
            client_version: None,
        }
    }

    fn exit_status(&self) -> Option<ExitNodeStatus> {
        let id = &self.node.prefs().exit_node_id;
        let node = self.node.map().peers().find(|peer| !id.is_empty() && peer.stable_id == *id)?;
        Some(ExitNodeStatus {
            id: node.stable_id.clone(),
            online: node.online.unwrap_or_default(),
            tailscale_ips: node.addresses.clone(),
        })
    }

    fn own_status(&self, node: &Node) -> PeerStatus {
        PeerStatus {
            addrs: self.mesh.network().endpoints().iter().map(|(at, _)| at.to_string()).collect(),
            relay: self
                .mesh
                .network()
                .home()
                .map(|home| self.node.region_code(home))
                .unwrap_or_default(),
            online: self.coordinator.is_connected() && self.coordinator.has_map(),
            in_engine: true,
            ..self.map_status(node)
        }
    }

    fn peer_status(&self, node: &Node) -> PeerStatus {
        let activity = self.mesh.activity(&node.key);
        let path = self.mesh.path(node.key);
        let last = path.as_ref().and_then(|path| path.sent);
        let ago = last.map(|at| self.clock.now.saturating_sub(at));
        let wall = self.clock.wall;
        let relay = node.home().map(|home| self.node.region_code(home));
        PeerStatus {
            cur_addr: path
                .as_ref()
                .and_then(|path| direct(path.path))
                .map(|at| at.to_string())
                .unwrap_or_default(),
            peer_relay: match path.as_ref().and_then(|path| path.path) {
                Some(ipc::Path::PeerRelay { at, vni }) => format!("{at}:vni:{vni}"),
                _ => String::new(),
            },
            relay: relay.unwrap_or_default(),
            rx_bytes: activity.map_or(0, |one| one.received),
            tx_bytes: activity.map_or(0, |one| one.sent),
            last_write: ago
                .map(|ago| Timestamp::from_unix(wall.saturating_sub(ago).as_secs()))
                .unwrap_or_default(),
            last_handshake: activity
                .and_then(|one| one.last_handshake)
                .map(|at| Timestamp::from_unix(at.as_secs()))
                .unwrap_or_default(),
            post_quantum: activity
                .and_then(|one| one.post_quantum)
                .map(|at| Timestamp::from_unix(at.as_secs())),
            active: ago.is_some_and(|ago| ago < ACTIVE_TIME),
            in_magic_sock: path.is_some(),
            in_engine: activity.is_some(),
            ..self.map_status(node)
        }
    }

    /// The part of a status that comes from the map.
    fn map_status(&self, node: &Node) -> PeerStatus {
        let time = |text: &Option<String>| text.clone().map(Timestamp).unwrap_or_default();
        let is_set = |text: &&String| !text.starts_with("0001-");
        PeerStatus {
            id: node.stable_id.clone(),
            node_id: node.id,
            public_key: node.key,
            host_name: node.hostinfo.hostname.clone(),
            dns_name: node.name.clone(),
            os: node.hostinfo.os.clone(),
            user_id: node.user,
            tailscale_ips: node.addresses.iter().map(IpNet::addr).collect(),
            allowed_ips: node.allowed_ips().to_vec(),
            tags: node.tags.clone(),
            primary_routes: node.primary_routes.clone(),
            created: time(&node.created),
            last_seen: time(&node.last_seen),
            online: node.online.unwrap_or_default(),
            exit_node: !self.node.prefs().exit_node_id.is_empty()
                && node.stable_id == self.node.prefs().exit_node_id,
            exit_node_option: node.is_exit(),
            capabilities: node.cap_map.keys().cloned().collect(),
            cap_map: node.cap_map.clone(),
            in_network_map: true,
            expired: node.has_expired(self.node.map().time(self.clock.wall)),
            key_expiry: node.key_expiry.as_ref().filter(is_set).cloned().map(Timestamp),
            ..PeerStatus::default()
        }
    }

    fn derp_map(&self) -> Value {
        match self.node.map().derp_map() {
            map if map.regions.is_some() => json!(map),
            _ => Value::Null,
        }
    }

    fn whois(&self, query: &WhoIsQuery) -> Option<Box<WhoIs>> {
        let node = match query {
            WhoIsQuery::Address { address, .. } => self.node.map().node_at(address.ip()),
            WhoIsQuery::Key(key) => self
                .node
                .map()
                .peer(key)
                .or_else(|| self.node.map().node().filter(|node| node.key == *key)),
        }?;
        let user: Option<&UserProfile> = self.node.map().user(node.user);
        let user_profile = match node.tags.is_empty() {
            true => user.cloned().unwrap_or_default(),
            false => UserProfile {
                login_name: "tagged-devices".to_owned(),
                display_name: "Tagged Devices".to_owned(),
                ..UserProfile::default()
            },
        };
        let node = Json::of(node).unwrap_or_default();
        Some(Box::new(WhoIs { node, user_profile, cap_map: Json::default() }))
    }

    fn netcheck(&self) -> Value {
        let endpoints = self.mesh.network().endpoints();
        let of = |kind| {
            let some = endpoints.iter().filter(|(_, of)| *of == kind);
            some.map(|(at, _)| at.to_string()).collect::<Vec<_>>()
        };
        use tailnet::ts2021::requests::EndpointKind::{Local, Stun};
        let latencies: HashMap<u16, f64> = self
            .mesh
            .network()
            .latencies()
            .map(|(id, took)| (id, took.as_secs_f64() * 1000.0))
            .collect();
        let regions = self.node.map().derp_map().regions.iter().flatten();
        let regions = regions.filter_map(|(id, region)| {
            let region = region.as_ref()?;
            Some(json!({
                "code": region.region_code, "name": region.region_name,
                "latency_ms": latencies.get(id), "home": self.mesh.network().home() == Some(*id),
            }))
        });
        json!({
            "UDP": if self.mesh.network().udp_works() { "works" } else { "no answer" },
            "own addresses": of(Local).join(", "),
            "seen from outside": of(Stun).join(", "),
            "NAT": self.mesh.network().nat().map_or("unknown: no STUN server answers over IPv4".into(), |nat| nat.to_string()),
            "port mapping": self.mesh.network().port_mapping().text(self.clock.now),
            "port guessing": self.mesh.birthday_probing_text(),
            "home relay": self.mesh.network().home().map_or("none".into(), |home| self.node.region_code(home)),
            "regions": regions.collect::<Vec<_>>(),
        })
    }
}
