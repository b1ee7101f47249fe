//! The attributes of nodes by nodeAttrs.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::{compile::Compiled, resolve::Names, set::NodeSet};

/// The rules of nodeAttrs: nodes, their attributes and their address pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributed(pub Vec<(NodeSet, Vec<String>, Vec<IpNet>)>);

impl Attributed {
    pub(crate) fn compile(names: Names<'_>) -> Self {
        let mut rules = Vec::new();
        if names.policy.randomizes_port {
            let all = NodeSet::all(names.nodes.nodes.len());
            rules.push((all, vec!["randomize-client-port".into()], Vec::new()));
        }
        for rule in &names.policy.attributes {
            let members = names.members(&names.resolve(&rule.targets));
            rules.push((members, rule.attributes.clone(), rule.pools.clone()));
        }
        Self(rules)
    }
}

impl Compiled {
    /// The attributes of a node, each once.
    pub fn attributes(&self, node: usize) -> BTreeSet<&str> {
        let rules = self.attributed.0.iter().filter(|(nodes, ..)| nodes.contains(node));
        rules.flat_map(|(_, attributes, _)| attributes).map(String::as_str).collect()
    }

    /// The networks from which a node's IPv4 address is allocated, by the first rule with a pool.
    pub fn pools(&self, node: usize) -> &[IpNet] {
        let mut rules = self.attributed.0.iter();
        rules
            .find(|(nodes, _, pools)| nodes.contains(node) && !pools.is_empty())
            .map_or(&[], |(_, _, pools)| pools)
    }
}
