//! Who may reach whom: a policy compiled for the nodes that there are. Without a policy that is
//! everybody, on every port.
//!
//! ```text
//!   a node or user changes ──► touched ──┐  once a batch
//!   a policy is saved ──► compiled       └──► renew: compiled again if what the policy looks at is
//!                                             another; texts are made again where they may differ
//! ```
//!
//! Nodes are named by their places, as in the sets of those who follow.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ipnet::IpNet;
use policy::{Compiled, Node, NodeSet, Nodes, Policy, SshCheck, User};
use serde_json::json;

use crate::{blocks::Block, frame::Part, node_index};

/// Text that is longer, in bytes, is packed once for all nodes that are told it.
const MIN_SHARED: usize = 4 << 10;

/// Where clients ask about a login that is checked. They ask inside Noise: the host is not looked at.
const CHECKS: &str = "https://unused";

/// Who may reach whom.
#[derive(Debug)]
pub(crate) struct Access {
    open: NodeTexts,
    rules: Option<Rules>,
}

/// A policy in force.
#[derive(Debug)]
struct Rules {
    policy: Policy,
    compiled: Compiled,
    nodes: Arc<Nodes>,
    /// Places whose nodes may be others by now.
    changed_nodes: NodeSet,
    has_changed_users: bool,
    texts: Vec<NodeTexts>,
    /// What long lists of sources are packed as.
    lists: Mutex<HashMap<usize, Arc<Block>>>,
    /// Of a node that is not published yet: it is told that nothing may reach it.
    unpublished: NodeTexts,
}

/// What a node is told by the policy, of which nodes, and in JSON what; made when first asked for.
#[derive(Clone, Debug, Default)]
struct NodeTexts {
    /// The nodes that it may reach, or that may reach it.
    peers: OnceLock<NodeSet>,
    filter: OnceLock<Arc<[Part]>>,
    ssh: OnceLock<Arc<str>>,
    attributes: OnceLock<Arc<[String]>>,
}

impl Access {
    /// Everybody may reach everybody.
    pub fn open() -> Self {
        let rule = r#"[{"SrcIPs":["*"],"DstPorts":[{"IP":"*","Ports":{"First":0,"Last":65535}}]}]"#;
        let open = NodeTexts::default();
        open.filter.get_or_init(|| [Part::Text(rule.to_owned())].into());
        Self { open, rules: None }
    }

    /// By this policy, for these nodes at their places.
    pub fn new(policy: Policy, nodes: Nodes) -> Self {
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
    pub fn policy(&self) -> Option<&Policy> {
        self.rules.as_ref().map(|rules| &rules.policy)
    }

    /// The node at a place may be another.
    pub fn mark_node_changed(&mut self, index: u32) {
        if let Some(rules) = &mut self.rules {
            rules.changed_nodes.insert(index as usize);
        }
    }

    /// Users may be others.
    pub fn mark_users_changed(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.has_changed_users = true;
        }
    }

    /// Whether anything was touched.
    pub fn is_stale(&self) -> bool {
        let is_stale = |rules: &Rules| rules.has_changed_users || !rules.changed_nodes.is_empty();
        self.rules.as_ref().is_some_and(is_stale)
    }

    /// Compiles again, if what was touched is another: by users, and nodes at their places. Returns
    /// the places of the nodes that may reach, or be reached by, others than before.
    pub fn renew(&mut self, users: Vec<User>, node: impl Fn(u32) -> Node) -> NodeSet {
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

    /// Whether the node at a place is told of another.
    pub fn is_visible(&self, viewer: u32, other: u32) -> bool {
        // The streams that follow ask in turn of the same few others.
        self.peers(other).is_none_or(|peers| peers.contains(viewer as usize))
    }

    /// The nodes that the node at a place is told of; `None` for all.
    pub fn peers(&self, index: u32) -> Option<&NodeSet> {
        let rules = self.rules.as_ref()?;
        let write = || rules.compiled.peers(index as usize);
        Some(self.texts(index).peers.get_or_init(write))
    }

    /// Which of these networks of a router the node at a place is not told of.
    pub fn hidden_routes(&self, viewer: u32, router: u32, networks: &[IpNet]) -> Vec<IpNet> {
        let Some(rules) = self.rules.as_ref().filter(|_| !networks.is_empty()) else {
            return Vec::new();
        };
        if !rules.has(viewer) || !rules.has(router) {
            return networks.to_vec();
        }
        let visible = rules.compiled.routes(viewer as usize, router as usize);
        networks.iter().filter(|net| !visible.contains(net)).copied().collect()
    }

    /// The rules that a node filters by, as JSON of a list of `tailcfg.FilterRule`.
    pub fn filter(&self, index: u32) -> Arc<[Part]> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(index)) {
            Some(rules) => rules.filter(index).into(),
            None => [Part::Text("[]".into())].into(),
        };
        Arc::clone(self.texts(index).filter.get_or_init(write))
    }

    /// Who may log in to a node by SSH, as JSON of `tailcfg.SSHPolicy`.
    pub fn ssh(&self, index: u32) -> Arc<str> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(index)) {
            Some(rules) => {
                json!({ "rules": rules.compiled.ssh(index as usize, CHECKS) }).to_string().into()
            }
            None => r#"{"rules":[]}"#.into(),
        };
        Arc::clone(self.texts(index).ssh.get_or_init(write))
    }

    /// Whether a login from the node at one place at that at another, to this account, is checked.
    pub fn ssh_check(&self, from: u32, at: u32, account: &str) -> Option<SshCheck> {
        let rules = self.rules.as_ref().filter(|rules| rules.has(from) && rules.has(at))?;
        rules.compiled.ssh_check(from as usize, at as usize, account)
    }

    /// The attributes that a node is told of itself.
    pub fn attributes(&self, index: u32) -> Arc<[String]> {
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

    /// The nodes that may reach, or be reached by, others than before.
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
        // Which routes a node is told of depends on its own.
        reach.union_with(changed);
        reach
    }

    /// The rules of a node's filter. Long lists of sources are the same for many.
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
        // The block keeps the text, so that no other has its address.
        Arc::clone(
            lists.entry(sources.as_ptr().addr()).or_insert_with(|| Arc::new(Block::of(sources))),
        )
    }
}
