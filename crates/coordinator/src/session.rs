//! One stream of maps: what a client was told, and what it is to be told next.
//!
//! The first frame is the whole map. Each other has what changed since the one before, once, however
//! often it changed: nodes that are new or not any more among those shown, whole nodes, and patches
//! where the parts that changed allow one.
//!
//! A client that followed another stream before, of the same server, may go on with it: then the
//! first frame has what changed since (`MapSessionHandle` and `Seq` of `tailcfg.go`; stock clients
//! ask for no such thing). It begins anew where that would be more than nodes: where it may be
//! others whom it sees, or the log has forgotten.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use tailnet::keys::NodePublic;

use crate::{
    bits::Bits,
    blocks::Block,
    log::{Change, Parts},
    object::{Node, NodeId},
    request::MapRequest,
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
    /// Its name, which others of the same node share.
    handle: String,
    /// How far a former one was followed, before the first frame.
    resumed_from: Option<u64>,
    /// What of the log was told; nothing before the first frame.
    told: Option<u64>,
    /// The places of the peers that it was told of.
    known: Bits,
    /// The networks of routers that it was not told of, by the routers' places.
    hidden: BTreeMap<u32, Vec<IpNet>>,
    filter: Arc<str>,
    ssh: Arc<str>,
    attributes: Arc<[String]>,
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
    /// The same, of many nodes, which may be packed already.
    Block(Arc<Block>),
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
        let mut all = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => all.push_str(text),
                Part::Shared(text) => all.push_str(text),
                Part::Block(block) => all.push_str(&block.text()),
            }
        }
        all
    }
}

impl Session {
    /// A stream of a node's, which has this key now.
    pub fn new(id: NodeId, key: NodePublic) -> Self {
        let (filter, ssh, attributes) = ("".into(), "".into(), [].into());
        let (known, hidden) = (Bits::default(), BTreeMap::new());
        let (handle, resumed_from) = (String::new(), None);
        Self { id, key, handle, resumed_from, told: None, known, hidden, filter, ssh, attributes }
    }

    /// One that can be gone on with, and goes on where this request says, if it is of the same
    /// server. `server` is another each time that it starts, as its log is.
    #[must_use]
    pub fn resumable(mut self, server: &str, request: &MapRequest) -> Self {
        self.handle = format!("{server}-{}", self.id);
        let is_its = request.former_stream == self.handle;
        self.resumed_from = request.former_seq.checked_sub(1).and_then(|seq| seq.try_into().ok());
        self.resumed_from = self.resumed_from.filter(|_| is_its);
        self
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
        self.poll_until(state, state.end(), now)
    }

    /// The same, of what changed until the log was so long. Others that are told as much at a time are
    /// told the same.
    pub fn poll_until(&mut self, state: &State, end: u64, now: Time) -> Polled {
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
        let Some(told) = self.told else {
            self.told = Some(state.end());
            let resumed =
                self.resumed_from.take().and_then(|from| self.resume(state, entry, from, now));
            return Polled::Frame(resumed.unwrap_or_else(|| self.whole(state, entry, now)));
        };
        if told >= end {
            return Polled::Nothing;
        }
        self.told = Some(end);
        match state.log().between(told, end) {
            Some(changes) => self.changes(state, entry, (changes, end), now),
            None => Polled::End(None),
        }
    }

    /// The first frame of a stream that goes on: whole nodes of all that changed. `None` if it cannot.
    fn resume(&mut self, state: &State, entry: &Entry, from: u64, now: Time) -> Option<Frame> {
        let end = state.end();
        let changes = state.log().between(from, end).filter(|_| from <= end)?;
        let (merged, looks_at_all) = self.merge(state, changes);
        if looks_at_all {
            return None;
        }
        let sight = Sight::all(state, entry);
        for other in state.nodes.values().filter(|other| sight.has(other)) {
            self.known.insert(other.place);
            self.hide(state, entry, other);
        }
        let mut told = BTreeMap::new();
        for (id, (place, _)) in merged.into_iter().filter(|(id, _)| *id != self.id) {
            // It may have known it, and may not: neither does harm.
            let is_shown = self.known.contains(place);
            told.insert(id, if is_shown { Told::Whole } else { Told::Removed });
        }
        let mut fields = self.begun();
        self.attributes = state.access.attributes(entry.place);
        fields.put("Node", state.own(entry, now));
        self.rules(state, entry, &mut fields);
        self.put_peers(state, &told, &mut fields);
        Some(fields.finish_at(end, now, None))
    }

    /// The first fields of a first frame.
    fn begun(&self) -> Fields {
        let mut fields = Fields::default();
        if !self.handle.is_empty() {
            fields.put("MapSessionHandle", json!(self.handle).to_string());
        }
        fields
    }

    /// The first frame: all of it.
    fn whole(&mut self, state: &State, entry: &Entry, now: Time) -> Frame {
        let sight = Sight::all(state, entry);
        let mut peers: Vec<&Entry> =
            state.nodes.values().filter(|other| sight.has(other)).collect();
        peers.sort_unstable_by_key(|peer| peer.place);
        for peer in &peers {
            self.known.insert(peer.place);
            self.hide(state, entry, peer);
        }
        let mut fields = self.begun();
        self.attributes = state.access.attributes(entry.place);
        fields.put("Node", state.own(entry, now));
        fields.put("DERPMap", state.settings.relays.clone());
        self.put_all(state, &peers, &mut fields);
        let nodes = peers.iter().map(|peer| &peer.node).chain([&entry.node]);
        fields.profiles(state, nodes);
        fields.put("DNSConfig", state.dns());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
        fields.put("CollectServices", "false".into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        self.rules(state, entry, &mut fields);
        fields.finish_at(state.end(), now, None)
    }

    /// What changed.
    fn changes(
        &mut self,
        state: &State,
        entry: &Entry,
        (changes, end): (impl Iterator<Item = Change>, u64),
        now: Time,
    ) -> Polled {
        let mut told = BTreeMap::new();
        let (mut merged, looks_at_all) = self.merge(state, changes);
        let own = merged.remove(&self.id).map_or(Parts::none(), |(_, parts)| parts);
        let sight = if looks_at_all { Sight::all(state, entry) } else { Sight::each(state, entry) };
        for (id, (place, parts)) in merged {
            if let Some(of) = self.tell(&sight, place, parts) {
                told.insert(id, of);
            }
        }
        let mut fields = Fields::default();
        let attributes = state.access.attributes(entry.place);
        if own.has(Parts::WHOLE) || attributes != self.attributes {
            self.attributes = attributes;
            fields.put("Node", state.own(entry, now));
            fields.profiles(state, [&entry.node].into_iter());
        }
        self.rules(state, entry, &mut fields);
        let is_for_all = fields.is_empty() && !self.hides_from(state, &told);
        self.put_peers(state, &told, &mut fields);
        if fields.is_empty() {
            return Polled::Nothing;
        }
        let key = is_for_all.then(|| FrameKey { end, told: told.into_iter().collect() });
        Polled::Frame(fields.finish_at(end, now, key))
    }

    /// Each node once, with all that changed of it, and whether any may have to be shown or hidden.
    fn merge(
        &self,
        state: &State,
        changes: impl Iterator<Item = Change>,
    ) -> (BTreeMap<NodeId, (u32, Parts)>, bool) {
        let mut merged: BTreeMap<NodeId, (u32, Parts)> = BTreeMap::new();
        let mut looks_at_all = false;
        for change in changes {
            match change {
                Change::Node { id, place, parts } => {
                    let of = merged.entry(id).or_insert((place, Parts::none()));
                    of.1 = of.1.and(parts);
                    looks_at_all |= id == self.id && parts.has(Parts::ACCESS);
                }
                Change::Policy => looks_at_all = true,
            }
        }
        if looks_at_all {
            for (id, other) in &state.nodes {
                merged.entry(*id).or_insert((other.place, Parts::none()));
            }
        }
        (merged, looks_at_all)
    }

    /// What is to be told of a peer.
    fn tell(&mut self, sight: &Sight<'_>, place: u32, parts: Parts) -> Option<Told> {
        let other = sight.state.at(place).filter(|other| sight.has(other));
        let Some(other) = other.filter(|_| !parts.has(Parts::GONE)) else {
            self.hidden.remove(&place);
            return self.known.remove(place).then_some(Told::Removed);
        };
        let hides_others = self.hide(sight.state, sight.viewer, other);
        let is_new = self.known.insert(place);
        if is_new || hides_others || parts.has(Parts::WHOLE.and(Parts::SHOWN)) {
            return Some(Told::Whole);
        }
        let parts = parts.without(Parts::ACCESS);
        (!parts.is_empty()).then_some(Told::Parts(parts))
    }

    /// Notes which networks of a router it is not to be told of; whether they are others than before.
    fn hide(&mut self, state: &State, own: &Entry, router: &Entry) -> bool {
        let hidden = state.hidden(own, router);
        let before = match hidden.is_empty() {
            true => self.hidden.remove(&router.place),
            false => self.hidden.insert(router.place, hidden.clone()),
        };
        before.unwrap_or_default() != hidden
    }

    /// Whether one of these is told without some of its networks.
    fn hides_from(&self, state: &State, told: &BTreeMap<NodeId, Told>) -> bool {
        let is_hidden = |id: &NodeId| {
            state.nodes.get(id).is_some_and(|entry| self.hidden.contains_key(&entry.place))
        };
        let mut whole = told.iter().filter(|(_, told)| **told == Told::Whole);
        !self.hidden.is_empty() && whole.any(|(id, _)| is_hidden(id))
    }

    /// A peer, as this client is told of it.
    fn peer(&self, state: &State, entry: &Entry) -> Arc<str> {
        match self.hidden.get(&entry.place) {
            Some(hidden) => state.peer_without(entry, hidden),
            None => state.peer(entry),
        }
    }

    /// Filter and SSH, where they are others.
    fn rules(&mut self, state: &State, entry: &Entry, fields: &mut Fields) {
        let filter = state.access.filter(entry.place);
        if filter != self.filter {
            fields.name("PacketFilters");
            fields.text(r#"{"base":"#);
            fields.parts.push(Part::Shared(Arc::clone(&filter)));
            fields.text("}");
            self.filter = filter;
        }
        let ssh = state.access.ssh(entry.place);
        if ssh != self.ssh {
            fields.name("SSHPolicy");
            fields.parts.push(Part::Shared(Arc::clone(&ssh)));
            self.ssh = ssh;
        }
    }

    /// All peers, in the order of their places: in blocks where it is told of all in them, and of each
    /// what others are told.
    fn put_all(&self, state: &State, peers: &[&Entry], fields: &mut Fields) {
        let is_whole = |place: &u32| !self.hidden.contains_key(place);
        let places = peers.iter().map(|peer| peer.place);
        let (blocks, rest) = state.blocks.cover(places.clone().filter(is_whole), |place| {
            let entry = state.at(place).filter(|entry| is_reachable(&entry.node))?;
            Some(state.peer(entry))
        });
        let alone = rest.into_iter().chain(places.filter(|place| !is_whole(place)));
        let alone = alone.filter_map(|place| state.at(place));
        fields.list_with("Peers", alone.map(|peer| Part::Shared(self.peer(state, peer))), blocks);
    }

    fn put_peers(&self, state: &State, told: &BTreeMap<NodeId, Told>, fields: &mut Fields) {
        let entry = |id: &NodeId| state.nodes.get(id);
        let removed = told.iter().filter(|(_, told)| **told == Told::Removed);
        fields.list("PeersRemoved", removed.map(|(id, _)| Part::Text(id.to_string())));
        let whole = || {
            told.iter().filter(|(_, told)| **told == Told::Whole).filter_map(|(id, _)| entry(id))
        };
        fields.list("PeersChanged", whole().map(|entry| Part::Shared(self.peer(state, entry))));
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
}

/// Whom a node is told of.
struct Sight<'a> {
    state: &'a State,
    viewer: &'a Entry,
    /// Those, if many are asked for.
    all: Option<policy::NodeSet>,
}

impl<'a> Sight<'a> {
    fn all(state: &'a State, viewer: &'a Entry) -> Self {
        Self { state, viewer, all: state.access.shown(viewer.place) }
    }

    fn each(state: &'a State, viewer: &'a Entry) -> Self {
        Self { state, viewer, all: None }
    }

    fn has(&self, other: &Entry) -> bool {
        let shows = || match &self.all {
            Some(all) => all.contains(other.place as usize),
            None => self.state.access.shows(self.viewer.place, other.place),
        };
        self.viewer.node.id != other.node.id && is_reachable(&other.node) && shows()
    }
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
    fn list(&mut self, name: &str, items: impl Iterator<Item = Part>) {
        self.list_with(name, items, Vec::new());
    }

    /// A list that ends with blocks. They begin with commas: the first of a list is no block.
    fn list_with(
        &mut self,
        name: &str,
        mut items: impl Iterator<Item = Part>,
        blocks: Vec<Arc<Block>>,
    ) {
        let mut blocks = blocks.into_iter();
        let mut first_of_block = || Some(Part::Text(blocks.next()?.text().split_off(1)));
        let Some(first) = items.next().or_else(&mut first_of_block) else { return };
        self.name(name);
        self.text("[");
        self.parts.push(first);
        for item in items {
            self.text(",");
            self.parts.push(item);
        }
        self.parts.extend(blocks.map(Part::Block));
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

    /// The end of a frame behind which the log is read on from there.
    fn finish_at(mut self, end: u64, now: Time, key: Option<FrameKey>) -> Frame {
        self.put("ControlTime", json!(now.text()).to_string());
        // 0 is no number of a map.
        self.put("Seq", (end + 1).to_string());
        self.finish(key)
    }

    fn finish(mut self, key: Option<FrameKey>) -> Frame {
        self.text("}");
        Frame { parts: self.parts, key }
    }
}
