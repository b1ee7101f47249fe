//! Compares filters of random policies with a naive evaluation of the rules, address by address.

use std::net::IpAddr;

use ipnet::IpNet;
use policy::{Compiled, Node, Nodes, Policy};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use tailnet::map_messages::FilterRule;

use crate::network::{network, text};

const SOURCES: [&str; 12] = [
    "*",
    "ada@example.net",
    "ben@example.net",
    "user:*@example.net",
    "group:staff",
    "tag:web",
    "tag:base",
    "autogroup:member",
    "autogroup:tagged",
    "lab",
    "100.64.0.0/30",
    "100.64.0.6",
];
/// Sources that a rule for `autogroup:self` may have.
const USERS: [&str; 5] =
    ["ada@example.net", "ben@example.net", "user:*@example.net", "group:staff", "autogroup:member"];
const TARGETS: [&str; 12] = [
    "*",
    "ada@example.net",
    "group:staff",
    "tag:web",
    "tag:router",
    "autogroup:member",
    "autogroup:tagged",
    "autogroup:self",
    "lab",
    "printer",
    "10.0.0.0/8",
    "fd7a:115c:a1e0::4",
];
const PORTS: [(&str, u16, u16); 4] =
    [("*", 0, 65535), ("22", 22, 22), ("80-90", 80, 90), ("443", 443, 443)];

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    sources: Vec<&'static str>,
    targets: Vec<(&'static str, (&'static str, u16, u16))>,
    is_grant: bool,
}

pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let target = (select(&TARGETS[..]), select(&PORTS[..]));
    let targets = prop::collection::vec(target, 1..3);
    let any_source = prop::collection::vec(select(&SOURCES[..]), 1..3);
    let users = prop::collection::vec(select(&USERS[..]), 1..3);
    (any_source, users, targets, any::<bool>()).prop_map(|(any, users, targets, is_grant)| {
        let is_self = targets.iter().any(|(target, _)| *target == "autogroup:self");
        Rule { sources: if is_self { users } else { any }, targets, is_grant }
    })
}

pub(crate) fn sections(rules: &[Rule]) -> Value {
    let (mut acls, mut grants) = (Vec::new(), Vec::new());
    for rule in rules {
        let src = &rule.sources;
        if rule.is_grant {
            grants.extend(
                rule.targets.iter().map(
                    |(target, (ports, ..))| json!({"src": src, "dst": [target], "ip": [ports]}),
                ),
            );
        } else {
            let targets = rule.targets.iter();
            let dst: Vec<_> =
                targets.map(|(target, (ports, ..))| format!("{target}:{ports}")).collect();
            acls.push(json!({"action": "accept", "src": src, "dst": dst}));
        }
    }
    json!({"acls": acls, "grants": grants})
}

fn owner(nodes: &Nodes, address: IpAddr) -> Option<&Node> {
    nodes.nodes.iter().find(|node| node.addresses.contains(&address))
}

/// Whether a name matches an address.
fn means(nodes: &Nodes, name: &str, address: IpAddr) -> bool {
    let node = owner(nodes, address);
    let is_users = |users: &[u64]| {
        node.is_some_and(|node| node.user.is_some_and(|user| users.contains(&user)))
    };
    match name {
        "*" => {
            let mut routes = nodes.nodes.iter().flat_map(|node| &node.routes);
            node.is_some() || routes.any(|net| net.prefix_len() > 0 && net.contains(&address))
        }
        "ada@example.net" => is_users(&[1]),
        "ben@example.net" => is_users(&[2]),
        "user:*@example.net" | "group:staff" | "autogroup:member" => is_users(&[1, 2]),
        "autogroup:tagged" => node.is_some_and(|node| !node.tags.is_empty()),
        "lab" => address.to_string().starts_with("10.1.2."),
        "printer" => address.to_string() == "10.1.2.3",
        tag if tag.starts_with("tag:") => {
            node.is_some_and(|node| node.tags.iter().any(|own| own == tag))
        }
        net if net.contains('/') => net.parse::<IpNet>().unwrap().contains(&address),
        single => single.parse::<IpAddr>().unwrap() == address,
    }
}

fn naive(nodes: &Nodes, rules: &[Rule], source: IpAddr, target: IpAddr, port: u16) -> bool {
    let user = |address| owner(nodes, address).and_then(|node| node.user);
    rules.iter().any(|rule| {
        rule.sources.iter().any(|name| means(nodes, name, source))
            && rule.targets.iter().any(|(name, (_, first, last))| {
                let is_target = match *name {
                    "autogroup:self" => user(source).is_some() && user(source) == user(target),
                    // Every destination.
                    "*" => true,
                    name => means(nodes, name, target),
                };
                is_target && (*first..=*last).contains(&port)
            })
    })
}

fn covers(text: &str, address: IpAddr) -> bool {
    match text.split_once('-') {
        _ if text == "*" => true,
        Some((first, last)) => {
            let (first, last): (IpAddr, IpAddr) = (first.parse().unwrap(), last.parse().unwrap());
            first.is_ipv4() == address.is_ipv4() && first <= address && address <= last
        }
        None if text.contains('/') => text.parse::<IpNet>().unwrap().contains(&address),
        None => text.parse::<IpAddr>().unwrap() == address,
    }
}

fn admits(filter: &[FilterRule], source: IpAddr, target: IpAddr, port: u16) -> bool {
    filter.iter().any(|rule| {
        rule.sources.iter().any(|text| covers(text, source))
            && rule.destinations.iter().any(|to| {
                covers(&to.addresses, target) && (to.ports.first..=to.ports.last).contains(&port)
            })
    })
}

fn compiled(rules: &[Rule]) -> Compiled {
    Policy::parse(&text(&sections(rules))).unwrap().compile(&network())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_filter_admits_the_same_packets_as_a_naive_evaluation(rules in prop::collection::vec(rule(), 1..4)) {
        let nodes = network();
        let compiled = compiled(&rules);
        let behind: [IpAddr; 3] = ["10.1.2.3", "10.1.2.9", "10.1.200.1"].map(|text| text.parse().unwrap());
        let own = || nodes.nodes.iter().flat_map(|node| node.addresses.iter().copied());
        for (index, node) in nodes.nodes.iter().enumerate() {
            let filter = compiled.filter(index);
            let routed = behind.into_iter().filter(|to| node.routes.iter().any(|net| net.prefix_len() > 0 && net.contains(to)));
            for target in node.addresses.iter().copied().chain(routed) {
                for source in own().chain(behind) {
                    for port in [22, 80, 443] {
                        let wanted = naive(&nodes, &rules, source, target, port);
                        let found = admits(&filter, source, target, port);
                        prop_assert_eq!(wanted, found, "{} to {} {} at {}", source, target, port, &node.name);
                    }
                }
            }
        }
    }

    #[test]
    fn an_admitted_source_is_a_peer_and_peers_are_symmetric(rules in prop::collection::vec(rule(), 1..4)) {
        let nodes = network();
        let compiled = compiled(&rules);
        for (index, node) in nodes.nodes.iter().enumerate() {
            let peers = compiled.peers(index);
            prop_assert!(!peers.contains(index));
            prop_assert!(peers.iter().all(|peer| compiled.peers(peer).contains(index)));
            let filter = compiled.filter(index);
            for (other, from) in nodes.nodes.iter().enumerate().filter(|&(other, _)| other != index) {
                let is_admitted = [22, 80, 443].iter().any(|&port| {
                    from.addresses.iter().any(|&source| {
                        node.addresses.iter().any(|&target| admits(&filter, source, target, port))
                    })
                });
                prop_assert!(!is_admitted || peers.contains(other));
            }
        }
    }

    #[test]
    fn parsing_does_not_panic_on_random_text(text in "[\\[\\]{}:,\"/*\\\\ \n#a-z0-9.@-]{0,80}", cut in 0_usize..2000) {
        let _ = Policy::parse(&text);
        let whole = crate::network::text(&json!({"acls": [{"action": "accept", "src": ["*"], "dst": [text]}]}));
        let cut = whole.floor_char_boundary(cut % (whole.len() + 1));
        let _ = Policy::parse(&whole);
        let _ = Policy::parse(&whole[..cut]);
    }
}
