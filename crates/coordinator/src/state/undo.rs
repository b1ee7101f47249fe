//! Undo of changes that the store did not accept.

use std::{collections::BTreeSet, sync::Arc};

use super::State;
use crate::{
    connections::StreamId,
    object::{Kind, NodeId},
    pending::{LONGEST_WAIT, Pending},
    ssh_checks::SshDecision,
    stored_object::StoredObject,
    time::Time,
    timers::Timer,
};

/// Undone changes that are not stored: streams, decisions on logins, and pending registrations.
#[derive(Debug, Default)]
pub struct Redo {
    streams: Vec<(NodeId, StreamId, bool)>,
    ssh: Vec<SshDecision>,
    removed: Vec<String>,
    added: Vec<(String, Arc<Pending>)>,
}

impl State {
    /// Undoes all changes since the last `publish`. The affected nodes are published again. The result is for
    /// [`State::redo`], if the store turns out to have accepted the changes.
    pub fn undo(&mut self, now: Time) -> Redo {
        let undo = self.journal.roll_back();
        let mut redo = Redo { streams: undo.streams, ssh: undo.ssh, ..Redo::default() };
        redo.ssh.iter().rev().for_each(|decision| self.ssh_checks.undo(decision));
        for (id, stream, began) in redo.streams.iter().rev() {
            if *began {
                self.connections.end(*id, *stream);
                self.handle_disconnect(*id, now);
            } else {
                self.connections.restore(*id, *stream);
            }
        }
        if let Some(before) = undo.pending {
            redo.removed =
                before.without(&self.pending).map(|(number, _)| number.clone()).collect();
            let added = self.pending.without(&before);
            redo.added = added.map(|(number, own)| (number.clone(), Arc::clone(own))).collect();
            for (number, since) in before.all() {
                self.timers.set(Timer::Registration(number.clone()), since.after(LONGEST_WAIT));
            }
            self.pending = before;
        }
        let is_new = |(which, object): (&(Kind, i64), &StoredObject)| {
            matches!(object, StoredObject::Node(_, None)).then_some(NodeId(which.1))
        };
        let new: BTreeSet<NodeId> = undo.objects.iter().filter_map(is_new).collect();
        self.put(undo.objects.into_values().collect(), &undo.indexes, now)
            .expect("the values were valid before");
        for index in self.journal.drop_changes_of(&new) {
            self.nodes.release_index(index);
        }
        for id in undo.indexes.into_keys() {
            self.restore_endpoint_timer(id);
        }
        // Primary routers are chosen again when the next commands run.
        self.nodes.require_choices();
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
        self.nodes.require_choices();
    }
}
