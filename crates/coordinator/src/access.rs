//! Access control: the policy, compiled for the present nodes. Without a policy, every node reaches every port of
//! every other node.
//!
//! ```text
//!   a node or user changes ──► marked ──┐  once for each batch
//!   a policy is saved ──► compiled      └──► renew: compiles again if the policy's view of them changed;
//!                                            texts that may differ are rendered again
//! ```
//!
//! Nodes are identified by their indexes.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ipnet::IpNet;
use policy::{Compiled, Node, NodeSet, Nodes, Policy, SshCheck, User};
use serde_json::json;

use crate::{blocks::Block, frame::Part, node_index};

/// The minimum length of shared text that is compressed once for all nodes, in bytes.
const MIN_SHARED: usize = 4 << 10;

/// The base URL of checked logins. Clients send the request through Noise, so the host is ignored.
const CHECKS: &str = "https://unused";

/// The access control of the network.
#[derive(Debug)]
pub(crate) struct Access {
    open: NodeTexts,
    rules: Option<Rules>,
}

/// The active policy.
#[derive(Debug)]
struct Rules {
    policy: Policy,
    compiled: Compiled,
    nodes: Arc<Nodes>,
    /// Indexes of nodes that may have changed.
    changed_nodes: NodeSet,
    has_changed_users: bool,
    texts: Vec<NodeTexts>,
    /// Blocks of long lists of sources, by the address of their text.
    lists: Mutex<HashMap<usize, Arc<Block>>>,
    /// The texts of a node that is not published yet: nothing may reach it.
    unpublished: NodeTexts,
}

/// The peers of a node, and the JSON of its rules. Rendered on first use.
#[derive(Clone, Debug, Default)]
struct NodeTexts {
    /// The nodes that it may reach, and those that may reach it.
    peers: OnceLock<NodeSet>,
    filter: OnceLock<Arc<[Part]>>,
    ssh: OnceLock<Arc<str>>,
    attributes: OnceLock<Arc<[String]>>,
}

impl Access {
    /// Every node may reach every other.
    pub(crate) fn open() -> Self {
        let rule = r#"[{"SrcIPs":["*"],"DstPorts":[{"IP":"*","Ports":{"First":0,"Last":65535}}]}]"#;
        let open = NodeTexts::default();
        open.filter.get_or_init(|| [Part::Text(rule.to_owned())].into());
        Self { open, rules: None }
    }

    /// Compiles a policy for these nodes, at their indexes.
    pub(crate) fn new(policy: Policy, nodes: Nodes) -> Self {
        let nodes = Arc::new(nodes);
        let compiled = policy.compile_shared(Arc::clone(&nodes));
        let texts = vec![NodeTexts::default(); nodes.nodes.len()];
        let (changed_nodes, has_changed_users, unpublished) =
            (NodeSet::default(), false, NodeTexts::default());
        let lists = Mutex::default();
        let rules = Rules {
            policy,
            compiled,
            nodes,
            changed_nodes,
            has_changed_users,
            texts,
            lists,
            unpublished,
        };
        Self { rules: Some(rules), ..Self::open() }
    }

    /// The policy, if there is one.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        self.rules.as_ref().map(|rules| &rules.policy)
    }

    /// Records that the node at an index may have changed.
    pub(crate) fn mark_node_changed(&mut self, index: u32) {
        if let Some(rules) = &mut self.rules {
            rules.changed_nodes.insert(index as usize);
        }
    }

    /// Records that users may have changed.
    pub(crate) fn mark_users_changed(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.has_changed_users = true;
        }
    }

    /// Whether nodes or users may have changed.
    pub(crate) fn is_stale(&self) -> bool {
        let is_stale = |rules: &Rules| rules.has_changed_users || !rules.changed_nodes.is_empty();
        self.rules.as_ref().is_some_and(is_stale)
    }

    /// Compiles the policy again if the marked nodes or the users changed. Returns the nodes that may reach, or be
    /// reached by, other nodes than before.
    pub(crate) fn renew(&mut self, users: Vec<User>, node: impl Fn(u32) -> Node) -> NodeSet {
        let Some(rules) = &mut self.rules else { return NodeSet::default() };
        let changed_nodes = mem::take(&mut rules.changed_nodes);
        let mut changed = NodeSet::default();
        let mut others = Vec::new();
        for index in changed_nodes.iter() {
            let new = node(node_index::as_index(index));
            if rules.nodes.nodes.get(index).is_none_or(|old| *old != new) {
                changed.insert(index);
                others.push((index, new));
            }
        }
        let has_changed_users =
            mem::take(&mut rules.has_changed_users) && rules.nodes.users != users;
        if changed.is_empty() && !has_changed_users {
            return changed;
        }
        let nodes = Arc::make_mut(&mut rules.nodes);
        nodes.users = users;
        for (index, new) in others {
            if nodes.nodes.len() <= index {
                nodes.nodes.resize_with(index + 1, Node::default);
                rules.texts.resize_with(index + 1, NodeTexts::default);
            }
            nodes.nodes[index] = new;
        }
        rules.compile(&changed)
    }

    /// Whether a node is visible to another.
    pub(crate) fn is_visible(&self, viewer: u32, other: u32) -> bool {
        // Streams query the same few changed nodes one after another.
        self.peers(other).is_none_or(|peers| peers.contains(viewer as usize))
    }

    /// The nodes that are visible to a node; `None` for all.
    pub(crate) fn peers(&self, index: u32) -> Option<&NodeSet> {
        let rules = self.rules.as_ref()?;
        let write = || rules.compiled.peers(index as usize);
        Some(self.texts(index).peers.get_or_init(write))
    }

    /// The networks of a router that are hidden to a node.
    pub(crate) fn hidden_routes(&self, viewer: u32, router: u32, networks: &[IpNet]) -> Vec<IpNet> {
        let Some(rules) = self.rules.as_ref().filter(|_| !networks.is_empty()) else {
            return Vec::new();
        };
        if !rules.has(viewer) || !rules.has(router) {
            return networks.to_vec();
        }
        let visible = rules.compiled.routes(viewer as usize, router as usize);
        networks.iter().filter(|net| !visible.contains(net)).copied().collect()
    }

    /// The packet filter of a node, as JSON of a list of `tailcfg.FilterRule`.
    pub(crate) fn filter(&self, index: u32) -> Arc<[Part]> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(index)) {
            Some(rules) => rules.filter(index).into(),
            None => [Part::Text("[]".into())].into(),
        };
        Arc::clone(self.texts(index).filter.get_or_init(write))
    }

    /// The SSH rules of a node, as JSON of `tailcfg.SSHPolicy`.
    pub(crate) fn ssh(&self, index: u32) -> Arc<str> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(index)) {
            Some(rules) => {
                json!({ "rules": rules.compiled.ssh(index as usize, CHECKS) }).to_string().into()
            }
            None => r#"{"rules":[]}"#.into(),
        };
        Arc::clone(self.texts(index).ssh.get_or_init(write))
    }

    /// The check of a login from one node at another, if the policy requires one.
    pub(crate) fn ssh_check(&self, from: u32, at: u32, account: &str) -> Option<SshCheck> {
        let rules = self.rules.as_ref().filter(|rules| rules.has(from) && rules.has(at))?;
        rules.compiled.ssh_check(from as usize, at as usize, account)
    }

    /// The attributes of a node.
    pub(crate) fn attributes(&self, index: u32) -> Arc<[String]> {
        let list = |rules: &Rules| {
            let attributes = rules.compiled.attributes(index as usize);
            attributes.into_iter().map(str::to_owned).collect()
        };
        let write = || self.rules.as_ref().map_or_else(|| [].into(), list);
        Arc::clone(self.texts(index).attributes.get_or_init(write))
    }

    fn texts(&self, index: u32) -> &NodeTexts {
        let Some(rules) = &self.rules else { return &self.open };
        rules.texts.get(index as usize).unwrap_or(&rules.unpublished)
    }
}

impl Rules {
    fn has(&self, index: u32) -> bool {
        (index as usize) < self.nodes.nodes.len()
    }

    /// Compiles the policy again. Returns the nodes that may reach, or be reached by, other nodes than before.
    fn compile(&mut self, changed: &NodeSet) -> NodeSet {
        let compiled = self.policy.compile_shared(Arc::clone(&self.nodes));
        let changes = compiled.changes_since(&self.compiled, changed);
        self.compiled = compiled;
        self.lists = Mutex::default();
        self.texts.iter_mut().for_each(|texts| texts.peers = OnceLock::new());
        for index in changes.filters.iter() {
            self.texts[index].filter = OnceLock::new();
        }
        for index in changes.ssh.iter() {
            self.texts[index].ssh = OnceLock::new();
        }
        for index in changes.attributes.iter() {
            self.texts[index].attributes = OnceLock::new();
        }
        let mut reach = changes.reach;
        // The visible routes of a node depend on its own routes.
        reach.union_with(changed);
        reach
    }

    /// The rules of a node's filter. Many nodes share the long lists of sources.
    fn filter(&self, index: u32) -> Vec<Part> {
        let (mut parts, mut text) = (Vec::new(), "[".to_owned());
        for (number, (sources, rest)) in
            self.compiled.filter_pieces(index as usize).into_iter().enumerate()
        {
            let comma = if number == 0 { "" } else { "," };
            text += &format!("{comma}{{\"SrcIPs\":");
            if sources.len() < MIN_SHARED {
                text += &sources;
            } else {
                parts.push(Part::Text(mem::take(&mut text)));
                parts.push(Part::Block(self.list(sources)));
            }
            text += &rest;
        }
        parts.push(Part::Text(text + "]"));
        parts
    }

    fn list(&self, sources: Arc<str>) -> Arc<Block> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        // The block owns the text, so no other text has its address.
        Arc::clone(
            lists.entry(sources.as_ptr().addr()).or_insert_with(|| Arc::new(Block::of(sources))),
        )
    }
}
