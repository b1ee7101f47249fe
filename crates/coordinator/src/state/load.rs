//! Loads stored objects into the state: all at the start, and later those that other servers wrote.

use std::collections::{BTreeMap, BTreeSet};

use super::State;
use crate::{
    audit::Audit,
    change_log::{Change, Log, Parts},
    connections::Connections,
    hostinfo::Hostinfo,
    journal::Journal,
    node_index::NO_INDEX,
    object::{Kind, Node, NodeId, Stored, User, UserId},
    settings::Settings,
    stored_object::{LoadError, StoredObject, Unreadable},
    time::Time,
};

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
        let mut state = Self {
            connections: Connections::starting_at(now),
            journal: Journal::new(log),
            ..Self::new(settings)
        };
        state.apply(objects, now)?;
        state.choose_primaries();
        state.audit.trim();
        state.journal.clear();
        Ok(state)
    }

    /// Sets the epoch of the versions. Positions of other epochs are not valid in this state.
    #[must_use]
    pub fn with_epoch(mut self, epoch: i64) -> Self {
        self.journal.set_epoch(epoch);
        self
    }

    /// Applies objects that other servers wrote. Local changes must be published or undone before.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn apply(&mut self, objects: &[Stored], now: Time) -> Result<(), LoadError> {
        let loaded = objects.iter().map(StoredObject::read).collect::<Result<_, _>>()?;
        for id in self.load_objects(objects, loaded, now)? {
            match self.nodes.contains(id) {
                true => self.note_parts(id, Parts::REWRITTEN),
                false => {
                    self.journal.note(Change::Node { id, index: NO_INDEX, parts: Parts::REMOVED });
                }
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
            self.journal.note_number(stored.kind, stored.id);
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
        let users = self.directory.users().map(|user| (Kind::User, user.id.0));
        let keys = self.directory.keys().map(|key| (Kind::PreAuthKey, key.id.0));
        let nodes = self.nodes.ids().map(|id| (Kind::Node, id.0));
        let policies = self.policies.saved().map(|policy| (Kind::Policy, policy.id.0));
        let api_keys = self.api_keys().map(|key| (Kind::ApiKey, key.id.0));
        let lock =
            [(Kind::TkaState, self.tka.stored().id.0)].into_iter().filter(|(_, id)| *id != 0);
        let updates = self.tka.update_ids().map(|id| (Kind::TkaUpdate, id.0));
        let here = users.chain(keys).chain(nodes).chain(policies).chain(api_keys);
        let lost = here.chain(lock).chain(updates).filter(|which| !there.contains(which));
        objects.extend(lost.map(|(kind, id)| Stored { kind, id, body: None }).collect::<Vec<_>>());
        let loaded = objects.iter().map(StoredObject::read).collect::<Result<_, _>>()?;
        self.journal.begin_epoch(epoch);
        // The next entry follows the last stored one.
        self.audit = Audit::default();
        self.load_objects(&objects, loaded, now)?;
        Ok(())
    }

    /// The present value of an object.
    pub(super) fn current_object(&self, kind: Kind, id: i64) -> StoredObject {
        let mut object = StoredObject::absent(kind, id);
        match &mut object {
            StoredObject::User(id, user) => *user = self.directory.user(*id).cloned(),
            StoredObject::PreAuthKey(id, key) => *key = self.directory.key(*id).cloned(),
            StoredObject::Node(id, node) => {
                *node = self.nodes.get(*id).map(|entry| Box::new(entry.node.clone()));
            }
            StoredObject::Policy(id, policy) => *policy = self.policies.get(*id).cloned(),
            StoredObject::ApiKey(id, key) => *key = self.api_keys.get(*id).cloned(),
            // Entries are never changed.
            StoredObject::AuditEntry(..) => {}
            StoredObject::TkaState(id, state) => {
                *state = Some(self.tka.stored()).filter(|state| state.id == *id).cloned();
            }
            StoredObject::TkaUpdate(id, update) => *update = self.tka.update(*id).cloned(),
        }
        object
    }

    /// Sets objects without storing them. New nodes get the given indexes. Returns the nodes that were written but
    /// did not change: other servers may have written intermediate values.
    pub(super) fn put(
        &mut self,
        loaded: Vec<StoredObject>,
        indexes: &BTreeMap<NodeId, u32>,
        now: Time,
    ) -> Result<Vec<NodeId>, LoadError> {
        let policy = self.policy().map(|policy| policy.id);
        let lock = self.tka.info();
        let (mut nodes, mut same) = (Vec::new(), Vec::new());
        for object in loaded {
            match object {
                StoredObject::User(id, user) if self.directory.user(id) == user.as_ref() => {
                    same.extend(self.nodes.of_user(id));
                }
                StoredObject::User(id, user) => self.put_user(id, user),
                StoredObject::PreAuthKey(id, key) => self.directory.put_key(id, key),
                StoredObject::Node(id, node) => {
                    let before = self.nodes.get(id).map(|entry| &entry.node);
                    match before == node.as_deref() {
                        true => same.push(id),
                        false => nodes.push((id, node)),
                    }
                }
                StoredObject::Policy(id, policy) => self.policies.put(id, policy),
                StoredObject::ApiKey(_, Some(key)) => self.api_keys.insert(key),
                StoredObject::ApiKey(id, None) => self.api_keys.remove(id),
                StoredObject::AuditEntry(_, Some(entry)) => self.audit.push(entry),
                StoredObject::AuditEntry(id, None) => self.audit.remove(id),
                StoredObject::TkaState(_, state) => self.tka.set_stored(state.unwrap_or_default()),
                StoredObject::TkaUpdate(id, update) => self.tka.put_update(id, update),
            }
        }
        self.put_nodes(nodes, indexes, now);
        // An error is better than a network without its policy.
        if self.policy().map(|policy| policy.id) != policy {
            let read = self.load_policy();
            let id = self.policy().map_or(0, |policy| policy.id.0);
            read.map_err(|why| LoadError::new(Kind::Policy, id, Unreadable::Policy(why)))?;
            self.journal.note(Change::Policy);
        }
        // The same holds for tailnet lock.
        let refused = |(id, why)| LoadError::new(Kind::TkaUpdate, id, Unreadable::Tka(why));
        self.tka.restore().map_err(refused)?;
        if self.tka.info() != lock {
            self.journal.note(Change::Tka);
        }
        Ok(same)
    }

    fn put_user(&mut self, id: UserId, user: Option<User>) {
        self.policies.mark_users_changed();
        self.directory.put_user(id, user);
        for node in self.nodes.of_user(id) {
            self.note_parts(node, Parts::WHOLE);
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
            self.nodes.detach(*id);
        }
        for (id, node) in nodes {
            match (self.nodes.contains(id), node) {
                (true, Some(node)) => self.put_changed(*node, now),
                (false, Some(node)) => {
                    self.add_entry(*node, indexes.get(&id).copied(), now);
                    self.note_parts(id, Parts::WHOLE);
                }
                (true, None) => {
                    if let Some((_, index, _)) = self.nodes.remove(id) {
                        self.note_removed(id, index);
                    }
                }
                (false, None) => {}
            }
        }
    }

    fn put_changed(&mut self, node: Node, now: Time) {
        let id = node.id;
        let Some((before, index)) = self.nodes.replace(node.clone()) else { return };
        self.policies.mark_node_changed(index);
        if node.expires != before.expires || node.ephemeral != before.ephemeral {
            self.set_timers(id, now);
        }
        let parts = difference(&before, &node);
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
