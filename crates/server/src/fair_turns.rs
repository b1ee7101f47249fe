//! Turns at something costly, such as handshakes and slow hashes. Each source has few at once, so one that asks
//! for many delays only itself.
//!
//! ```text
//!   take ──► one of its source's turns ──► one of all turns ──► the work
//! ```

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Turns of sources with this key.
pub struct FairTurns<K> {
    each: usize,
    all: Semaphore,
    sources: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A turn, which lasts until it is dropped.
pub struct Turn<'a, K: Eq + Hash> {
    // Dropped before `_place`, which counts the other users of the semaphore.
    _own: OwnedSemaphorePermit,
    _all: SemaphorePermit<'a>,
    _place: Place<'a, K>,
}

/// A source that waits for a turn, or has one.
struct Place<'a, K: Eq + Hash> {
    turns: &'a FairTurns<K>,
    source: K,
}

impl<K: Clone + Eq + Hash> FairTurns<K> {
    /// Turns for `all` sources at once, and for one source `each` at once.
    pub fn new(all: usize, each: usize) -> Self {
        Self { each, all: Semaphore::new(all), sources: Mutex::default() }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// Never: the turns are not closed.
    pub async fn take(&self, source: K) -> Result<Turn<'_, K>, AcquireError> {
        let place = Place { turns: self, source: source.clone() };
        let own = self.lock().entry(source).or_insert_with(|| self.of_source()).clone();
        let own = own.acquire_owned().await?;
        let all = self.all.acquire().await?;
        Ok(Turn { _own: own, _all: all, _place: place })
    }

    fn of_source(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.each))
    }
}

impl<K> FairTurns<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Place<'_, K> {
    fn drop(&mut self) {
        let mut sources = self.turns.lock();
        // The table has one reference, and each waiting task and each turn has another.
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
    fn a_source_that_asks_for_many_turns_delays_another_by_one() {
        let turns = FairTurns::new(1, 1);
        let first = turns.take("flood").now_or_never().unwrap().unwrap();
        let mut flood: Vec<_> = (0..100).map(|_| Box::pin(turns.take("flood"))).collect();
        assert!(flood.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut other = Box::pin(turns.take("other"));
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        // The next of the flood waits for the turn of all behind the other.
        let next = (&mut flood[0]).now_or_never();
        assert!(next.is_none());
        let other = other.now_or_never().unwrap().unwrap();
        drop((other, flood));
        assert!(turns.lock().is_empty(), "a source that has left is forgotten");
    }

    #[test]
    fn a_source_that_ends_one_of_its_turns_has_one_more_and_no_new_share() {
        let turns = FairTurns::new(9, 2);
        let mut taken: Vec<_> = (0..2).map(|_| turns.take(1).now_or_never().unwrap()).collect();
        taken.pop();
        taken.push(turns.take(1).now_or_never().unwrap());
        assert!(turns.take(1).now_or_never().is_none());
    }

    #[test]
    fn two_turns_of_a_source_leave_one_for_another() {
        let turns = FairTurns::new(3, 2);
        let taken: Vec<_> = (0..2).map(|_| turns.take(1).now_or_never().unwrap()).collect();
        assert!(turns.take(1).now_or_never().is_none());
        let other = turns.take(2).now_or_never().unwrap();
        assert!(turns.take(3).now_or_never().is_none(), "all are taken");
        drop((taken, other));
        assert!(turns.lock().is_empty());
    }
}
