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
    mem,
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use policy::{Compiled, Node, NodeSet, Nodes, Policy, User};
use serde_json::json;

/// Where clients ask about a login that is checked. They ask inside Noise: the host is not looked at.
const CHECKS: &str = "https://unused";

/// Who may reach whom.
#[derive(Debug)]
pub(crate) struct Access {
    open: Texts,
    rules: Option<Rules>,
}

/// A policy in force.
#[derive(Debug)]
struct Rules {
    policy: Policy,
    compiled: Compiled,
    nodes: Arc<Nodes>,
    /// Places whose nodes may be others by now.
    touched: NodeSet,
    has_other_users: bool,
    texts: Vec<Texts>,
    /// Of a node that is not published yet: it is told that nothing may reach it.
    unknown: Texts,
}

/// What a node is told by the policy, in JSON; made when first asked for.
#[derive(Clone, Debug, Default)]
struct Texts {
    filter: OnceLock<Arc<str>>,
    ssh: OnceLock<Arc<str>>,
    attributes: OnceLock<Arc<[String]>>,
}

/// For whom it may be different whom they reach, or who reaches them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The nodes at these places.
    At(NodeSet),
    /// Anybody.
    All,
}

impl Access {
    /// Everybody may reach everybody.
    pub fn open() -> Self {
        let rule = r#"[{"SrcIPs":["*"],"DstPorts":[{"IP":"*","Ports":{"First":0,"Last":65535}}]}]"#;
        let open = Texts::default();
        open.filter.get_or_init(|| rule.into());
        Self { open, rules: None }
    }

    /// By this policy, for these nodes at their places.
    pub fn by(policy: Policy, nodes: Nodes) -> Self {
        let nodes = Arc::new(nodes);
        let compiled = policy.compile_shared(Arc::clone(&nodes));
        let texts = vec![Texts::default(); nodes.nodes.len()];
        let (touched, has_other_users, unknown) = (NodeSet::default(), false, Texts::default());
        let rules = Rules { policy, compiled, nodes, touched, has_other_users, texts, unknown };
        Self { rules: Some(rules), ..Self::open() }
    }

    /// The policy, if there is one.
    pub fn policy(&self) -> Option<&Policy> {
        self.rules.as_ref().map(|rules| &rules.policy)
    }

    /// The node at a place may be another.
    pub fn touch(&mut self, place: u32) {
        if let Some(rules) = &mut self.rules {
            rules.touched.insert(place as usize);
        }
    }

    /// Users may be others.
    pub fn touch_users(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.has_other_users = true;
        }
    }

    /// Whether anything was touched.
    pub fn is_touched(&self) -> bool {
        let is_touched = |rules: &Rules| rules.has_other_users || !rules.touched.is_empty();
        self.rules.as_ref().is_some_and(is_touched)
    }

    /// Compiles again, if what was touched is another: by users, and nodes at their places.
    pub fn renew(&mut self, users: Vec<User>, node: impl Fn(u32) -> Node) -> Renewed {
        let Some(rules) = &mut self.rules else { return Renewed::At(NodeSet::default()) };
        let touched = mem::take(&mut rules.touched);
        let mut changed = NodeSet::default();
        let mut others = Vec::new();
        for place in touched.iter() {
            let new = node(u32::try_from(place).expect("places are such numbers"));
            if rules.nodes.nodes.get(place).is_none_or(|old| *old != new) {
                changed.insert(place);
                others.push((place, new));
            }
        }
        let has_other_users = mem::take(&mut rules.has_other_users) && rules.nodes.users != users;
        if changed.is_empty() && !has_other_users {
            return Renewed::At(changed);
        }
        let nodes = Arc::make_mut(&mut rules.nodes);
        nodes.users = users;
        for (place, new) in others {
            if nodes.nodes.len() <= place {
                nodes.nodes.resize_with(place + 1, Node::default);
                rules.texts.resize_with(place + 1, Texts::default);
            }
            nodes.nodes[place] = new;
        }
        rules.compile(&changed)
    }

    /// Whether the node at a place is told of another.
    pub fn shows(&self, viewer: u32, other: u32) -> bool {
        let sees = |rules: &Rules| rules.compiled.sees(viewer as usize, other as usize);
        self.rules.as_ref().is_none_or(sees)
    }

    /// Whom the node at a place is told of; `None` for everybody. Of many nodes this is faster than
    /// asking for each.
    pub fn shown(&self, viewer: u32) -> Option<NodeSet> {
        Some(self.rules.as_ref()?.compiled.peers(viewer as usize))
    }

    /// Which of these networks of a router the node at a place is not told of.
    pub fn hidden(&self, viewer: u32, router: u32, networks: &[IpNet]) -> Vec<IpNet> {
        let Some(rules) = self.rules.as_ref().filter(|_| !networks.is_empty()) else {
            return Vec::new();
        };
        if !rules.has(viewer) || !rules.has(router) {
            return networks.to_vec();
        }
        let told = rules.compiled.routes(viewer as usize, router as usize);
        networks.iter().filter(|net| !told.contains(net)).copied().collect()
    }

    /// The rules that a node filters by, as JSON of a list of `tailcfg.FilterRule`.
    pub fn filter(&self, place: u32) -> Arc<str> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(place)) {
            Some(rules) => rules.compiled.filter_json(place as usize).into(),
            None => "[]".into(),
        };
        Arc::clone(self.texts(place).filter.get_or_init(write))
    }

    /// Who may log in to a node by SSH, as JSON of `tailcfg.SSHPolicy`.
    pub fn ssh(&self, place: u32) -> Arc<str> {
        let write = || match self.rules.as_ref().filter(|rules| rules.has(place)) {
            Some(rules) => {
                json!({ "rules": rules.compiled.ssh(place as usize, CHECKS) }).to_string().into()
            }
            None => r#"{"rules":[]}"#.into(),
        };
        Arc::clone(self.texts(place).ssh.get_or_init(write))
    }

    /// The attributes that a node is told of itself.
    pub fn attributes(&self, place: u32) -> Arc<[String]> {
        let list = |rules: &Rules| {
            let attributes = rules.compiled.attributes(place as usize);
            attributes.into_iter().map(str::to_owned).collect()
        };
        let write = || self.rules.as_ref().map_or_else(|| [].into(), list);
        Arc::clone(self.texts(place).attributes.get_or_init(write))
    }

    fn texts(&self, place: u32) -> &Texts {
        let Some(rules) = &self.rules else { return &self.open };
        rules.texts.get(place as usize).unwrap_or(&rules.unknown)
    }
}

impl Rules {
    fn has(&self, place: u32) -> bool {
        (place as usize) < self.nodes.nodes.len()
    }

    fn compile(&mut self, changed: &NodeSet) -> Renewed {
        let compiled = self.policy.compile_shared(Arc::clone(&self.nodes));
        let moved = compiled.moved(&self.compiled, changed);
        self.compiled = compiled;
        let Some(moved) = moved else {
            self.texts.iter_mut().for_each(|texts| *texts = Texts::default());
            return Renewed::All;
        };
        for place in moved.filters.iter() {
            self.texts[place].filter = OnceLock::new();
        }
        for place in moved.ssh.iter() {
            self.texts[place].ssh = OnceLock::new();
        }
        for place in moved.attributes.iter() {
            self.texts[place].attributes = OnceLock::new();
        }
        let mut reach = moved.reach;
        // Which routes a node is told of depends on its own.
        reach.add(changed);
        Renewed::At(reach)
    }
}
