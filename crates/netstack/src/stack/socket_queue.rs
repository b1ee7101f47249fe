//! A queue of sockets from which entries can be removed anywhere.

use std::collections::BTreeMap;

/// Socket ids in the order of insertion, each with a number.
#[derive(Default)]
pub(super) struct SocketQueue {
    ids: BTreeMap<u64, usize>,
    next: u64,
}

impl SocketQueue {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Appends a socket. Returns its number.
    pub(super) fn push(&mut self, id: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ids.insert(number, id);
        number
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        self.ids.pop_first().map(|(_, id)| id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.ids.values().copied()
    }

    pub(super) fn remove(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.ids.remove(&number);
        }
    }
}
