//! Whether data reaches routers of which another could take a network over: a client may answer, and
//! carry nothing. Other nodes say it, by pings through the tunnel that the router's data plane answers
//! (`tailcfg.PingRequest` of the type TSMP).
//!
//! ```text
//!   one node:    do you reach the router? ── yes ──► in three seconds once more
//!                  | no
//!   two others:  do you reach the router? ── yes ──► it was the node
//!                and another node?
//!                  | both: no, and yes
//!                  v
//!                its networks go to another until a node reaches it
//! ```
//!
//! A node that reaches no other condemns none. Nor is a router condemned that never answered such a ping:
//! its client may not know them.

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

use crate::{pings::Question, serve::Server};

/// Between two rounds.
const REST: Duration = Duration::from_secs(3);
/// Between two routers: five questions a second while all is well.
const PACE: Duration = Duration::from_millis(200);
/// The most routers that are asked about at once. Where nothing answers, two nodes are asked three times
/// in two seconds for each: twelve questions a second in all.
const AT_ONCE: usize = 4;
/// How long an answer may take, of each of two questions: any packet may be lost.
const ANSWER: Duration = Duration::from_secs(2);

/// What is known of routers, by pings of other nodes.
#[derive(Default)]
pub struct DataPaths(Mutex<HashMap<NodeId, Known>>);

/// What is known of one.
#[derive(Debug, Default)]
struct Known {
    /// Data reached it once: it answers such pings.
    has_answered: bool,
    /// Data does not reach it.
    is_broken: bool,
    /// Those that reached others, and not it, since one reached it last.
    accusers: BTreeSet<NodeId>,
    /// How often one did.
    accusations: u32,
    /// Which of its witnesses is next.
    turn: usize,
}

/// What a node says of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It reaches it.
    Reached,
    /// It does not, and reaches another.
    Unreached,
    /// It reaches no other, or does not answer.
    Nothing,
}

impl Known {
    /// The next nodes to ask, of so many: none is asked twice at once.
    fn next(&mut self, probers: &[Prober], count: usize) -> Vec<Prober> {
        let count = count.min(probers.len());
        let chosen = (self.turn..self.turn + count).map(|at| probers[at % probers.len()].clone());
        let chosen = chosen.collect();
        self.turn = (self.turn + count) % probers.len().max(1);
        chosen
    }

    /// A node reached it: it is asked again.
    fn reached(&mut self, prober: NodeId, probers: &[Prober]) {
        let turn = probers.iter().position(|one| one.id == prober).unwrap_or_default();
        *self = Self { has_answered: true, turn, ..Self::default() };
    }

    /// A node of so many did not, and reaches another.
    fn accuse(&mut self, prober: NodeId, of: usize) {
        self.accusers.insert(prober);
        self.accusations += 1;
        // Where there is but one to ask, it is asked twice.
        let enough = self.accusers.len() >= 2 || (of == 1 && self.accusations >= 2);
        self.is_broken |= self.has_answered && enough;
    }
}

impl DataPaths {
    /// Whether data does not reach a router.
    pub fn is_broken(&self, router: NodeId) -> bool {
        self.lock().get(&router).is_some_and(|known| known.is_broken)
    }

    fn has_answered(&self, router: NodeId) -> bool {
        self.lock().get(&router).is_some_and(|known| known.has_answered)
    }

    /// Takes what nodes said. Whether that is news of the router.
    fn take(&self, watched: &ProbedRouter, said: &[(NodeId, Said)]) -> bool {
        let mut all = self.lock();
        let known = all.entry(watched.router).or_default();
        let was_broken = known.is_broken;
        let reached = said.iter().find(|(_, said)| *said == Said::Reached);
        match reached {
            Some((prober, _)) => known.reached(*prober, &watched.probers),
            None => {
                let accusing = said.iter().filter(|(_, said)| *said == Said::Unreached);
                accusing.for_each(|(prober, _)| known.accuse(*prober, watched.probers.len()));
            }
        }
        known.is_broken != was_broken
    }

    fn next(&self, watched: &ProbedRouter, count: usize) -> Vec<Prober> {
        self.lock().entry(watched.router).or_default().next(&watched.probers, count)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes on for as long as there is a server.
pub async fn watch(server: Weak<Server>) {
    // One router of which nothing is heard does not have the others wait.
    let (mut asked, mut busy) = (JoinSet::new(), HashMap::new());
    loop {
        sleep(REST).await;
        let Some(server) = server.upgrade() else { return };
        let is_here = |id| server.pings.is_connected(id);
        let all = server.network.read(|state| {
            server.data_paths.lock().retain(|id, _| state.node(*id).is_some());
            state.probed_routers(is_here)
        });
        for watched in all.into_iter().filter(|one| !one.probers.is_empty()) {
            while asked.try_join_next().is_some() {}
            if asked.len() >= AT_ONCE {
                asked.join_next().await;
            }
            busy.retain(|_, task: &mut AbortHandle| !task.is_finished());
            if !busy.contains_key(&watched.router) {
                let (router, server) = (watched.router, Arc::clone(&server));
                let task = asked.spawn(async move { look_at(&server, &watched).await });
                busy.insert(router, task);
            }
            sleep(PACE).await;
        }
    }
}

/// Finds out whether data reaches a router, and has the network know.
async fn look_at(server: &Arc<Server>, watched: &ProbedRouter) {
    let paths = &server.data_paths;
    let is_broken = paths.is_broken(watched.router);
    if !is_broken {
        let Some(prober) = paths.next(watched, 1).pop() else { return };
        let is_reached = reaches(server, prober.id, watched.address).await;
        if is_reached {
            paths.take(watched, &[(prober.id, Said::Reached)]);
        }
        if is_reached || !paths.has_answered(watched.router) {
            return;
        }
    }
    let mut asked = JoinSet::new();
    for mut prober in paths.next(watched, 2) {
        if is_broken {
            // That is known, and only one that reaches it is news.
            prober.controls.clear();
        }
        let (server, router) = (Arc::clone(server), watched.address);
        asked.spawn(async move { (prober.id, testimony(&server, &prober, router).await) });
    }
    let said = asked.join_all().await;
    tracing::debug!(router = %watched.router, ?said, "other nodes were asked");
    if !paths.take(watched, &said) {
        return;
    }
    let router = watched.router;
    if !paths.is_broken(router) {
        // It has its networks again when it answers itself, too.
        tracing::info!("data reaches the router {router} again");
        return;
    }
    tracing::info!("no data reaches the router {router}: other nodes reach each other and not it");
    // The server is about to end otherwise.
    let _ = server.network.run(move |state, _| state.record_responses(&[(router, false)])).await;
}

/// What a node says of the router at an address.
async fn testimony(server: &Server, prober: &Prober, router: Ipv4Addr) -> Said {
    let (is_reached, reaches_another) = tokio::join!(
        reaches(server, prober.id, router),
        reaches_any(server, prober.id, &prober.controls)
    );
    match (is_reached, reaches_another) {
        (true, _) => Said::Reached,
        (false, true) => Said::Unreached,
        (false, false) => Said::Nothing,
    }
}

async fn reaches_any(server: &Server, prober: NodeId, controls: &[Ipv4Addr]) -> bool {
    let all = controls.iter().map(|control| Box::pin(reaches(server, prober, *control)));
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

/// Whether a node reaches an address.
async fn reaches(server: &Server, prober: NodeId, address: Ipv4Addr) -> bool {
    for _ in 0..2 {
        let said = server.pings.ask(prober, Question::Reach(address), ANSWER).await;
        if said.is_ok_and(|said| is_pong(&said)) {
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

fn is_pong(said: &[u8]) -> bool {
    serde_json::from_slice(said)
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

    /// Says so of the next two, and whether the router is broken then.
    fn all_say(paths: &DataPaths, watched: &ProbedRouter, said: Said) -> bool {
        let chosen = paths.next(watched, 2);
        let said: Vec<_> = chosen.iter().map(|one| (one.id, said)).collect();
        paths.take(watched, &said);
        paths.is_broken(ROUTER)
    }

    #[test]
    fn two_that_reach_others_condemn_a_router_and_one_that_reaches_it_frees_it() {
        let (paths, watched) = (DataPaths::default(), watched(3));
        assert!(!all_say(&paths, &watched, Said::Reached));
        assert!(!all_say(&paths, &watched, Said::Nothing), "they reach no other");
        assert!(!paths.take(&watched, &[(NodeId(10), Said::Unreached)]));
        assert!(!paths.take(&watched, &[(NodeId(10), Said::Unreached)]), "it is one, twice");
        let said = [(NodeId(10), Said::Unreached), (NodeId(11), Said::Unreached)];
        assert!(paths.take(&watched, &said) && paths.is_broken(ROUTER));
        assert!(!paths.take(&watched, &said), "that is known");
        assert!(all_say(&paths, &watched, Said::Nothing));
        let said = [(NodeId(10), Said::Unreached), (NodeId(12), Said::Reached)];
        assert!(paths.take(&watched, &said) && !paths.is_broken(ROUTER));
        assert_eq!(paths.next(&watched, 1)[0].id, NodeId(12), "it is asked again");
    }

    #[test]
    fn one_that_never_answered_is_not_condemned() {
        let (paths, watched) = (DataPaths::default(), watched(3));
        assert!((0..10).all(|_| !all_say(&paths, &watched, Said::Unreached)));
        assert!(!all_say(&paths, &watched, Said::Reached));
        assert!(all_say(&paths, &watched, Said::Unreached));
    }

    #[test]
    fn where_there_is_one_to_ask_it_has_to_say_it_twice() {
        let (paths, watched) = (DataPaths::default(), watched(1));
        let says = |said| all_say(&paths, &watched, said);
        assert!(!says(Said::Reached) && !says(Said::Unreached));
        assert!(!says(Said::Reached) && !says(Said::Unreached) && says(Said::Unreached));
    }

    #[test]
    fn all_have_their_turn_and_none_is_asked_twice_at_once() {
        let (paths, three) = (DataPaths::default(), watched(3));
        let turns: Vec<i64> =
            (0..3).flat_map(|_| paths.next(&three, 2)).map(|one| one.id.0).collect();
        assert_eq!(turns, [10, 11, 12, 10, 11, 12]);
        assert_eq!(paths.next(&watched(1), 2).len(), 1);
        assert!(paths.next(&watched(0), 2).is_empty());
    }

    #[test]
    fn a_pong_is_of_the_tunnel_and_without_an_error() {
        assert!(is_pong(br#"{"Type":"TSMP","IP":"100.64.0.2","LatencySeconds":0.01}"#));
        assert!(!is_pong(br#"{"Type":"TSMP","Err":"no matching peer"}"#));
        assert!(!is_pong(br#"{"Type":"disco","LatencySeconds":0.01}"#));
        assert!(!is_pong(b"7") && !is_pong(b""));
    }
}
