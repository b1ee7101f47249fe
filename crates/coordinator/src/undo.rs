//! What commands changed that is not kept yet, as it was before: so that a change that the store did
//! not take can be taken back.

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

/// What was before.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    objects: BTreeMap<(Kind, i64), StoredObject>,
    indexes: BTreeMap<NodeId, u32>,
    numbers: Option<BTreeMap<Kind, i64>>,
    waiting: Option<PendingRegistrations>,
    /// Streams that began, or else ended.
    streams: Vec<(NodeId, StreamId, bool)>,
    ssh: Vec<SshDecision>,
}

/// What was taken back that is no store's: streams, decisions on logins, and registrations that wait.
#[derive(Debug, Default)]
pub struct Redo {
    streams: Vec<(NodeId, StreamId, bool)>,
    ssh: Vec<SshDecision>,
    gone: Vec<String>,
    come: Vec<(String, Arc<Pending>)>,
}

impl Undo {
    /// A node was this, at this place.
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

    /// Numbers that were given up to now.
    pub fn numbers(&mut self, last: &BTreeMap<Kind, i64>) {
        self.numbers.get_or_insert_with(|| last.clone());
    }

    /// Those that waited.
    pub fn waiting(&mut self, room: &PendingRegistrations) {
        self.waiting.get_or_insert_with(|| room.clone());
    }
}

impl State {
    /// Takes back what was done since the last time that anything was published. Nobody was told of
    /// it, and where somebody saw it they are told how it is. What is returned is for
    /// [`State::redo`], if the store turns out to have taken it.
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
            redo.gone = waiting.without(&self.pending).map(|(number, _)| number.clone()).collect();
            let come = self.pending.without(&waiting);
            redo.come = come.map(|(number, own)| (number.clone(), Arc::clone(own))).collect();
            for (number, since) in waiting.all() {
                self.timers.set(Timer::Registration(number.clone()), since.after(LONGEST_WAIT));
            }
            self.pending = waiting;
        }
        // A node that is there again is not told to be gone, whatever comes behind it.
        self.unpublished.retain(|change| match change {
            Change::Node { id, parts, .. } => {
                !indexes.contains_key(id) || !parts.has(Parts::REMOVED)
            }
            Change::Policy | Change::Tka | Change::Relays => true,
        });
        let is_new = |(which, held): (&(Kind, i64), &StoredObject)| {
            matches!(held, StoredObject::Node(_, None)).then_some(NodeId(which.1))
        };
        let new: BTreeSet<NodeId> = objects.iter().filter_map(is_new).collect();
        self.put(objects.into_values().collect(), &indexes, now).expect("it was so before");
        self.remove_unpublished(&new);
        if let Some(numbers) = numbers {
            self.last = numbers;
        }
        for id in indexes.into_keys() {
            self.restore_endpoint_timer(id);
        }
        // What is due is looked at again when the next commands run.
        self.reroutes = true;
        redo
    }

    /// What was taken back was kept after all, and what the store has of it was applied.
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
        for number in redo.gone {
            self.pending.remove(&number);
        }
        for (number, pending) in redo.come {
            self.timers.set(Timer::Registration(number.clone()), pending.since.after(LONGEST_WAIT));
            self.pending.insert(number, pending);
        }
        self.reroutes = true;
    }

    /// Nodes that never were. None was shown: a node tells how it is reached when it is one.
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

    /// Notes what an object was, before it is written.
    pub(crate) fn save_for_undo(&mut self, kind: Kind, id: i64) {
        if !self.undo.objects.contains_key(&(kind, id)) {
            let held = self.held(kind, id);
            self.undo.objects.insert((kind, id), held);
        }
    }
}
