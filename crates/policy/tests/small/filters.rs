//! Filters, peers, attributes and approvals.

use policy::{Compiled, Nodes, Policy, Role, to_json};
use serde_json::{Value, json};

use crate::network::{ADA, ADA_PHONE, BASE, BEN, EXIT, ROUTER, WEB, compile, network, parse};

fn filter(compiled: &Compiled, node: usize) -> Value {
    to_json(&compiled.filter(node))
}

fn peers(compiled: &Compiled, node: usize) -> Vec<usize> {
    compiled.peers(node).iter().collect()
}

fn ports(addresses: &[&str], first: u16, last: u16) -> Vec<Value> {
    let ports = json!({"First": first, "Last": last});
    addresses.iter().map(|address| json!({"IP": address, "Ports": ports})).collect()
}

#[test]
fn a_rule_is_in_the_filters_of_its_targets_only() {
    let compiled = compile(
        &json!({"acls": [{"action": "accept", "src": ["ben@example.net"], "dst": ["tag:web:443"]}]}),
    );
    let rule = json!([{
        "SrcIPs": ["100.64.0.3", "fd7a:115c:a1e0::3"],
        "DstPorts": ports(&["100.64.0.4", "fd7a:115c:a1e0::4"], 443, 443),
    }]);
    assert_eq!(filter(&compiled, WEB), rule);
    assert_eq!(filter(&compiled, BASE), json!([]));
    assert_eq!(peers(&compiled, WEB), [BEN]);
    assert_eq!(peers(&compiled, BEN), [WEB]);
    assert!(peers(&compiled, ADA).is_empty());
}

/// The peers of the web server if this source may reach it, in the network after `change`.
fn peers_of_web(source: &str, change: impl FnOnce(&mut Nodes)) -> Vec<usize> {
    let mut nodes = network();
    change(&mut nodes);
    let rule = json!({"action": "accept", "src": [source], "dst": ["tag:web:22"]});
    peers(&parse(&json!({"acls": [rule]})).compile(&nodes), WEB)
}

#[test]
fn autogroup_owner_does_not_match_admins() {
    for role in [Role::Admin, Role::Member] {
        let found = peers_of_web("autogroup:owner", |nodes| nodes.users[1].role = Some(role));
        assert_eq!(found, [ADA, ADA_PHONE], "{role:?}");
    }
}

#[test]
fn a_domain_does_not_match_a_longer_domain_with_the_same_suffix() {
    for (email, is_in) in [("ben@Example.net", true), ("ben@evil-example.net", false)] {
        let found = peers_of_web("user:*@example.net", |nodes| nodes.users[1].email = email.into());
        assert_eq!(found.contains(&BEN), is_in, "{email}");
    }
}

#[test]
fn users_without_name_or_mail_address_match_no_text() {
    let nameless = |nodes: &mut Nodes| {
        nodes.users[1].email.clear();
        nodes.users[1].name.clear();
    };
    for text in ["user:*@x", "x@", "x@y", "group:none"] {
        assert!(peers_of_web(text, nameless).is_empty(), "{text}");
    }
    for email in ["@", "@x", "x@", ""] {
        let found = peers_of_web("user:*@x", |nodes| nodes.users[1].email = email.into());
        assert!(found.is_empty(), "{email}");
    }
}

#[test]
fn without_acls_and_grants_all_nodes_reach_each_other() {
    let compiled = compile(&json!({}));
    let rules = filter(&compiled, BASE);
    assert_eq!(rules[0]["DstPorts"], json!(ports(&["*"], 0, 65535)));
    let sources = [
        "10.1.0.0/16",
        "100.115.94.0-100.127.255.255",
        "100.64.0.0-100.115.91.255",
        "fd7a:115c:a1e0::/48",
    ];
    assert_eq!(rules[0]["SrcIPs"], json!(sources));
    assert_eq!(peers(&compiled, BASE).len(), network().nodes.len() - 1);
    assert_eq!(filter(&compile(&json!({"acls": []})), BASE), json!([]));
}

#[test]
fn a_network_is_in_the_filter_of_its_router() {
    let rule = json!({"src": ["group:staff"], "dst": ["printer"], "ip": ["tcp:631"]});
    let compiled = compile(&json!({"grants": [rule]}));
    let found = filter(&compiled, ROUTER);
    assert_eq!(found[0]["DstPorts"], json!(ports(&["10.1.2.3"], 631, 631)));
    assert_eq!(found[0]["IPProto"], json!([6]));
    assert_eq!(filter(&compiled, EXIT), json!([]));
    assert_eq!(peers(&compiled, ROUTER), [ADA, ADA_PHONE, BEN]);
}

#[test]
fn a_network_as_source_makes_its_router_a_peer() {
    let rule = json!({"src": ["lab"], "dst": ["tag:web"], "ip": ["80"]});
    let compiled = compile(&json!({"grants": [rule]}));
    assert_eq!(filter(&compiled, WEB)[0]["SrcIPs"], json!(["10.1.2.0/24"]));
    assert_eq!(peers(&compiled, WEB), [ROUTER]);
}

#[test]
fn autogroup_internet_is_in_filters_of_exit_nodes_only() {
    let rule = json!({"src": ["group:staff"], "dst": ["autogroup:internet"], "ip": ["*"]});
    let compiled = compile(&json!({"grants": [rule]}));
    let found = filter(&compiled, EXIT);
    assert_eq!(found[0]["DstPorts"][0]["IP"], "0.0.0.0-9.255.255.255");
    assert_eq!(peers(&compiled, BEN), [EXIT]);
    assert_eq!(filter(&compiled, ROUTER), json!([]));
}

#[test]
fn autogroup_self_is_untagged_nodes_of_the_same_user() {
    let rule =
        json!({"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:22"]});
    let compiled = compile(&json!({"acls": [rule]}));
    let found = filter(&compiled, ADA);
    let own = ["100.64.0.1", "100.64.0.2", "fd7a:115c:a1e0::1", "fd7a:115c:a1e0::2"];
    assert_eq!(found[0]["SrcIPs"], json!(own));
    assert_eq!(peers(&compiled, ADA), [ADA_PHONE]);
    assert!(peers(&compiled, BEN).is_empty() && peers(&compiled, WEB).is_empty());
}

#[test]
fn via_allows_routers_with_the_tag_only() {
    let grant = |via| json!({"src": ["group:staff"], "dst": ["lab"], "ip": ["*"], "via": [via]});
    let compiled = compile(&json!({"grants": [grant("tag:router")]}));
    assert_eq!(filter(&compiled, ROUTER)[0]["DstPorts"], json!(ports(&["10.1.2.0/24"], 0, 65535)));
    let compiled = compile(&json!({"grants": [grant("tag:exit")]}));
    assert_eq!(filter(&compiled, ROUTER), json!([]));
    assert!(peers(&compiled, BEN).is_empty());
}

#[test]
fn capabilities_are_granted_at_node_addresses_with_companions() {
    let app = json!({"tailscale.com/cap/drive": [{"shares": ["*"], "access": "ro"}]});
    let compiled = compile(&json!({"grants": [{"src": ["tag:web"], "dst": ["*"], "app": app}]}));
    let own = json!(["100.64.0.5/32", "fd7a:115c:a1e0::5/128"]);
    assert_eq!(filter(&compiled, BASE)[0]["CapGrant"], json!([{"Dsts": own, "CapMap": app}]));
    let back = filter(&compiled, WEB);
    let companion = json!({"tailscale.com/cap/drive-sharer": null});
    assert_eq!(back[1]["CapGrant"][0]["CapMap"], companion);
}

#[test]
fn rules_with_equal_sources_are_merged_at_the_first_position() {
    let rule = |src: &str, dst: &str| json!({"action": "accept", "src": [src], "dst": [dst]});
    let acls = [
        rule("ben@example.net", "tag:base:1"),
        rule("tag:base", "tag:web:2"),
        rule("ben@example.net", "tag:web:3"),
        rule("ben@example.net", "tag:web:3"),
    ];
    let found = filter(&compile(&json!({"acls": acls})), WEB);
    assert_eq!(found[0]["DstPorts"].as_array().unwrap().len(), 4);
    assert_eq!(found[0]["DstPorts"][0]["Ports"]["First"], 3);
    assert_eq!(found[1]["DstPorts"][0]["Ports"]["First"], 2);
}

#[test]
fn an_ipset_lacks_its_removed_networks() {
    let sets = json!({
        "ipset:office": ["add 10.1.0.0/23", "remove 10.1.0.0/24"],
        "ipset:all": ["ipset:office", "host:printer"],
    });
    let grant = json!({"src": ["tag:web"], "dst": ["ipset:all"], "ip": ["*"]});
    let found = filter(&compile(&json!({"ipsets": sets, "grants": [grant]})), ROUTER);
    assert_eq!(found[0]["DstPorts"], json!(ports(&["10.1.1.0/24", "10.1.2.3"], 0, 65535)));
}

#[test]
fn routes_are_approved_within_named_networks_and_exits_by_exit_node() {
    let policy = parse(&json!({"autoApprovers": {
        "routes": {"10.0.0.0/8": ["tag:router"], "0.0.0.0/0": ["tag:exit"]},
        "exitNode": ["group:staff"],
    }}));
    let approves = |node, net: &str| policy.approves(&network(), node, &net.parse().unwrap());
    assert!(approves(ROUTER, "10.9.0.0/16"));
    assert!(!approves(ROUTER, "11.0.0.0/8") && !approves(ROUTER, "8.0.0.0/5"));
    assert!(!approves(WEB, "10.9.0.0/16"));
    assert!(!approves(EXIT, "0.0.0.0/0") && !approves(EXIT, "::/0"));
    assert!(approves(BEN, "::/0") && approves(ADA, "0.0.0.0/0"));
    // The key 0.0.0.0/0 approves no route. The key exitNode approves exits.
    for net in ["10.9.0.0/16", "11.0.0.0/8", "0.0.0.0/1"] {
        assert!(!approves(EXIT, net) && !approves(BEN, net), "{net}");
    }
}

#[test]
fn a_tag_belongs_to_its_owners_and_owners_of_owning_tags() {
    let policy = parse(&json!({}));
    let nodes = network();
    let owns = |user: usize, tag| policy.user_owns_tag(&nodes, &nodes.users[user], tag);
    assert!(owns(0, "tag:web") && owns(0, "tag:base"));
    assert!(!owns(1, "tag:web") && !owns(0, "tag:router") && !owns(0, "tag:none"));
}

#[test]
fn a_node_has_the_attributes_of_all_matching_rules() {
    let compiled = compile(&json!({"randomizeClientPort": true, "nodeAttrs": [
        {"target": ["group:staff"], "attr": ["magicdns-aaaa"], "ipPool": ["100.81.0.0/16"]},
        {"target": ["autogroup:owner"], "attr": ["nextdns:abc", "magicdns-aaaa"]},
    ]}));
    let attributes = |node| compiled.attributes(node).into_iter().collect::<Vec<_>>();
    assert_eq!(attributes(ADA), ["magicdns-aaaa", "nextdns:abc", "randomize-client-port"]);
    assert_eq!(attributes(BEN), ["magicdns-aaaa", "randomize-client-port"]);
    assert_eq!(attributes(WEB), ["randomize-client-port"]);
    assert_eq!(compiled.pools(BEN), ["100.81.0.0/16".parse().unwrap()]);
    assert!(compiled.pools(WEB).is_empty());
}

#[test]
fn old_key_names_and_other_cases_are_accepted() {
    let text = r#"{"ACLs": [{"Action": "accept", "Users": ["*"], "Ports": ["*:*"],},], // old
    }"#;
    let compiled = Policy::parse(text).unwrap().compile(&network());
    assert_eq!(filter(&compiled, WEB)[0]["DstPorts"][0]["IP"], "*");
}

#[test]
fn star_includes_addresses_outside_the_default_prefixes() {
    let mut nodes = network();
    nodes.nodes[WEB].addresses =
        vec!["10.64.0.4".parse().unwrap(), "100.115.92.1".parse().unwrap()];
    let rules = parse(&json!({})).compile(&nodes).filter(BASE);
    for own in ["10.64.0.4", "100.115.92.1"] {
        assert!(rules[0].sources.iter().any(|source| source == own), "{own}");
    }
    assert!(!rules[0].sources.iter().any(|source| source == "100.64.0.1"));
}

#[test]
fn routes_are_visible_to_nodes_that_reach_them_or_are_reached() {
    let rule = |src: &str, dst: &str| json!({"action": "accept", "src": [src], "dst": [dst]});
    let acls = [
        rule("ben@example.net", "printer:631"),
        rule("lab", "tag:web:80"),
        rule("tag:base", "tag:router:22"),
    ];
    let compiled = compile(&json!({"acls": acls}));
    let lab = ["10.1.0.0/16".parse().unwrap()];
    assert_eq!(compiled.routes(BEN, ROUTER), lab);
    assert_eq!(compiled.routes(WEB, ROUTER), lab);
    assert!(compiled.peers(BASE).contains(ROUTER) && compiled.routes(BASE, ROUTER).is_empty());
    let acls = [rule("ben@example.net", "autogroup:internet:*")];
    let compiled = compile(&json!({"acls": acls}));
    assert_eq!(compiled.routes(BEN, EXIT).len(), 2);
    assert!(compiled.routes(ADA, EXIT).is_empty());
}
