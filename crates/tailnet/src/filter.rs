//! From the coordinator's rules to the policy of the packet filter (tailscale
//! `wgengine/filter/tailcfg.go`, `MatchesFromFilterRules`; `ipn/ipnlocal`, `updateFilterLocked`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use packet::filter::{AddressRange, Destination, Policy, Rule};

use crate::messages::{CapMap, FilterRule};

/// What a rule without protocols is for: TCP, UDP, ICMP and ICMPv6.
const USUAL: [u8; 4] = [6, 17, 1, 58];
/// Stands for every address.
const ANY: &str = "*";
/// What a source begins with that is a capability.
const CAPABILITY: &str = "cap:";

/// What a policy is made of.
#[derive(Clone, Debug, Default)]
pub struct Input<'a> {
    /// The rules, in their order.
    pub rules: Vec<&'a FilterRule>,
    /// This node's addresses.
    pub own: &'a [IpNet],
    /// The networks that it offers. Both default routes make an exit node.
    pub offered: &'a [IpNet],
    /// The networks that it is connected to, which an exit node does not offer.
    pub connected: &'a [IpNet],
    /// Addresses of peers, and what they may do.
    pub peers: Vec<(&'a [IpNet], &'a CapMap)>,
    /// Addresses of peers that may begin nothing.
    pub jailed: Vec<&'a [IpNet]>,
    /// Whether nobody may begin anything.
    pub shields_up: bool,
}

/// The policy, and what of the rules was left out, a line each.
pub fn compile(input: &Input<'_>) -> (Policy, Vec<String>) {
    let mut problems = Vec::new();
    let mut rules = Vec::new();
    for rule in &input.rules {
        if !rule.source_bits.is_empty() {
            // An old coordinator's: nobody knows what it means.
            problems.push("a rule has SrcBits: nothing is accepted".to_owned());
            rules.clear();
            break;
        }
        rules.extend(self::rule(rule, input, &mut problems));
    }
    let policy = Policy {
        local: local(input),
        rules,
        open_protocols: Vec::new(),
        shields_up: input.shields_up,
    };
    (policy, problems)
}

/// One rule; `None` where it accepts nothing.
fn rule(rule: &FilterRule, input: &Input<'_>, problems: &mut Vec<String>) -> Option<Rule> {
    let mut sources = Vec::new();
    for source in &rule.sources {
        match source.strip_prefix(CAPABILITY) {
            Some(capability) => sources.extend(having(capability, input)),
            None => match ranges(source) {
                Some(ranges) => sources.extend(ranges),
                None => problems.push(format!("a rule's source {source:?} is no address")),
            },
        }
    }
    let sources = without(sources, &input.jailed);
    let mut destinations = Vec::new();
    for to in &rule.destinations {
        let prefix = |bits: i32| {
            let len = u8::try_from(bits).ok()?;
            AddressRange::prefix(to.addresses.parse().ok()?, len).map(|range| vec![range])
        };
        let ranges = match to.bits {
            Some(bits) => prefix(bits),
            None => ranges(&to.addresses),
        };
        let Some(ranges) = ranges else {
            problems.push(format!("a rule's destination {:?} is no address", to.addresses));
            continue;
        };
        let ports = to.ports.first..=to.ports.last;
        let destination = |addresses| Destination { addresses, ports: ports.clone() };
        destinations.extend(ranges.into_iter().map(destination));
    }
    let protocols = match &rule.protocols[..] {
        [] => USUAL.to_vec(),
        said => said.iter().filter_map(|&protocol| u8::try_from(protocol).ok()).collect(),
    };
    let accepts = !sources.is_empty() && !destinations.is_empty();
    accepts.then_some(Rule { protocols, sources, destinations })
}

/// The addresses of peers with a capability.
fn having(capability: &str, input: &Input<'_>) -> Vec<AddressRange> {
    let peers = input.peers.iter().filter(|(_, may)| may.contains_key(capability));
    peers.flat_map(|(addresses, _)| addresses.iter().filter_map(range)).collect()
}

/// Ranges without addresses of these peers.
fn without(mut ranges: Vec<AddressRange>, peers: &[&[IpNet]]) -> Vec<AddressRange> {
    for address in peers.iter().flat_map(|peer| peer.iter()) {
        let address = address.addr();
        ranges = ranges.into_iter().flat_map(|range| cut(range, address)).collect();
    }
    ranges
}

/// A range without one of its addresses.
fn cut(range: AddressRange, address: IpAddr) -> Vec<AddressRange> {
    let (first, last) = (range.first(), range.last());
    if address.is_ipv4() != first.is_ipv4() || address < first || address > last {
        return vec![range];
    }
    let before = neighbour(address, -1).and_then(|end| AddressRange::new(first, end));
    let behind = neighbour(address, 1).and_then(|start| AddressRange::new(start, last));
    before.into_iter().chain(behind).collect()
}

fn neighbour(address: IpAddr, step: i8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(ip) => ip
            .to_bits()
            .checked_add_signed(step.into())
            .map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => ip
            .to_bits()
            .checked_add_signed(step.into())
            .map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

fn range(net: &IpNet) -> Option<AddressRange> {
    AddressRange::prefix(net.addr(), net.prefix_len())
}

/// `*`, an address, a network, or a range from one address to another.
fn ranges(text: &str) -> Option<Vec<AddressRange>> {
    if text == ANY {
        return Some(vec![AddressRange::V4, AddressRange::V6]);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return AddressRange::new(address, address).map(|range| vec![range]);
    }
    if let Some((first, last)) = text.split_once('-') {
        let range = AddressRange::new(first.parse().ok()?, last.parse().ok()?);
        return range.map(|range| vec![range]);
    }
    // One with host bits is a mistake of somebody's.
    let net = text.parse::<IpNet>().ok().filter(|net| net.trunc() == *net)?;
    range(&net).map(|range| vec![range])
}

/// The destinations that packets may have at all. An exit node offers the Internet, and not the
/// networks around it (`ipn/ipnlocal/local.go`, `shrinkDefaultRoute`).
fn local(input: &Input<'_>) -> Vec<AddressRange> {
    let (exits, offered): (Vec<&IpNet>, Vec<&IpNet>) =
        input.offered.iter().partition(|net| net.prefix_len() == 0);
    let mut local: Vec<AddressRange> = input.own.iter().chain(offered).filter_map(range).collect();
    for exit in exits {
        let all = if exit.addr().is_ipv4() { AddressRange::V4 } else { AddressRange::V6 };
        let kept = NOT_INTERNET.iter().filter_map(|net| net.parse::<IpNet>().ok());
        let kept = kept.chain(input.connected.iter().copied());
        let mut left = vec![all];
        for net in kept {
            left = left.into_iter().flat_map(|range| cut_net(range, &net)).collect();
        }
        local.extend(left);
    }
    local
}

/// What is nobody's on the Internet: private, link-local, shared, multicast.
const NOT_INTERNET: [&str; 9] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "224.0.0.0/4",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
];

/// A range without a network.
fn cut_net(range: AddressRange, net: &IpNet) -> Vec<AddressRange> {
    let Some(hole) = self::range(&net.trunc()) else { return vec![range] };
    let (first, last) = (range.first(), range.last());
    let apart =
        hole.first().is_ipv4() != first.is_ipv4() || hole.last() < first || hole.first() > last;
    if apart {
        return vec![range];
    }
    let before = neighbour(hole.first(), -1).and_then(|end| AddressRange::new(first, end));
    let behind = neighbour(hole.last(), 1).and_then(|start| AddressRange::new(start, last));
    let before = before.filter(|_| hole.first() > first);
    let behind = behind.filter(|_| hole.last() < last);
    before.into_iter().chain(behind).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(json: serde_json::Value) -> Vec<FilterRule> {
        serde_json::from_value(json).unwrap()
    }

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    fn pairs(ranges: &[AddressRange]) -> Vec<String> {
        ranges.iter().map(|range| format!("{}-{}", range.first(), range.last())).collect()
    }

    #[test]
    fn sources_are_addresses_networks_ranges_and_all() {
        let rules = rules(json!([{
            "SrcIPs": ["100.64.0.1", "10.0.0.0/8", "10.1.0.1/8", "1.0.0.1-1.0.0.9", "nonsense", "::1"],
            "DstPorts": [{"IP": "*", "Ports": {"First": 22, "Last": 23}}],
        }]));
        let input = Input { rules: rules.iter().collect(), ..Input::default() };
        let (policy, problems) = compile(&input);
        let expected =
            ["100.64.0.1-100.64.0.1", "10.0.0.0-10.255.255.255", "1.0.0.1-1.0.0.9", "::1-::1"];
        assert_eq!(pairs(&policy.rules[0].sources), expected);
        assert_eq!(policy.rules[0].protocols, USUAL);
        assert_eq!(policy.rules[0].destinations.len(), 2, "both families");
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn a_capability_stands_for_the_peers_that_have_it() {
        let may: CapMap = [("cap/x".to_owned(), json!(null))].into();
        let none = CapMap::new();
        let (one, two) = (nets(&["100.64.0.2/32", "fd7a::2/128"]), nets(&["100.64.0.3/32"]));
        let rules = rules(json!([
            {"SrcIPs": ["cap:cap/x"], "DstPorts": [{"IP": "100.64.0.1", "Ports": {"First": 0, "Last": 65535}}]},
            {"SrcIPs": ["cap:cap/y"], "DstPorts": [{"IP": "*", "Ports": {"First": 0, "Last": 65535}}]},
        ]));
        let peers = vec![(&one[..], &may), (&two[..], &none)];
        let (policy, _) =
            compile(&Input { rules: rules.iter().collect(), peers, ..Input::default() });
        assert_eq!(policy.rules.len(), 1, "a rule that nobody matches is none");
        assert_eq!(pairs(&policy.rules[0].sources), ["100.64.0.2-100.64.0.2", "fd7a::2-fd7a::2"]);
    }

    #[test]
    fn what_nobody_understands_accepts_nothing() {
        let rules = rules(json!([
            {"SrcIPs": ["*"], "DstPorts": [{"IP": "*", "Ports": {"First": 0, "Last": 65535}}]},
            {"SrcIPs": ["10.0.0.0"], "SrcBits": [8], "DstPorts": []},
        ]));
        let (policy, problems) =
            compile(&Input { rules: rules.iter().collect(), ..Input::default() });
        assert!(policy.rules.is_empty() && problems.len() == 1);
    }

    #[test]
    fn a_jailed_peer_is_in_no_source() {
        let jailed = nets(&["100.64.0.9/32"]);
        let rules = rules(json!([{
            "SrcIPs": ["100.64.0.8-100.64.0.10"], "DstPorts": [{"IP": "*", "Ports": {"First": 0, "Last": 9}}],
        }]));
        let input =
            Input { rules: rules.iter().collect(), jailed: vec![&jailed], ..Input::default() };
        let (policy, _) = compile(&input);
        let expected = ["100.64.0.8-100.64.0.8", "100.64.0.10-100.64.0.10"];
        assert_eq!(pairs(&policy.rules[0].sources), expected);
    }

    #[test]
    fn an_exit_node_offers_the_internet_and_not_the_networks_around_it() {
        let (own, offered) = (nets(&["100.64.0.1/32"]), nets(&["0.0.0.0/0", "192.168.7.0/24"]));
        let connected = nets(&["203.0.113.0/24"]);
        let input =
            Input { own: &own, offered: &offered, connected: &connected, ..Input::default() };
        let (policy, _) = compile(&input);
        let has = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            policy.local.iter().any(|range| range.first() <= address && address <= range.last())
        };
        for inside in ["100.64.0.1", "192.168.7.9", "8.8.8.8", "0.0.0.0", "255.255.255.255"] {
            assert!(has(inside), "{inside}");
        }
        for outside in ["100.64.0.2", "192.168.8.1", "10.1.2.3", "203.0.113.9", "224.0.0.1"] {
            assert!(!has(outside), "{outside}");
        }
    }
}
