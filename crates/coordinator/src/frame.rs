//! Frames of a stream: a map or its changes, in parts that streams share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::json;

use crate::{
    blocks::Block,
    cache::Cache,
    change_log::Parts,
    node_json::texts,
    nodes::Entry,
    object::NodeId,
    time::{Time, text_or_zero},
};

/// The number of cached frames.
const MAX_FRAMES: usize = 64;
/// The number of cached blocks of neighbouring nodes.
const MAX_BLOCKS: usize = 512;

/// A map or its changes, as JSON in parts. Many parts are shared with other frames.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The parts in order.
    pub parts: Arc<[Part]>,
    /// Frames with the same key have the same text. `None` if the frame is for one client only.
    pub key: Option<FrameKey>,
}

/// A part of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text of this frame only.
    Text(String),
    /// Shared text.
    Shared(Arc<str>),
    /// Long shared text, which may be compressed already.
    Block(Arc<Block>),
}

/// The content of a frame: the end of its range in the log, and the updates of peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FrameKey {
    pub(crate) end: u64,
    pub(crate) updates: Vec<(NodeId, PeerUpdate)>,
    /// Whether one of the nodes is the first one of its owner that the client receives.
    pub(crate) has_new_owner: bool,
}

/// An update of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerUpdate {
    Full,
    Removed,
    Patch(Parts),
}

impl FrameKey {
    /// The size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.updates[..])
    }
}

impl Frame {
    /// The approximate size in memory, in bytes.
    fn bytes(&self) -> usize {
        let len = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Shared(text) => text.len(),
            Part::Block(block) => block.bytes(),
        };
        self.parts.iter().map(|part| 2 * size_of::<Part>() + len(part)).sum()
    }

    /// The whole text.
    pub fn text(&self) -> String {
        let mut all = String::new();
        for part in self.parts.iter() {
            match part {
                Part::Text(text) => all.push_str(text),
                Part::Shared(text) => all.push_str(text),
                Part::Block(block) => all.push_str(&block.text()),
            }
        }
        all
    }
}

/// A cache of frames and blocks that several streams share.
#[derive(Default)]
pub(crate) struct FrameCache {
    frames: Mutex<Cache<FrameKey, Arc<[Part]>, MAX_FRAMES>>,
    /// Blocks by the end of the range in the log, and the first node.
    blocks: Mutex<Cache<(u64, NodeId), Arc<Block>, MAX_BLOCKS>>,
}

impl FrameCache {
    /// Returns the frame with this key. Makes it if it is not in the cache.
    pub(crate) fn frame(&self, key: FrameKey, make: impl FnOnce(&FrameKey) -> Frame) -> Frame {
        let cached = || self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parts) = cached().get(&key) {
            return Frame { parts: Arc::clone(parts), key: Some(key) };
        }
        let frame = make(&key);
        cached().insert(key.clone(), Arc::clone(&frame.parts), key.bytes() + frame.bytes());
        Frame { key: Some(key), ..frame }
    }

    /// Returns the block of neighbouring nodes that begins with `first`, for frames that end at `end`.
    pub(crate) fn neighbour_block(
        &self,
        end: u64,
        first: NodeId,
        nodes: impl Iterator<Item = Arc<str>>,
    ) -> Arc<Block> {
        let mut cached = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = cached.get(&(end, first)) {
            return Arc::clone(block);
        }
        let block = Arc::new(Block::of_nodes(nodes.collect()));
        cached.insert((end, first), Arc::clone(&block), block.bytes());
        block
    }
}

impl fmt::Debug for FrameCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// `tailcfg.PeerChange`.
pub(crate) fn patch(entry: &Entry, parts: Parts) -> String {
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
    if parts.has(Parts::HOME_RELAY) {
        patch["DERPRegion"] = json!(node.home_relay);
    }
    if parts.has(Parts::DISCO) {
        patch["DiscoKey"] = json!(node.disco);
    }
    if parts.has(Parts::KEY) {
        patch["Key"] = json!(node.key);
        patch["KeyExpiry"] = json!(text_or_zero(node.expires));
    }
    if parts.has(Parts::VERSION) {
        patch["Cap"] = json!(node.version);
    }
    patch.to_string()
}

/// The fields of a frame.
#[derive(Default)]
pub(crate) struct Fields {
    parts: Vec<Part>,
    /// The owners of its nodes, by number. They become one list at the end: a field is in a frame once.
    owners: BTreeMap<i64, String>,
}

impl Fields {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn begin_field(&mut self, name: &str) {
        let before = if self.is_empty() { '{' } else { ',' };
        self.parts.push(Part::Text(format!("{before}\"{name}\":")));
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        self.parts.push(Part::Text(text.to_owned()));
    }

    pub(crate) fn put(&mut self, name: &str, json: String) {
        self.begin_field(name);
        self.parts.push(Part::Text(json));
    }

    /// Adds the state of tailnet lock, unless it was never on.
    pub(crate) fn put_tka(&mut self, info: Option<String>) {
        if let Some(info) = info {
            self.put("TKAInfo", info);
        }
    }

    /// Adds a list, unless it is empty.
    pub(crate) fn list(&mut self, name: &str, items: impl Iterator<Item = Part>) {
        self.list_with(name, items, Vec::new());
    }

    /// Adds a list that ends with blocks. Blocks begin with a comma, so the first block of a list without other items
    /// is added as text without it.
    pub(crate) fn list_with(
        &mut self,
        name: &str,
        mut items: impl Iterator<Item = Part>,
        blocks: Vec<Arc<Block>>,
    ) {
        let mut blocks = blocks.into_iter();
        let mut first_of_block = || Some(Part::Text(blocks.next()?.text().split_off(1)));
        let Some(first) = items.next().or_else(&mut first_of_block) else { return };
        self.begin_field(name);
        self.push_text("[");
        self.parts.push(first);
        for item in items {
            self.push_text(",");
            self.parts.push(item);
        }
        self.parts.extend(blocks.map(Part::Block));
        self.push_text("]");
    }

    /// Adds owners, by number.
    pub(crate) fn add_owners(&mut self, owners: impl Iterator<Item = (i64, String)>) {
        self.owners.extend(owners);
    }

    pub(crate) fn push_parts(&mut self, parts: &[Part]) {
        self.parts.extend(parts.iter().cloned());
    }

    /// Finishes a frame with the position at which the stream can resume.
    pub(crate) fn finish_at(mut self, position: i64, now: Time) -> Frame {
        self.put("ControlTime", json!(now.text()).to_string());
        self.put("Seq", position.to_string());
        self.finish()
    }

    pub(crate) fn finish(mut self) -> Frame {
        let owners = std::mem::take(&mut self.owners);
        self.list("UserProfiles", owners.into_values().map(Part::Text));
        self.push_text("}");
        Frame { parts: self.parts.into(), key: None }
    }
}
