//! State of a peer's path that the data path and the control half share.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{PathLimit, constants::CONFIRM_INTERVAL, probe::Probe};
use crate::{mark::Mark, time::Time};

/// Maximum number of probes and replies that wait to be sent, or to be read by the control half.
/// Further ones are dropped.
const MAX_WAITING: usize = 8;
/// No limit.
const UNLIMITED: u32 = 0;
/// Flag of a settled limit.
const SETTLED: u32 = 1 << 16;
/// Interval between "packet too big" reports in the long run.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of reports at once.
const REPORT_BURST: u32 = 20;

#[derive(Debug)]
pub(crate) struct PeerPath {
    limit: AtomicU32,
    /// Time of the first long data since its length was last probed. Off unless the search needs
    /// it.
    long_since: Mark,
    outgoing: Mutex<Vec<Probe>>,
    events: Mutex<Vec<PathEvent>>,
    /// Time when the next report would be due at a constant rate (the virtual scheduling of ITU-T
    /// I.371's rate algorithm), in nanoseconds.
    next_report: AtomicU64,
}

/// An event for the control half.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PathEvent {
    /// A probe or a reply was received at this time.
    Received(Probe, Time),
    /// Our own link refused the probe with this token as too long.
    Refused(u32),
}

impl Default for PeerPath {
    fn default() -> Self {
        Self {
            limit: AtomicU32::new(UNLIMITED),
            long_since: Mark::off(),
            outgoing: Mutex::default(),
            events: Mutex::default(),
            next_report: AtomicU64::new(0),
        }
    }
}

impl PeerPath {
    pub(crate) fn limit(&self) -> Option<PathLimit> {
        match self.limit.load(Ordering::Relaxed) {
            UNLIMITED => None,
            limit => Some(PathLimit { bytes: limit as u16, settled: limit & SETTLED != 0 }),
        }
    }

    pub(crate) fn set_limit(&self, limit: Option<PathLimit>) {
        let limit = limit.map_or(UNLIMITED, |limit| {
            u32::from(limit.bytes) | if limit.settled { SETTLED } else { 0 }
        });
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Records sent long data. Returns the new deadline if it is the first such data.
    pub(crate) fn note_long_data(&self, now: Time) -> Option<Time> {
        self.long_since.arm(now).then_some(now + CONFIRM_INTERVAL)
    }

    /// Sets whether the next long data is recorded.
    pub(crate) fn set_long_data_wanted(&self, wanted: bool) {
        self.long_since.switch(wanted);
    }

    /// Time to probe the length of long data.
    pub(crate) fn long_deadline(&self) -> Option<Time> {
        self.long_since.get().map(|since| since + CONFIRM_INTERVAL)
    }

    pub(crate) fn take_long_data(&self, now: Time) -> bool {
        let due = self.long_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.long_since.clear();
        }
        due
    }

    pub(crate) fn queue_probe(&self, probe: Probe) {
        push(&self.outgoing, probe);
    }

    pub(crate) fn take_outgoing(&self) -> Vec<Probe> {
        take(&self.outgoing)
    }

    pub(crate) fn push_event(&self, event: PathEvent) {
        push(&self.events, event);
    }

    pub(crate) fn take_events(&self) -> Vec<PathEvent> {
        take(&self.events)
    }

    /// Called by one thread only.
    pub(crate) fn allow_too_big_report(&self, now: Time) -> bool {
        let next = Time::from_nanos(self.next_report.load(Ordering::Relaxed));
        if next.since(now) >= REPORT_INTERVAL * REPORT_BURST {
            return false;
        }
        let next = next.max(now) + REPORT_INTERVAL;
        self.next_report.store(next.as_nanos(), Ordering::Relaxed);
        true
    }
}

fn push<T>(list: &Mutex<Vec<T>>, item: T) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < MAX_WAITING {
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
    fn reports_are_allowed_in_a_burst_and_then_at_100_per_second() {
        let path = PeerPath::default();
        let began = Time::from_nanos(5_000_000_000);
        let burst = (0..1_000).filter(|_| path.allow_too_big_report(began)).count();
        assert_eq!(burst, REPORT_BURST as usize);
        let later = |ms| began + Duration::from_millis(ms);
        let steady = (0..10_000).filter(|ms| path.allow_too_big_report(later(*ms))).count();
        assert!((999..=1_001).contains(&steady), "{steady}");
    }

    #[test]
    fn limit_is_returned_as_it_was_set() {
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
