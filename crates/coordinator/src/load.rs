//! Loads stored objects into the state: all at the start, and later those that other servers wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ipnet::IpNet;

use crate::{
    audit::Audit,
    hostinfo::Hostinfo,
    log::{Change, Log, Parts},
    node_index::NO_INDEX,
    object::{
        self, ApiKey, ApiKeyId, AuditEntry, AuditId, KeyId, Kind, Node, NodeId, PolicyId,
        PreAuthKey, Stored, TkaId, TkaUpdate, TkaUpdateId, User, UserId,
    },
    settings::Settings,
    state::State,
    time::Time,
};

/// A stored object cannot be read.
#[derive(Debug)]
pub struct LoadError {
    kind: &'static str,
    id: i64,
    why: Unreadable,
}

/// The reason of a [`LoadError`].
#[derive(Debug)]
enum Unreadable {
    Json(serde_json::Error),
    Policy(policy::Refusal),
    /// An update of tailnet lock is invalid.
    Tka(tailnet::tka::VerifyError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of the store cannot be read: ", self.kind, self.id)?;
        match &self.why {
            Unreadable::Json(why) => why.fmt(f),
            Unreadable::Policy(why) => why.fmt(f),
            Unreadable::Tka(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

/// An object by its number; `None` if it does not exist.
#[derive(Debug)]
pub(crate) enum StoredObject {
    User(UserId, Option<User>),
    PreAuthKey(KeyId, Option<PreAuthKey>),
    Node(NodeId, Option<Box<Node>>),
    Policy(PolicyId, Option<object::Policy>),
    ApiKey(ApiKeyId, Option<ApiKey>),
    AuditEntry(AuditId, Option<AuditEntry>),
    TkaState(TkaId, Option<object::TkaState>),
    TkaUpdate(TkaUpdateId, Option<TkaUpdate>),
}

impl StoredObject {
    fn absent(kind: Kind, id: i64) -> Self {
        match kind {
            Kind::User => Self::User(UserId(id), None),
            Kind::PreAuthKey => Self::PreAuthKey(KeyId(id), None),
            Kind::Node => Self::Node(NodeId(id), None),
            Kind::Policy => Self::Policy(PolicyId(id), None),
            Kind::ApiKey => Self::ApiKey(ApiKeyId(id), None),
            Kind::AuditEntry => Self::AuditEntry(AuditId(id), None),
            Kind::TkaState => Self::TkaState(TkaId(id), None),
            Kind::TkaUpdate => Self::TkaUpdate(TkaUpdateId(id), None),
        }
    }

    fn read(stored: &Stored) -> Result<Self, LoadError> {
        let mut object = Self::absent(stored.kind, stored.id);
        let Some(body) = &stored.body else { return Ok(object) };
        let read = match &mut object {
            Self::User(_, user) => serde_json::from_str(body).map(|read| *user = Some(read)),
            Self::PreAuthKey(_, key) => serde_json::from_str(body).map(|read| *key = Some(read)),
            Self::Node(_, node) => serde_json::from_str(body).map(|read| *node = Some(read)),
            Self::Policy(_, policy) => serde_json::from_str(body).map(|read| *policy = Some(read)),
            Self::ApiKey(_, key) => serde_json::from_str(body).map(|read| *key = Some(read)),
            Self::AuditEntry(_, entry) => {
                serde_json::from_str(body).map(|read| *entry = Some(read))
            }
            Self::TkaState(_, state) => serde_json::from_str(body).map(|read| *state = Some(read)),
            Self::TkaUpdate(_, update) => {
                serde_json::from_str(body).map(|read| *update = Some(read))
            }
        };
        let (kind, id) = (stored.kind.name(), stored.id);
        read.map_err(|why| LoadError { kind, id, why: Unreadable::Json(why) })?;
        Ok(object)
    }
}

impl State {
    /// Loads a network at a version. No node is connected. `mark` distinguishes this server's log from those of
    /// other servers.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn load(
        settings: Settings,
        objects: &[Stored],
        (version, mark): (i64, u16),
        now: Time,
    ) -> Result<Self, LoadError> {
        let log = Log::starting_at(version, mark, now);
        let mut state = Self { started: now, log, ..Self::new(settings) };
        state.apply(objects, now)?;
        state.choose_primaries();
        state.audit.trim();
        state.unpublished.clear();
        state.writes.clear();
        state.undo = Default::default();
        Ok(state)
    }

    /// Sets the epoch of the versions. Positions of other epochs are not valid in this state.
    #[must_use]
    pub fn with_epoch(mut self, epoch: i64) -> Self {
        self.log = self.log.with_epoch(epoch);
        self
    }

    /// Applies objects that other servers wrote. Local changes must be published or undone before.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn apply(&mut self, objects: &[Stored], now: Time) -> Result<(), LoadError> {
        let loaded = objects.iter().map(StoredObject::read).collect::<Result<_, _>>()?;
        for id in self.load_objects(objects, loaded, now)? {
            match self.nodes.contains_key(&id) {
                true => self.note_parts(id, Parts::REWRITTEN),
                false => self.note(Change::Node { id, index: NO_INDEX, parts: Parts::REMOVED }),
            }
        }
        Ok(())
    }

    fn load_objects(
        &mut self,
        objects: &[Stored],
        loaded: Vec<StoredObject>,
        now: Time,
    ) -> Result<Vec<NodeId>, LoadError> {
        for stored in objects {
            self.note_number(stored.kind, stored.id);
        }
        self.put(loaded, &BTreeMap::new(), now)
    }

    /// Replaces the state by all objects of the store, after the store may have lost some. Its versions are of this
    /// epoch.
    ///
    /// # Errors
    /// As [`State::apply`].
    pub fn reconcile(
        &mut self,
        mut objects: Vec<Stored>,
        epoch: i64,
        now: Time,
    ) -> Result<(), LoadError> {
        let there: BTreeSet<(Kind, i64)> =
            objects.iter().map(|stored| (stored.kind, stored.id)).collect();
        let users = self.users.keys().map(|id| (Kind::User, id.0));
        let keys = self.keys.keys().map(|id| (Kind::PreAuthKey, id.0));
        let nodes = self.nodes.keys().map(|id| (Kind::Node, id.0));
        let policies = self.policies.keys().map(|id| (Kind::Policy, id.0));
        let api_keys = self.api_keys().map(|key| (Kind::ApiKey, key.id.0));
        let lock = [(Kind::TkaState, self.tka.stored.id.0)].into_iter().filter(|(_, id)| *id != 0);
        let updates = self.tka.updates.keys().map(|id| (Kind::TkaUpdate, id.0));
        let here = users.chain(keys).chain(nodes).chain(policies).chain(api_keys);
        let lost = here.chain(lock).chain(updates).filter(|which| !there.contains(which));
        objects.extend(lost.map(|(kind, id)| Stored { kind, id, body: None }).collect::<Vec<_>>());
        let loaded = objects.iter().map(StoredObject::read).collect::<Result<_, _>>()?;
        self.log.begin_epoch(epoch);
        // The next entry follows the last stored one.
        self.audit = Audit::default();
        self.load_objects(&objects, loaded, now)?;
        Ok(())
    }

    /// The present value of an object.
    pub(crate) fn current_object(&self, kind: Kind, id: i64) -> StoredObject {
        let mut object = StoredObject::absent(kind, id);
        match &mut object {
            StoredObject::User(id, user) => *user = self.users.get(id).cloned(),
            StoredObject::PreAuthKey(id, key) => *key = self.keys.get(id).cloned(),
            StoredObject::Node(id, node) => {
                *node = self.nodes.get(id).map(|entry| Box::new(entry.node.clone()));
            }
            StoredObject::Policy(id, policy) => *policy = self.policies.get(id).cloned(),
            StoredObject::ApiKey(id, key) => {
                *key = self.api_keys().find(|key| key.id == *id).cloned()
            }
            // Entries are never changed.
            StoredObject::AuditEntry(..) => {}
            StoredObject::TkaState(id, state) => {
                *state = Some(&self.tka.stored).filter(|state| state.id == *id).cloned();
            }
            StoredObject::TkaUpdate(id, update) => *update = self.tka.updates.get(id).cloned(),
        }
        object
    }

    /// Sets objects without storing them. New nodes get the given indexes. Returns the nodes that were written but
    /// did not change: other servers may have written intermediate values.
    pub(crate) fn put(
        &mut self,
        loaded: Vec<StoredObject>,
        indexes: &BTreeMap<NodeId, u32>,
        now: Time,
    ) -> Result<Vec<NodeId>, LoadError> {
        let policy = self.policy().map(|policy| policy.id);
        let lock = self.tka_info();
        let (mut nodes, mut same) = (Vec::new(), Vec::new());
        for object in loaded {
            match object {
                StoredObject::User(id, user) if self.users.get(&id) == user.as_ref() => {
                    same.extend(self.nodes_of(id));
                }
                StoredObject::User(id, user) => self.put_user(id, user),
                StoredObject::PreAuthKey(id, key) => self.put_key(id, key),
                StoredObject::Node(id, node) => {
                    let before = self.nodes.get(&id).map(|entry| &entry.node);
                    match before == node.as_deref() {
                        true => same.push(id),
                        false => nodes.push((id, node)),
                    }
                }
                StoredObject::Policy(id, Some(policy)) => {
                    self.policies.insert(id, policy);
                }
                StoredObject::Policy(id, None) => {
                    self.policies.remove(&id);
                }
                StoredObject::ApiKey(_, Some(key)) => self.api_keys.insert(key),
                StoredObject::ApiKey(id, None) => self.api_keys.remove(id),
                StoredObject::AuditEntry(_, Some(entry)) => self.audit.push(entry),
                StoredObject::AuditEntry(id, None) => self.audit.remove(id),
                StoredObject::TkaState(_, state) => self.tka.stored = state.unwrap_or_default(),
                StoredObject::TkaUpdate(id, update) => self.tka.put_update(id, update),
            }
        }
        self.put_nodes(nodes, indexes, now);
        // An error is better than a network without its policy.
        if self.policy().map(|policy| policy.id) != policy {
            let read = self.load_policy();
            let id = self.policy().map_or(0, |policy| policy.id.0);
            let kind = Kind::Policy.name();
            read.map_err(|why| LoadError { kind, id, why: Unreadable::Policy(why) })?;
            self.note(Change::Policy);
        }
        // The same holds for tailnet lock.
        let kind = Kind::TkaUpdate.name();
        let refused = |(id, why)| LoadError { kind, id, why: Unreadable::Tka(why) };
        self.tka.restore().map_err(refused)?;
        if self.tka_info() != lock {
            self.note(Change::Tka);
        }
        Ok(same)
    }

    fn put_user(&mut self, id: UserId, user: Option<User>) {
        self.access.mark_users_changed();
        match user {
            Some(user) => self.users.insert(id, user),
            None => self.users.remove(&id),
        };
        for node in self.nodes_of(id) {
            self.note_parts(node, Parts::WHOLE);
        }
    }

    fn put_key(&mut self, id: KeyId, key: Option<PreAuthKey>) {
        if let Some(before) = self.keys.remove(&id) {
            self.by_prefix.remove(&before.prefix);
        }
        if let Some(key) = key {
            self.by_prefix.insert(key.prefix.clone(), id);
            self.keys.insert(id, key);
        }
    }

    /// Sets nodes. Names, addresses and keys may have moved between them, so all are removed from the lookup tables
    /// first.
    fn put_nodes(
        &mut self,
        nodes: Vec<(NodeId, Option<Box<Node>>)>,
        indexes: &BTreeMap<NodeId, u32>,
        now: Time,
    ) {
        for (id, _) in &nodes {
            self.detach(*id);
        }
        for (id, node) in nodes {
            let before = self.nodes.get(&id).map(|entry| entry.node.clone());
            match (before, node) {
                (Some(before), Some(node)) => self.put_changed(&before, *node, now),
                (None, Some(node)) => {
                    self.add_entry(*node, indexes.get(&id).copied(), now);
                    self.note_parts(id, Parts::WHOLE);
                }
                (Some(before), None) => {
                    if let Some(entry) = self.nodes.remove(&id) {
                        let routes: Vec<IpNet> = before.routes().collect();
                        self.index_routes(id, &routes);
                        self.note_removed(&before, entry.index);
                    }
                }
                (None, None) => {}
            }
        }
    }

    fn put_changed(&mut self, before: &Node, node: Node, now: Time) {
        let id = node.id;
        let Some(entry) = self.nodes.get_mut(&id) else { return };
        entry.node = node.clone();
        let index = entry.index;
        self.indexes.update_sets(index, Some(before), Some(&node));
        self.access.mark_node_changed(index);
        self.attach(&node);
        if node.expires != before.expires || node.ephemeral != before.ephemeral {
            self.set_timers(id, now);
        }
        let routes: Vec<IpNet> = before.routes().collect();
        self.index_routes(id, &routes);
        let parts = difference(before, &node);
        // Clients of another server may have received a change that was undone later.
        let is_undone = parts.is_empty() && node.changes != before.changes;
        self.note_parts(id, if is_undone { Parts::REWRITTEN } else { parts });
    }
}

/// The parts of a node that changed for peers.
fn difference(before: &Node, after: &Node) -> Parts {
    let mut parts = Parts::empty();
    let mut same = before.clone();
    if before.endpoints != after.endpoints {
        parts = parts.and(Parts::ENDPOINTS);
        same.endpoints.clone_from(&after.endpoints);
    }
    if before.home_relay != after.home_relay {
        parts = parts.and(Parts::HOME_RELAY);
        same.home_relay = after.home_relay;
    }
    if before.disco != after.disco {
        let is_first = before.disco.is_zero();
        parts = parts.and(if is_first { Parts::PEER_VIEW } else { Parts::DISCO });
        same.disco = after.disco;
    }
    if before.version != after.version {
        parts = parts.and(Parts::VERSION);
        same.version = after.version;
    }
    if before.primaries != after.primaries {
        parts = parts.and(Parts::PEER_VIEW);
        same.primaries.clone_from(&after.primaries);
    }
    if before.hostinfo != after.hostinfo {
        let has_new_routes = before.hostinfo.routable != after.hostinfo.routable;
        let peer_fields = |of: &Hostinfo| {
            (of.os.clone(), of.hostname.clone(), of.services.clone(), of.ssh_keys.clone())
        };
        let has_new_peer_fields = peer_fields(&before.hostinfo) != peer_fields(&after.hostinfo);
        parts = parts.and(match (has_new_routes, has_new_peer_fields) {
            (true, _) => Parts::WHOLE,
            (false, true) => Parts::PEER_VIEW,
            (false, false) => Parts::empty(),
        });
        same.hostinfo.clone_from(&after.hostinfo);
    }
    // These fields are not visible to any node.
    same.tka_key.clone_from(&after.tka_key);
    (same.last_seen, same.auth_key, same.method) = (after.last_seen, after.auth_key, after.method);
    same.changes = after.changes;
    if same == *after { parts } else { parts.and(Parts::WHOLE) }
}
