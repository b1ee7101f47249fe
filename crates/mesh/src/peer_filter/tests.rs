use serde_json::json;
use tailnet::{
    map_messages::{CapGrant, Destination as To, PortRange},
    raw_json::Json,
};

use super::*;

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn rule(sources: &[&str], to: &str) -> FilterRule {
    let ports = PortRange { first: 0, last: u16::MAX };
    FilterRule {
        sources: sources.iter().map(ToString::to_string).collect(),
        destinations: vec![To { addresses: to.into(), bits: None, ports }],
        ..FilterRule::default()
    }
}

fn node(addresses: &[&str]) -> Node {
    Node { addresses: nets(addresses), ..Node::default() }
}

fn with<'a>(rules: &'a [FilterRule], own: &'a [IpNet]) -> Input<'a> {
    Input { rules: rules.iter().collect(), own, ..Input::default() }
}

fn texts(ranges: impl IntoIterator<Item = AddressRange>) -> Vec<String> {
    ranges.into_iter().map(|range| format!("{}-{}", range.first(), range.last())).collect()
}

#[test]
fn exit_node_gives_access_to_the_internet_and_not_to_its_networks() {
    let own = nets(&["100.64.0.1/32"]);
    let advertised = nets(&["0.0.0.0/0", "::/0", "10.9.0.0/16"]);
    let interfaces = nets(&[
        "203.0.113.7/24",
        "192.168.1.2/24",
        "100.64.0.1/10",
        "198.51.100.1/32",
        "2001:db8::7/64",
    ]);
    let services = ["100.80.0.9".parse().unwrap()];
    let local = local_destinations::local(&Input {
        own: &own,
        services: &services,
        advertised: &advertised,
        interfaces: &interfaces,
        ..Input::default()
    });
    let reached = |text: &str| local.overlaps_range(text.parse::<IpAddr>().unwrap().into());
    for text in [
        "100.64.0.1",
        "100.80.0.9",
        "10.9.1.1",
        "1.1.1.1",
        "203.0.113.7",
        "2606::1",
        "2001:db8::7",
        "198.51.100.1",
    ] {
        assert!(reached(text), "{text}");
    }
    for text in [
        "100.64.0.2",
        "10.8.1.1",
        "192.168.1.2",
        "192.168.7.1",
        "172.16.0.1",
        "172.17.0.1",
        "172.31.255.255",
        "203.0.113.8",
        "169.254.1.1",
        "224.0.0.1",
        "fe80::1",
        "ff02::1",
        "fd7a:115c:a1e0::1",
        "fd00::1",
        "2001:db8::8",
    ] {
        assert!(!reached(text), "{text}");
    }
}

#[test]
fn unreadable_parts_accept_nothing_and_are_reported() {
    let own = nets(&["100.64.0.1/32"]);
    let rules = [
        rule(&["100.64.0.7", "10.0.0.1/8", "x", "10.0.0.9-10.0.0.1"], "100.64.0.1"),
        rule(&["*"], "cap:x"),
        rule(&["*"], "100.64.0.1/33"),
    ];
    let compiled = compile(&with(&rules, &own));
    assert_eq!(compiled.policy.rules.len(), 1);
    assert_eq!(texts(compiled.policy.rules[0].sources.clone()), ["100.64.0.7-100.64.0.7"]);
    let told: Vec<String> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            r#"rule 0: a source: "10.0.0.1/8" is not a network, but an address in one"#,
            r#"rule 0: a source: "x" is not an address, network or range"#,
            r#"rule 0: a source: "10.0.0.9-10.0.0.1" is not an address, network or range"#,
            r#"rule 1: a destination: "cap:x" is only valid as a source"#,
            r#"rule 2: a destination: "100.64.0.1/33" is not an address, network or range"#,
        ]
    );
    let many = vec![rule(&["é".repeat(1000).as_str()], "x"); 1000];
    let compiled = compile(&with(&many, &own));
    assert_eq!(compiled.problems.len(), MAX_REPORTED);
    assert!(compiled.problems.iter().all(|problem| problem.to_string().len() < 250));
}

#[test]
fn rule_in_the_old_form_invalidates_all_rules() {
    let own = nets(&["100.64.0.1/32"]);
    let old = FilterRule { source_bits: vec![8], ..rule(&["10.0.0.0"], "*") };
    let compiled = compile(&with(&[rule(&["*"], "*"), old], &own));
    assert_eq!(compiled.policy.rules, []);
    assert_eq!(compiled.problems, [Problem::OldForm(1)]);
    let mut old = rule(&["*"], "100.64.0.0");
    old.destinations[0].bits = Some(24);
    assert_eq!(compile(&with(&[old], &own)).problems, [Problem::OldForm(0)]);
}

#[test]
fn rule_that_accepts_an_unsigned_peer_invalidates_all_rules() {
    let own = nets(&["100.64.0.1/32"]);
    let unsigned = Node {
        unsigned_peer_api_only: true,
        allowed_ips: Some(nets(&["100.64.0.2/32", "10.0.0.0/8"])),
        cap_map: [("x".to_owned(), Json::default())].into(),
        ..node(&["100.64.0.2/32"])
    };
    let peers = [Peer { node: &unsigned, allowed_ips: &[] }];
    let compiled = |rules: &[FilterRule]| compile(&Input { peers: &peers, ..with(rules, &own) });
    let voids = compiled(&[rule(&["100.64.0.3"], "*"), rule(&["10.1.2.3"], "100.64.0.9")]);
    assert_eq!((voids.policy.rules, voids.problems), (vec![], vec![Problem::Unsigned(1)]));
    let grant = FilterRule { destinations: vec![], ..rule(&["*"], "") };
    assert_eq!(compiled(&[grant]).problems, []);
    // A capability of a jailed peer does not admit it either.
    let by_capability = compiled(&[rule(&["cap:x"], "*")]);
    assert_eq!((by_capability.policy.rules, by_capability.problems), (vec![], vec![]));
}

#[test]
fn capability_of_a_jailed_peer_does_not_admit_it() {
    let own = nets(&["100.64.0.1/32"]);
    let cap_map: std::collections::BTreeMap<_, _> = [("x".to_owned(), Json::default())].into();
    let with_x =
        |address: &str, is_jailed| Node { is_jailed, cap_map: cap_map.clone(), ..node(&[address]) };
    let (jailed, free) = (with_x("100.64.0.3/32", true), with_x("100.64.0.4/32", false));
    let (of_jailed, of_free) = (nets(&["100.64.0.3/32"]), nets(&["100.64.0.4/32"]));
    let peers = [
        Peer { node: &jailed, allowed_ips: &of_jailed },
        Peer { node: &free, allowed_ips: &of_free },
    ];
    let rules = [rule(&["cap:x"], "*")];
    let compiled = compile(&Input { peers: &peers, ..with(&rules, &own) });
    assert_eq!(texts(compiled.policy.rules[0].sources.clone()), ["100.64.0.4-100.64.0.4"]);
}

#[test]
fn jailed_peer_is_excluded_and_peers_within_its_networks_are_not() {
    let own = nets(&["100.64.0.1/32"]);
    let jailed = Node { is_jailed: true, ..node(&["100.64.0.3/32"]) };
    let free = node(&["100.64.0.4/32"]);
    let (of_jailed, of_free) =
        (nets(&["100.64.0.3/32", "10.0.0.0/8"]), nets(&["100.64.0.4/32", "10.1.0.0/16"]));
    let peers = [
        Peer { node: &jailed, allowed_ips: &of_jailed },
        Peer { node: &free, allowed_ips: &of_free },
    ];
    let rules = [rule(&["100.64.0.2-100.64.0.5", "10.0.0.0/7"], "*")];
    let compiled = compile(&Input { peers: &peers, ..with(&rules, &own) });
    assert_eq!(
        texts(compiled.policy.rules[0].sources.clone()),
        [
            "10.1.0.0-10.1.255.255",
            "11.0.0.0-11.255.255.255",
            "100.64.0.2-100.64.0.2",
            "100.64.0.4-100.64.0.5"
        ]
    );
}

#[test]
fn shields_up_removes_all_rules() {
    let own = nets(&["100.64.0.1/32"]);
    let grants = vec![CapGrant {
        destinations: vec!["100.64.0.1/32".into()],
        caps: vec!["x".into()],
        ..CapGrant::default()
    }];
    let rules = [FilterRule { grants, ..rule(&["*"], "*") }];
    let at = |text: &str| text.parse().unwrap();
    let down = compile(&with(&rules, &own));
    let granted = down.grants.between(at("100.64.0.2"), at("100.64.0.1"));
    assert!(granted.contains_key("x") && down.policy.rules.len() == 1);
    let has = |name| down.grants.has(at("100.64.0.2"), at("100.64.0.1"), name);
    assert!(has("x") && !has("x/y") && !has(""));
    let up = compile(&Input { shields_up: true, ..with(&rules, &own) });
    assert!(up.policy.shields_up && up.policy.rules.is_empty() && up.grants.is_empty());
    assert_eq!(texts(up.policy.local), ["100.64.0.1-100.64.0.1"]);
}

#[test]
fn tsmp_is_open_and_not_subject_to_rules() {
    let rules =
        [FilterRule { protocols: vec![tsmp::PROTOCOL.into(), 47, 300, -1], ..rule(&["*"], "*") }];
    let own = nets(&["100.64.0.1/32"]);
    let policy = compile(&with(&rules, &own)).policy;
    assert_eq!(policy.rules[0].protocols, [47]);
    let up = compile(&Input { shields_up: true, ..with(&rules, &own) }).policy;
    assert_eq!([policy.open_protocols, up.open_protocols], [[tsmp::PROTOCOL]; 2]);
}

#[test]
fn rules_beyond_the_limits_are_ignored() {
    let own = nets(&["10.0.0.0/8"]);
    let source = |number: u32| format!("100.{}.{}.1", number >> 8, number & 255);
    let to = |number: u32| {
        let addresses = format!("10.{}.{}.1", number >> 8, number & 255);
        To { addresses, bits: None, ports: PortRange { first: 1, last: 1 } }
    };
    let wide = FilterRule {
        sources: (0..50_000).map(source).collect(),
        destinations: (0..20_000).map(to).collect(),
        ..FilterRule::default()
    };
    let rules = [wide.clone(), wide.clone(), rule(&["*"], "*")];
    let compiled = compile(&with(&rules, &own));
    assert_eq!(compiled.problems, [Problem::TooMany(1)]);
    assert_eq!(compiled.policy.rules.len(), 1);
}

#[test]
fn service_addresses_are_read_from_capabilities() {
    let own = |value| {
        let cap_map = [("service-host".to_owned(), Json::from(&value))].into();
        Node { cap_map, ..Node::default() }
    };
    let services = own(json!([{"svc:a": ["100.80.0.1", "fd7a::1"], "svc:b": null}]));
    assert_eq!(service_addresses(&services).unwrap().len(), 2);
    assert_eq!(service_addresses(&own(json!(null))), Ok(vec![]));
    assert_eq!(service_addresses(&own(json!([7]))), Err(Problem::Services));
    assert_eq!(service_addresses(&Node::default()), Ok(vec![]));
}

#[test]
fn capability_admits_ported_protocols_and_icmp_to_the_whole_family() {
    let own = nets(&["100.64.0.1/32", "fd7a:115c:a1e0::1/128"]);
    let able = Node {
        cap_map: [("x".to_owned(), Json::default())].into(),
        ..node(&["100.64.0.2/32", "10.0.0.0/8"])
    };
    let peers = [Peer { node: &able, allowed_ips: &able.addresses }];
    let rules = [FilterRule { protocols: vec![6, 47], ..rule(&["cap:x"], "100.64.0.1") }];
    let compiled = compile(&Input { peers: &peers, ..with(&rules, &own) });
    let [ported, icmp] = &compiled.policy.rules[..] else { panic!("{compiled:?}") };
    let to = |rule: &Rule| texts(rule.destinations.iter().map(|to| to.addresses));
    assert_eq!((&*ported.protocols, to(ported)), (&[6][..], vec!["100.64.0.1-100.64.0.1".into()]));
    assert_eq!((&*icmp.protocols, to(icmp)), (&[][..], vec!["0.0.0.0-255.255.255.255".into()]));
    assert!([ported, icmp].iter().all(|rule| rule.sources.len() == 1));
    // For protocols without ports, only ICMP is accepted.
    let rules = [FilterRule { protocols: vec![47], ..rule(&["cap:x"], "100.64.0.1") }];
    let compiled = compile(&Input { peers: &peers, ..with(&rules, &own) });
    assert_eq!(compiled.policy.rules.len(), 1);
}
