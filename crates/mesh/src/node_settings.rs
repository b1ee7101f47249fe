//! The settings of this node: peers, paths, filter, names and desired state of the host, computed
//! from the network map and the user's preferences.

mod lan;
mod tka_exclusions;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use ipc::{DesiredDns, DesiredHost, FilterPolicy, Identity, Peer, ToDataPlane};
use ipnet::IpNet;
use tailnet::{
    keys::NodePublic,
    map_messages::{Node, Resolver},
    tka::Authority,
};

use self::lan::Lans;
pub use self::tka_exclusions::{key_signature, rejected_by_tka};
use crate::{
    desired_host_checks, magic_dns,
    network_map::NetworkMap,
    peer_filter::{self, Input},
    peer_paths::{PeerInfo, PeerRelay},
    peer_relay,
    permitted_addresses::{NOT_ADMITTED, Scope},
    prefs::Prefs,
};

/// The maximum number of routes to single peers. If exceeded, the networks of all nodes are routed
/// instead.
const MAX_ROUTES: usize = 10_000;
/// The maximum number of peers or servers in a problem.
const MAX_REPORTED: usize = 5;
/// The node attribute that enables IPv6 addresses in answers (`tailcfg.go`,
/// `NodeAttrMagicDNSPeerAAAA`).
const AAAA: &str = "magicdns-aaaa";
/// The node attribute that maps all names below a node's name to the node.
const SUBDOMAINS: &str = "dns-subdomain-resolve";

/// The settings of this node.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The WireGuard peers.
    pub peers: Vec<Peer>,
    /// Their map entries for the path selection.
    pub paths: Vec<(NodePublic, PeerInfo)>,
    /// The usable peer relays; `None` if disabled.
    pub peer_relays: Option<Vec<PeerRelay>>,
    /// The filter policy for packets from peers.
    pub filter: FilterPolicy,
    /// The capabilities of peers at this node.
    pub grants: peer_filter::Grants,
    /// The names and resolvers. Taken out after they were applied.
    pub names: magic_dns::Config,
    /// The desired state of the host.
    pub host: DesiredHost,
    /// The ignored parts, a line each.
    pub problems: Vec<String>,
}

impl Settings {
    /// Returns the addresses and names for a data plane without an interface.
    pub fn identity(&self) -> Identity {
        let Self { names, host, .. } = self;
        let hosts = std::iter::once(&names.own).chain(&names.peers);
        let hosts = hosts.filter(|host| !host.name.is_empty());
        let extra = names.extra.iter().filter(|record| matches!(&*record.kind, "" | "A" | "AAAA"));
        let extra = extra.filter_map(|record| {
            Some((record.name.clone(), vec![record.value.parse::<IpAddr>().ok()?]))
        });
        Identity {
            addresses: host.addresses.iter().map(IpNet::addr).collect(),
            names: hosts
                .map(|host| (host.name.clone(), host.addresses.clone()))
                .chain(extra)
                .collect(),
            search: Some(names.suffix.clone())
                .filter(|suffix| !suffix.is_empty())
                .into_iter()
                .collect(),
        }
    }

    /// Returns the message that changes the peers of the data plane from `previous` to these;
    /// `None` if they are equal. Without `previous`, it contains all peers.
    pub fn peers_update(&self, previous: Option<&Self>) -> Option<ToDataPlane> {
        let by_key = |peers: &[Peer]| -> HashMap<NodePublic, Peer> {
            peers.iter().map(|peer| (peer.key, peer.clone())).collect()
        };
        let Some(Self { peers: previous, .. }) = previous else {
            let changed = self.peers.clone();
            return Some(ToDataPlane::Peers { complete: true, changed, removed: Vec::new() });
        };
        if *previous == self.peers {
            return None;
        }
        let (old, new) = (by_key(previous), by_key(&self.peers));
        let is_new = |peer: &&Peer| old.get(&peer.key) != Some(peer);
        Some(ToDataPlane::Peers {
            complete: false,
            changed: self.peers.iter().filter(is_new).cloned().collect(),
            removed: previous
                .iter()
                .map(|peer| peer.key)
                .filter(|key| !new.contains_key(key))
                .collect(),
        })
    }
}

/// The inputs in addition to map and preferences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    /// The time since 1970.
    pub now: Duration,
    /// The addresses of this machine's other interfaces with their prefix lengths.
    pub connected: &'a [IpNet],
    /// Networks from which the user accepts node addresses, in addition to tailnet addresses.
    pub ranges: &'a [IpNet],
    /// The previous resolvers of the host.
    pub servers: &'a [std::net::IpAddr],
    /// Whether the node has an interface, on which it can answer DNS.
    pub has_interface: bool,
    /// The state of tailnet lock.
    pub tka: TkaStatus<'a>,
    /// The addresses that the coordinator may name.
    pub scope: Scope,
}

/// The state of tailnet lock.
#[derive(Clone, Copy, Debug, Default)]
pub enum TkaStatus<'a> {
    /// No keys are stored. The coordinator decides whether it is on.
    #[default]
    Unknown,
    /// It was on, and its stored state is unreadable.
    Damaged,
    /// It is on.
    On {
        /// The keys that may sign node keys.
        authority: &'a Authority,
        /// This node's public key in the format of `tailscale lock`.
        own_key: &'a str,
    },
}

/// Computes the settings; empty before the map contains this node.
pub fn settings(map: &NetworkMap, prefs: &Prefs, environment: &Environment<'_>) -> Settings {
    let Some(own) = map.node() else { return Settings::default() };
    let mut problems = Vec::new();
    let now = map.time(environment.now);
    let exit = exit_node(map, prefs, now, &mut problems);
    let excluded = tka_exclusions::excluded(map, own, environment, &mut problems);
    problems.extend(wireguard_only(map));
    let usable = |peer: &&Node| {
        let has_key = !peer.key.is_zero() && peer.key != own.key;
        has_key && !peer.has_expired(now) && !peer.is_wire_guard_only && !excluded.has(&peer.key)
    };
    let all: Vec<&Node> = map.peers().filter(usable).collect();
    let lans = Lans::of(environment);
    problems.extend(lans.problem(own, &all));
    let own_of = |peer: &Node| own_addresses(peer, environment);
    let mut peers: Vec<Peer> =
        all.iter().map(|peer| wireguard(peer, &own_of(peer), &lans, prefs, exit)).collect();
    let first = [(own.key, own.addresses.clone())].into_iter();
    each_once(&mut peers, first.chain(all.iter().map(|peer| (peer.key, own_of(peer)))));
    let info = |peer: &&Node| {
        let info = PeerInfo {
            disco: peer.disco_key,
            home: peer.home(),
            endpoints: peer.endpoints.clone(),
            supports_peer_relays: peer.cap >= peer_relay::MIN_CAPABILITY_VERSION,
        };
        (peer.key, info)
    };
    let paths = all.iter().map(info).collect();
    let compiled = rules(map, own, prefs, environment, all.iter().copied().zip(&peers));
    problems.extend(compiled.problems.iter().map(ToString::to_string));
    let names = names(map, own, prefs, exit.is_some(), &lans, environment);
    problems.extend(unasked_servers(map, environment.scope));
    let host = DesiredHost {
        addresses: lans.others(&own.addresses).collect(),
        routes: routes(&peers),
        exit: exit.is_some(),
        local_networks: prefs.exit_node_allow_lan_access,
        offered: prefs.advertise_routes.clone(),
        masquerade: !prefs.no_snat,
        names: environment.has_interface.then(|| desired_dns(map, &names)).flatten(),
        relay_server: prefs
            .relay_server_port
            .filter(|_| !own.has_capability(peer_relay::NO_SERVER)),
    };
    // Without an interface the machine does not get the node's addresses.
    let ranges =
        if environment.has_interface { environment.ranges } else { &desired_host_checks::ALL };
    let (host, refused) = desired_host_checks::accept(&host, ranges, is_in(environment.connected));
    problems.extend(refused);
    let (filter, grants) = ((&compiled.policy).into(), compiled.grants);
    let peer_relays = peer_relays(&all, own, &grants);
    Settings { peers, paths, peer_relays, filter, grants, names, host, problems }
}

/// Reports the WireGuard-only peers: Tailscale's Mullvad exit nodes.
fn wireguard_only(map: &NetworkMap) -> Option<String> {
    let all: Vec<&Node> = map.peers().filter(|peer| peer.is_wire_guard_only).collect();
    let named = all.iter().take(MAX_REPORTED).map(|peer| peer.name.trim_end_matches('.'));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match all.len().saturating_sub(MAX_REPORTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = "ignored, because linerate does not support WireGuard-only peers in a tailnet";
    (!all.is_empty()).then(|| format!("{what}: {named}{more}"))
}

/// Returns the peers that provide this node their relay; `None` if disabled.
fn peer_relays(all: &[&Node], own: &Node, grants: &peer_filter::Grants) -> Option<Vec<PeerRelay>> {
    let is_relay = |peer: &&&Node| {
        peer.cap >= peer_relay::MIN_CAPABILITY_VERSION
            && !peer.disco_key.is_zero()
            && has_capability(peer, own, peer_relay::IS_RELAY, grants)
    };
    let relay =
        |peer: &&Node| PeerRelay { node: peer.key, disco: peer.disco_key, home: peer.home() };
    (!own.has_capability(peer_relay::NO_CLIENT))
        .then(|| all.iter().filter(is_relay).map(relay).collect())
}

/// Returns whether a peer has a capability at this node (tailscale `magicsock.go`, `nodeHasCap`),
/// between their first addresses of a family.
pub fn has_capability(
    peer: &Node,
    own: &Node,
    capability: &str,
    grants: &peer_filter::Grants,
) -> bool {
    let of = |node: &Node, v4: bool| {
        let mut all = node.addresses.iter().map(IpNet::addr);
        all.find(|address| address.is_ipv4() == v4)
    };
    let both = [true, false].into_iter().find_map(|v4| of(peer, v4).zip(of(own, v4)));
    let granted = |(peer, own)| grants.has(peer, own, capability);
    !peer.unsigned_peer_api_only && both.is_some_and(granted)
}

/// Compiles the filter policy and the grants.
fn rules<'a>(
    map: &NetworkMap,
    own: &Node,
    prefs: &Prefs,
    environment: &Environment<'_>,
    peers: impl Iterator<Item = (&'a Node, &'a Peer)>,
) -> peer_filter::Compiled {
    let services = peer_filter::service_addresses(own);
    let peers: Vec<peer_filter::Peer<'_>> = peers
        .map(|(node, peer)| peer_filter::Peer { node, allowed_ips: &peer.allowed_ips })
        .collect();
    let mut compiled = peer_filter::compile(&Input {
        rules: map.rules().into_iter().flatten().collect(),
        own: &own.addresses,
        services: services.as_deref().unwrap_or_default(),
        advertised: &prefs.advertise_routes,
        interfaces: environment.connected,
        peers: &peers,
        shields_up: prefs.shields_up,
    });
    compiled.problems.extend(services.err());
    compiled
}

/// Returns the selected exit node, if it is usable.
fn exit_node(
    map: &NetworkMap,
    prefs: &Prefs,
    now: Duration,
    problems: &mut Vec<String>,
) -> Option<NodePublic> {
    let id = &prefs.exit_node_id;
    if id.is_empty() && prefs.exit_node_ip.is_none() {
        return None;
    }
    let is_wanted = |peer: &&Node| {
        let has = |address| peer.addresses.iter().any(|net| net.addr() == address);
        if id.is_empty() { prefs.exit_node_ip.is_some_and(has) } else { peer.stable_id == *id }
    };
    let found = map.peers().find(is_wanted);
    match found {
        None => {
            problems.push("the exit node is not in the network: other traffic is blocked".into());
        }
        Some(peer) if !peer.is_exit() || peer.has_expired(now) => {
            problems.push(format!(
                "{} is not an exit node: other traffic is blocked",
                peer.name.trim_end_matches('.')
            ));
        }
        Some(_) => {}
    }
    // No traffic bypasses a selected exit node, even if it does not exist.
    Some(found.map(|peer| peer.key).unwrap_or_default())
}

/// Returns a node's own addresses: those of a tailnet, and private ones outside of this machine's
/// networks. All others are handled like subnets.
fn own_addresses(node: &Node, environment: &Environment<'_>) -> Vec<IpNet> {
    let is_its = |net: &&IpNet| {
        desired_host_checks::is_address(net, environment.ranges, is_in(environment.connected))
    };
    node.addresses.iter().filter(is_its).copied().collect()
}

/// Returns whether an address is in one of the networks.
fn is_in(networks: &[IpNet]) -> impl Fn(&IpNet) -> bool {
    |address| networks.iter().any(|network| network.contains(address))
}

/// Returns a peer with its accepted networks.
fn wireguard(
    peer: &Node,
    own: &[IpNet],
    lans: &Lans<'_>,
    prefs: &Prefs,
    exit: Option<NodePublic>,
) -> Peer {
    let is_accepted = |net: &&IpNet| match net.prefix_len() {
        _ if lans.has(net) => false,
        // A peer with an unsigned key gets only its own addresses (tailscale
        // `controlclient/map.go`).
        _ if peer.unsigned_peer_api_only => own.contains(net),
        0 => exit == Some(peer.key),
        _ => own.contains(net) || prefs.route_all && desired_host_checks::is_route(net),
    };
    let allowed_ips = peer.allowed_ips().iter().filter(is_accepted).map(IpNet::trunc).collect();
    Peer { key: peer.key, allowed_ips, keepalive: 0 }
}

/// Assigns each network to one peer: the node with that address, otherwise the first one.
fn each_once(peers: &mut [Peer], addresses: impl Iterator<Item = (NodePublic, Vec<IpNet>)>) {
    let mut owners: HashMap<IpNet, NodePublic> = HashMap::new();
    for (key, nets) in addresses {
        for net in nets {
            owners.entry(net).or_insert(key);
        }
    }
    for peer in peers {
        let mut is_its = |net: &&IpNet| *owners.entry(**net).or_insert(peer.key) == peer.key;
        peer.allowed_ips = peer.allowed_ips.iter().filter(&mut is_its).copied().collect();
    }
}

/// Returns the networks that are routed to the interface, without default routes.
fn routes(peers: &[Peer]) -> Vec<IpNet> {
    let all = peers.iter().flat_map(|peer| &peer.allowed_ips).copied();
    let mut routes: BTreeSet<IpNet> = all.filter(|net| net.prefix_len() > 0).collect();
    if routes.len() > MAX_ROUTES {
        routes.retain(|net| !desired_host_checks::TAILNETS.iter().any(|all| all.contains(net)));
        routes.extend(desired_host_checks::TAILNETS);
    }
    routes.into_iter().collect()
}

/// Returns the names and resolvers.
fn names(
    map: &NetworkMap,
    own: &Node,
    prefs: &Prefs,
    exit_node: bool,
    lans: &Lans<'_>,
    environment: &Environment<'_>,
) -> magic_dns::Config {
    let config = map.dns();
    let host = |node: &Node| magic_dns::Host {
        name: node.name.clone(),
        addresses: lans.others(&node.addresses).map(|net| net.addr()).collect(),
        subdomains: node.has_capability(SUBDOMAINS),
    };
    let resolvers = |list: &[Resolver]| -> Vec<magic_dns::Resolver> {
        let read = |one: &Resolver| {
            let read =
                magic_dns::Resolver::parse(&one.addr, &one.bootstrap_resolution, environment.scope);
            read.ok().filter(|resolver| !matches!(resolver, magic_dns::Resolver::Https { .. }))
        };
        list.iter().filter_map(read).collect()
    };
    // If none of the network's servers can be used, this machine's own servers replace them.
    let defaults = |list| {
        let read = resolvers(list);
        let can_ask = read.iter().any(|resolver| matches!(resolver, magic_dns::Resolver::Plain(_)));
        if can_ask { read } else { Vec::new() }
    };
    let route = |(suffix, list): (&String, &Option<Vec<Resolver>>)| {
        let list = list.as_deref().unwrap_or_default();
        let read = resolvers(list);
        (list.is_empty() || !read.is_empty()).then(|| (suffix.clone(), read))
    };
    let extra = config.extra_records.iter().map(|record| magic_dns::ExtraRecord {
        name: record.name.clone(),
        kind: record.kind.clone(),
        value: record.value.clone(),
    });
    magic_dns::Config {
        suffix: map.suffix().to_owned(),
        magic: config.proxied,
        accept: prefs.corp_dns,
        own: host(own),
        peers: map.peers().map(host).collect(),
        extra: extra.collect(),
        routes: config.routes.iter().filter_map(route).collect(),
        defaults: defaults(&config.resolvers),
        fallback: defaults(&config.fallback_resolvers),
        system: environment
            .servers
            .iter()
            .map(|&at| magic_dns::Resolver::Plain((at, 53).into()))
            .collect(),
        exit_node,
        aaaa: own.has_capability(AAAA),
    }
}

/// Returns a line for each unsupported DNS server of the network.
fn unasked_servers(map: &NetworkMap, scope: Scope) -> impl Iterator<Item = String> {
    let config = map.dns();
    let routes = config.routes.values().flatten().flatten();
    let all = config.resolvers.iter().chain(&config.fallback_resolvers).chain(routes);
    let unasked = all.filter_map(|one| match magic_dns::Resolver::parse(&one.addr, &[], scope) {
        Ok(magic_dns::Resolver::Plain(_)) => None,
        Ok(magic_dns::Resolver::Https { url, .. }) => Some(format!(
            "DNS server {url}: DNS over HTTPS is not supported; other servers are used instead"
        )),
        Ok(magic_dns::Resolver::Refused(at)) => Some(format!("DNS server {at}: {NOT_ADMITTED}")),
        Err(error) => Some(format!("DNS server {error}")),
    });
    unasked.collect::<BTreeSet<_>>().into_iter().take(MAX_REPORTED)
}

/// Returns the DNS settings of the host: this node resolves its domains, or all names.
fn desired_dns(map: &NetworkMap, names: &magic_dns::Config) -> Option<DesiredDns> {
    let config = map.dns();
    let is_unset = !config.proxied
        && names.defaults.is_empty()
        && names.routes.is_empty()
        && config.domains.is_empty();
    if !names.accept || is_unset {
        return None;
    }
    // One address is sufficient: with both, resolvers query twice.
    let address = *names.own.addresses.iter().min()?;
    let mut domains: Vec<String> = Vec::new();
    let has_default = !names.defaults.is_empty() || names.exit_node && !names.fallback.is_empty();
    if !has_default {
        let suffixes = names.routes.iter().map(|(suffix, _)| suffix.trim_end_matches('.'));
        domains.extend(suffixes.map(str::to_owned));
        if config.proxied && !map.suffix().is_empty() {
            domains.push(map.suffix().to_owned());
        }
        domains.retain(|domain| !domain.is_empty());
        domains.sort();
        domains.dedup();
    }
    let search = config.domains.iter().map(|domain| domain.trim_end_matches('.').to_owned());
    Some(DesiredDns { servers: vec![address], search: search.collect(), domains })
}

#[cfg(test)]
mod tests;
