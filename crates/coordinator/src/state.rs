//! The state of a network: the owners of its data, and the commands that cross them.
//!
//! Each owner has private fields. The commands are in the child modules, one for each subject.
//!
//! ```text
//!   a command ──► checks ──► owner.change ──► journal: save the previous value, write the new one
//!                                       └───► note the changed parts, mark the policy, set timers
//! ```

mod api_keys;
mod audit;
mod load;
mod maps;
mod node_commands;
mod node_updates;
mod policies;
mod presence;
mod reachability;
mod register;
mod router_probes;
mod routes;
mod sign_in;
mod slow_hash;
mod ssh_checks;
mod tka_commands;
mod undo;
mod users;

use std::sync::Arc;

use tailnet::keys::{MachinePublic, NodePublic};

pub use self::{
    policies::PolicyReview,
    reachability::ReachabilityStep,
    register::{Admission, PendingRegistration, RegisterCommand, RegisterResponse},
    router_probes::{ProbedRouter, Prober},
    sign_in::Profile,
    slow_hash::UnverifiedKey,
    tka_commands::TkaStatus,
    undo::Redo,
    users::NewKey,
};
use crate::{
    access::Access,
    addresses::Addresses,
    api_keys::ApiKeys,
    audit::Audit,
    change_log::{Change, Log, Parts},
    connections::Connections,
    directory::Directory,
    frame::FrameCache,
    journal::Journal,
    merged_changes::MergedChanges,
    nodes::{Entry, NodeChange, NodeView, Nodes},
    object::{KeyId, Kind, Node, NodeId, Object, PreAuthKey, Stored, User},
    pending::PendingRegistrations,
    policies::Policies,
    settings::Settings,
    ssh_checks::SshChecks,
    time::Time,
    timers::Timers,
    tka::Tka,
};

/// The state of a network.
///
/// Call order: any commands, then `take_writes`, then `publish` when those are stored, or `undo` if they cannot
/// be stored. In between, `apply` applies objects that other servers wrote.
#[derive(Debug)]
pub struct State {
    settings: Settings,
    /// The number of changes of the relay map since the start.
    relays: u64,
    directory: Directory,
    api_keys: ApiKeys,
    audit: Audit,
    tka: Tka,
    nodes: Nodes,
    policies: Policies,
    frames: FrameCache,
    timers: Timers,
    pending: PendingRegistrations,
    connections: Connections,
    ssh_checks: SshChecks,
    journal: Journal,
}

impl State {
    /// An empty network.
    pub fn new(settings: Settings) -> Self {
        Self {
            nodes: Nodes::new(Addresses::new(settings.prefixes, settings.allocation)),
            settings,
            relays: 0,
            directory: Directory::default(),
            api_keys: ApiKeys::default(),
            audit: Audit::default(),
            tka: Tka::default(),
            policies: Policies::new(),
            frames: FrameCache::default(),
            timers: Timers::default(),
            pending: PendingRegistrations::default(),
            connections: Connections::default(),
            ssh_checks: SshChecks::default(),
            journal: Journal::new(Log::starting_at(0, 0, Time::default())),
        }
    }

    /// Takes the objects that must be stored before the changes are published.
    pub fn take_writes(&mut self) -> Vec<Stored> {
        self.journal.take_writes()
    }

    /// Publishes the changes, after they were stored with this version of the network. Returns whether there were
    /// any.
    pub fn publish(&mut self, version: i64, now: Time) -> bool {
        self.audit.trim();
        self.renew_access();
        let (any, forgotten) = self.journal.publish(version, now);
        for index in forgotten {
            // The log has forgotten the removal, so no stream can mistake a new node for the old one.
            self.nodes.release_index(index);
        }
        any
    }

    /// The end of the log: streams may read up to it.
    pub fn end(&self) -> u64 {
        self.journal.log().end()
    }

    /// The changes in a range of the log. `None` if the log has forgotten some of them.
    pub(crate) fn merged_changes(&self, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        self.journal.merged_changes(number, end)
    }

    /// The changes in order.
    pub(crate) fn log(&self) -> &Log {
        self.journal.log()
    }

    /// The compiled policy.
    pub(crate) fn access(&self) -> &Access {
        self.policies.access()
    }

    /// The frames that streams share.
    pub(crate) fn frames(&self) -> &FrameCache {
        &self.frames
    }

    /// The number of changes of the relay map since the start.
    pub(crate) fn relay_changes(&self) -> u64 {
        self.relays
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the relays, as JSON of `tailcfg.DERPMap`. They are not stored.
    pub fn set_relays(&mut self, relays: String) {
        if self.settings.relays != relays {
            self.settings.relays = relays;
            self.relays += 1;
            self.journal.note(Change::Relays);
        }
    }

    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.directory.users()
    }

    pub fn keys(&self) -> impl Iterator<Item = &PreAuthKey> {
        self.directory.keys()
    }

    pub fn key(&self, id: KeyId) -> Option<&PreAuthKey> {
        self.directory.key(id)
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.all().map(Entry::view)
    }

    pub fn node(&self, id: NodeId) -> Option<NodeView<'_>> {
        self.nodes.get(id).map(Entry::view)
    }

    /// Whether there is a node with this key.
    pub fn has_key(&self, key: &NodePublic) -> bool {
        self.nodes.with_key(key).is_some()
    }

    /// Whether there is a node with this key that has not expired. Relays serve these keys only.
    pub fn has_valid_key(&self, key: &NodePublic, now: Time) -> bool {
        let node = self.nodes.with_key(key).and_then(|id| self.nodes.get(id));
        node.is_some_and(|entry| !entry.node.has_expired(now))
    }

    /// Whether a machine has a node.
    pub fn has_machine(&self, machine: &MachinePublic) -> bool {
        self.nodes.of_machine(machine).next().is_some()
    }

    /// The machine of the node with this key.
    pub fn machine_of(&self, key: &NodePublic) -> Option<MachinePublic> {
        let id = self.nodes.with_key(key)?;
        self.nodes.get(id).map(|entry| entry.node.machine)
    }

    /// The node with this key, if it belongs to this machine.
    pub fn find_machine_node(&self, machine: &MachinePublic, key: &NodePublic) -> Option<NodeId> {
        self.nodes.with_key(key).filter(|id| self.belongs_to_machine(*id, machine))
    }

    /// Whether a node belongs to this machine.
    pub fn belongs_to_machine(&self, id: NodeId, machine: &MachinePublic) -> bool {
        self.nodes.get(id).is_some_and(|entry| entry.node.machine == *machine)
    }

    /// Allocates a number that no object of this kind ever had.
    #[cfg(test)]
    pub(crate) fn next_number(&mut self, kind: Kind) -> i64 {
        self.journal.next_number(kind)
    }

    /// Queues a changed object for the store. The state must still have its previous value, for undo.
    fn store<T: Object>(&mut self, object: &T) {
        self.save_for_undo(T::KIND, object.number());
        self.journal.write(object);
    }

    /// Queues the removal of an object for the store.
    fn store_removal(&mut self, kind: Kind, id: i64) {
        self.save_for_undo(kind, id);
        self.journal.write_removal(kind, id);
    }

    /// Saves the present value of an object for undo.
    fn save_for_undo(&mut self, kind: Kind, id: i64) {
        if kind == Kind::User {
            self.policies.mark_users_changed();
        }
        if !self.journal.has_saved(kind, id) {
            let object = self.current_object(kind, id);
            self.journal.save(kind, id, object);
        }
    }

    /// Records that parts of a node changed.
    fn note_parts(&mut self, id: NodeId, parts: Parts) {
        if !parts.is_empty()
            && let Some(index) = self.nodes.invalidate_json(id)
        {
            self.journal.note(Change::Node { id, index, parts });
        }
    }

    /// Adds a new node.
    fn add_node(&mut self, node: Node, now: Time) {
        let id = node.id;
        self.store(&node);
        self.add_entry(node, None, now);
        self.choose_primaries_of(id);
        self.note_parts(id, Parts::WHOLE);
    }

    /// Adds an entry for a node, at its previous index or a new one.
    fn add_entry(&mut self, node: Node, index: Option<u32>, now: Time) {
        let id = node.id;
        let index = self.nodes.add(node, index, self.connections.has(id));
        self.policies.mark_node_changed(index);
        self.set_timers(id, now);
    }

    /// Changes a node and queues it for the store. `change` returns the parts that changed for peers.
    fn change_node(&mut self, id: NodeId, now: Time, change: impl FnOnce(&mut Node) -> Parts) {
        let Some(change) = self.nodes.change(id, now, change) else { return };
        let NodeChange { before, index, parts, networks } = change;
        let node = &self.nodes[&id].node;
        self.policies.mark_node_changed(index);
        self.journal.save_node(&before, index);
        self.journal.write(node);
        if node.expires != before.expires || node.ephemeral != before.ephemeral {
            self.set_timers(id, now);
        }
        self.choose_primaries_for(networks);
        self.note_parts(id, parts);
    }

    /// Removes a node.
    fn remove_node(&mut self, id: NodeId) {
        self.nodes.detach(id);
        let Some((node, index, networks)) = self.nodes.remove(id) else { return };
        self.journal.save_node(&node, index);
        self.journal.write_removal(Kind::Node, id.0);
        self.choose_primaries_for(networks);
        self.note_removed(id, index);
    }

    /// Removes the timers and the disconnection time of a removed node, and records the removal.
    fn note_removed(&mut self, id: NodeId, index: u32) {
        self.policies.mark_node_changed(index);
        self.connections.remove(id);
        self.timers.clear_node(id);
        self.journal.note(Change::Node { id, index, parts: Parts::REMOVED });
    }

    /// A unique name for a node.
    fn free_name(&self, label: String, own: Option<&str>) -> String {
        crate::names::unique(label, |name| own == Some(name) || !self.nodes.has_name(name))
    }
}
