//! A semaphore for costly work, such as handshakes and slow hashes, with a limit for each source: a
//! source with many requests delays only itself.
//!
//! ```text
//!   acquire ──► permit of the source ──► permit of all sources ──► the work
//! ```

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Semaphore for sources with keys of this type.
pub(crate) struct FairSemaphore<K> {
    each: usize,
    all: Semaphore,
    sources: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A permit, which is released when dropped.
pub(crate) struct FairPermit<'a, K: Eq + Hash> {
    // Dropped before `_entry`, which counts the other users of the source's semaphore.
    _own: OwnedSemaphorePermit,
    _all: SemaphorePermit<'a>,
    _entry: SourceEntry<'a, K>,
}

/// The entry of a source that waits for a permit or has one.
struct SourceEntry<'a, K: Eq + Hash> {
    semaphore: &'a FairSemaphore<K>,
    source: K,
}

impl<K: Clone + Eq + Hash> FairSemaphore<K> {
    /// Creates a semaphore with `all` permits in total, and `each` for one source.
    pub(crate) fn new(all: usize, each: usize) -> Self {
        Self { each, all: Semaphore::new(all), sources: Mutex::default() }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// Never, because the semaphores are not closed.
    pub(crate) async fn acquire(&self, source: K) -> Result<FairPermit<'_, K>, AcquireError> {
        let entry = SourceEntry { semaphore: self, source: source.clone() };
        let own = self.lock().entry(source).or_insert_with(|| self.new_source()).clone();
        let own = own.acquire_owned().await?;
        let all = self.all.acquire().await?;
        Ok(FairPermit { _own: own, _all: all, _entry: entry })
    }

    fn new_source(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.each))
    }
}

impl<K> FairSemaphore<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for SourceEntry<'_, K> {
    fn drop(&mut self) {
        let mut sources = self.semaphore.lock();
        // The table has one reference. Each waiting task and each permit has another.
        if sources.get(&self.source).is_some_and(|own| Arc::strong_count(own) == 1) {
            sources.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_flood_from_one_source_delays_another_by_one_permit() {
        let semaphore = FairSemaphore::new(1, 1);
        let first = semaphore.acquire("flood").now_or_never().unwrap().unwrap();
        let mut flood: Vec<_> = (0..100).map(|_| Box::pin(semaphore.acquire("flood"))).collect();
        assert!(flood.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut other = Box::pin(semaphore.acquire("other"));
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        // The next request of the flood queues behind the other source.
        let next = (&mut flood[0]).now_or_never();
        assert!(next.is_none());
        let other = other.now_or_never().unwrap().unwrap();
        drop((other, flood));
        assert!(semaphore.lock().is_empty(), "an unused source is removed");
    }

    #[test]
    fn a_released_permit_can_be_acquired_once_by_its_source() {
        let semaphore = FairSemaphore::new(9, 2);
        let mut taken: Vec<_> =
            (0..2).map(|_| semaphore.acquire(1).now_or_never().unwrap()).collect();
        taken.pop();
        taken.push(semaphore.acquire(1).now_or_never().unwrap());
        assert!(semaphore.acquire(1).now_or_never().is_none());
    }

    #[test]
    fn permits_of_one_source_leave_room_for_another() {
        let semaphore = FairSemaphore::new(3, 2);
        let taken: Vec<_> = (0..2).map(|_| semaphore.acquire(1).now_or_never().unwrap()).collect();
        assert!(semaphore.acquire(1).now_or_never().is_none());
        let other = semaphore.acquire(2).now_or_never().unwrap();
        assert!(semaphore.acquire(3).now_or_never().is_none(), "all permits are in use");
        drop((taken, other));
        assert!(semaphore.lock().is_empty());
    }
}
