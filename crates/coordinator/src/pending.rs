//! Registrations that wait for approval. Limits evict registrations of the machine or address with the most, not
//! those of others.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tailnet::keys::MachinePublic;

use crate::{request::RegisterRequest, time::Time};

/// The maximum number of pending registrations, and of those of one machine.
const MAX_PENDING: usize = 1000;
const MAX_PER_MACHINE: usize = 4;

/// The time after which a pending registration is removed. Clients then register again.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A pending registration.
#[derive(Debug)]
pub(crate) struct Pending {
    pub machine: MachinePublic,
    pub request: RegisterRequest,
    /// The address from which it was requested.
    pub from: Option<IpAddr>,
    pub since: Time,
}

/// Pending registrations by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingRegistrations(BTreeMap<String, Arc<Pending>>);

impl PendingRegistrations {
    pub(crate) fn get(&self, number: &str) -> Option<&Arc<Pending>> {
        self.0.get(number)
    }

    /// All numbers, with the time of each registration.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, Time)> {
        self.0.iter().map(|(number, pending)| (number, pending.since))
    }

    /// The registrations that are not in another table.
    pub(crate) fn without<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (&'a String, &'a Arc<Pending>)> {
        self.0.iter().filter(|(number, _)| !other.0.contains_key(*number))
    }

    pub(crate) fn remove(&mut self, number: &str) -> Option<Arc<Pending>> {
        self.0.remove(number)
    }

    /// Adds a registration. Returns the one that was evicted for it.
    pub(crate) fn insert(
        &mut self,
        number: String,
        pending: Arc<Pending>,
    ) -> Option<(String, Arc<Pending>)> {
        let of_machine = |other: &Pending| other.machine == pending.machine;
        let evicted =
            if self.0.values().filter(|other| of_machine(other)).count() >= MAX_PER_MACHINE {
                self.oldest(of_machine)
            } else if self.0.len() >= MAX_PENDING {
                // The address with the most registrations.
                let busiest = most_frequent(self.0.values().map(|pending| pending.from)).flatten();
                self.oldest(|other| other.from == busiest)
            } else {
                None
            };
        let evicted = evicted.and_then(|number| self.0.remove_entry(&number));
        self.0.insert(number, pending);
        evicted
    }

    fn oldest(&self, which: impl Fn(&Pending) -> bool) -> Option<String> {
        let which = self.0.iter().filter(|(_, pending)| which(pending));
        which.min_by_key(|(_, pending)| pending.since).map(|(number, _)| number.clone())
    }
}

/// The most frequent item.
pub(crate) fn most_frequent<P: Copy + Eq + Hash>(all: impl Iterator<Item = P>) -> Option<P> {
    let mut counts: HashMap<P, usize> = HashMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(one, _)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(machine: u32, from: u8, since: u64) -> Arc<Pending> {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&machine.to_le_bytes());
        Arc::new(Pending {
            machine: MachinePublic(key),
            request: RegisterRequest::default(),
            from: Some([192, 0, 2, from].into()),
            since: Time(since),
        })
    }

    #[test]
    fn a_flood_evicts_only_registrations_from_the_same_address() {
        let mut room = PendingRegistrations::default();
        room.insert("mine".into(), pending(0, 1, 0));
        for flood in 1..3 * MAX_PENDING as u32 {
            room.insert(format!("{flood}"), pending(flood, 2, u64::from(flood)));
        }
        assert!(room.get("mine").is_some() && room.0.len() == MAX_PENDING);
        let evicted = room.insert("newest".into(), pending(9999, 1, 9999));
        assert_eq!(evicted.map(|(_, pending)| pending.from), Some(Some([192, 0, 2, 2].into())));
    }

    #[test]
    fn registrations_of_one_machine_are_limited() {
        let mut room = PendingRegistrations::default();
        for ask in 0..10 {
            room.insert(format!("{ask}"), pending(1, 1, ask));
        }
        assert_eq!(room.0.keys().collect::<Vec<_>>(), ["6", "7", "8", "9"]);
    }
}
