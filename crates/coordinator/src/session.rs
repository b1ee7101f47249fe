//! One stream of maps: what a client was told, and what it is to be told next.
//!
//! The first frame is the whole map. Each other has what changed since the one before, once, however
//! often it changed: nodes that are new or not any more among those shown, whole nodes, and patches
//! where the parts that changed allow one.
//!
//! A client that followed another stream before, of any server of the network, may go on with it: then the
//! first frame has what changed since (`MapSessionHandle` and `Seq` of `tailcfg.go`; stock clients
//! ask for no such thing). It begins anew where that would be more than nodes: where it may be
//! others whom it sees, or the log has forgotten.
//!
//! A client with an expired key receives only its own node. When its key expires or is valid again, the
//! stream ends, and the client begins another one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use policy::NodeSet;
use serde_json::{Map, Value, json};
use tailnet::keys::NodePublic;

use crate::{
    frame::{Fields, Frame, FrameKey, Part, PeerUpdate, patch},
    log::{Log, Parts},
    merged_changes::MergedChanges,
    node_json,
    node_updates::is_reachable,
    object::NodeId,
    request::MapRequest,
    state::{Entry, State},
    time::Time,
};

/// How many nodes with neighbouring numbers are told of in a block.
const NEIGHBOURS: i64 = 32;

/// One stream of maps.
#[derive(Debug)]
pub struct Session {
    id: NodeId,
    key: NodePublic,
    /// What names of streams of this network begin with; empty where none can be gone on with.
    network: String,
    /// The name of a former one and how far it was followed.
    previous: Option<(String, i64)>,
    /// Its name, from the first frame on, and which history that is of.
    handle: String,
    epoch: i64,
    /// What of the log was told; nothing before the first frame.
    read_to: Option<u64>,
    /// Whether its key had expired when it began.
    is_expired: bool,
    /// The places of the peers that it was told of.
    known_peers: NodeSet,
    /// The networks of routers that it was not told of, by the routers' places.
    hidden: BTreeMap<u32, Vec<IpNet>>,
    filter: Arc<[Part]>,
    ssh: Arc<str>,
    attributes: Arc<[String]>,
    /// The number of the map of relays.
    relays: u64,
}

/// What a stream is to be told.
#[derive(Debug)]
pub enum PollResult {
    /// Nothing new.
    Nothing,
    /// This.
    Frame(Frame),
    /// This, if there is anything, and then its end.
    End(Option<Frame>),
}

impl Session {
    /// A stream of a node's, which has this key now.
    pub fn new(id: NodeId, key: NodePublic) -> Self {
        let (filter, ssh, attributes) = ([].into(), "".into(), [].into());
        let (known_peers, hidden) = (NodeSet::default(), BTreeMap::new());
        let (network, previous, handle, epoch) = (String::new(), None, String::new(), 0);
        Self {
            id,
            key,
            network,
            previous,
            handle,
            epoch,
            read_to: None,
            is_expired: false,
            known_peers,
            hidden,
            filter,
            ssh,
            attributes,
            relays: 0,
        }
    }

    /// One that can be gone on with, and goes on where this request says, if it is of the same
    /// network, whichever of its servers it followed.
    #[must_use]
    pub fn resumable(mut self, network: &str, request: &MapRequest) -> Self {
        network.clone_into(&mut self.network);
        self.previous = Some((request.previous_stream.clone(), request.previous_seq));
        self
    }

    /// Which version of the network a server must know for this stream to go on.
    pub fn resumed_version(&self, state: &State) -> Option<i64> {
        self.resumed_from(state).map(Log::version_of)
    }

    /// How far the former one was followed, if this is the next of it.
    fn resumed_from(&self, state: &State) -> Option<i64> {
        let (name, position) = self.previous.as_ref()?;
        self.handles(state).contains(name).then_some(*position)
    }

    /// The names that a stream of the node may have at any server that knows the same history. There are
    /// two, as one that begins anew has another name than the one that its client asked for.
    fn handles(&self, state: &State) -> [String; 2] {
        let epoch = state.log.epoch();
        ["", "-b"].map(|end| format!("{}-{epoch:x}-{}{end}", self.network, self.id))
    }

    /// Chooses the name: the former one's, if this goes on with it.
    fn choose_handle(&mut self, state: &State, is_resumed: bool) {
        let previous = self.previous.as_ref().map(|(name, _)| name);
        let is_good = |name: &String| (previous == Some(name)) == is_resumed;
        self.epoch = state.log.epoch();
        if !self.network.is_empty() {
            self.handle = self.handles(state).into_iter().find(is_good).unwrap_or_default();
        }
    }

    /// The stream of a client that is no node: it is told so, and that is all.
    pub fn refusal_frame(key: NodePublic) -> Frame {
        let mut fields = Fields::default();
        fields.put("Node", node_json::removed(NodeId(0), &key.to_string()));
        fields.finish()
    }

    /// Whose it is.
    pub fn node(&self) -> NodeId {
        self.id
    }

    /// What it is to be told next.
    pub fn poll(&mut self, state: &State, now: Time) -> PollResult {
        self.poll_until(state, state.end(), now)
    }

    /// The same, of what changed until the log was so long. Others that are told as much at a time are
    /// told the same.
    pub fn poll_until(&mut self, state: &State, end: u64, now: Time) -> PollResult {
        let entry = state.nodes.get(&self.id).filter(|entry| entry.node.key == self.key);
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
            self.choose_handle(state, from.is_some());
            let resumed = from.and_then(|from| self.resume(state, entry, from, now));
            return PollResult::Frame(resumed.unwrap_or_else(|| {
                self.choose_handle(state, false);
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

    /// The first frame of a stream that goes on: whole nodes of all that changed. `None` if it cannot.
    fn resume(&mut self, state: &State, entry: &Entry, from: i64, now: Time) -> Option<Frame> {
        let is_own = state.log.is_own(from);
        let (from, end) = (state.log.find(from, now)?, state.end());
        let merged = state.merged_changes(from, end).filter(|_| from <= end)?;
        if self.has_other_access(&merged) {
            return None;
        }
        self.set_known_peers(state, entry);
        // It may have known it, and may not: neither does harm.
        let is_shown = |index: u32| self.known_peers.contains(index as usize);
        let of = |index| if is_shown(index) { PeerUpdate::Full } else { PeerUpdate::Removed };
        let others = merged.nodes().filter(|(id, ..)| *id != self.id);
        let mut updates: Vec<_> = others.map(|(id, index, _)| (id, of(index))).collect();
        if !is_own {
            self.add_offline(state, &mut updates);
        }
        let mut fields = self.begin_frame(state);
        self.attributes = state.access.attributes(entry.index);
        fields.put("Node", state.self_json(entry, now));
        match is_own {
            // It may know those that there were at the start.
            true => self.put_relays(state, &mut fields),
            false => self.put_settings(state, &mut fields),
        }
        self.put_rules(state, entry, &mut fields);
        self.put_peers(state, (&updates, end), &mut fields);
        Some(fields.finish_at(state.log.position(end)?, now))
    }

    /// It knows all that it is told of in a first frame.
    fn set_known_peers(&mut self, state: &State, entry: &Entry) {
        self.known_peers = state.visible_nodes(entry);
        for router in indexes(&self.known_peers.intersection(&state.indexes.routers)) {
            if let Some(router) = state.entry_at(router) {
                self.update_hidden(state, entry, router);
            }
        }
    }

    /// What another server's log has of those who went offline before this one began is not in this
    /// one's.
    fn add_offline(&self, state: &State, updates: &mut Vec<(NodeId, PeerUpdate)>) {
        let known: BTreeSet<NodeId> = updates.iter().map(|(id, _)| *id).collect();
        let offline = indexes(&self.known_peers).filter_map(|index| state.entry_at(index));
        let offline = offline.filter(|other| !other.online && !known.contains(&other.node.id));
        updates.extend(offline.map(|other| (other.node.id, PeerUpdate::Patch(Parts::ONLINE))));
        updates.sort_unstable_by_key(|(id, _)| *id);
    }

    /// What this server is configured with, as another may not be.
    fn put_settings(&mut self, state: &State, fields: &mut Fields) {
        self.relays = state.relays;
        fields.put("DERPMap", state.settings.relays.clone());
        fields.put("DNSConfig", state.dns());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
    }

    /// The first fields of a first frame.
    fn begin_frame(&self, state: &State) -> Fields {
        let mut fields = Fields::default();
        self.put_handle(&mut fields);
        fields.put_tka(state);
        fields
    }

    fn put_handle(&self, fields: &mut Fields) {
        if !self.handle.is_empty() {
            fields.put("MapSessionHandle", json!(self.handle).to_string());
        }
    }

    /// The first frame: all of it.
    fn full_frame(&mut self, state: &State, entry: &Entry, now: Time) -> Frame {
        self.set_known_peers(state, entry);
        let mut fields = self.begin_frame(state);
        self.attributes = state.access.attributes(entry.index);
        fields.put("Node", state.self_json(entry, now));
        self.put_settings(state, &mut fields);
        self.put_all_peers(state, &mut fields);
        self.put_profiles(state, entry, &mut fields);
        fields.put("CollectServices", "false".into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        self.put_rules(state, entry, &mut fields);
        // Where it is none yet, its client begins anew if this stream breaks off.
        fields.finish_at(state.log.position(state.end()).unwrap_or(0), now)
    }

    /// The first frame of a client with an expired key. Without a name, the stream is never resumed.
    fn expired_frame(state: &State, entry: &Entry, now: Time) -> Frame {
        let mut fields = Fields::default();
        fields.put_tka(state);
        fields.put("Node", state.self_json(entry, now));
        fields.put("DERPMap", state.settings.relays.clone());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
        fields.add_owners(state, [&entry.node].into_iter());
        fields.put("PacketFilters", r#"{"base":[]}"#.into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        fields.finish()
    }

    /// What changed.
    fn changes_frame(
        &mut self,
        state: &State,
        entry: &Entry,
        (merged, end): (&MergedChanges, u64),
        now: Time,
    ) -> PollResult {
        let updates = self.peer_updates(state, entry, merged);
        let mut fields = Fields::default();
        let attributes = state.access.attributes(entry.index);
        let own = merged.parts(self.id);
        if own.has(Parts::WHOLE.and(Parts::KEY)) || attributes != self.attributes {
            self.attributes = attributes;
            fields.put("Node", state.self_json(entry, now));
            fields.add_owners(state, [&entry.node].into_iter());
        }
        if merged.has_tka {
            fields.put_tka(state);
        }
        self.put_relays(state, &mut fields);
        self.put_rules(state, entry, &mut fields);
        if fields.is_empty() && updates.is_empty() {
            return PollResult::Nothing;
        }
        let Some(position) = state.log.position(end) else { return PollResult::End(None) };
        // By the name it had it would be gone on with where its history is not known yet.
        if self.epoch != state.log.epoch() {
            self.choose_handle(state, false);
            self.put_handle(&mut fields);
        }
        let is_for_all = fields.is_empty() && !self.hides_routes_of(state, &updates);
        let has_new_owner = self.has_new_owner(state, entry, &updates);
        if has_new_owner {
            fields.put("CollectServices", "false".into());
        }
        if is_for_all {
            let key = FrameKey { end, updates, has_new_owner };
            return PollResult::Frame(state.frames.frame(key, |key| {
                self.put_peers(state, (&key.updates, end), &mut fields);
                fields.finish_at(position, now)
            }));
        }
        self.put_peers(state, (&updates, end), &mut fields);
        PollResult::Frame(fields.finish_at(position, now))
    }

    /// Whether a node is the first of its owner that the client is told of. A stock client shows a number for
    /// such an owner, unless another field makes it build its whole map again
    /// (`types/netmap/nodemut.go`, `mapResponseContainsNonPatchFields`).
    fn has_new_owner(&self, state: &State, own: &Entry, updates: &[(NodeId, PeerUpdate)]) -> bool {
        let whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| state.nodes.get(id)).collect();
        let now: NodeSet = whole.iter().map(|entry| entry.index as usize).collect();
        let was_known = |index| self.known_peers.contains(index) && !now.contains(index);
        let is_new = |of: &NodeSet| !of.contains(own.index as usize) && !of.iter().any(was_known);
        let owners: BTreeSet<_> = whole.iter().map(|entry| entry.node.user).collect();
        owners.iter().filter_map(|owner| state.indexes.of_users.get(owner)).any(is_new)
    }

    /// Whether it may see other nodes than before.
    fn has_other_access(&self, merged: &MergedChanges) -> bool {
        merged.has_policy || merged.parts(self.id).has(Parts::ACCESS)
    }

    /// What it is to be told of others, in order.
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
            // What changed of a node itself has been told: of these nothing did but which nodes see
            // them, or which of their networks.
            let mut others = self.known_peers.symmetric_difference(seen);
            others.union_with(&seen.intersection(&state.indexes.routers));
            for index in indexes(&others) {
                let Some(id) = state.entry_at(index).map(|other| other.node.id) else { continue };
                updates
                    .extend(self.peer_update(&visibility, index, Parts::none()).map(|of| (id, of)));
            }
            updates.sort_unstable_by_key(|(id, _)| *id);
        }
        updates
    }

    /// What is to be told of a peer.
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
        let hides_others = self.update_hidden(visibility.state, visibility.viewer, other);
        let is_new = self.known_peers.insert(index as usize);
        if is_new || hides_others || parts.has(Parts::WHOLE.and(Parts::PEER_VIEW)) {
            return Some(PeerUpdate::Full);
        }
        let parts = parts.without(Parts::ACCESS.and(Parts::REWRITTEN));
        (!parts.is_empty()).then_some(PeerUpdate::Patch(parts))
    }

    /// Notes which networks of a router it is not to be told of; whether they are others than before.
    fn update_hidden(&mut self, state: &State, own: &Entry, router: &Entry) -> bool {
        let hidden = state.hidden_routes(own, router);
        let before = match hidden.is_empty() {
            true => self.hidden.remove(&router.index),
            false => self.hidden.insert(router.index, hidden.clone()),
        };
        before.unwrap_or_default() != hidden
    }

    /// Whether one of these is told without some of its networks.
    fn hides_routes_of(&self, state: &State, updates: &[(NodeId, PeerUpdate)]) -> bool {
        let is_hidden = |id: &NodeId| {
            state.nodes.get(id).is_some_and(|entry| self.hidden.contains_key(&entry.index))
        };
        let mut whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        !self.hidden.is_empty() && whole.any(|(id, _)| is_hidden(id))
    }

    /// A peer, as this client is told of it.
    fn peer(&self, state: &State, entry: &Entry) -> Arc<str> {
        match self.hidden.get(&entry.index) {
            Some(hidden) => state.peer_json_without(entry, hidden),
            None => state.peer_json(entry),
        }
    }

    /// The relays, where they are others.
    fn put_relays(&mut self, state: &State, fields: &mut Fields) {
        if self.relays != state.relays {
            self.relays = state.relays;
            fields.put("DERPMap", state.settings.relays.clone());
        }
    }

    /// Filter and SSH, where they are others.
    fn put_rules(&mut self, state: &State, entry: &Entry, fields: &mut Fields) {
        let filter = state.access.filter(entry.index);
        if !Arc::ptr_eq(&filter, &self.filter) && filter != self.filter {
            fields.begin_field("PacketFilters");
            fields.push_text(r#"{"base":"#);
            fields.push_parts(&filter);
            fields.push_text("}");
            self.filter = filter;
        }
        let ssh = state.access.ssh(entry.index);
        if ssh != self.ssh {
            fields.begin_field("SSHPolicy");
            fields.push_parts(&[Part::Shared(Arc::clone(&ssh))]);
            self.ssh = ssh;
        }
    }

    /// All peers: in blocks where it is told of all in them, and of each what others are told.
    fn put_all_peers(&self, state: &State, fields: &mut Fields) {
        let whole =
            self.known_peers.difference(&self.hidden.keys().map(|index| *index as usize).collect());
        let (blocks, mut rest) = state.blocks.cover(&whole, |index| {
            let entry = state.entry_at(index).filter(|entry| is_reachable(&entry.node))?;
            Some(state.peer_json(entry))
        });
        rest.union_with(&self.known_peers.difference(&whole));
        let alone = indexes(&rest).filter_map(|index| state.entry_at(index));
        fields.list_with("Peers", alone.map(|peer| Part::Shared(self.peer(state, peer))), blocks);
    }

    /// The owners of all, and its own.
    fn put_profiles(&self, state: &State, own: &Entry, fields: &mut Fields) {
        let is_told =
            |of: &NodeSet| of.contains(own.index as usize) || of.intersects(&self.known_peers);
        let users = state.indexes.of_users.values().filter(|of| is_told(of));
        let one =
            |of: &NodeSet| indexes(&of.intersection(&self.known_peers)).next().unwrap_or(own.index);
        let nodes = users.filter_map(|of| state.entry_at(one(of))).map(|entry| &entry.node);
        fields.add_owners(state, nodes);
    }

    /// Others of which all is told: in blocks where many joined together, as each of these is told
    /// all but itself.
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
            blocks.push(state.frames.neighbour_block(end, some[0].node.id, nodes));
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
        let entry = |id: &NodeId| state.nodes.get(id);
        let removed = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Removed);
        fields.list("PeersRemoved", removed.map(|(id, _)| Part::Text(id.to_string())));
        let whole = updates.iter().filter(|(_, updates)| *updates == PeerUpdate::Full);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| entry(id)).collect();
        self.put_full_peers(state, &whole, end, fields);
        let owners: BTreeMap<_, _> =
            whole.iter().map(|entry| (entry.node.user, &entry.node)).collect();
        fields.add_owners(state, owners.into_values());
        let (mut online, mut patches) = (Map::new(), Vec::new());
        for (id, updates) in updates {
            match (updates, entry(id)) {
                // Where nothing else changed there is a shorter way to say it; a time goes with "not".
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

/// Whom a node is told of.
struct Visibility<'a> {
    state: &'a State,
    viewer: &'a Entry,
    /// Those, if all are looked at.
    seen: Option<&'a NodeSet>,
}

impl Visibility<'_> {
    fn has(&self, other: &Entry) -> bool {
        match self.seen {
            Some(seen) => seen.contains(other.index as usize),
            None => {
                self.viewer.index != other.index
                    && is_reachable(&other.node)
                    && self.state.access.is_visible(self.viewer.index, other.index)
            }
        }
    }
}

fn indexes(of: &NodeSet) -> impl Iterator<Item = u32> + '_ {
    of.iter().map(|index| u32::try_from(index).expect("places are such numbers"))
}
