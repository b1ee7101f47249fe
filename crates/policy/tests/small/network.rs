//! A small network for the tests: Ada's laptop and telephone, Ben's laptop, two servers, a router of
//! 10.1.0.0/16 and an exit node.

use policy::{Compiled, Node, Nodes, Policy, Role, User};
use serde_json::{Value, json};

pub(crate) const ADA: usize = 0;
pub(crate) const ADA_PHONE: usize = 1;
pub(crate) const BEN: usize = 2;
pub(crate) const WEB: usize = 3;
pub(crate) const BASE: usize = 4;
pub(crate) const ROUTER: usize = 5;
pub(crate) const EXIT: usize = 6;

pub(crate) fn network() -> Nodes {
    let user = |id, name: &str, role| User {
        id,
        name: name.into(),
        email: format!("{name}@example.net"),
        role: Some(role),
    };
    let node = |number: u8, name: &str, user, tags: &[&str], routes: &[&str]| Node {
        name: name.into(),
        user,
        tags: tags.iter().map(ToString::to_string).collect(),
        addresses: vec![
            format!("100.64.0.{number}").parse().unwrap(),
            format!("fd7a:115c:a1e0::{number:x}").parse().unwrap(),
        ],
        routes: routes.iter().map(|net| net.parse().unwrap()).collect(),
    };
    Nodes {
        users: vec![user(1, "ada", Role::Owner), user(2, "ben", Role::Member)],
        nodes: vec![
            node(1, "ada", Some(1), &[], &[]),
            node(2, "ada-phone", Some(1), &[], &[]),
            node(3, "ben", Some(2), &[], &[]),
            node(4, "web", None, &["tag:web"], &[]),
            node(5, "base", None, &["tag:base"], &[]),
            node(6, "router", None, &["tag:router"], &["10.1.0.0/16"]),
            node(7, "exit", None, &["tag:exit"], &["0.0.0.0/0", "::/0"]),
        ],
        domains: vec!["example.net".into()],
    }
}

/// A policy with these sections, and with fixed groups, tags and hosts.
pub(crate) fn text(sections: &Value) -> String {
    let mut policy = json!({
        "groups": {"group:staff": ["ada@example.net", "ben@example.net"], "group:none": []},
        "hosts": {"lab": "10.1.2.0/24", "printer": "10.1.2.3"},
        "tagOwners": {
            "tag:web": ["ada@example.net"],
            "tag:base": ["tag:web"],
            "tag:router": ["group:none"],
            "tag:exit": [],
        },
    });
    let fields = policy.as_object_mut().unwrap();
    fields.extend(sections.as_object().unwrap().clone());
    policy.to_string()
}

pub(crate) fn parse(sections: &Value) -> Policy {
    Policy::parse(&text(sections)).unwrap()
}

pub(crate) fn compile(sections: &Value) -> Compiled {
    parse(sections).compile(&network())
}
