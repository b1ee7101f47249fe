//! The memory of all buffers together.
//!
//! Every byte counts: what a buffer holds, and [`FIRST`] bytes of each buffer that holds
//! less, which are set aside for it. So a buffer that holds nothing waits for no other, and
//! all of them stay within the limit for as long as [`Budget::has_room_for`] is asked first.
//! A buffer that holds more may have to wait until it is read. A receiver that has nothing
//! to be read, as the next bytes are missing, gives up what came early when these get no
//! memory.
//!
//! ```text
//!   | held, or set aside | left: 1/16 for buffers below their share | 1/16 for those to come |
//! ```

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of a whole chunk: what large buffers grow and shrink by.
pub const CHUNK: usize = 16 * 1024;
/// Bytes of the least chunk, and what each buffer may have in any case.
pub const FIRST: usize = 512;
/// Free chunks that are kept, 1 MiB: fresh memory has to be zeroed, and is not in the cache.
const KEPT: usize = 64;

/// A piece of a buffer: a power of two from [`FIRST`] to [`CHUNK`] bytes.
pub type Chunk = Box<[u8]>;

/// A bound for the memory of many buffers. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    /// Bytes that buffers hold.
    used: AtomicUsize,
    /// The same, and what is set aside for buffers that hold less.
    taken: AtomicUsize,
    buffers: AtomicUsize,
    kept: Mutex<Vec<Chunk>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            used: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            buffers: AtomicUsize::new(0),
            kept: Mutex::new(Vec::new()),
        }))
    }

    /// Whether so many buffers can begin.
    pub fn has_room_for(&self, buffers: usize) -> bool {
        self.left() >= buffers * FIRST
    }

    /// A buffer begins.
    pub fn begin(&self) {
        self.0.buffers.fetch_add(1, Ordering::Relaxed);
        self.0.taken.fetch_add(FIRST, Ordering::Relaxed);
    }

    /// A buffer that holds nothing ends.
    pub fn end(&self) {
        self.0.buffers.fetch_sub(1, Ordering::Relaxed);
        self.0.taken.fetch_sub(FIRST, Ordering::Relaxed);
    }

    /// How many bytes a buffer that holds `held` may hold now. All but an eighth of the
    /// limit is first come, first served; half of the eighth is for buffers below their even
    /// share, and the rest for new buffers.
    pub fn allowance(&self, held: usize) -> usize {
        let (limit, left) = (self.0.limit, self.left());
        let own = held.max(FIRST);
        let share = limit / self.0.buffers.load(Ordering::Relaxed).max(1);
        let first_come = own + left.saturating_sub(limit / 8);
        let shared = own + left.saturating_sub(limit / 16);
        first_come.max(shared.min(share))
    }

    /// A chunk of `len` bytes for a buffer that holds `held`, within its allowance, in the
    /// place of one of `old` bytes.
    pub fn take(&self, held: usize, old: usize, len: usize) -> Chunk {
        self.account(held, held - old + len);
        let kept = || self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let kept = if len == CHUNK { kept() } else { None };
        kept.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Takes a chunk back of a buffer that held `held` bytes.
    pub fn give(&self, held: usize, chunk: Chunk) {
        self.account(held, held - chunk.len());
        if chunk.len() < CHUNK {
            return;
        }
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(chunk);
        }
    }

    /// Counts bytes of something that has no chunks.
    pub fn charge(&self, len: usize) {
        self.0.used.fetch_add(len, Ordering::Relaxed);
        self.0.taken.fetch_add(len, Ordering::Relaxed);
    }

    /// Counts them no more.
    pub fn refund(&self, len: usize) {
        self.0.used.fetch_sub(len, Ordering::Relaxed);
        self.0.taken.fetch_sub(len, Ordering::Relaxed);
    }

    /// A buffer holds `to` bytes that held `from`.
    fn account(&self, from: usize, to: usize) {
        change(&self.0.used, from, to);
        change(&self.0.taken, from.max(FIRST), to.max(FIRST));
    }

    /// Bytes that buffers hold.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.limit.saturating_sub(self.0.taken.load(Ordering::Relaxed))
    }

    /// Whether no buffer should grow now: three quarters are taken.
    pub fn is_short(&self) -> bool {
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
    fn the_last_eighth_is_for_buffers_below_their_share() {
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
