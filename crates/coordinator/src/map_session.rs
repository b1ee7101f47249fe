//! One stream of maps: its sent state, and the next frame.
//!
//! The first frame is the full map. Each later frame has the changes since the one before it: new and removed
//! peers, whole nodes, and patches if the changed parts allow one.
//!
//! A client may resume a previous stream of any server of the network: then the first frame has the changes since
//! then (`MapSessionHandle` and `Seq` of `tailcfg.go`; stock clients do not request this). The stream starts with a
//! full map if other nodes may be visible to the client, or if the log has forgotten some changes.
//!
//! A client with an expired key receives only its own node. When its key expires or becomes valid again, the
//! stream ends, and the client starts another one.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use ipnet::IpNet;
use policy::NodeSet;
use serde_json::{Map, Value, json};
use tailnet::keys::NodePublic;

use crate::{
    change_log::{Log, Parts},
    frame::{Fields, Frame, FrameKey, Part, PeerUpdate, patch},
    merged_changes::MergedChanges,
    node_json,
    nodes::Entry,
    object::NodeId,
    request::MapRequest,
    state::State,
    stream_handle::StreamHandle,
    time::Time,
};

/// The number of nodes with neighbouring IDs that are sent as one block.
const NEIGHBOURS: i64 = 32;

/// One stream of maps.
#[derive(Debug)]
pub struct Session {
    id: NodeId,
    key: NodePublic,
    handle: StreamHandle,
    /// The position in the log up to which changes were sent. `None` before the first frame.
    read_to: Option<u64>,
    /// Whether the key had expired when the stream began.
    is_expired: bool,
    /// The peers that the client knows.
    known_peers: NodeSet,
    /// The networks of routers that are hidden to the client, by index of the router.
    hidden: BTreeMap<u32, Vec<IpNet>>,
    filter: Arc<[Part]>,
    ssh: Arc<str>,
    attributes: Arc<[String]>,
    /// The generation of the relay map that was sent.
    relays: u64,
}

/// The result of [`Session::poll`].
#[derive(Debug)]
pub enum PollResult {
    /// Nothing changed.
    Nothing,
    /// The next frame.
    Frame(Frame),
    /// The stream ends, after this frame if there is one.
    End(Option<Frame>),
}

impl Session {
    /// Returns a stream of a node with this key.
    pub fn new(id: NodeId, key: NodePublic) -> Self {
        Self {
            id,
            key,
            handle: StreamHandle::default(),
            read_to: None,
            is_expired: false,
            known_peers: NodeSet::default(),
            hidden: BTreeMap::new(),
            filter: [].into(),
            ssh: "".into(),
            attributes: [].into(),
            relays: 0,
        }
    }

    /// Makes the stream resumable. It resumes the stream that the request names, if that belongs to the same network,
    /// at any of its servers.
    #[must_use]
    pub fn resumable(mut self, network: &str, request: &MapRequest) -> Self {
        self.handle = StreamHandle::new(network, request);
        self
    }

    /// The version of the network that this server must have read before the stream can resume.
    pub fn resumed_version(&self, state: &State) -> Option<i64> {
        self.resumed_from(state).map(Log::version_of)
    }

    /// The position in the previous stream, if this stream can resume it.
    fn resumed_from(&self, state: &State) -> Option<i64> {
        self.handle.resumed_from(self.id, state.log().epoch())
    }

    /// The only frame for a client without a node.
    pub fn refusal_frame(key: NodePublic) -> Frame {
        let mut fields = Fields::default();
        fields.put("Node", node_json::removed(NodeId(0), &key.to_string()));
        fields.finish()
    }

    /// The node of the stream.
    pub fn node(&self) -> NodeId {
        self.id
    }

    /// Returns the next frame.
    pub fn poll(&mut self, state: &State, now: Time) -> PollResult {
        self.poll_until(state, state.end(), now)
    }

    /// Returns the next frame, with changes up to `end` of the log. Streams that poll the same ranges share frames.
    pub fn poll_until(&mut self, state: &State, end: u64, now: Time) -> PollResult {
        let entry = state.entry(self.id).filter(|entry| entry.node.key == self.key);
        let Some(entry) = entry else {
            let was_deleted = state.node(self.id).is_none();
            let removed = || {
                let mut fields = Fields::default();
                fields.put("Node", node_json::removed(self.id, &self.key.to_string()));
                fields.finish()
            };
            return PollResult::End(was_deleted.then(removed));
        };
        let has_expired = entry.node.has_expired(now);
        if self.read_to.is_some() && has_expired != self.is_expired {
            let own = || {
                let mut fields = Fields::default();
                fields.put("Node", state.self_json(entry, now));
                fields.finish()
            };
            return PollResult::End(has_expired.then(own));
        }
        if has_expired {
            self.is_expired = true;
            return match self.read_to.replace(end) {
                None => PollResult::Frame(Self::expired_frame(state, entry, now)),
                Some(_) => PollResult::Nothing,
            };
        }
        let Some(read_to) = self.read_to else {
            self.read_to = Some(state.end());
            let from = self.resumed_from(state);
            self.handle.choose(self.id, state.log().epoch(), from.is_some());
            let resumed = from.and_then(|from| self.resume(state, entry, from, now));
            return PollResult::Frame(resumed.unwrap_or_else(|| {
                self.handle.choose(self.id, state.log().epoch(), false);
                self.full_frame(state, entry, now)
            }));
        };
        if read_to >= end {
            return PollResult::Nothing;
        }
        self.read_to = Some(end);
        match state.merged_changes(read_to, end) {
            Some(merged) => self.changes_frame(state, entry, (&merged, end), now),
            None => PollResult::End(None),
        }
    }

    /// The first frame of a resumed stream, with all changed nodes as whole nodes. `None` if the stream cannot resume.
    fn resume(&mut self, state: &State, entry: &Entry, from: i64, now: Time) -> Option<Frame> {
        let is_own = state.log().is_own(from);
        let (from, end) = (state.log().find(from, now)?, state.end());
        let merged = state.merged_changes(from, end).filter(|_| from <= end)?;
        if self.has_other_access(&merged) {
            return None;
        }
        self.init_peers(state, entry);
        // The client may or may not know each of these nodes. Both are harmless.
        let is_known = |index: u32| self.known_peers.contains(index as usize);
        let of = |index| if is_known(index) { PeerUpdate::Full } else { PeerUpdate::Removed };
        let others = merged.nodes().filter(|(id, ..)| *id != self.id);
        let mut updates: Vec<_> = others.map(|(id, index, _)| (id, of(index))).collect();
        if !is_own {
            self.add_offline(state, &mut updates);
        }
        let mut fields = self.begin_frame(state);
        self.attributes = state.access().attributes(entry.index);
        fields.put("Node", state.self_json(entry, now));
        match is_own {
            // The client may have the relays of the server's start.
            true => self.put_relays(state, &mut fields),
            false => self.put_settings(state, &mut fields),
        }
        self.put_rules(state, entry, &mut fields);
        self.put_peers(state, (&updates, end), &mut fields);
        Some(fields.finish_at(state.log().position(end)?, now))
    }

    /// Sets the known peers of a first frame.
    fn init_peers(&mut self, state: &State, entry: &Entry) {
        self.known_peers = state.visible_nodes(entry);
        for router in indexes(&self.known_peers.intersection(state.nodes_by_index().routers())) {
            if let Some(router) = state.entry_at(router) {
                self.update_hidden(state, entry, router);
            }
        }
    }

    /// Adds the offline peers. Some may have gone offline before this server's log began, and only the other
    /// server's log had that.
    fn add_offline(&self, state: &State, updates: &mut Vec<(NodeId, PeerUpdate)>) {
        let known: BTreeSet<NodeId> = updates.iter().map(|(id, _)| *id).collect();
        let offline = indexes(&self.known_peers).filter_map(|index| state.entry_at(index));
        let offline = offline.filter(|other| !other.online && !known.contains(&other.node.id));
        updates.extend(offline.map(|other| (other.node.id, PeerUpdate::Patch(Parts::ONLINE))));
        updates.sort_unstable_by_key(|(id, _)| *id);
    }

    /// Adds the fields from this server's configuration, which may differ between servers.
    fn put_settings(&mut self, state: &State, fields: &mut Fields) {
        self.relays = state.relay_changes();
        fields.put("DERPMap", state.settings().relays.clone());
        fields.put("DNSConfig", state.dns());
        fields.put("Domain", json!(state.settings().base_domain).to_string());
    }

    /// The first fields of a first frame.
    fn begin_frame(&self, state: &State) -> Fields {
        let mut fields = Fields::default();
        self.handle.put(&mut fields);
        fields.put_tka(state.tka_info());
        fields
    }

    /// The full map.
    fn full_frame(&mut self, state: &State, entry: &Entry, now: Time) -> Frame {
        self.init_peers(state, entry);
        let mut fields = self.begin_frame(state);
        self.attributes = state.access().attributes(entry.index);
        fields.put("Node", state.self_json(entry, now));
        self.put_settings(state, &mut fields);
        self.put_all_peers(state, &mut fields);
        self.put_profiles(state, entry, &mut fields);
        fields.put("CollectServices", "false".into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        self.put_rules(state, entry, &mut fields);
        // Without a position, the client cannot resume this stream.
        fields.finish_at(state.log().position(state.end()).unwrap_or(0), now)
    }

    /// The first frame of a client with an expired key. Without a handle, the stream is never resumed.
    fn expired_frame(state: &State, entry: &Entry, now: Time) -> Frame {
        let mut fields = Fields::default();
        fields.put_tka(state.tka_info());
        fields.put("Node", state.self_json(entry, now));
        fields.put("DERPMap", state.settings().relays.clone());
        fields.put("Domain", json!(state.settings().base_domain).to_string());
        fields.add_owners(iter::once(state.profile(&entry.node)));
        fields.put("PacketFilters", r#"{"base":[]}"#.into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        fields.finish()
    }

    /// A frame with changes.
    fn changes_frame(
        &mut self,
        state: &State,
        entry: &Entry,
        (merged, end): (&MergedChanges, u64),
        now: Time,
    ) -> PollResult {
        let updates = self.peer_updates(state, entry, merged);
        let mut fields = Fields::default();
        let attributes = state.access().attributes(entry.index);
        let own = merged.parts(self.id);
        if own.has(Parts::WHOLE.and(Parts::KEY)) || attributes != self.attributes {
            self.attributes = attributes;
            fields.put("Node", state.self_json(entry, now));
            fields.add_owners(iter::once(state.profile(&entry.node)));
        }
        if merged.has_tka {
            fields.put_tka(state.tka_info());
        }
        self.put_relays(state, &mut fields);
        self.put_rules(state, entry, &mut fields);
        if fields.is_empty() && updates.is_empty() {
            return PollResult::Nothing;
        }
        let Some(position) = state.log().position(end) else { return PollResult::End(None) };
        // A server with the previous epoch could resume the stream by its previous handle.
        if self.handle.epoch() != state.log().epoch() {
            self.handle.choose(self.id, state.log().epoch(), false);
            self.handle.put(&mut fields);
        }
        let is_for_all = fields.is_empty() && !self.hides_routes_of(state, &updates);
        let has_new_owner = self.has_new_owner(state, entry, &updates);
        if has_new_owner {
            fields.put("CollectServices", "false".into());
        }
        if is_for_all {
            let key = FrameKey { end, updates, has_new_owner };
            return PollResult::Frame(state.frames().frame(key, |key| {
                self.put_peers(state, (&key.updates, end), &mut fields);
                fields.finish_at(position, now)
            }));
        }
        self.put_peers(state, (&updates, end), &mut fields);
        PollResult::Frame(fields.finish_at(position, now))
    }

    /// Whether a node is the first one of its owner that the client receives. A stock client shows a number for such
    /// an owner, unless another field makes it rebuild its map
    /// (`types/netmap/nodemut.go`, `mapResponseContainsNonPatchFields`).
    fn has_new_owner(&self, state: &State, own: &Entry, updates: &[(NodeId, PeerUpdate)]) -> bool {
        let whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| state.entry(*id)).collect();
        let now: NodeSet = whole.iter().map(|entry| entry.index as usize).collect();
        let was_known = |index| self.known_peers.contains(index) && !now.contains(index);
        let is_new = |of: &NodeSet| !of.contains(own.index as usize) && !of.iter().any(was_known);
        let owners: BTreeSet<_> = whole.iter().map(|entry| entry.node.user).collect();
        owners.iter().filter_map(|owner| state.nodes_by_index().of_owner(*owner)).any(is_new)
    }

    /// Whether other nodes may be visible than before.
    fn has_other_access(&self, merged: &MergedChanges) -> bool {
        merged.has_policy || merged.parts(self.id).has(Parts::ACCESS)
    }

    /// The updates of peers, sorted by ID.
    fn peer_updates(
        &mut self,
        state: &State,
        entry: &Entry,
        merged: &MergedChanges,
    ) -> Vec<(NodeId, PeerUpdate)> {
        let seen = self.has_other_access(merged).then(|| state.visible_nodes(entry));
        let visibility = Visibility { state, viewer: entry, seen: seen.as_ref() };
        let mut updates = Vec::new();
        let own = self.id;
        for (id, index, parts) in merged.nodes().filter(|(id, ..)| *id != own) {
            updates.extend(self.peer_update(&visibility, index, parts).map(|of| (id, of)));
        }
        if let Some(seen) = &seen {
            // These nodes did not change themselves. Only their visibility or that of their networks may have.
            let mut others = self.known_peers.symmetric_difference(seen);
            others.union_with(&seen.intersection(state.nodes_by_index().routers()));
            for index in indexes(&others) {
                let Some(id) = state.entry_at(index).map(|other| other.node.id) else { continue };
                updates.extend(
                    self.peer_update(&visibility, index, Parts::empty()).map(|of| (id, of)),
                );
            }
            updates.sort_unstable_by_key(|(id, _)| *id);
        }
        updates
    }

    /// The update of a peer.
    fn peer_update(
        &mut self,
        visibility: &Visibility<'_>,
        index: u32,
        parts: Parts,
    ) -> Option<PeerUpdate> {
        let other = visibility.state.entry_at(index).filter(|other| visibility.has(other));
        let Some(other) = other.filter(|_| !parts.has(Parts::REMOVED)) else {
            self.hidden.remove(&index);
            return self.known_peers.remove(index as usize).then_some(PeerUpdate::Removed);
        };
        let has_changed_hidden = self.update_hidden(visibility.state, visibility.viewer, other);
        let is_new = self.known_peers.insert(index as usize);
        if is_new || has_changed_hidden || parts.has(Parts::WHOLE.and(Parts::PEER_VIEW)) {
            return Some(PeerUpdate::Full);
        }
        let parts = parts.without(Parts::ACCESS.and(Parts::REWRITTEN));
        (!parts.is_empty()).then_some(PeerUpdate::Patch(parts))
    }

    /// Updates the hidden networks of a router. Returns whether they changed.
    fn update_hidden(&mut self, state: &State, own: &Entry, router: &Entry) -> bool {
        let hidden = state.hidden_routes(own, router);
        let before = match hidden.is_empty() {
            true => self.hidden.remove(&router.index),
            false => self.hidden.insert(router.index, hidden.clone()),
        };
        before.unwrap_or_default() != hidden
    }

    /// Whether some networks of one of these nodes are hidden.
    fn hides_routes_of(&self, state: &State, updates: &[(NodeId, PeerUpdate)]) -> bool {
        let is_hidden = |id: &NodeId| {
            state.entry(*id).is_some_and(|entry| self.hidden.contains_key(&entry.index))
        };
        let mut whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        !self.hidden.is_empty() && whole.any(|(id, _)| is_hidden(id))
    }

    /// JSON of a peer for this client.
    fn peer(&self, state: &State, entry: &Entry) -> Arc<str> {
        match self.hidden.get(&entry.index) {
            Some(hidden) => state.peer_json_without(entry, hidden),
            None => state.peer_json(entry),
        }
    }

    /// Adds the relays if they changed.
    fn put_relays(&mut self, state: &State, fields: &mut Fields) {
        if self.relays != state.relay_changes() {
            self.relays = state.relay_changes();
            fields.put("DERPMap", state.settings().relays.clone());
        }
    }

    /// Adds the filter and the SSH rules if they changed.
    fn put_rules(&mut self, state: &State, entry: &Entry, fields: &mut Fields) {
        let filter = state.access().filter(entry.index);
        if !Arc::ptr_eq(&filter, &self.filter) && filter != self.filter {
            fields.begin_field("PacketFilters");
            fields.push_text(r#"{"base":"#);
            fields.push_parts(&filter);
            fields.push_text("}");
            self.filter = filter;
        }
        let ssh = state.access().ssh(entry.index);
        if ssh != self.ssh {
            fields.begin_field("SSHPolicy");
            fields.push_parts(&[Part::Shared(Arc::clone(&ssh))]);
            self.ssh = ssh;
        }
    }

    /// Adds all peers. A block is used if all its nodes are visible, without hidden networks.
    fn put_all_peers(&self, state: &State, fields: &mut Fields) {
        let whole =
            self.known_peers.difference(&self.hidden.keys().map(|index| *index as usize).collect());
        let (blocks, mut rest) = state.cover(&whole);
        rest.union_with(&self.known_peers.difference(&whole));
        let alone = indexes(&rest).filter_map(|index| state.entry_at(index));
        fields.list_with("Peers", alone.map(|peer| Part::Shared(self.peer(state, peer))), blocks);
    }

    /// Adds the owners of all peers and of the node itself.
    fn put_profiles(&self, state: &State, own: &Entry, fields: &mut Fields) {
        let is_visible_owner =
            |of: &NodeSet| of.contains(own.index as usize) || of.intersects(&self.known_peers);
        let users = state.nodes_by_index().by_owner().filter(|of| is_visible_owner(of));
        let one =
            |of: &NodeSet| indexes(&of.intersection(&self.known_peers)).next().unwrap_or(own.index);
        let nodes = users.filter_map(|of| state.entry_at(one(of))).map(|entry| &entry.node);
        fields.add_owners(nodes.map(|node| state.profile(node)));
    }

    /// Adds whole peers. Many nodes that joined together are sent in blocks, because each of them receives all but
    /// itself.
    fn put_full_peers(&self, state: &State, whole: &[&Entry], end: u64, fields: &mut Fields) {
        let (mut alone, mut blocks) = (Vec::new(), Vec::new());
        let number = |entry: &Entry| entry.node.id.0 / NEIGHBOURS;
        for some in whole.chunk_by(|one, other| number(one) == number(other)) {
            let hides = some.iter().any(|entry| self.hidden.contains_key(&entry.index));
            if some.len() < NEIGHBOURS as usize || hides {
                alone.extend(some);
                continue;
            }
            let nodes = some.iter().map(|entry| state.peer_json(entry));
            blocks.push(state.frames().neighbour_block(end, some[0].node.id, nodes));
        }
        let alone = alone.into_iter().map(|entry| Part::Shared(self.peer(state, entry)));
        fields.list_with("PeersChanged", alone, blocks);
    }

    fn put_peers(
        &self,
        state: &State,
        (updates, end): (&[(NodeId, PeerUpdate)], u64),
        fields: &mut Fields,
    ) {
        let entry = |id: &NodeId| state.entry(*id);
        let removed = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Removed);
        fields.list("PeersRemoved", removed.map(|(id, _)| Part::Text(id.to_string())));
        let whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| entry(id)).collect();
        self.put_full_peers(state, &whole, end, fields);
        let owners: BTreeMap<_, _> =
            whole.iter().map(|entry| (entry.node.user, &entry.node)).collect();
        fields.add_owners(owners.into_values().map(|node| state.profile(node)));
        let (mut online, mut patches) = (Map::new(), Vec::new());
        for (id, updates) in updates {
            match (updates, entry(id)) {
                // `OnlineChange` is shorter, but cannot carry the last-seen time of an offline node.
                (PeerUpdate::Patch(Parts::ONLINE), Some(entry)) if entry.online => {
                    online.insert(id.to_string(), json!(true));
                }
                (PeerUpdate::Patch(parts), Some(entry)) => patches.push(patch(entry, *parts)),
                _ => {}
            }
        }
        if !online.is_empty() {
            fields.put("OnlineChange", Value::Object(online).to_string());
        }
        fields.list("PeersChangedPatch", patches.into_iter().map(Part::Text));
    }
}

/// The nodes that are visible to a node.
struct Visibility<'a> {
    state: &'a State,
    viewer: &'a Entry,
    /// The set of visible nodes, if it was computed.
    seen: Option<&'a NodeSet>,
}

impl Visibility<'_> {
    fn has(&self, other: &Entry) -> bool {
        match self.seen {
            Some(seen) => seen.contains(other.index as usize),
            None => {
                self.viewer.index != other.index
                    && other.node.is_reachable()
                    && self.state.access().is_visible(self.viewer.index, other.index)
            }
        }
    }
}

fn indexes(of: &NodeSet) -> impl Iterator<Item = u32> + '_ {
    of.iter().map(|index| u32::try_from(index).expect("indexes have 32 bits"))
}
