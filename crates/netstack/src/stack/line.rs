//! Sockets of one kind in the order in which they became so, of which there is a bound.

use std::collections::BTreeMap;

/// Those, by a number that each is given.
#[derive(Default)]
pub(super) struct Line {
    ids: BTreeMap<u64, usize>,
    next: u64,
}

impl Line {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Lines up a socket; under which number.
    pub fn push(&mut self, id: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ids.insert(number, id);
        number
    }

    pub fn pop(&mut self) -> Option<usize> {
        self.ids.pop_first().map(|(_, id)| id)
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.ids.values().copied()
    }

    pub fn remove(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.ids.remove(&number);
        }
    }
}
