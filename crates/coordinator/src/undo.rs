//! Undo of changes that the store did not accept: the previous values of everything that is not published.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    load::StoredObject,
    log::{Change, Parts},
    object::{Kind, Node, NodeId},
    pending::{Pending, PendingRegistrations},
    presence::StreamId,
    register::LONGEST_WAIT,
    ssh_checks::SshDecision,
    state::State,
    time::Time,
    timers::Timer,
};

/// Previous values of unpublished changes.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    objects: BTreeMap<(Kind, i64), StoredObject>,
    indexes: BTreeMap<NodeId, u32>,
    numbers: Option<BTreeMap<Kind, i64>>,
    waiting: Option<PendingRegistrations>,
    /// Streams that began (`true`) or ended.
    streams: Vec<(NodeId, StreamId, bool)>,
    ssh: Vec<SshDecision>,
}

/// Undone changes that are not stored: streams, decisions on logins, and pending registrations.
#[derive(Debug, Default)]
pub struct Redo {
    streams: Vec<(NodeId, StreamId, bool)>,
    ssh: Vec<SshDecision>,
    removed: Vec<String>,
    added: Vec<(String, Arc<Pending>)>,
}

impl Undo {
    /// Saves a node and its index.
    pub fn node(&mut self, before: &Node, index: u32) {
        let id = before.id;
        self.objects.entry((Kind::Node, id.0)).or_insert_with(|| {
            self.indexes.insert(id, index);
            StoredObject::Node(id, Some(Box::new(before.clone())))
        });
    }

    pub fn stream(&mut self, id: NodeId, stream: StreamId, began: bool) {
        self.streams.push((id, stream, began));
    }

    pub fn ssh_decision(&mut self, decision: SshDecision) {
        self.ssh.push(decision);
    }

    /// Saves the last allocated numbers.
    pub fn numbers(&mut self, last: &BTreeMap<Kind, i64>) {
        self.numbers.get_or_insert_with(|| last.clone());
    }

    /// Saves the pending registrations.
    pub fn waiting(&mut self, room: &PendingRegistrations) {
        self.waiting.get_or_insert_with(|| room.clone());
    }
}

impl State {
    /// Undoes all changes since the last `publish`. The affected nodes are published again. The result is for
    /// [`State::redo`], if the store turns out to have accepted the changes.
    pub fn undo(&mut self, now: Time) -> Redo {
        let Undo { objects, indexes, numbers, waiting, streams, ssh } =
            std::mem::take(&mut self.undo);
        self.writes.clear();
        let mut redo = Redo { streams, ssh, ..Redo::default() };
        redo.ssh.iter().rev().for_each(|decision| self.ssh_checks.undo(decision));
        for (id, stream, began) in redo.streams.iter().rev() {
            if *began {
                self.connections.end(*id, *stream);
                self.handle_disconnect(*id, now);
            } else {
                self.connections.restore(*id, *stream);
            }
        }
        if let Some(waiting) = waiting {
            redo.removed =
                waiting.without(&self.pending).map(|(number, _)| number.clone()).collect();
            let added = self.pending.without(&waiting);
            redo.added = added.map(|(number, own)| (number.clone(), Arc::clone(own))).collect();
            for (number, since) in waiting.all() {
                self.timers.set(Timer::Registration(number.clone()), since.after(LONGEST_WAIT));
            }
            self.pending = waiting;
        }
        // A restored node must not be published as removed.
        self.unpublished.retain(|change| match change {
            Change::Node { id, parts, .. } => {
                !indexes.contains_key(id) || !parts.has(Parts::REMOVED)
            }
            Change::Policy | Change::Tka | Change::Relays => true,
        });
        let is_new = |(which, object): (&(Kind, i64), &StoredObject)| {
            matches!(object, StoredObject::Node(_, None)).then_some(NodeId(which.1))
        };
        let new: BTreeSet<NodeId> = objects.iter().filter_map(is_new).collect();
        self.put(objects.into_values().collect(), &indexes, now)
            .expect("the values were valid before");
        self.remove_unpublished(&new);
        if let Some(numbers) = numbers {
            self.last = numbers;
        }
        for id in indexes.into_keys() {
            self.restore_endpoint_timer(id);
        }
        // Primary routers are chosen again when the next commands run.
        self.reroutes = true;
        redo
    }

    /// Applies undone changes again, after the store turned out to have accepted them and `apply` applied its
    /// objects.
    pub fn redo(&mut self, redo: Redo, now: Time) {
        for (id, stream, began) in redo.streams {
            if began {
                self.connections.restore(id, stream);
                self.mark_online(id);
            } else if self.connections.end(id, stream) {
                self.handle_disconnect(id, now);
            }
        }
        redo.ssh.iter().for_each(|decision| self.ssh_checks.decide(decision));
        for number in redo.removed {
            self.pending.remove(&number);
        }
        for (number, pending) in redo.added {
            self.timers.set(Timer::Registration(number.clone()), pending.since.after(LONGEST_WAIT));
            self.pending.insert(number, pending);
        }
        self.reroutes = true;
    }

    /// Removes the changes of nodes that were never published.
    fn remove_unpublished(&mut self, nodes: &BTreeSet<NodeId>) {
        for change in std::mem::take(&mut self.unpublished) {
            match change {
                Change::Node { id, index, parts } if nodes.contains(&id) => {
                    if parts.has(Parts::REMOVED) {
                        self.indexes.release(index);
                    }
                }
                other => self.unpublished.push(other),
            }
        }
    }

    /// Saves the previous value of an object.
    pub(crate) fn save_for_undo(&mut self, kind: Kind, id: i64) {
        if !self.undo.objects.contains_key(&(kind, id)) {
            let object = self.current_object(kind, id);
            self.undo.objects.insert((kind, id), object);
        }
    }
}
