//! One stream of maps: what a client was told, and what it is to be told next.
//!
//! The first frame is the whole map. Each other has what changed since the one before, once, however
//! often it changed: nodes that are new or not any more among those shown, whole nodes, and patches
//! where the parts that changed allow one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use tailnet::keys::NodePublic;

use crate::{
    bits::Bits,
    log::{Change, Parts},
    object::{Node, NodeId},
    shown,
    state::{Entry, State},
    telling::{is_reachable, texts},
    time::Time,
};

/// One stream of maps.
#[derive(Debug)]
pub struct Session {
    id: NodeId,
    key: NodePublic,
    /// What of the log was told; nothing before the first frame.
    told: Option<u64>,
    /// The places of the peers that it was told of.
    known: Bits,
    filter: Arc<str>,
    ssh: Arc<str>,
}

/// What a stream is to be told.
#[derive(Debug)]
pub enum Polled {
    /// Nothing new.
    Nothing,
    /// This.
    Frame(Frame),
    /// This, if there is anything, and then its end.
    End(Option<Frame>),
}

/// A map, or what changed of it: JSON in parts, many of which others are told too.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Frames with the same key have the same words; none if it is for one client alone.
    pub key: Option<FrameKey>,
}

/// A part of a frame.
#[derive(Clone, Debug)]
pub enum Part {
    /// For this frame.
    Text(String),
    /// For whoever is told it.
    Shared(Arc<str>),
}

/// What a frame says, briefly: how far it goes, and of whom what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FrameKey {
    end: u64,
    told: Vec<(NodeId, Told)>,
}

/// What a client is told of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    Whole,
    Removed,
    Parts(Parts),
}

impl Frame {
    /// All of it.
    pub fn text(&self) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Shared(text) => text,
        });
        parts.collect()
    }
}

impl Session {
    /// A stream of a node's, which has this key now.
    pub fn new(id: NodeId, key: NodePublic) -> Self {
        let (filter, ssh) = ("".into(), "".into());
        Self { id, key, told: None, known: Bits::default(), filter, ssh }
    }

    /// The stream of a client that is no node: it is told so, and that is all.
    pub fn refuse(key: NodePublic) -> Frame {
        let mut fields = Fields::default();
        fields.put("Node", shown::gone(NodeId(0), &key.to_string()));
        fields.finish(None)
    }

    /// Whose it is.
    pub fn node(&self) -> NodeId {
        self.id
    }

    /// What it is to be told next.
    pub fn poll(&mut self, state: &State, now: Time) -> Polled {
        let entry = state.nodes.get(&self.id).filter(|entry| entry.node.key == self.key);
        let Some(entry) = entry else {
            let was_deleted = state.node(self.id).is_none();
            let words = || {
                let mut fields = Fields::default();
                fields.put("Node", shown::gone(self.id, &self.key.to_string()));
                fields.finish(None)
            };
            return Polled::End(was_deleted.then(words));
        };
        let end = state.log().end();
        match self.told.replace(end) {
            None => Polled::Frame(self.whole(state, entry, now)),
            Some(told) if told == end => Polled::Nothing,
            Some(told) => match state.log().since(told) {
                Some(changes) => self.changes(state, entry, changes, now),
                None => Polled::End(None),
            },
        }
    }

    /// The first frame: all of it.
    fn whole(&mut self, state: &State, entry: &Entry, now: Time) -> Frame {
        let peers: Vec<&Entry> =
            state.nodes.values().filter(|other| shows(state, &entry.node, other)).collect();
        for peer in &peers {
            self.known.insert(peer.place);
        }
        let mut fields = Fields::default();
        fields.put("Node", state.own(entry, now));
        fields.put("DERPMap", state.settings.relays.clone());
        fields.list("Peers", peers.iter().map(|peer| Part::Shared(state.peer(peer))));
        let nodes = peers.iter().map(|peer| &peer.node).chain([&entry.node]);
        fields.profiles(state, nodes);
        fields.put("DNSConfig", state.dns());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
        fields.put("CollectServices", "false".into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        self.rules(state, &entry.node, &mut fields);
        fields.put("ControlTime", json!(now.text()).to_string());
        fields.finish(None)
    }

    /// What changed.
    fn changes(
        &mut self,
        state: &State,
        entry: &Entry,
        changes: impl Iterator<Item = Change>,
        now: Time,
    ) -> Polled {
        let (mut own, mut told) = (Parts::none(), BTreeMap::new());
        for (id, (place, parts)) in self.merge(state, changes) {
            if id == self.id {
                own = own.and(parts);
            } else if let Some(of) = self.tell(state, entry, place, parts) {
                told.insert(id, of);
            }
        }
        let mut fields = Fields::default();
        if own.has(Parts::WHOLE) {
            fields.put("Node", state.own(entry, now));
            fields.profiles(state, [&entry.node].into_iter());
        }
        self.rules(state, &entry.node, &mut fields);
        let is_for_all = fields.is_empty();
        put_peers(state, &told, &mut fields);
        if fields.is_empty() {
            return Polled::Nothing;
        }
        fields.put("ControlTime", json!(now.text()).to_string());
        let end = state.log().end();
        let key = is_for_all.then(|| FrameKey { end, told: told.into_iter().collect() });
        Polled::Frame(fields.finish(key))
    }

    /// Each node once, with all that changed of it. A policy that changed may show or hide any.
    fn merge(
        &self,
        state: &State,
        changes: impl Iterator<Item = Change>,
    ) -> BTreeMap<NodeId, (u32, Parts)> {
        let mut merged: BTreeMap<NodeId, (u32, Parts)> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Node { id, place, parts } => {
                    let of = merged.entry(id).or_insert((place, Parts::none()));
                    of.1 = of.1.and(parts);
                }
                Change::Policy => {
                    for (id, other) in &state.nodes {
                        merged.entry(*id).or_insert((other.place, Parts::none()));
                    }
                }
            }
        }
        merged
    }

    /// What is to be told of a peer.
    fn tell(&mut self, state: &State, own: &Entry, place: u32, parts: Parts) -> Option<Told> {
        let other = state.at(place).filter(|other| shows(state, &own.node, other));
        let Some(_) = other.filter(|_| !parts.has(Parts::GONE)) else {
            return self.known.remove(place).then_some(Told::Removed);
        };
        if self.known.insert(place) || parts.has(Parts::WHOLE.and(Parts::SHOWN)) {
            return Some(Told::Whole);
        }
        (!parts.is_empty()).then_some(Told::Parts(parts))
    }

    /// Filter and SSH, where they are others.
    fn rules(&mut self, state: &State, node: &Node, fields: &mut Fields) {
        let filter = state.access.filter(node);
        if filter != self.filter {
            fields.name("PacketFilters");
            fields.text(r#"{"base":"#);
            fields.parts.push(Part::Shared(Arc::clone(&filter)));
            fields.text("}");
            self.filter = filter;
        }
        let ssh = state.access.ssh(node);
        if ssh != self.ssh {
            fields.name("SSHPolicy");
            fields.parts.push(Part::Shared(Arc::clone(&ssh)));
            self.ssh = ssh;
        }
    }
}

/// Whether a node is told of another.
fn shows(state: &State, viewer: &Node, other: &Entry) -> bool {
    viewer.id != other.node.id
        && is_reachable(&other.node)
        && state.access.shows(viewer, &other.node)
}

fn put_peers(state: &State, told: &BTreeMap<NodeId, Told>, fields: &mut Fields) {
    let entry = |id: &NodeId| state.nodes.get(id);
    let removed = told.iter().filter(|(_, told)| **told == Told::Removed);
    fields.list("PeersRemoved", removed.map(|(id, _)| Part::Text(id.to_string())));
    let whole =
        || told.iter().filter(|(_, told)| **told == Told::Whole).filter_map(|(id, _)| entry(id));
    fields.list("PeersChanged", whole().map(|entry| Part::Shared(state.peer(entry))));
    fields.profiles(state, whole().map(|entry| &entry.node));
    let (mut online, mut patches) = (Map::new(), Vec::new());
    for (id, told) in told {
        match (told, entry(id)) {
            // Where nothing else changed there is a shorter way to say it; a time goes with "not".
            (Told::Parts(Parts::ONLINE), Some(entry)) if entry.online => {
                online.insert(id.to_string(), json!(true));
            }
            (Told::Parts(parts), Some(entry)) => patches.push(patch(entry, *parts)),
            _ => {}
        }
    }
    if !online.is_empty() {
        fields.put("OnlineChange", Value::Object(online).to_string());
    }
    fields.list("PeersChangedPatch", patches.into_iter().map(Part::Text));
}

/// `tailcfg.PeerChange`.
fn patch(entry: &Entry, parts: Parts) -> String {
    let node = &entry.node;
    let mut patch = json!({ "NodeID": node.id });
    if parts.has(Parts::ONLINE) {
        patch["Online"] = json!(entry.online);
        if let Some(seen) = node.last_seen.filter(|_| !entry.online) {
            patch["LastSeen"] = json!(seen.text());
        }
    }
    if parts.has(Parts::ENDPOINTS) {
        patch["Endpoints"] = json!(texts(&node.endpoints));
    }
    if parts.has(Parts::HOME) {
        patch["DERPRegion"] = json!(node.home);
    }
    if parts.has(Parts::DISCO) {
        patch["DiscoKey"] = json!(node.disco);
    }
    if parts.has(Parts::VERSION) {
        patch["Cap"] = json!(node.version);
    }
    patch.to_string()
}

/// The fields of a frame.
#[derive(Default)]
struct Fields {
    parts: Vec<Part>,
}

impl Fields {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn name(&mut self, name: &str) {
        let before = if self.is_empty() { '{' } else { ',' };
        self.parts.push(Part::Text(format!("{before}\"{name}\":")));
    }

    fn text(&mut self, text: &str) {
        self.parts.push(Part::Text(text.to_owned()));
    }

    fn put(&mut self, name: &str, json: String) {
        self.name(name);
        self.parts.push(Part::Text(json));
    }

    /// A list; nothing where it would be empty.
    fn list(&mut self, name: &str, mut items: impl Iterator<Item = Part>) {
        let Some(first) = items.next() else { return };
        self.name(name);
        self.text("[");
        self.parts.push(first);
        for item in items {
            self.text(",");
            self.parts.push(item);
        }
        self.text("]");
    }

    /// The owners of nodes, each once.
    fn profiles<'a>(&mut self, state: &State, nodes: impl Iterator<Item = &'a Node>) {
        let (mut seen, mut texts) = (BTreeSet::new(), Vec::new());
        for node in nodes {
            if seen.insert(node.user) {
                texts.push(Part::Text(state.profile(node).1));
            }
        }
        self.list("UserProfiles", texts.into_iter());
    }

    fn finish(mut self, key: Option<FrameKey>) -> Frame {
        self.text("}");
        Frame { parts: self.parts, key }
    }
}
