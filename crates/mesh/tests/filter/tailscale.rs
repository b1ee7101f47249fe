//! Random rules, peers and packets.

use std::{cell::RefCell, collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use mesh::peer_filter::{Input, Peer, Problem, compile};
use packet::filter::{AddressRange, Judge, Rules};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use serde_json::{Value, json};
use tailnet::{
    map_messages::{CapGrant, Destination, FilterRule, Node, PortRange},
    raw_json::Json,
};

use crate::{any, bytes::Packet, process::Oracle};

/// Names of capabilities of nodes and of grants.
const NAMES: [&str; 3] = ["a", "example.com/cap/b", "c"];

fn net() -> impl Strategy<Value = IpNet> {
    let any_net =
        any::<bool>().prop_flat_map(|v4| (any::address(v4), 0..=if v4 { 32u8 } else { 128 }));
    let own = any::<bool>().prop_flat_map(any::address).prop_map(IpNet::from);
    prop_oneof![3 => own, 1 => any_net.prop_map(|(ip, len)| IpNet::new(ip, len).unwrap())]
}

/// Usually a text that stands for addresses.
fn text() -> impl Strategy<Value = String> {
    let ends = any::range().prop_map(|range| format!("{}-{}", range.first(), range.last()));
    let wrong_order = any::range().prop_map(|range| format!("{}-{}", range.last(), range.first()));
    let address = any::<bool>().prop_flat_map(any::address).prop_map(|ip| ip.to_string());
    let capability = select(NAMES.to_vec()).prop_map(|name| format!("cap:{name}"));
    prop_oneof![
        4 => ends,
        4 => address,
        3 => net().prop_map(|net| net.trunc().to_string()),
        2 => capability,
        1 => Just("*".to_owned()),
        // Some have host bits.
        1 => net().prop_map(|net| net.to_string()),
        1 => wrong_order,
        1 => select(vec!["", "cap:", "x", "1.2.3.4/", "1.2.3.4/+8", "10.0.0.0/08", "/8", "::/129",
                         "1.2.3.4-", "-", "1.2.3.4-::1", "01.2.3.4", "1-2-3", "::1/128/1"])
            .prop_map(str::to_owned),
    ]
}

fn rule() -> impl Strategy<Value = FilterRule> {
    let ports = (any::ports(), prop::bool::weighted(0.05)).prop_map(|(ports, wrong_order)| {
        let (first, last) = (*ports.start(), *ports.end());
        if wrong_order { PortRange { first: last, last: first } } else { PortRange { first, last } }
    });
    let destination =
        (text(), ports).prop_map(|(addresses, ports)| Destination { addresses, bits: None, ports });
    let protocol = prop_oneof![
        20 => any::protocol().prop_map(i32::from),
        1 => select(vec![-1, 256, 256 + 6, i32::MAX]),
    ];
    let protocol = protocol.prop_map(|own| if own == 99 { 98 } else { own });
    let bits = prop_oneof![300 => Just(vec![]), 1 => Just(vec![8])];
    let parts =
        (vec(text(), 0..4), bits, vec(destination, 0..4), vec(protocol, 0..4), vec(grant(), 0..2));
    parts.prop_map(|(sources, source_bits, destinations, protocols, grants)| FilterRule {
        sources,
        source_bits,
        destinations,
        protocols,
        grants,
    })
}

fn grant() -> impl Strategy<Value = CapGrant> {
    let names = || vec(select(NAMES.to_vec()).prop_map(str::to_owned), 0..3);
    let values = prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!([1, {"x": "y"}])),
        Just(json!(["z"])),
    ];
    let with_values = (select(NAMES.to_vec()).prop_map(str::to_owned), values);
    let parts = (vec(net().prop_map(|net| net.to_string()), 0..3), names(), vec(with_values, 0..2));
    parts.prop_map(|(destinations, caps, with_values)| CapGrant {
        destinations,
        caps,
        cap_map: with_values.iter().map(|(name, value)| (name.clone(), value.into())).collect(),
    })
}

fn node() -> impl Strategy<Value = Node> {
    let names = vec(select(NAMES.to_vec()), 0..3);
    let parts = (vec(net(), 0..3), vec(net(), 0..3), names, prop::bool::weighted(0.2));
    parts.prop_map(|(addresses, subnets, names, is_jailed)| Node {
        allowed_ips: Some([addresses.clone(), subnets].concat()),
        addresses,
        cap_map: names.into_iter().map(|name| (name.to_owned(), Json::default())).collect(),
        is_jailed,
        ..Node::default()
    })
}

#[derive(Clone, Debug)]
struct Case {
    rules: Vec<FilterRule>,
    own: Vec<IpNet>,
    advertised: Vec<IpNet>,
    peers: Vec<Node>,
    shields_up: bool,
    packets: Vec<Packet>,
}

fn case() -> impl Strategy<Value = Case> {
    let count = prop_oneof![6 => 0..8usize, 1 => 20..40usize];
    let rules = count.prop_flat_map(|count| vec(rule(), count));
    let shields = prop::bool::weighted(0.05);
    let packets = vec(crate::process::packet(), 40..80);
    let parts = (rules, vec(net(), 1..4), vec(net(), 0..2), vec(node(), 0..6), shields, packets);
    parts.prop_map(|(rules, own, advertised, peers, shields_up, packets)| {
        // The default routes of exit nodes are excluded: Tailscale's function that reduces them is
        // not public.
        let advertised = advertised.into_iter().filter(|net| net.prefix_len() != 0).collect();
        Case { rules, own, advertised, peers, shields_up, packets }
    })
}

/// Returns the input of the oracle. An address belongs to the last peer that has it.
fn policy(case: &Case, local: &[AddressRange]) -> String {
    let local = local.iter().map(|range| format!("{}-{}", range.first(), range.last()));
    let mut capabilities = BTreeMap::<IpAddr, Vec<&String>>::new();
    for peer in &case.peers {
        for address in peer.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len())
        {
            capabilities.entry(address.addr()).or_default().extend(peer.cap_map.keys());
        }
    }
    json!({
        "Rules": case.rules,
        "Local": local.collect::<Vec<_>>(),
        "ShieldsUp": case.shields_up,
        "Capabilities": capabilities,
    })
    .to_string()
}

/// Returns whether the longest network with the address belongs to a jailed peer.
fn is_jailed(peers: &[Node], address: IpAddr) -> bool {
    let nets = peers.iter().flat_map(|peer| {
        peer.allowed_ips().iter().map(|net| (net.prefix_len(), peer.is_jailed, net))
    });
    let longest = nets
        .filter(|(_, _, net)| net.contains(&address))
        .max_by_key(|(len, jailed, _)| (*len, *jailed));
    longest.is_some_and(|(_, jailed, _)| jailed)
}

#[test]
fn verdicts_match_tailscales_filter_for_random_rules_peers_and_packets() {
    let Some(oracle) = Oracle::start() else { return };
    let (oracle, verdicts) = (RefCell::new(oracle), RefCell::new([0u32; 4]));
    let mut runner = TestRunner::new(ProptestConfig::default());
    let tested = runner.run(&case(), |case| {
        let mut oracle = oracle.borrow_mut();
        let peers: Vec<Peer<'_>> =
            case.peers.iter().map(|node| Peer { node, allowed_ips: node.allowed_ips() }).collect();
        let compiled = compile(&Input {
            rules: case.rules.iter().collect(),
            own: &case.own,
            advertised: &case.advertised,
            peers: &peers,
            shields_up: case.shields_up,
            ..Input::default()
        });
        let too_many = compiled.problems.iter().any(|bad| matches!(bad, Problem::TooMany(_)));
        prop_assert!(!too_many);
        let mut policy = compiled.policy;
        // Packets between data planes do not reach the host in either implementation.
        policy.open_protocols = vec![99];
        oracle.set(&crate::tailscale::policy(&case, &policy.local));
        let mut judge = Judge::new(Arc::new(Rules::new(&policy)), 2);
        for packet in &case.packets {
            let bytes = packet.bytes();
            let jailed = is_jailed(&case.peers, packet.from);
            let expected = oracle.receives(if jailed { "jailed" } else { "in" }, &bytes);
            let verdict = judge.accepts(&bytes, |_| false);
            prop_assert_eq!(verdict, expected, "{:?}, jailed: {}", packet, jailed);
            verdicts.borrow_mut()[usize::from(verdict) + 2 * usize::from(jailed)] += 1;
            let grants = oracle.request("grants", &format!("{} {}", packet.from, packet.to));
            let is_local = policy.local.iter().any(|range| {
                range.first().is_ipv4() == packet.to.is_ipv4()
                    && range.first() <= packet.to
                    && packet.to <= range.last()
            });
            if is_local {
                let expected: Option<BTreeMap<String, Option<Vec<Value>>>> =
                    serde_json::from_str(&grants).unwrap();
                let expected: BTreeMap<String, Vec<Value>> = expected
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(name, values)| (name, values.unwrap_or_default()))
                    .collect();
                let granted = compiled.grants.between(packet.from, packet.to);
                prop_assert_eq!(json!(granted), json!(expected));
            }
        }
        Ok(())
    });
    tested.unwrap();
    let verdicts = verdicts.into_inner();
    // Packets of jailed peers are the rarest: 49 of 15,000.
    assert!(verdicts.iter().all(|count| *count > 10), "{verdicts:?}");
}
