//! The table of all connections. The caller passes the time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use config::uapi::ProxyStats;

use super::{Activity, Capacity, Group, Source};

/// A connection can be evicted after it has moved no byte for this time.
const IDLE: Duration = Duration::from_secs(10);
/// A client that has not sent a request can be evicted after it has been silent for this time. A
/// program sends its request at once, even if two thousand of them start together.
const SILENT_BEFORE_REQUEST: Duration = Duration::from_secs(2);
/// Sources, and connections of each, that are checked for one to evict. This limits the cost of a
/// new connection.
const MAX_SOURCES_CHECKED: usize = 8;
const MAX_CONNECTIONS_CHECKED: usize = 256;

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limit of clients that have not sent their requests yet is reached.
    BeforeRequest,
    /// The limit of its source is reached.
    Source,
    /// The limit of its service is reached.
    Service,
    /// The limit of the proxies, of the exposed services or of all connections is reached.
    All,
}

/// The numbers of refused and evicted connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub source: u64,
    pub service: u64,
    pub all: u64,
    /// Idle connections that were evicted.
    pub idle: u64,
    /// Clients that were evicted before they had sent a request.
    pub before_request: u64,
}

#[derive(Debug)]
pub(super) struct Table {
    capacity: Capacity,
    pub holders: HashMap<Key, Holder>,
    groups: HashMap<Group, usize>,
    pub all: usize,
    counters: Counters,
    /// The number of the last entry.
    next: u64,
}

pub(super) type Key = (Group, Source);

/// The connections of one source in one group.
#[derive(Debug, Default)]
pub(super) struct Holder {
    descriptors: usize,
    /// The key is the noted time of the last move, and the number of the entry.
    entries: BTreeMap<(Duration, u64), Arc<Entry>>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Entry {
    pub activity: Arc<Activity>,
    descriptors: usize,
    number: u64,
    /// The time of the last move that is part of its key, in nanoseconds.
    noted: AtomicU64,
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    BeforeRequest,
    Source,
    Service,
    Side,
    All,
}

impl Entry {
    fn key(&self) -> (Duration, u64) {
        (Duration::from_nanos(self.noted.load(Ordering::Relaxed)), self.number)
    }

    fn note(&self, at: Duration) {
        self.noted.store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Table {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            holders: HashMap::new(),
            groups: HashMap::new(),
            all: 0,
            counters: Counters::default(),
            next: 0,
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Adds a connection. Evicts others if necessary.
    pub(super) fn admit(
        &mut self,
        key: Key,
        activity: Arc<Activity>,
        descriptors: usize,
        now: Duration,
    ) -> Result<Arc<Entry>, Refused> {
        self.make_room(key, descriptors, now).map_err(|full| self.refuse(full))?;
        self.next += 1;
        let number = self.next;
        let entry = Arc::new(Entry { activity, descriptors, number, noted: AtomicU64::default() });
        self.insert(key, &entry);
        Ok(entry)
    }

    /// Makes room for this number of descriptors. Evicts idle connections if necessary.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn make_room(
        &mut self,
        key: Key,
        descriptors: usize,
        now: Duration,
    ) -> Result<(), Full> {
        while let Some(full) = self.full(key, descriptors) {
            if !self.evict_idle(full, key, now) {
                return Err(full);
            }
        }
        Ok(())
    }

    /// Moves a connection from one key to another.
    pub(super) fn replace(
        &mut self,
        old: &Arc<Entry>,
        from: Key,
        (to, descriptors): (Key, usize),
        now: Duration,
    ) -> Result<Arc<Entry>, Refused> {
        if !self.remove(from, old) {
            return Err(Refused::All);
        }
        let admitted = self.admit(to, old.activity.clone(), descriptors, now);
        if admitted.is_err() {
            self.insert(from, old);
        }
        admitted
    }

    /// Removes a connection. Returns whether it was in the table, that is, not evicted.
    pub(super) fn remove(&mut self, key: Key, entry: &Entry) -> bool {
        let Some(holder) = self.holders.get_mut(&key) else { return false };
        if holder.entries.remove(&entry.key()).is_none() {
            return false;
        }
        holder.descriptors -= entry.descriptors;
        if holder.entries.is_empty() {
            self.holders.remove(&key);
        }
        if let Some(group) = self.groups.get_mut(&key.0) {
            *group -= entry.descriptors;
        }
        self.all -= entry.descriptors;
        true
    }

    fn insert(&mut self, key: Key, entry: &Arc<Entry>) {
        entry.note(entry.activity.last_move());
        let holder = self.holders.entry(key).or_default();
        holder.entries.insert(entry.key(), entry.clone());
        holder.descriptors += entry.descriptors;
        *self.groups.entry(key.0).or_default() += entry.descriptors;
        self.all += entry.descriptors;
    }

    /// The limit that this number of additional descriptors would exceed.
    pub(super) fn full(&self, (group, source): Key, more: usize) -> Option<Full> {
        let capacity = &self.capacity;
        let held = |group| self.groups.get(&group).copied().unwrap_or(0);
        if group == Group::BeforeRequest {
            if held(group) + more > capacity.before_request {
                return Some(Full::BeforeRequest);
            }
        } else {
            let side = || self.groups.keys().copied().filter(move |other| same_side(*other, group));
            let of_source = |group| self.holders.get(&(group, source)).map_or(0, |h| h.descriptors);
            let all_of_source: usize = side().map(of_source).sum();
            if source.has_limit() && all_of_source + more > capacity.source {
                return Some(Full::Source);
            }
            if matches!(group, Group::Exposed(_)) && held(group) + more > capacity.service {
                return Some(Full::Service);
            }
            if side().map(held).sum::<usize>() + more > capacity.side {
                return Some(Full::Side);
            }
        }
        (self.all + more > capacity.all).then_some(Full::All)
    }

    /// Evicts an idle connection. Returns whether there was one.
    fn evict_idle(&mut self, full: Full, (group, source): Key, now: Duration) -> bool {
        let own = self.holders.get(&(group, source)).map_or(0, |holder| holder.descriptors);
        let is_in = |key: &Key| match full {
            Full::BeforeRequest | Full::Service => key.0 == group,
            Full::Source => key.1 == source && same_side(key.0, group),
            Full::Side => same_side(key.0, group),
            Full::All => true,
        };
        let candidates = self
            .holders
            .iter()
            .filter(|(key, holder)| is_in(key) && (key.1 == source || holder.descriptors > own));
        let mut candidates: Vec<_> = candidates
            .map(|(key, holder)| (Reverse(holder.descriptors), key.1 != source, *key))
            .collect();
        candidates.sort_unstable_by_key(|(descriptors, is_other, _)| (*descriptors, *is_other));
        for (_, _, key) in candidates.into_iter().take(MAX_SOURCES_CHECKED) {
            let at_least = if key.0 == Group::BeforeRequest { SILENT_BEFORE_REQUEST } else { IDLE };
            if let Some(entry) = self.longest_idle(key, at_least, now) {
                self.remove(key, &entry);
                entry.activity.evict();
                let asked = key.0 == Group::BeforeRequest;
                *(if asked {
                    &mut self.counters.before_request
                } else {
                    &mut self.counters.idle
                }) += 1;
                return true;
            }
        }
        false
    }

    /// The connection of a holder that moved bytes longest ago, if it has been idle for `at_least`.
    fn longest_idle(&mut self, key: Key, at_least: Duration, now: Duration) -> Option<Arc<Entry>> {
        let holder = self.holders.get_mut(&key)?;
        for _ in 0..MAX_CONNECTIONS_CHECKED {
            let (&(noted, _), entry) = holder.entries.first_key_value()?;
            let entry = entry.clone();
            let moved = entry.activity.last_move();
            if moved <= noted {
                return (now.saturating_sub(noted) >= at_least).then_some(entry);
            }
            // Moves are noted only here, so that a move does not need the lock.
            holder.entries.remove(&entry.key());
            entry.note(moved);
            holder.entries.insert(entry.key(), entry);
        }
        None
    }

    fn refuse(&mut self, full: Full) -> Refused {
        let counters = &mut self.counters;
        let (refused, count) = match full {
            // It waits instead.
            Full::BeforeRequest => return Refused::BeforeRequest,
            Full::Source => (Refused::Source, &mut counters.source),
            Full::Service => (Refused::Service, &mut counters.service),
            Full::Side | Full::All => (Refused::All, &mut counters.all),
        };
        *count += 1;
        refused
    }
}

/// Whether both groups are on this side, or both in the tunnel.
fn same_side(a: Group, b: Group) -> bool {
    match a {
        Group::Exposed(_) => matches!(b, Group::Exposed(_)),
        other => other == b,
    }
}

impl Counters {
    /// The counters as part of the statistics.
    pub(crate) fn stats(&self) -> ProxyStats {
        ProxyStats {
            refused_source: self.source,
            refused_service: self.service,
            refused_all: self.all,
            evicted_idle: self.idle,
            evicted_asking: self.before_request,
            ..ProxyStats::default()
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeforeRequest => "too many clients have not sent their requests yet",
            Self::Source => "its source has reached its limit of connections",
            Self::Service => "the service has reached its limit of connections",
            Self::All => "the limit of all connections is reached",
        })
    }
}

impl From<Refused> for std::io::Error {
    fn from(refused: Refused) -> Self {
        Self::other(refused.to_string())
    }
}
