//! The plan of a check: relays and times.

use std::{collections::BTreeMap, time::Duration};

use tailnet::map_messages::{DerpRegion, RelayAddress};

use super::{Families, Report, address};

/// The time between two probes of an unmeasured region in the first check.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const FIRST_TRIES: u32 = 3;
/// The time between two probes of an unmeasured region in later checks. It is probably far
/// away or unreachable.
const RETRY: Duration = Duration::from_millis(200);
/// The number of the fastest regions that are probed in a partial check.
const FASTEST: usize = 3;
/// How many of them are probed twice.
const TWICE: usize = 2;
/// The number of probes of the home region, so that one lost answer does not change the home.
const HOME_TRIES: u32 = 4;

/// The probes of a region in one family. One answer is sufficient.
#[derive(Debug)]
pub(super) struct Set {
    pub region: u16,
    pub v6: bool,
    /// The remaining probes, ordered by time.
    pub probes: Vec<Probe>,
    /// Whether no more probes are needed.
    pub done: bool,
}

/// A request to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub at: Duration,
    /// The index of the node in the region.
    pub node: usize,
}

impl Set {
    /// Returns the next probe.
    pub(super) fn due(&self) -> Option<Probe> {
        self.probes.first().copied().filter(|_| !self.done)
    }

    /// Returns the next probe if it is due.
    pub(super) fn next(&self, now: Duration) -> Option<Probe> {
        self.due().filter(|probe| probe.at <= now)
    }

    /// Removes the next probe.
    pub(super) fn pop(&mut self) {
        self.probes.remove(0);
    }
}

/// Returns the probes of a check. `last` is the previous report for a partial check.
pub(super) fn plan(
    regions: &BTreeMap<u16, DerpRegion>,
    families: Families,
    last: Option<&Report>,
    home: Option<u16>,
    now: Duration,
) -> Vec<Set> {
    let mut order: Vec<(u16, &DerpRegion)> = regions
        .iter()
        .filter(|(id, region)| !region.no_measure_no_home && (!region.avoid || home == Some(**id)))
        .map(|(id, region)| (*id, region))
        .collect();
    let Some(last) = last else {
        let all = order.iter().flat_map(|(id, region)| {
            let tries = Tries { count: FIRST_TRIES, apart: FIRST_RETRY, all_v6: true };
            sets(*id, region, families, &tries, now)
        });
        return all.collect();
    };
    order.sort_by_key(|(id, _)| last.latencies.get(id).copied().unwrap_or(Duration::MAX));
    let had_v6 = !last.v6_latencies.is_empty();
    let had_both = had_v6 && !last.v4_latencies.is_empty();
    let chosen = order.iter().enumerate();
    let chosen = chosen.filter(|(rank, (id, _))| *rank < FASTEST || home == Some(*id));
    let sets = chosen.flat_map(|(rank, (id, region))| {
        let is_home = home == Some(*id);
        let is_near = rank < TWICE || is_home;
        let mut asked = families;
        // The other regions are probed in one family each, alternating.
        if !is_near && families.v4 && families.v6 && had_both {
            asked = Families { v4: rank % 2 == 0, v6: rank % 2 == 1 };
        }
        asked.v6 &= is_near || had_v6;
        let count = if is_home { HOME_TRIES } else { 1 + u32::from(is_near) };
        let apart = last.latencies.get(id).map_or(RETRY, |latency| *latency * 6 / 5);
        sets(*id, region, asked, &Tries { count, apart, all_v6: had_v6 }, now)
    });
    sets.collect()
}

struct Tries {
    count: u32,
    apart: Duration,
    /// Whether IPv6 gets more than one probe.
    all_v6: bool,
}

fn sets(
    id: u16,
    region: &DerpRegion,
    families: Families,
    tries: &Tries,
    now: Duration,
) -> Vec<Set> {
    let set = |v6: bool| {
        let count = if v6 && !tries.all_v6 { 1 } else { tries.count };
        let probes = (0..count).filter_map(|number| {
            let node = (number as usize).checked_rem(region.nodes.len())?;
            if address(&region.nodes[node], v6) == RelayAddress::Nowhere {
                return None;
            }
            let grace =
                if number > 1 { Duration::from_millis(50) * number } else { Duration::ZERO };
            Some(Probe { at: now + tries.apart * number + grace, node })
        });
        Set { region: id, v6, probes: probes.collect(), done: false }
    };
    let v4 = families.v4.then(|| set(false));
    let v6 = families.v6.then(|| set(true));
    v4.into_iter().chain(v6).filter(|set| !set.probes.is_empty()).collect()
}
