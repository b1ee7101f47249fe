//! A memory limit for all buffers together.
//!
//! It counts the bytes in buffers, and [`FIRST`] bytes for each buffer that holds less; these are
//! reserved. An empty buffer therefore never waits for another one, and all buffers stay within the
//! limit if [`Budget::has_room_for`] is checked before a buffer is created. A buffer with more data
//! may have to wait until it is read. A receiver with out-of-order data but without the next bytes
//! drops that data if the next bytes get no memory.
//!
//! ```text
//!   | held, or reserved | left: 1/16 for buffers below their share | 1/16 for new buffers |
//! ```

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of a whole chunk. Large buffers grow and shrink by chunks.
pub(crate) const CHUNK: usize = 16 * 1024;
/// Bytes of the smallest chunk, reserved for each buffer.
pub(crate) const FIRST: usize = 512;
/// The most free chunks that are cached, 1 MiB. New memory must be zeroed and is not in the cache.
const MAX_FREE_CHUNKS: usize = 64;

/// A piece of a buffer: a power of two from [`FIRST`] to [`CHUNK`] bytes.
pub(crate) type Chunk = Box<[u8]>;

/// A memory limit for many buffers. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    /// Bytes in buffers.
    used: AtomicUsize,
    /// Bytes in buffers, and bytes that are reserved for buffers that hold less.
    reserved: AtomicUsize,
    buffers: AtomicUsize,
    free_chunks: Mutex<Vec<Chunk>>,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            buffers: AtomicUsize::new(0),
            free_chunks: Mutex::new(Vec::new()),
        }))
    }

    /// Whether this number of buffers can be created.
    pub(crate) fn has_room_for(&self, buffers: usize) -> bool {
        self.left() >= buffers * FIRST
    }

    /// Adds a buffer.
    pub(crate) fn begin(&self) {
        self.0.buffers.fetch_add(1, Ordering::Relaxed);
        self.0.reserved.fetch_add(FIRST, Ordering::Relaxed);
    }

    /// Removes an empty buffer.
    pub(crate) fn end(&self) {
        self.0.buffers.fetch_sub(1, Ordering::Relaxed);
        self.0.reserved.fetch_sub(FIRST, Ordering::Relaxed);
    }

    /// The bytes that a buffer with `held` bytes may hold now. Seven eighths of the limit are first
    /// come, first served. Half of the last eighth is for buffers below their even share, and the
    /// rest for new buffers.
    pub(crate) fn allowance(&self, held: usize) -> usize {
        let (limit, left) = (self.0.limit, self.left());
        let own = held.max(FIRST);
        let share = limit / self.0.buffers.load(Ordering::Relaxed).max(1);
        let first_come = own + left.saturating_sub(limit / 8);
        let shared = own + left.saturating_sub(limit / 16);
        first_come.max(shared.min(share))
    }

    /// Returns a chunk of `len` bytes, within the allowance, to a buffer that holds `held` bytes.
    /// It replaces a chunk of `old` bytes.
    pub(crate) fn take(&self, held: usize, old: usize, len: usize) -> Chunk {
        self.account(held, held - old + len);
        let free_chunks =
            || self.0.free_chunks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let free_chunks = if len == CHUNK { free_chunks() } else { None };
        free_chunks.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Takes back a chunk from a buffer that held `held` bytes.
    pub(crate) fn give(&self, held: usize, chunk: Chunk) {
        self.account(held, held - chunk.len());
        if chunk.len() < CHUNK {
            return;
        }
        let mut free_chunks = self.0.free_chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if free_chunks.len() < MAX_FREE_CHUNKS {
            free_chunks.push(chunk);
        }
    }

    /// Adds bytes that are not in chunks.
    pub(crate) fn charge(&self, len: usize) {
        self.0.used.fetch_add(len, Ordering::Relaxed);
        self.0.reserved.fetch_add(len, Ordering::Relaxed);
    }

    /// Subtracts bytes that are not in chunks.
    pub(crate) fn refund(&self, len: usize) {
        self.0.used.fetch_sub(len, Ordering::Relaxed);
        self.0.reserved.fetch_sub(len, Ordering::Relaxed);
    }

    /// Accounts for a buffer that changes from `from` to `to` bytes.
    fn account(&self, from: usize, to: usize) {
        change(&self.0.used, from, to);
        change(&self.0.reserved, from.max(FIRST), to.max(FIRST));
    }

    /// Bytes in buffers.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are neither used nor reserved.
    pub(crate) fn left(&self) -> usize {
        self.0.limit.saturating_sub(self.0.reserved.load(Ordering::Relaxed))
    }

    /// Whether buffers should not grow: more than three quarters are used or reserved.
    pub(crate) fn is_short(&self) -> bool {
        self.left() < self.0.limit / 4
    }
}

fn change(counter: &AtomicUsize, from: usize, to: usize) {
    if from < to {
        counter.fetch_add(to - from, Ordering::Relaxed);
    } else {
        counter.fetch_sub(from - to, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighth_is_for_small_buffers() {
        let budget = Budget::new(64 * CHUNK);
        (0..4).for_each(|_| budget.begin());
        let mut held = 0;
        while held + CHUNK <= budget.allowance(held) {
            drop(budget.take(held, 0, CHUNK));
            held += CHUNK;
        }
        assert!((55 * CHUNK..=56 * CHUNK).contains(&held), "{held}");
        assert!(budget.allowance(0) > 4 * CHUNK, "others get more");
        assert!(budget.allowance(0) < 6 * CHUNK, "but not all that is left");
        assert!(budget.is_short());
    }
}
