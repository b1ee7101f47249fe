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
    frame::{Fields, Frame, FrameKey, Part, Told, patch},
    log::{Log, Parts},
    merged::Merged,
    object::NodeId,
    request::MapRequest,
    shown,
    state::{Entry, State},
    telling::is_reachable,
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
    former: Option<(String, i64)>,
    /// Its name, from the first frame on, and which history that is of.
    handle: String,
    epoch: i64,
    /// What of the log was told; nothing before the first frame.
    told: Option<u64>,
    /// Whether its key had expired when it began.
    is_expired: bool,
    /// The places of the peers that it was told of.
    known: NodeSet,
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
pub enum Polled {
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
        let (known, hidden) = (NodeSet::default(), BTreeMap::new());
        let (network, former, handle, epoch) = (String::new(), None, String::new(), 0);
        Self {
            id,
            key,
            network,
            former,
            handle,
            epoch,
            told: None,
            is_expired: false,
            known,
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
        self.former = Some((request.former_stream.clone(), request.former_seq));
        self
    }

    /// Which version of the network a server must know for this stream to go on.
    pub fn resumed_version(&self, state: &State) -> Option<i64> {
        self.resumed_from(state).map(Log::version_of)
    }

    /// How far the former one was followed, if this is the next of it.
    fn resumed_from(&self, state: &State) -> Option<i64> {
        let (name, position) = self.former.as_ref()?;
        self.names(state).contains(name).then_some(*position)
    }

    /// The names that a stream of the node may have at any server that knows the same history. There are
    /// two, as one that begins anew has another name than the one that its client asked for.
    fn names(&self, state: &State) -> [String; 2] {
        let epoch = state.log.epoch();
        ["", "-b"].map(|end| format!("{}-{epoch:x}-{}{end}", self.network, self.id))
    }

    /// Chooses the name: the former one's, if this goes on with it.
    fn choose_name(&mut self, state: &State, goes_on: bool) {
        let former = self.former.as_ref().map(|(name, _)| name);
        let is_good = |name: &String| (former == Some(name)) == goes_on;
        self.epoch = state.log.epoch();
        if !self.network.is_empty() {
            self.handle = self.names(state).into_iter().find(is_good).unwrap_or_default();
        }
    }

    /// The stream of a client that is no node: it is told so, and that is all.
    pub fn refuse(key: NodePublic) -> Frame {
        let mut fields = Fields::default();
        fields.put("Node", shown::gone(NodeId(0), &key.to_string()));
        fields.finish()
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
                fields.finish()
            };
            return Polled::End(was_deleted.then(words));
        };
        let has_expired = entry.node.has_expired(now);
        if self.told.is_some() && has_expired != self.is_expired {
            let own = || {
                let mut fields = Fields::default();
                fields.put("Node", state.own(entry, now));
                fields.finish()
            };
            return Polled::End(has_expired.then(own));
        }
        if has_expired {
            self.is_expired = true;
            return match self.told.replace(end) {
                None => Polled::Frame(Self::alone(state, entry, now)),
                Some(_) => Polled::Nothing,
            };
        }
        let Some(told) = self.told else {
            self.told = Some(state.end());
            let from = self.resumed_from(state);
            self.choose_name(state, from.is_some());
            let resumed = from.and_then(|from| self.resume(state, entry, from, now));
            return Polled::Frame(resumed.unwrap_or_else(|| {
                self.choose_name(state, false);
                self.whole(state, entry, now)
            }));
        };
        if told >= end {
            return Polled::Nothing;
        }
        self.told = Some(end);
        match state.merged(told, end) {
            Some(merged) => self.changes(state, entry, (&merged, end), now),
            None => Polled::End(None),
        }
    }

    /// The first frame of a stream that goes on: whole nodes of all that changed. `None` if it cannot.
    fn resume(&mut self, state: &State, entry: &Entry, from: i64, now: Time) -> Option<Frame> {
        let is_own = state.log.is_own(from);
        let (from, end) = (state.log.find(from, now)?, state.end());
        let merged = state.merged(from, end).filter(|_| from <= end)?;
        if self.may_reach_others(&merged) {
            return None;
        }
        self.know(state, entry);
        // It may have known it, and may not: neither does harm.
        let is_shown = |place: u32| self.known.contains(place as usize);
        let of = |place| if is_shown(place) { Told::Whole } else { Told::Removed };
        let others = merged.nodes().filter(|(id, ..)| *id != self.id);
        let mut told: Vec<_> = others.map(|(id, place, _)| (id, of(place))).collect();
        if !is_own {
            self.add_offline(state, &mut told);
        }
        let mut fields = self.begun(state);
        self.attributes = state.access.attributes(entry.place);
        fields.put("Node", state.own(entry, now));
        match is_own {
            // It may know those that there were at the start.
            true => self.put_relays(state, &mut fields),
            false => self.put_settings(state, &mut fields),
        }
        self.rules(state, entry, &mut fields);
        self.put_peers(state, (&told, end), &mut fields);
        Some(fields.finish_at(state.log.position(end)?, now))
    }

    /// It knows all that it is told of in a first frame.
    fn know(&mut self, state: &State, entry: &Entry) {
        self.known = state.seen_by(entry);
        for router in places(&self.known.both(&state.places.routers)) {
            if let Some(router) = state.at(router) {
                self.hide(state, entry, router);
            }
        }
    }

    /// What another server's log has of those who went offline before this one began is not in this
    /// one's.
    fn add_offline(&self, state: &State, told: &mut Vec<(NodeId, Told)>) {
        let known: BTreeSet<NodeId> = told.iter().map(|(id, _)| *id).collect();
        let offline = places(&self.known).filter_map(|place| state.at(place));
        let offline = offline.filter(|other| !other.online && !known.contains(&other.node.id));
        told.extend(offline.map(|other| (other.node.id, Told::Parts(Parts::ONLINE))));
        told.sort_unstable_by_key(|(id, _)| *id);
    }

    /// What this server is configured with, as another may not be.
    fn put_settings(&mut self, state: &State, fields: &mut Fields) {
        self.relays = state.relays;
        fields.put("DERPMap", state.settings.relays.clone());
        fields.put("DNSConfig", state.dns());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
    }

    /// The first fields of a first frame.
    fn begun(&self, state: &State) -> Fields {
        let mut fields = Fields::default();
        self.put_name(&mut fields);
        fields.lock(state);
        fields
    }

    fn put_name(&self, fields: &mut Fields) {
        if !self.handle.is_empty() {
            fields.put("MapSessionHandle", json!(self.handle).to_string());
        }
    }

    /// The first frame: all of it.
    fn whole(&mut self, state: &State, entry: &Entry, now: Time) -> Frame {
        self.know(state, entry);
        let mut fields = self.begun(state);
        self.attributes = state.access.attributes(entry.place);
        fields.put("Node", state.own(entry, now));
        self.put_settings(state, &mut fields);
        self.put_all(state, &mut fields);
        self.put_profiles(state, entry, &mut fields);
        fields.put("CollectServices", "false".into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        self.rules(state, entry, &mut fields);
        // Where it is none yet, its client begins anew if this stream breaks off.
        fields.finish_at(state.log.position(state.end()).unwrap_or(0), now)
    }

    /// The first frame of a client with an expired key. Without a name, the stream is never resumed.
    fn alone(state: &State, entry: &Entry, now: Time) -> Frame {
        let mut fields = Fields::default();
        fields.lock(state);
        fields.put("Node", state.own(entry, now));
        fields.put("DERPMap", state.settings.relays.clone());
        fields.put("Domain", json!(state.settings.base_domain).to_string());
        fields.profiles(state, [&entry.node].into_iter());
        fields.put("PacketFilters", r#"{"base":[]}"#.into());
        fields.put("Debug", r#"{"DisableLogTail":true}"#.into());
        fields.finish()
    }

    /// What changed.
    fn changes(
        &mut self,
        state: &State,
        entry: &Entry,
        (merged, end): (&Merged, u64),
        now: Time,
    ) -> Polled {
        let told = self.told_by(state, entry, merged);
        let mut fields = Fields::default();
        let attributes = state.access.attributes(entry.place);
        let own = merged.parts(self.id);
        if own.has(Parts::WHOLE.and(Parts::KEY)) || attributes != self.attributes {
            self.attributes = attributes;
            fields.put("Node", state.own(entry, now));
            fields.profiles(state, [&entry.node].into_iter());
        }
        if merged.has_lock {
            fields.lock(state);
        }
        self.put_relays(state, &mut fields);
        self.rules(state, entry, &mut fields);
        if fields.is_empty() && told.is_empty() {
            return Polled::Nothing;
        }
        let Some(position) = state.log.position(end) else { return Polled::End(None) };
        // By the name it had it would be gone on with where its history is not known yet.
        if self.epoch != state.log.epoch() {
            self.choose_name(state, false);
            self.put_name(&mut fields);
        }
        let is_for_all = fields.is_empty() && !self.hides_from(state, &told);
        let has_new_owner = self.has_new_owner(state, entry, &told);
        if has_new_owner {
            fields.put("CollectServices", "false".into());
        }
        if is_for_all {
            let key = FrameKey { end, told, has_new_owner };
            return Polled::Frame(state.frames.frame(key, |key| {
                self.put_peers(state, (&key.told, end), &mut fields);
                fields.finish_at(position, now)
            }));
        }
        self.put_peers(state, (&told, end), &mut fields);
        Polled::Frame(fields.finish_at(position, now))
    }

    /// Whether a node is the first of its owner that the client is told of. A stock client shows a number for
    /// such an owner, unless another field makes it build its whole map again
    /// (`types/netmap/nodemut.go`, `mapResponseContainsNonPatchFields`).
    fn has_new_owner(&self, state: &State, own: &Entry, told: &[(NodeId, Told)]) -> bool {
        let whole = told.iter().filter(|(_, told)| *told == Told::Whole);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| state.nodes.get(id)).collect();
        let now: NodeSet = whole.iter().map(|entry| entry.place as usize).collect();
        let was_known = |place| self.known.contains(place) && !now.contains(place);
        let is_new = |of: &NodeSet| !of.contains(own.place as usize) && !of.iter().any(was_known);
        let owners: BTreeSet<_> = whole.iter().map(|entry| entry.node.user).collect();
        owners.iter().filter_map(|owner| state.places.of_users.get(owner)).any(is_new)
    }

    /// Whether it may see other nodes than before.
    fn may_reach_others(&self, merged: &Merged) -> bool {
        merged.has_policy || merged.parts(self.id).has(Parts::ACCESS)
    }

    /// What it is to be told of others, in order.
    fn told_by(&mut self, state: &State, entry: &Entry, merged: &Merged) -> Vec<(NodeId, Told)> {
        let seen = self.may_reach_others(merged).then(|| state.seen_by(entry));
        let sight = Sight { state, viewer: entry, seen: seen.as_ref() };
        let mut told = Vec::new();
        let own = self.id;
        for (id, place, parts) in merged.nodes().filter(|(id, ..)| *id != own) {
            told.extend(self.tell(&sight, place, parts).map(|of| (id, of)));
        }
        if let Some(seen) = &seen {
            // What changed of a node itself has been told: of these nothing did but which nodes see
            // them, or which of their networks.
            let mut others = self.known.either(seen);
            others.add(&seen.both(&state.places.routers));
            for place in places(&others) {
                let Some(id) = state.at(place).map(|other| other.node.id) else { continue };
                told.extend(self.tell(&sight, place, Parts::none()).map(|of| (id, of)));
            }
            told.sort_unstable_by_key(|(id, _)| *id);
        }
        told
    }

    /// What is to be told of a peer.
    fn tell(&mut self, sight: &Sight<'_>, place: u32, parts: Parts) -> Option<Told> {
        let other = sight.state.at(place).filter(|other| sight.has(other));
        let Some(other) = other.filter(|_| !parts.has(Parts::GONE)) else {
            self.hidden.remove(&place);
            return self.known.remove(place as usize).then_some(Told::Removed);
        };
        let hides_others = self.hide(sight.state, sight.viewer, other);
        let is_new = self.known.insert(place as usize);
        if is_new || hides_others || parts.has(Parts::WHOLE.and(Parts::SHOWN)) {
            return Some(Told::Whole);
        }
        let parts = parts.without(Parts::ACCESS.and(Parts::WRITTEN));
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
    fn hides_from(&self, state: &State, told: &[(NodeId, Told)]) -> bool {
        let is_hidden = |id: &NodeId| {
            state.nodes.get(id).is_some_and(|entry| self.hidden.contains_key(&entry.place))
        };
        let mut whole = told.iter().filter(|(_, told)| *told == Told::Whole);
        !self.hidden.is_empty() && whole.any(|(id, _)| is_hidden(id))
    }

    /// A peer, as this client is told of it.
    fn peer(&self, state: &State, entry: &Entry) -> Arc<str> {
        match self.hidden.get(&entry.place) {
            Some(hidden) => state.peer_without(entry, hidden),
            None => state.peer(entry),
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
    fn rules(&mut self, state: &State, entry: &Entry, fields: &mut Fields) {
        let filter = state.access.filter(entry.place);
        if !Arc::ptr_eq(&filter, &self.filter) && filter != self.filter {
            fields.name("PacketFilters");
            fields.text(r#"{"base":"#);
            fields.extend(&filter);
            fields.text("}");
            self.filter = filter;
        }
        let ssh = state.access.ssh(entry.place);
        if ssh != self.ssh {
            fields.name("SSHPolicy");
            fields.extend(&[Part::Shared(Arc::clone(&ssh))]);
            self.ssh = ssh;
        }
    }

    /// All peers: in blocks where it is told of all in them, and of each what others are told.
    fn put_all(&self, state: &State, fields: &mut Fields) {
        let whole = self.known.without(&self.hidden.keys().map(|place| *place as usize).collect());
        let (blocks, mut rest) = state.blocks.cover(&whole, |place| {
            let entry = state.at(place).filter(|entry| is_reachable(&entry.node))?;
            Some(state.peer(entry))
        });
        rest.add(&self.known.without(&whole));
        let alone = places(&rest).filter_map(|place| state.at(place));
        fields.list_with("Peers", alone.map(|peer| Part::Shared(self.peer(state, peer))), blocks);
    }

    /// The owners of all, and its own.
    fn put_profiles(&self, state: &State, own: &Entry, fields: &mut Fields) {
        let is_told = |of: &NodeSet| of.contains(own.place as usize) || of.meets(&self.known);
        let users = state.places.of_users.values().filter(|of| is_told(of));
        let one = |of: &NodeSet| places(&of.both(&self.known)).next().unwrap_or(own.place);
        let nodes = users.filter_map(|of| state.at(one(of))).map(|entry| &entry.node);
        fields.profiles(state, nodes);
    }

    /// Others of which all is told: in blocks where many joined together, as each of these is told
    /// all but itself.
    fn put_changed(&self, state: &State, whole: &[&Entry], end: u64, fields: &mut Fields) {
        let (mut alone, mut blocks) = (Vec::new(), Vec::new());
        let number = |entry: &Entry| entry.node.id.0 / NEIGHBOURS;
        for some in whole.chunk_by(|one, other| number(one) == number(other)) {
            let hides = some.iter().any(|entry| self.hidden.contains_key(&entry.place));
            if some.len() < NEIGHBOURS as usize || hides {
                alone.extend(some);
                continue;
            }
            let nodes = some.iter().map(|entry| state.peer(entry));
            blocks.push(state.frames.neighbours(end, some[0].node.id, nodes));
        }
        let alone = alone.into_iter().map(|entry| Part::Shared(self.peer(state, entry)));
        fields.list_with("PeersChanged", alone, blocks);
    }

    fn put_peers(&self, state: &State, (told, end): (&[(NodeId, Told)], u64), fields: &mut Fields) {
        let entry = |id: &NodeId| state.nodes.get(id);
        let removed = told.iter().filter(|(_, told)| *told == Told::Removed);
        fields.list("PeersRemoved", removed.map(|(id, _)| Part::Text(id.to_string())));
        let whole = told.iter().filter(|(_, told)| *told == Told::Whole);
        let whole: Vec<&Entry> = whole.filter_map(|(id, _)| entry(id)).collect();
        self.put_changed(state, &whole, end, fields);
        let owners: BTreeMap<_, _> =
            whole.iter().map(|entry| (entry.node.user, &entry.node)).collect();
        fields.profiles(state, owners.into_values());
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
    /// Those, if all are looked at.
    seen: Option<&'a NodeSet>,
}

impl Sight<'_> {
    fn has(&self, other: &Entry) -> bool {
        match self.seen {
            Some(seen) => seen.contains(other.place as usize),
            None => {
                self.viewer.place != other.place
                    && is_reachable(&other.node)
                    && self.state.access.shows(self.viewer.place, other.place)
            }
        }
    }
}

fn places(of: &NodeSet) -> impl Iterator<Item = u32> + '_ {
    of.iter().map(|place| u32::try_from(place).expect("places are such numbers"))
}
