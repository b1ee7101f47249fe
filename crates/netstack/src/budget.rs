//! The memory of all connections' buffers together.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of a chunk: what buffers grow and shrink by.
pub const CHUNK: usize = 16 * 1024;
/// Chunks that are kept for the next who needs one, 1 MiB: fresh memory has to be
/// zeroed, and is not in the cache.
const KEPT: usize = 64;

/// A piece of a buffer.
pub type Chunk = Box<[u8]>;

/// A bound for the memory of many buffers. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    used: AtomicUsize,
    kept: Mutex<Vec<Chunk>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let kept = Mutex::new(Vec::new());
        Self(Arc::new(Shared { limit, used: AtomicUsize::new(0), kept }))
    }

    /// A chunk. `reserve` gives it beyond the limit too: the first of a buffer, so
    /// that none is stuck for the others' sake.
    pub fn take(&self, reserve: bool) -> Option<Chunk> {
        let shared = &*self.0;
        if !reserve && self.used() + CHUNK > shared.limit {
            return None;
        }
        shared.used.fetch_add(CHUNK, Ordering::Relaxed);
        let kept = shared.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Some(kept.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice()))
    }

    /// Takes a chunk back.
    pub fn give(&self, chunk: Chunk) {
        self.0.used.fetch_sub(CHUNK, Ordering::Relaxed);
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(chunk);
        }
    }

    /// Bytes that buffers hold.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.limit.saturating_sub(self.used())
    }

    /// Whether no buffer should grow now: three quarters are used.
    pub fn is_short(&self) -> bool {
        self.left() < self.0.limit / 4
    }
}
