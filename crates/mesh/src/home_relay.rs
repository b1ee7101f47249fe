//! Selection of the home relay's region, through which peers without a direct path send (tailscale
//! `net/netcheck/netcheck.go` and `wgengine/magicsock/derp.go`).
//!
//! ```text
//!   map -> set_map        netcheck -> handle_report        relays -> handle_received, handle_down
//!                                          |
//!                                          v
//!                                       current
//! ```
//!
//! The home changes only with a report, because peers learn it from the coordinator. Unlike stock
//! clients, a region with relays that reject the login is not selected, even if it answers STUN
//! (tailscale/tailscale#17216).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tailnet::map_messages::DerpMap;

/// How long latencies count: the time between two measurements of all regions, and a margin.
const HISTORY: Duration = Duration::from_secs(5 * 60 + 5);
/// The number of stored reports, with one report each 20 s.
const REPORTS: usize = 16;
/// A region replaces the home only if it is faster by at least this.
const FASTER: Duration = Duration::from_millis(10);
/// A region is reachable if a frame was received within this time.
const RECENT: Duration = Duration::from_secs(8);
/// A region that did not accept the login may become the home again after this time.
const DOWN: Duration = Duration::from_secs(10 * 60);
/// Two keepalive intervals of a relay. Without any latency, a home that sent something within this
/// time stays.
const KEEP_ALIVES: Duration = Duration::from_secs(120);

/// Chooses the home.
#[derive(Clone, Debug, Default)]
pub struct HomeSelector {
    current: Option<u16>,
    /// Selects the region if nothing is known of any.
    pick: usize,
    regions: BTreeMap<u16, Region>,
    reports: VecDeque<(Duration, BTreeMap<u16, Duration>)>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    score: f64,
    received: Option<Duration>,
    /// The time of the last failed login, unless a later one succeeded.
    down: Option<Duration>,
}

impl HomeSelector {
    /// `cached` is the home of the previous run. `pick` should differ between nodes.
    pub fn new(cached: Option<u16>, pick: usize) -> Self {
        Self { current: cached, pick, ..Self::default() }
    }

    /// The home.
    pub fn current(&self) -> Option<u16> {
        self.current
    }

    /// Sets the regions of a map. A map without regions is ignored.
    pub fn set_map(&mut self, map: &DerpMap) {
        let known = map.regions.iter().flatten().filter_map(|(id, region)| {
            let region = region.as_ref()?;
            let is_home = !region.avoid && !region.no_measure_no_home;
            (is_home && region.nodes.iter().any(|node| !node.stun_only)).then_some(*id)
        });
        let score = |id: u16| {
            let scores = map.home_params.as_ref().map(|params| &params.region_score);
            let score = scores.and_then(|scores| scores.get(&id)).copied();
            score.filter(|score| score.is_finite() && *score > 0.0).unwrap_or(1.0)
        };
        let regions: BTreeMap<_, _> = known
            .map(|id| {
                let before = self.regions.get(&id).copied();
                let before = before.unwrap_or(Region { score: 1.0, received: None, down: None });
                (id, Region { score: score(id), ..before })
            })
            .collect();
        if !regions.is_empty() {
            self.regions = regions;
        }
    }

    /// A relay of the region sent something.
    pub fn handle_received(&mut self, region: u16, now: Duration) {
        if let Some(region) = self.regions.get_mut(&region) {
            region.received = Some(now);
            region.down = None;
        }
    }

    /// The login failed at all relays of the region.
    pub fn handle_down(&mut self, region: u16, now: Duration) {
        if let Some(region) = self.regions.get_mut(&region) {
            region.down = Some(now);
        }
    }

    /// Processes the latencies of a netcheck that started at `began`, and returns the home.
    /// `with_control`: whether the coordinator can be informed of a change.
    pub fn handle_report(
        &mut self,
        latencies: &BTreeMap<u16, Duration>,
        began: Duration,
        with_control: bool,
        now: Duration,
    ) -> Option<u16> {
        self.reports.retain(|(at, _)| now.saturating_sub(*at) <= HISTORY);
        if self.reports.len() == REPORTS {
            self.reports.pop_front();
        }
        self.reports.push_back((now, latencies.clone()));
        if with_control || self.current.is_none() {
            self.current = self.choose(latencies, began, now);
        }
        self.current
    }

    fn choose(
        &self,
        latencies: &BTreeMap<u16, Duration>,
        began: Duration,
        now: Duration,
    ) -> Option<u16> {
        let measured = latencies.keys().filter(|id| self.is_usable(**id, now));
        let best = measured.filter_map(|id| Some((self.best(*id)?, *id))).min();
        let Some((best_latency, best)) = best else { return self.without_latencies(now) };
        let Some(old) = self.current.filter(|old| *old != best && self.is_usable(*old, now)) else {
            return Some(best);
        };
        let old_latency = latencies.get(&old).map(|latency| self.scored(old, *latency));
        let received = self.regions.get(&old).and_then(|region| region.received);
        let was_heard = received.is_some_and(|at| at >= began || now.saturating_sub(at) <= RECENT);
        let keeps = match old_latency {
            Some(old) => old < best_latency + FASTER || best_latency > old / 3 * 2,
            None => was_heard,
        };
        Some(if keeps { old } else { best })
    }

    /// A home that sent something, or is not known to be down, stays. Otherwise the selection
    /// changes with each report.
    fn without_latencies(&self, now: Duration) -> Option<u16> {
        let is_alive = |id: &u16| {
            let received = self.regions.get(id).and_then(|region| region.received);
            received.is_some_and(|at| now.saturating_sub(at) <= KEEP_ALIVES)
                || self.is_usable(*id, now)
        };
        if self.current.is_some_and(|current| is_alive(&current)) {
            return self.current;
        }
        let usable: Vec<u16> =
            self.regions.keys().copied().filter(|id| self.is_usable(*id, now)).collect();
        let pick = self.pick.checked_rem(usable.len()).map(|pick| usable[pick]);
        pick.or(self.current)
    }

    fn is_usable(&self, id: u16, now: Duration) -> bool {
        let is_up = |region: &Region| region.down.is_none_or(|at| now >= at + DOWN);
        self.regions.get(&id).is_some_and(is_up)
    }

    /// Returns the lowest recent latency, weighted by the map's score.
    fn best(&self, id: u16) -> Option<Duration> {
        let latencies = self.reports.iter().filter_map(|(_, report)| report.get(&id));
        latencies.min().map(|latency| self.scored(id, *latency))
    }

    fn scored(&self, id: u16, latency: Duration) -> Duration {
        let score = self.regions.get(&id).map_or(1.0, |region| region.score);
        Duration::try_from_secs_f64(latency.as_secs_f64() * score).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailnet::map_messages::{DerpNode, DerpRegion, HomeParams};

    fn map(ids: &[u16]) -> DerpMap {
        let region = DerpRegion { nodes: vec![DerpNode::default()], ..DerpRegion::default() };
        let regions = ids.iter().map(|id| (*id, Some(region.clone()))).collect();
        DerpMap { regions: Some(regions), ..DerpMap::default() }
    }

    fn home(ids: &[u16]) -> HomeSelector {
        let mut home = HomeSelector::new(None, 1);
        home.set_map(&map(ids));
        home
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A report of a check of one second, with a connected coordinator.
    fn report(home: &mut HomeSelector, second: u64, latencies: &[(u16, u64)]) -> Option<u16> {
        let ms = |&(id, ms): &(u16, u64)| (id, Duration::from_millis(ms));
        let latencies = latencies.iter().map(ms).collect();
        home.handle_report(&latencies, at(second), true, at(second + 1))
    }

    #[test]
    fn fastest_region_is_home() {
        let mut home = home(&[1, 2, 3]);
        assert_eq!(report(&mut home, 0, &[(1, 30), (2, 20), (3, 40)]), Some(2));
    }

    #[test]
    fn home_stays_unless_another_region_is_clearly_faster() {
        for (other, expected) in [(91, 1), (67, 1), (66, 2), (10, 2)] {
            let mut home = home(&[1, 2]);
            report(&mut home, 0, &[(1, 100)]);
            assert_eq!(report(&mut home, 400, &[(1, 100), (2, other)]), Some(expected), "{other}");
        }
        let mut near = home(&[1, 2]);
        report(&mut near, 0, &[(1, 11)]);
        assert_eq!(report(&mut near, 400, &[(1, 11), (2, 2)]), Some(1), "not by 10 ms");
        assert_eq!(report(&mut near, 800, &[(1, 12), (2, 2)]), Some(2));
    }

    #[test]
    fn one_slow_report_does_not_change_the_home() {
        let mut home = home(&[1, 2]);
        report(&mut home, 0, &[(1, 20), (2, 30)]);
        assert_eq!(report(&mut home, 20, &[(1, 500), (2, 30)]), Some(1));
        assert_eq!(report(&mut home, 310, &[(1, 500), (2, 30)]), Some(2), "the 20 ms are too old");
    }

    #[test]
    fn region_score_of_the_map_weighs_latencies() {
        let mut home = home(&[1, 2]);
        let region_score = [(1, 0.5), (2, f64::NAN)].into();
        let home_params = Some(HomeParams { region_score });
        home.set_map(&DerpMap { home_params, ..map(&[1, 2]) });
        assert_eq!(report(&mut home, 0, &[(1, 39), (2, 20)]), Some(1));
    }

    #[test]
    fn home_without_stun_answer_stays_while_its_relay_sends() {
        let mut home = home(&[1, 2]);
        report(&mut home, 0, &[(1, 20), (2, 90)]);
        home.handle_received(1, at(17));
        assert_eq!(report(&mut home, 20, &[(2, 90)]), Some(1));
        assert_eq!(report(&mut home, 40, &[(2, 90)]), Some(2));
    }

    #[test]
    fn region_with_failed_login_is_not_home_until_it_sends() {
        let mut home = home(&[1, 2]);
        report(&mut home, 0, &[(1, 20), (2, 90)]);
        home.handle_down(1, at(1));
        assert_eq!(report(&mut home, 20, &[(1, 20), (2, 90)]), Some(2));
        home.handle_received(1, at(30));
        assert_eq!(report(&mut home, 40, &[(1, 20), (2, 90)]), Some(1));
        home.handle_down(1, at(50));
        assert_eq!(report(&mut home, 600, &[(1, 20), (2, 90)]), Some(2));
        assert_eq!(report(&mut home, 650, &[(1, 20), (2, 90)]), Some(1), "it may be up again");
    }

    #[test]
    fn without_coordinator_only_a_first_home_is_selected() {
        let latencies = |ms| [(2, Duration::from_millis(ms))].into();
        let mut first = home(&[1, 2]);
        assert_eq!(first.handle_report(&latencies(9), at(0), false, at(1)), Some(2));
        let mut cached = HomeSelector::new(Some(1), 0);
        cached.set_map(&map(&[1, 2]));
        cached.handle_down(1, at(0));
        assert_eq!(cached.handle_report(&latencies(9), at(0), false, at(1)), Some(1));
        assert_eq!(cached.handle_report(&latencies(9), at(2), true, at(3)), Some(2));
    }

    #[test]
    fn without_latencies_home_stays_until_down_and_silent_for_two_keepalives() {
        let mut home = home(&[1, 2]);
        assert_eq!(report(&mut home, 0, &[]), Some(2), "picked");
        home.handle_received(2, at(10));
        home.handle_down(2, at(1));
        assert_eq!(report(&mut home, 129, &[]), Some(2));
        assert_eq!(report(&mut home, 130, &[]), Some(1));
        home.handle_down(1, at(1));
        assert_eq!(report(&mut home, 140, &[]), Some(1), "there is no other");
    }

    #[test]
    fn avoided_or_removed_regions_are_not_home() {
        let mut home = home(&[1, 2]);
        report(&mut home, 0, &[(1, 20), (2, 90)]);
        let mut next = map(&[1, 2, 3]);
        let regions = next.regions.as_mut().unwrap();
        regions.get_mut(&1).unwrap().as_mut().unwrap().avoid = true;
        regions.insert(3, None);
        home.set_map(&next);
        home.set_map(&DerpMap::default());
        assert_eq!(report(&mut home, 20, &[(1, 20), (2, 90), (3, 1)]), Some(2));
    }
}
