//! The network map: the state of the network from the coordinator's messages.
//!
//! ```text
//!   MapResponse ──► apply ──► NetworkMap ──► settings of this node
//!                     `──► Changes: the changed parts, and the unreadable ones
//! ```
//!
//! Absent fields have not changed. Peers are processed in this order (tailscale
//! `controlclient/map.go`): a complete list replaces all peers; otherwise removed peers, new peers,
//! and changes of peers. A complete list in which no peer is readable removes none.

mod weight;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tailnet::{
    keys::NodePublic,
    map_messages::{
        BadRecord, DerpMap, DisplayMessage, DnsConfig, FilterRule, MapResponse, Node, PeerChange,
        Record as _, Records, TkaInfo, UserProfile, parse_time,
    },
};

use self::weight::{Weight, block};
use crate::local_json::Timestamp;

/// The name of unnamed filter rules (`tailcfg.go`, `PacketFilters`).
const BASE: &str = "base";
/// Stands for all names.
const ALL: &str = "*";
/// The coordinator's clock is used if the difference to ours is larger than this.
const SKEW: Duration = Duration::from_secs(60);

/// The maximum number of peers, and of users: those of the longest map.
const MAX_RECORDS: usize = 50_000;
/// The maximum number of names of messages, and of filter rules.
const MAX_NAMES: usize = 1000;
/// The maximum memory of peers, rules and users, in bytes. A value can be much larger than its
/// text, and the values of many responses add up.
const MAX_MEMORY_OF_PEERS: usize = 128 << 20;
const MAX_MEMORY_OF_RULES: usize = 64 << 20;
const MAX_MEMORY_OF_USERS: usize = 16 << 20;

/// The network map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkMap {
    node: Option<Node>,
    peers: BTreeMap<i64, Box<Node>>,
    #[serde(skip)]
    by_key: HashMap<NodePublic, i64>,
    /// The memory of the peers, in bytes.
    #[serde(skip)]
    cost: usize,
    derp: DerpMap,
    dns: DnsConfig,
    domain: String,
    filters: BTreeMap<String, Vec<FilterRule>>,
    users: BTreeMap<i64, UserProfile>,
    health: Vec<String>,
    messages: BTreeMap<String, DisplayMessage>,
    #[serde(rename = "lock")]
    tka: Option<TkaInfo>,
    /// The difference of the coordinator's clock to ours, in seconds.
    #[serde(skip)]
    ahead: i64,
}

/// The changes by a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// This node, peers or rules changed: the settings must be computed again.
    pub settings: bool,
    /// This node.
    pub node: bool,
    /// The relays.
    pub relays: bool,
    /// Something in the status for users changed, such as connected peers or messages.
    pub shown: bool,
    /// The records that were ignored.
    pub bad: Vec<BadRecord>,
    /// A URL to show to the user; empty for none.
    pub page: String,
}

impl Changes {
    /// Reports once that there are more records of a kind than are stored.
    fn note_many(&mut self, kind: &'static str, most: impl fmt::Display) {
        if self.bad.iter().all(|bad| bad.kind != kind) {
            let why = format!("there are more than {most}; the others are ignored");
            self.bad.push(BadRecord { kind, which: String::new(), why });
        }
    }

    fn note_many_peers(&mut self) {
        self.note_many(
            "peers",
            format_args!("{MAX_RECORDS}, or {} MiB", MAX_MEMORY_OF_PEERS >> 20),
        );
    }
}

impl NetworkMap {
    /// Restores the map after it was read from the cache.
    pub fn restored(mut self) -> Self {
        self.peers.retain(|_, peer| peer.check().is_ok());
        self.by_key = self.peers.values().map(|peer| (peer.key, peer.id)).collect();
        // The cached connection states are out of date.
        for peer in self.peers.values_mut() {
            **peer = Node { online: None, ..std::mem::take(&mut **peer).compacted() };
        }
        self.cost = self.peers.values().map(|peer| cost(peer)).sum();
        self
    }

    /// Applies the first map of a stream. Absent fields become empty (tailscale
    /// `controlclient/map.go`, `newMapSession`), except peers and relays, which are only removed
    /// explicitly.
    pub fn apply_first(&mut self, response: MapResponse, now: Duration) -> Changes {
        let mut previous = std::mem::take(self);
        *self = Self {
            node: previous.node.take(),
            peers: std::mem::take(&mut previous.peers),
            by_key: std::mem::take(&mut previous.by_key),
            cost: previous.cost,
            derp: std::mem::take(&mut previous.derp),
            ahead: previous.ahead,
            ..Self::default()
        };
        let mut changes = self.apply(response, now);
        changes.settings |= self.dns != previous.dns
            || self.domain != previous.domain
            || self.filters != previous.filters
            || self.tka != previous.tka;
        changes.shown |= self.users != previous.users
            || self.health != previous.health
            || self.messages != previous.messages;
        changes
    }

    /// Applies a response. `now` is the time since 1970.
    pub fn apply(&mut self, response: MapResponse, now: Duration) -> Changes {
        let (page, bad) = (response.pop_browser_url, response.bad);
        let mut changes = Changes { bad, page, ..Changes::default() };
        if let Some(time) = response.control_time.as_deref().and_then(parse_time) {
            let ahead = time.as_secs().cast_signed() - now.as_secs().cast_signed();
            self.ahead = if ahead.unsigned_abs() > SKEW.as_secs() { ahead } else { 0 };
        }
        if response.keep_alive {
            return changes;
        }
        if let Some(node) = response.node {
            changes.node = self.node.as_ref() != Some(&node);
            changes.settings |= changes.node;
            self.node = Some(*node);
        }
        if let Some(derp) = response.derp_map {
            changes.relays = self.apply_relays(derp);
        }
        if let Some(dns) = response.dns_config {
            changes.settings |= self.dns != dns;
            self.dns = dns;
        }
        if !response.domain.is_empty() {
            self.domain = response.domain;
        }
        self.apply_users(&response.user_profiles, &mut changes);
        if response.peers.is_empty() {
            self.remove(&response.peers_removed, &mut changes);
            self.change(&response.peers_changed, &mut changes);
            self.see(&response.peer_seen_change, &response.online_change, now, &mut changes);
            self.patch(&response.peers_changed_patch, &mut changes);
        } else {
            self.replace(&response.peers, &mut changes);
        }
        self.apply_filters(response.packet_filter, response.packet_filters, &mut changes);
        self.apply_messages(response.health, response.display_messages, &mut changes);
        if let Some(tka) = response.tka {
            self.tka = Some(tka).filter(|tka| !tka.disabled && !tka.head.is_empty());
            changes.settings = true;
        }
        changes
    }

    fn apply_relays(&mut self, derp: DerpMap) -> bool {
        let before = self.derp.clone();
        if let Some(params) = derp.home_params {
            self.derp.home_params = Some(params);
        }
        if let Some(regions) = derp.regions {
            // A region that is `null` is removed. All others are complete.
            self.derp.regions =
                Some(regions.into_iter().filter(|(_, region)| region.is_some()).collect());
        }
        self.derp != before
    }

    fn apply_users(&mut self, profiles: &Records, changes: &mut Changes) {
        if profiles.is_empty() {
            return;
        }
        let cost = |user: &UserProfile| block(size_of::<UserProfile>()) + user.heap();
        let (users, mut left_out) = (&mut self.users, false);
        let mut sum = users.values().map(cost).sum::<usize>();
        profiles.for_each("user", &mut changes.bad, |user: UserProfile| {
            let previous = users.get(&user.id).map(cost);
            let after = sum - previous.unwrap_or(0) + cost(&user);
            if after <= MAX_MEMORY_OF_USERS && (previous.is_some() || users.len() < MAX_RECORDS) {
                sum = after;
                users.insert(user.id, user);
            } else {
                left_out = true;
            }
        });
        if left_out {
            let most = format_args!("{MAX_RECORDS}, or {} MiB", MAX_MEMORY_OF_USERS >> 20);
            changes.note_many("users", most);
        }
    }

    /// Beyond the limits, existing peers stay unchanged, and new ones are ignored.
    fn replace(&mut self, peers: &Records, changes: &mut Changes) {
        let (mut known, mut changed, mut new) =
            (HashSet::new(), Batch::default(), Batch::default());
        let mut left_out = false;
        peers.for_each("peer", &mut changes.bad, |peer: Node| {
            let (id, peer) = (peer.id, Box::new(peer.compacted()));
            match self.peers.get(&id) {
                Some(previous) => {
                    known.insert(id);
                    left_out |= *previous != peer && !changed.push(peer);
                }
                None => left_out |= !new.push(peer),
            }
        });
        if known.is_empty() && new.peers.is_empty() {
            return;
        }
        let gone: Vec<i64> = self.peers.keys().filter(|id| !known.contains(*id)).copied().collect();
        if !(gone.is_empty() && changed.peers.is_empty() && new.peers.is_empty()) {
            (changes.settings, changes.shown) = (true, true);
        }
        gone.into_iter().for_each(|id| self.take(id));
        for peer in changed.peers.into_iter().chain(new.peers) {
            left_out |= !self.insert(peer);
        }
        if left_out {
            changes.note_many_peers();
        }
    }

    fn remove(&mut self, gone: &Records, changes: &mut Changes) {
        gone.for_each("number of a peer", &mut changes.bad, |id: i64| {
            if self.peers.contains_key(&id) {
                self.take(id);
                (changes.settings, changes.shown) = (true, true);
            }
        });
    }

    fn change(&mut self, changed: &Records, changes: &mut Changes) {
        let mut left_out = false;
        changed.for_each("peer", &mut changes.bad, |peer: Node| {
            (changes.settings, changes.shown) = (true, true);
            left_out |= !self.insert(Box::new(peer.compacted()));
        });
        if left_out {
            changes.note_many_peers();
        }
    }

    /// Stores a peer, and removes the peers with the same number or key. Beyond the limits, it
    /// changes nothing and returns false.
    fn insert(&mut self, peer: Box<Node>) -> bool {
        let holder = self.by_key.get(&peer.key).copied().filter(|id| *id != peer.id);
        let replaced = || holder.into_iter().chain([peer.id]).filter_map(|id| self.peers.get(&id));
        let cost_before: usize = replaced().map(|peer| cost(peer)).sum();
        let cost_after = self.cost - cost_before + cost(&peer);
        if self.peers.len() - replaced().count() >= MAX_RECORDS || cost_after > MAX_MEMORY_OF_PEERS
        {
            return false;
        }
        holder.into_iter().chain([peer.id]).for_each(|id| self.take(id));
        self.cost += cost(&peer);
        self.by_key.insert(peer.key, peer.id);
        self.peers.insert(peer.id, peer);
        true
    }

    /// Removes a peer, if it exists.
    fn take(&mut self, id: i64) {
        if let Some(peer) = self.peers.remove(&id) {
            self.by_key.remove(&peer.key);
            self.cost -= cost(&peer);
        }
    }

    fn see(
        &mut self,
        seen: &BTreeMap<i64, bool>,
        online: &BTreeMap<i64, bool>,
        now: Duration,
        changes: &mut Changes,
    ) {
        for (id, is_seen) in seen {
            if let Some(peer) = self.peers.get_mut(id) {
                self.cost -= cost(peer);
                peer.last_seen = is_seen.then(|| Timestamp::from_unix(now.as_secs()).0);
                self.cost += cost(peer);
                changes.shown = true;
            }
        }
        for (id, is_online) in online {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.online = Some(*is_online);
                changes.shown = true;
            }
        }
    }

    fn patch(&mut self, patches: &Records, changes: &mut Changes) {
        let mut left_out = false;
        patches.for_each("change of a peer", &mut changes.bad, |patch: PeerChange| {
            let Some(peer) = self.peers.get(&patch.node_id) else { return };
            let patched = patched(Node::clone(peer), patch);
            // The data plane does not use the connection state.
            let same = Node {
                online: patched.online,
                last_seen: patched.last_seen.clone(),
                ..Node::clone(peer)
            } == patched;
            changes.settings |= !same;
            changes.shown = true;
            left_out |= !self.insert(Box::new(patched.compacted()));
        });
        if left_out {
            changes.note_many_peers();
        }
    }

    fn apply_filters(
        &mut self,
        base: Option<Records>,
        named: Option<BTreeMap<String, Option<Records>>>,
        changes: &mut Changes,
    ) {
        let base = base.map(|rules| (BASE.to_owned(), Some(rules)));
        let mut named = named.unwrap_or_default();
        let all = named.remove(ALL).map(|_| (ALL.to_owned(), None));
        for (name, rules) in base.into_iter().chain(all).chain(named) {
            changes.settings = true;
            match rules {
                Some(rules) => {
                    self.filters.remove(&name);
                    let rules = self.read_rules(&rules, changes);
                    if self.filters.len() < MAX_NAMES {
                        self.filters.insert(name, rules);
                    } else {
                        changes.note_many("names of filter rules", MAX_NAMES);
                    }
                }
                None if name == ALL => self.filters.clear(),
                None => drop(self.filters.remove(&name)),
            }
        }
    }

    /// Reads the rules up to the memory limit.
    fn read_rules(&self, rules: &Records, changes: &mut Changes) -> Vec<FilterRule> {
        let mut sum: usize = self.filters.values().map(Weight::heap).sum();
        let (mut read, mut left_out) = (Vec::new(), false);
        rules.for_each("filter rule", &mut changes.bad, |rule: FilterRule| {
            sum += size_of::<FilterRule>() + rule.heap();
            if sum <= MAX_MEMORY_OF_RULES {
                read.push(rule);
            } else {
                left_out = true;
            }
        });
        if left_out {
            changes.note_many("filter rules", format_args!("{} MiB", MAX_MEMORY_OF_RULES >> 20));
        }
        read.shrink_to_fit();
        read
    }

    fn apply_messages(
        &mut self,
        health: Option<Vec<String>>,
        named: Option<BTreeMap<String, Option<DisplayMessage>>>,
        changes: &mut Changes,
    ) {
        if let Some(health) = health {
            (self.health, changes.shown) = (health, true);
        }
        let mut named = named.unwrap_or_default();
        if named.remove(ALL).is_some() {
            (self.messages, changes.shown) = (BTreeMap::new(), true);
        }
        for (name, message) in named {
            changes.shown = true;
            match message {
                Some(_)
                    if self.messages.len() >= MAX_NAMES && !self.messages.contains_key(&name) =>
                {
                    changes.note_many("messages", MAX_NAMES);
                }
                Some(message) => drop(self.messages.insert(name, message)),
                None => drop(self.messages.remove(&name)),
            }
        }
    }

    /// This node.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns all peers, ordered by number.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.peers.values().map(Box::as_ref)
    }

    /// Returns the peer with a key.
    pub fn peer(&self, key: &NodePublic) -> Option<&Node> {
        self.peers.get(self.by_key.get(key)?).map(Box::as_ref)
    }

    /// Returns the node with an address: this one or a peer.
    pub fn node_at(&self, address: std::net::IpAddr) -> Option<&Node> {
        let has = |node: &&Node| node.addresses.iter().any(|net| net.addr() == address);
        self.node.iter().chain(self.peers()).find(has)
    }

    /// The relays.
    pub fn derp_map(&self) -> &DerpMap {
        &self.derp
    }

    /// Returns the DNS settings.
    pub fn dns(&self) -> &DnsConfig {
        &self.dns
    }

    /// Returns the name of the network.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the MagicDNS suffix, without leading and trailing dots.
    pub fn suffix(&self) -> &str {
        let name = self.node.as_ref().map_or("", |node| node.name.trim_end_matches('.'));
        name.split_once('.').map_or("", |(_, suffix)| suffix)
    }

    /// Returns all filter rules in order; `None` before the coordinator sent any.
    pub fn rules(&self) -> Option<impl Iterator<Item = &FilterRule>> {
        (!self.filters.is_empty()).then(|| self.filters.values().flatten())
    }

    /// Returns the user with a number.
    pub fn user(&self, id: i64) -> Option<&UserProfile> {
        self.users.get(&id)
    }

    /// Returns all users.
    pub fn users(&self) -> &BTreeMap<i64, UserProfile> {
        &self.users
    }

    /// Returns the problems that the coordinator reports.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let text = |message: &DisplayMessage| match (&*message.title, &*message.text) {
            (title, "") => title.to_owned(),
            ("", text) => text.to_owned(),
            (title, text) => format!("{title}: {text}"),
        };
        self.health.iter().cloned().chain(self.messages.values().map(text))
    }

    /// Returns the state of tailnet lock, if it is on.
    pub fn tka(&self) -> Option<&TkaInfo> {
        self.tka.as_ref()
    }

    /// Returns the coordinator's time when ours is `now`.
    pub fn time(&self, now: Duration) -> Duration {
        let seconds = now.as_secs().saturating_add_signed(self.ahead);
        Duration::new(seconds, now.subsec_nanos())
    }

    /// Returns the time until the next key of this node or a peer expires.
    pub fn next_expiry(&self, now: Duration) -> Option<Duration> {
        let now = self.time(now);
        let all = self.node.iter().chain(self.peers());
        let expiries = all.filter_map(|node| node.key_expiry.as_deref().and_then(parse_time));
        expiries.filter(|at| *at > now).min().map(|at| at - now)
    }
}

/// Changed or new peers, up to the limits of the map.
#[derive(Default)]
struct Batch {
    #[expect(
        clippy::vec_box,
        reason = "the map has them in boxes, and a vector that grows copies less"
    )]
    peers: Vec<Box<Node>>,
    cost: usize,
}

impl Batch {
    /// Returns false beyond the limits.
    fn push(&mut self, peer: Box<Node>) -> bool {
        let cost = self.cost + cost(&peer);
        let fits = self.peers.len() < MAX_RECORDS && cost <= MAX_MEMORY_OF_PEERS;
        if fits {
            self.cost = cost;
            self.peers.push(peer);
        }
        fits
    }
}

/// Returns the memory of a peer, in bytes.
fn cost(peer: &Node) -> usize {
    block(size_of::<Node>()) + peer.heap()
}

fn patched(mut peer: Node, patch: PeerChange) -> Node {
    fn set<T>(field: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *field = value;
        }
    }
    if patch.derp_region != 0 {
        peer.home_derp = patch.derp_region;
    }
    if patch.cap != 0 {
        peer.cap = patch.cap;
    }
    set(&mut peer.cap_map, patch.cap_map);
    set(&mut peer.endpoints, patch.endpoints);
    set(&mut peer.key, patch.key);
    set(&mut peer.key_signature, patch.key_signature);
    set(&mut peer.disco_key, patch.disco_key);
    set(&mut peer.capabilities, patch.capabilities);
    set(&mut peer.online, patch.online.map(Some));
    set(&mut peer.last_seen, patch.last_seen.map(Some));
    set(&mut peer.key_expiry, patch.key_expiry.map(Some));
    peer
}

#[cfg(test)]
mod tests;
