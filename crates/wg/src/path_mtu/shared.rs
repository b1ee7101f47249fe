//! What both directions of the data path and the control half tell each other of a
//! peer's path.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{PathLimit, constants::PROBE_CONFIRM_AFTER, probe::Probe};
use crate::{peer::Mark, time::Time};

/// Questions and answers that wait to be sent, or to be read by the control half. A peer
/// that asks more at a time has more than that unanswered.
const MOST: usize = 8;
/// There is no limit.
const UNLIMITED: u32 = 0;
/// Beside a limit: it is settled.
const SETTLED: u32 = 1 << 16;
/// One packet is returned in this time, in the long run.
const RETURN_EVERY: Duration = Duration::from_millis(10);
/// How many may be at once.
const RETURN_BURST: u32 = 20;

#[derive(Debug)]
pub(crate) struct PeerPath {
    limit: AtomicU32,
    /// When the first long data was sent since its length was last asked about. Off where
    /// nobody wants to know.
    long_since: Mark,
    to_send: Mutex<Vec<Probe>>,
    heard: Mutex<Vec<Heard>>,
    /// When the next return would be due if all came evenly (the virtual scheduling of
    /// ITU-T I.371's rate algorithm), in nanoseconds.
    next_return: AtomicU64,
}

/// What the control half is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// A question or an answer came, and when.
    Came(Probe, Time),
    /// Our own link refused the question with this token as too long.
    Refused(u32),
}

impl Default for PeerPath {
    fn default() -> Self {
        Self {
            limit: AtomicU32::new(UNLIMITED),
            long_since: Mark::off(),
            to_send: Mutex::default(),
            heard: Mutex::default(),
            next_return: AtomicU64::new(0),
        }
    }
}

impl PeerPath {
    pub(super) fn limit(&self) -> Option<PathLimit> {
        match self.limit.load(Ordering::Relaxed) {
            UNLIMITED => None,
            limit => Some(PathLimit { bytes: limit as u16, settled: limit & SETTLED != 0 }),
        }
    }

    pub(super) fn set_limit(&self, limit: Option<PathLimit>) {
        let limit = limit.map_or(UNLIMITED, |limit| {
            u32::from(limit.bytes) | if limit.settled { SETTLED } else { 0 }
        });
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Notes that long data was sent; the deadline that this brings, where it is the first.
    pub(super) fn note_long(&self, now: Time) -> Option<Time> {
        self.long_since.arm(now).then_some(now + PROBE_CONFIRM_AFTER)
    }

    /// Says whether the next long data is to be noted.
    pub(super) fn want_long(&self, wanted: bool) {
        self.long_since.switch(wanted);
    }

    /// When the length of long data is asked about.
    pub(super) fn long_deadline(&self) -> Option<Time> {
        self.long_since.get().map(|since| since + PROBE_CONFIRM_AFTER)
    }

    pub(super) fn take_long(&self, now: Time) -> bool {
        let due = self.long_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.long_since.clear();
        }
        due
    }

    pub(super) fn send(&self, probe: Probe) {
        push(&self.to_send, probe);
    }

    pub(super) fn take_to_send(&self) -> Vec<Probe> {
        take(&self.to_send)
    }

    pub(super) fn hear(&self, heard: Heard) {
        push(&self.heard, heard);
    }

    pub(super) fn take_heard(&self) -> Vec<Heard> {
        take(&self.heard)
    }

    /// Called by one thread.
    pub(super) fn allow_too_big_report(&self, now: Time) -> bool {
        let next = Time::from_nanos(self.next_return.load(Ordering::Relaxed));
        if next.since(now) >= RETURN_EVERY * RETURN_BURST {
            return false;
        }
        let next = next.max(now) + RETURN_EVERY;
        self.next_return.store(next.as_nanos(), Ordering::Relaxed);
        true
    }
}

fn push<T>(list: &Mutex<Vec<T>>, item: T) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < MOST {
        list.push(item);
    }
}

fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_come_in_a_burst_and_then_a_hundred_a_second() {
        let path = PeerPath::default();
        let began = Time::from_nanos(5_000_000_000);
        let burst = (0..1_000).filter(|_| path.allow_too_big_report(began)).count();
        assert_eq!(burst, RETURN_BURST as usize);
        let later = |ms| began + Duration::from_millis(ms);
        let steady = (0..10_000).filter(|ms| path.allow_too_big_report(later(*ms))).count();
        assert!((999..=1_001).contains(&steady), "{steady}");
    }

    #[test]
    fn a_limit_is_read_as_it_was_set() {
        let path = PeerPath::default();
        assert_eq!(path.limit(), None);
        for settled in [false, true] {
            let limit = Some(PathLimit { bytes: u16::MAX, settled });
            path.set_limit(limit);
            assert_eq!(path.limit(), limit);
        }
        path.set_limit(None);
        assert_eq!(path.limit(), None);
    }
}
