//! Checks whether data reaches routers that another router could replace. A client may answer the
//! server and still carry no data. Other nodes therefore ping the router through the tunnel, and its
//! data plane answers (`tailcfg.PingRequest` of type TSMP).
//!
//! ```text
//!   one node:   reaches the router? ── yes ──► checked again after three seconds
//!                  | no
//!   two others: reach the router? ──── yes ──► the first node was at fault
//!               and another node?
//!                  | both: no, and yes
//!                  v
//!               its networks go to another router until a node reaches it again
//! ```
//!
//! A node that reaches no other node does not count as a prober. A router that never answered such
//! a ping is not marked broken, because its client may not support them.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use coordinator::{ProbedRouter, Prober, object::NodeId};
use serde::Deserialize;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use super::pings::{Ping, Pings};
use crate::network::NetworkState;

/// Pause between two rounds.
const REST: Duration = Duration::from_secs(3);
/// Pause between two routers: five pings per second in normal operation.
const PACE: Duration = Duration::from_millis(200);
/// Maximum number of routers that are checked at the same time. If nothing answers, two nodes are
/// pinged three times in two seconds for each: twelve pings per second in total.
const AT_ONCE: usize = 4;
/// Timeout of each of two pings. Two are sent because any packet may be lost.
const ANSWER: Duration = Duration::from_secs(2);

/// Results of the pings, by router.
#[derive(Default)]
pub(crate) struct DataPaths(Mutex<HashMap<NodeId, RouterRecord>>);

/// Results for one router.
#[derive(Debug, Default)]
struct RouterRecord {
    /// Data reached it at least once, so it answers such pings.
    has_answered: bool,
    /// Data does not reach it.
    is_broken: bool,
    /// Probers that reached other nodes but not the router, since it was last reached.
    accusers: BTreeSet<NodeId>,
    /// Number of their testimonies.
    accusations: u32,
    /// Index of the next prober.
    turn: usize,
}

/// Result of a prober's pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Testimony {
    /// The prober reaches the router.
    Reached,
    /// The prober reaches another node, but not the router.
    Unreached,
    /// The prober reaches no other node, or does not answer.
    Inconclusive,
}

impl RouterRecord {
    /// Selects the next probers. Each is selected at most once.
    fn next(&mut self, probers: &[Prober], count: usize) -> Vec<Prober> {
        let count = count.min(probers.len());
        let chosen = (self.turn..self.turn + count).map(|at| probers[at % probers.len()].clone());
        let chosen = chosen.collect();
        self.turn = (self.turn + count) % probers.len().max(1);
        chosen
    }

    /// A prober reached the router. The same prober is used next time.
    fn reached(&mut self, prober: NodeId, probers: &[Prober]) {
        let turn = probers.iter().position(|one| one.id == prober).unwrap_or_default();
        *self = Self { has_answered: true, turn, ..Self::default() };
    }

    /// A prober, one of `of`, reaches another node but not the router.
    fn add_accusation(&mut self, prober: NodeId, of: usize) {
        self.accusers.insert(prober);
        self.accusations += 1;
        // A single prober has to testify twice.
        let enough = self.accusers.len() >= 2 || (of == 1 && self.accusations >= 2);
        self.is_broken |= self.has_answered && enough;
    }
}

impl DataPaths {
    /// Whether data does not reach a router.
    pub(crate) fn is_broken(&self, router: NodeId) -> bool {
        self.lock().get(&router).is_some_and(|record| record.is_broken)
    }

    fn has_answered(&self, router: NodeId) -> bool {
        self.lock().get(&router).is_some_and(|record| record.has_answered)
    }

    /// Records testimonies. Returns whether the state of the router changed.
    fn record_testimonies(
        &self,
        watched: &ProbedRouter,
        testimonies: &[(NodeId, Testimony)],
    ) -> bool {
        let mut all = self.lock();
        let record = all.entry(watched.router).or_default();
        let was_broken = record.is_broken;
        let reached =
            testimonies.iter().find(|(_, testimonies)| *testimonies == Testimony::Reached);
        match reached {
            Some((prober, _)) => record.reached(*prober, &watched.probers),
            None => {
                let accusing = testimonies
                    .iter()
                    .filter(|(_, testimonies)| *testimonies == Testimony::Unreached);
                accusing
                    .for_each(|(prober, _)| record.add_accusation(*prober, watched.probers.len()));
            }
        }
        record.is_broken != was_broken
    }

    fn next(&self, watched: &ProbedRouter, count: usize) -> Vec<Prober> {
        self.lock().entry(watched.router).or_default().next(&watched.probers, count)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, RouterRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks routers as long as the network exists.
pub(crate) async fn watch(network: Weak<NetworkState>, pings: Arc<Pings>, paths: Arc<DataPaths>) {
    // A router without answers must not delay the checks of others.
    let (mut tasks, mut busy) = (JoinSet::new(), HashMap::new());
    loop {
        sleep(REST).await;
        let Some(network) = network.upgrade() else { return };
        let is_here = |id| pings.is_connected(id);
        let all = network.read(|state| {
            paths.lock().retain(|id, _| state.node(*id).is_some());
            state.probed_routers(is_here)
        });
        for watched in all.into_iter().filter(|one| !one.probers.is_empty()) {
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= AT_ONCE {
                tasks.join_next().await;
            }
            busy.retain(|_, task: &mut AbortHandle| !task.is_finished());
            if !busy.contains_key(&watched.router) {
                let router = watched.router;
                let (network, pings) = (Arc::clone(&network), Arc::clone(&pings));
                let paths = Arc::clone(&paths);
                let check = async move { check_router((&network, &pings), &paths, &watched).await };
                let task = tasks.spawn(check);
                busy.insert(router, task);
            }
            sleep(PACE).await;
        }
    }
}

/// Checks whether data reaches a router, and updates the network's state.
async fn check_router(
    (network, pings): (&NetworkState, &Arc<Pings>),
    paths: &DataPaths,
    watched: &ProbedRouter,
) {
    let is_broken = paths.is_broken(watched.router);
    if !is_broken {
        let Some(prober) = paths.next(watched, 1).pop() else { return };
        let is_reached = reaches(pings, prober.id, watched.address).await;
        if is_reached {
            paths.record_testimonies(watched, &[(prober.id, Testimony::Reached)]);
        }
        if is_reached || !paths.has_answered(watched.router) {
            return;
        }
    }
    let mut tasks = JoinSet::new();
    for mut prober in paths.next(watched, 2) {
        if is_broken {
            // It is known to be broken: only a prober that reaches it would be news.
            prober.controls.clear();
        }
        let (pings, router) = (Arc::clone(pings), watched.address);
        tasks.spawn(async move { (prober.id, testimony(&pings, &prober, router).await) });
    }
    let testimonies = tasks.join_all().await;
    tracing::debug!(router = %watched.router, ?testimonies, "other nodes were queried");
    if !paths.record_testimonies(watched, &testimonies) {
        return;
    }
    let router = watched.router;
    if !paths.is_broken(router) {
        // It gets its networks back when it answers the server as well.
        tracing::info!("data reaches the router {router} again");
        return;
    }
    tracing::info!(
        "no data reaches the router {router}: other nodes reach each other, but not the router"
    );
    // An error means that the server is about to end.
    let _ = network.run(move |state, _| state.record_responses(&[(router, false)])).await;
}

/// Tests whether a prober reaches a router.
async fn testimony(pings: &Pings, prober: &Prober, router: Ipv4Addr) -> Testimony {
    let (is_reached, reaches_another) = tokio::join!(
        reaches(pings, prober.id, router),
        reaches_any(pings, prober.id, &prober.controls)
    );
    match (is_reached, reaches_another) {
        (true, _) => Testimony::Reached,
        (false, true) => Testimony::Unreached,
        (false, false) => Testimony::Inconclusive,
    }
}

async fn reaches_any(pings: &Pings, prober: NodeId, controls: &[Ipv4Addr]) -> bool {
    let all = controls.iter().map(|control| Box::pin(reaches(pings, prober, *control)));
    let mut all: Vec<_> = all.collect();
    while !all.is_empty() {
        let (is_reached, _, others) = futures_util::future::select_all(all).await;
        if is_reached {
            return true;
        }
        all = others;
    }
    false
}

/// Tests whether a prober reaches an address.
async fn reaches(pings: &Pings, prober: NodeId, address: Ipv4Addr) -> bool {
    for _ in 0..2 {
        let testimonies = pings.send_ping(prober, Ping::AccessRules(address), ANSWER).await;
        if testimonies.is_ok_and(|testimonies| is_pong(&testimonies)) {
            return true;
        }
    }
    false
}

/// `tailcfg.PingResponse`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pong {
    r#type: String,
    #[serde(default)]
    err: String,
}

fn is_pong(testimonies: &[u8]) -> bool {
    serde_json::from_slice(testimonies)
        .is_ok_and(|Pong { r#type, err }| r#type == "TSMP" && err.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: NodeId = NodeId(1);

    fn watched(probers: i64) -> ProbedRouter {
        let prober = |number| Prober { id: NodeId(10 + number), controls: Vec::new() };
        ProbedRouter {
            router: ROUTER,
            address: [100, 64, 0, 1].into(),
            probers: (0..probers).map(prober).collect(),
        }
    }

    /// Records this testimony of the next two probers. Returns whether the router is broken.
    fn testify(paths: &DataPaths, watched: &ProbedRouter, testimonies: Testimony) -> bool {
        let chosen = paths.next(watched, 2);
        let testimonies: Vec<_> = chosen.iter().map(|one| (one.id, testimonies)).collect();
        paths.record_testimonies(watched, &testimonies);
        paths.is_broken(ROUTER)
    }

    #[test]
    fn two_witnesses_mark_a_router_broken_and_one_clears_it() {
        let (paths, watched) = (DataPaths::default(), watched(3));
        assert!(!testify(&paths, &watched, Testimony::Reached));
        assert!(!testify(&paths, &watched, Testimony::Inconclusive), "they reach no other node");
        assert!(!paths.record_testimonies(&watched, &[(NodeId(10), Testimony::Unreached)]));
        assert!(
            !paths.record_testimonies(&watched, &[(NodeId(10), Testimony::Unreached)]),
            "one prober, twice"
        );
        let testimonies = [(NodeId(10), Testimony::Unreached), (NodeId(11), Testimony::Unreached)];
        assert!(paths.record_testimonies(&watched, &testimonies) && paths.is_broken(ROUTER));
        assert!(!paths.record_testimonies(&watched, &testimonies), "no news");
        assert!(testify(&paths, &watched, Testimony::Inconclusive));
        let testimonies = [(NodeId(10), Testimony::Unreached), (NodeId(12), Testimony::Reached)];
        assert!(paths.record_testimonies(&watched, &testimonies) && !paths.is_broken(ROUTER));
        assert_eq!(paths.next(&watched, 1)[0].id, NodeId(12), "it is the next prober");
    }

    #[test]
    fn a_router_that_never_answered_is_not_marked_broken() {
        let (paths, watched) = (DataPaths::default(), watched(3));
        assert!((0..10).all(|_| !testify(&paths, &watched, Testimony::Unreached)));
        assert!(!testify(&paths, &watched, Testimony::Reached));
        assert!(testify(&paths, &watched, Testimony::Unreached));
    }

    #[test]
    fn a_single_witness_must_testify_twice() {
        let (paths, watched) = (DataPaths::default(), watched(1));
        let is_broken_after = |testimonies| testify(&paths, &watched, testimonies);
        assert!(!is_broken_after(Testimony::Reached) && !is_broken_after(Testimony::Unreached));
        assert!(
            !is_broken_after(Testimony::Reached)
                && !is_broken_after(Testimony::Unreached)
                && is_broken_after(Testimony::Unreached)
        );
    }

    #[test]
    fn witnesses_take_turns_and_each_is_asked_at_most_once_a_round() {
        let (paths, three) = (DataPaths::default(), watched(3));
        let turns: Vec<i64> =
            (0..3).flat_map(|_| paths.next(&three, 2)).map(|one| one.id.0).collect();
        assert_eq!(turns, [10, 11, 12, 10, 11, 12]);
        assert_eq!(paths.next(&watched(1), 2).len(), 1);
        assert!(paths.next(&watched(0), 2).is_empty());
    }

    #[test]
    fn only_a_tsmp_answer_without_an_error_is_a_pong() {
        assert!(is_pong(br#"{"Type":"TSMP","IP":"100.64.0.2","LatencySeconds":0.01}"#));
        assert!(!is_pong(br#"{"Type":"TSMP","Err":"no matching peer"}"#));
        assert!(!is_pong(br#"{"Type":"disco","LatencySeconds":0.01}"#));
        assert!(!is_pong(b"7") && !is_pong(b""));
    }
}
