//! Effects of changed nodes on other nodes, and differences of policies.

use policy::{Compiled, Node, Nodes, Policy, to_json};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{
    naive::{rule, sections},
    network::{compile, network, text},
};

/// A change of the node at an index.
#[derive(Clone, Copy, Debug)]
enum Step {
    Tag(&'static str),
    Give(u64),
    Route(&'static str),
    Leave,
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        select(&["tag:web", "tag:base", "tag:router", "tag:exit"][..]).prop_map(Step::Tag),
        (1..3_u64).prop_map(Step::Give),
        select(&["10.1.2.0/24", "10.0.0.0/8", "0.0.0.0/0", "100.64.0.0/24"][..])
            .prop_map(Step::Route),
        Just(Step::Leave),
        Just(Step::Join),
    ]
}

fn apply(nodes: &mut Nodes, index: usize, step: Step) -> usize {
    let fresh = network().nodes;
    match step {
        Step::Join => {
            let index = nodes.nodes.iter().position(Node::is_vacant).unwrap_or(nodes.nodes.len());
            let number = u8::try_from(index + 1).unwrap();
            let addresses = vec![format!("100.64.0.{number}").parse().unwrap()];
            let new = Node { addresses, name: "new".into(), ..fresh[index % fresh.len()].clone() };
            if index == nodes.nodes.len() {
                nodes.nodes.push(new);
            } else {
                nodes.nodes[index] = new;
            }
            return index;
        }
        Step::Leave => nodes.nodes[index] = Node::default(),
        _ if nodes.nodes[index].is_vacant() => {}
        Step::Tag(tag) => {
            (nodes.nodes[index].tags, nodes.nodes[index].user) = (vec![tag.into()], None);
        }
        Step::Give(user) => {
            (nodes.nodes[index].tags, nodes.nodes[index].user) = (Vec::new(), Some(user));
        }
        Step::Route(net) => nodes.nodes[index].routes = vec![net.parse().unwrap()],
    }
    index
}

/// Everything that a node receives by a policy.
fn rendered(compiled: &Compiled, index: usize, count: usize) -> [Value; 3] {
    if index >= count {
        return [json!([]), json!([]), json!([])];
    }
    let attributes: Vec<&str> = compiled.attributes(index).into_iter().collect();
    [
        to_json(&compiled.filter(index)),
        json!(compiled.ssh(index, "https://unused")),
        json!(attributes),
    ]
}

const LOGINS: &str = r#"[
    {"action": "accept", "src": ["group:staff"], "dst": ["tag:web"], "users": ["root"]},
    {"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self"], "users": ["localpart:*@example.net"]}
]"#;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn nodes_outside_the_changed_sets_have_equal_rules(
        rules in prop::collection::vec(rule(), 1..4),
        steps in prop::collection::vec((0..7_usize, step()), 1..8),
    ) {
        let mut sections = sections(&rules);
        sections["ssh"] = serde_json::from_str(LOGINS).unwrap();
        sections["nodeAttrs"] = json!([{"target": ["tag:web", "ben@example.net"], "attr": ["x"]}]);
        let policy = Policy::parse(&text(&sections)).unwrap();
        let mut nodes = network();
        let mut before = policy.compile(&nodes);
        for (index, step) in steps {
            let had = nodes.nodes.len();
            let index = apply(&mut nodes, index, step);
            let after = policy.compile(&nodes);
            let changed = [index].into_iter().collect();
            let changes = after.changes_since(&before, &changed);
            for index in nodes.indices() {
                let [old, new] = [rendered(&before, index, had), rendered(&after, index, nodes.nodes.len())];
                let may = [&changes.filters, &changes.ssh, &changes.attributes];
                for ((old, new), may) in old.iter().zip(&new).zip(may) {
                    prop_assert!(may.contains(index) || old == new, "{} was told {} and {}", index, old, new);
                }
                for other in nodes.indices() {
                    let sees = after.sees(index, other);
                    prop_assert_eq!(sees, after.peers(index).contains(other));
                    let may = changes.reach.contains(index) || changes.reach.contains(other);
                    prop_assert!(may || sees == before.sees(index, other));
                }
            }
            before = after;
        }
    }

    #[test]
    fn filter_pieces_equal_the_filter_as_json(rules in prop::collection::vec(rule(), 1..4)) {
        let compiled = compile(&sections(&rules));
        for index in network().indices() {
            let pieces = compiled.filter_pieces(index).into_iter();
            let rules = pieces.map(|(sources, rest)| format!("{{\"SrcIPs\":{sources}{rest}"));
            let written = format!("[{}]", rules.collect::<Vec<_>>().join(","));
            let written: Value = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(written, to_json(&compiled.filter(index)));
        }
    }

    #[test]
    fn a_difference_to_itself_is_empty_and_reversed_has_opposite_signs(
        one in prop::collection::vec(rule(), 1..4), other in prop::collection::vec(rule(), 1..4),
    ) {
        let (one, other) = (compile(&sections(&one)), compile(&sections(&other)));
        prop_assert_eq!(one.difference(&one, usize::MAX).lines.len(), 0);
        let [there, back] = [(&other, &one), (&one, &other)].map(|(after, before)| {
            let lines = after.difference(before, usize::MAX).lines;
            lines.into_iter().map(|line| (line.source, line.target, line.is_added)).collect::<std::collections::BTreeSet<_>>()
        });
        let turned = back.into_iter().map(|(source, target, added)| (source, target, !added));
        prop_assert_eq!(there, turned.collect());
    }
}

fn lines(before: &Value, after: &Value) -> Vec<String> {
    let found = compile(after).difference(&compile(before), 100);
    found.lines.iter().map(ToString::to_string).collect()
}

#[test]
fn a_difference_has_lines_with_nodes_and_ports() {
    let grant = |src: &str, dst: &str, ip: &str| json!({"src": [src], "dst": [dst], "ip": [ip]});
    let old = json!({"grants": [grant("ada@example.net", "tag:web", "80-90")]});
    let new = json!({"grants": [
        grant("ada@example.net", "tag:web", "80-85"),
        grant("ben@example.net", "tag:base", "tcp:5432"),
        grant("tag:web", "lab", "*"),
        grant("tag:web", "autogroup:internet", "443"),
        grant("tag:base", "tag:exit", "icmp:*"),
    ]});
    let expected = [
        "+ web -> 10.1.2.0/24:*",
        "+ ben -> base:5432/tcp",
        "+ base -> exit/icmp",
        "+ web -> internet:443",
        "- ada -> web:86-90",
        "- ada-phone -> web:86-90",
    ];
    assert_eq!(lines(&old, &new), expected);
    assert_eq!(lines(&new, &new), [""; 0]);
}

#[test]
fn a_difference_has_at_most_the_requested_lines() {
    let found = compile(&json!({})).difference(&compile(&json!({"acls": []})), 10);
    assert_eq!(found.lines.len(), 10);
    assert!(found.left_off > 30, "{}", found.left_off);
}
