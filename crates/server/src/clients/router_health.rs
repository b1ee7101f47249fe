//! Checks whether routers answer that another router could replace. A connection may stay open
//! although its client hangs or has lost its uplink.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use coordinator::object::NodeId;
use tokio::{task::JoinSet, time::sleep};

use super::{
    data_paths::DataPaths,
    pings::{Ping, Pings},
};
use crate::network::NetworkState;

/// Pause between two rounds.
const REST: Duration = Duration::from_secs(3);
/// Timeout of each of two pings. One may be lost with a connection that the client has just
/// replaced.
const ANSWER: Duration = Duration::from_secs(2);

/// Checks routers as long as the network exists.
pub(crate) async fn watch(network: Weak<NetworkState>, pings: Arc<Pings>, paths: Arc<DataPaths>) {
    loop {
        sleep(REST).await;
        let Some(network) = network.upgrade() else { return };
        let mut routers = network.read(coordinator::State::contested_routers);
        // Other servers check their own routers. A router that reconnects is checked when it
        // is here.
        routers.retain(|id| pings.is_connected(*id));
        let mut checks = JoinSet::new();
        for id in routers {
            let pings = Arc::clone(&pings);
            checks.spawn(async move { Some((id, answers(&pings, id).await?)) });
        }
        let mut answers: Vec<_> = checks.join_all().await.into_iter().flatten().collect();
        // If no router answers, the server itself is likely unreachable.
        if answers.iter().any(|(_, answers)| *answers) {
            for (id, answers) in &mut answers {
                *answers &= !paths.is_broken(*id);
            }
            note(&network, answers).await;
        }
    }
}

/// Whether a router answers. `None` if its connection is gone: it may reconnect soon, and goes
/// offline otherwise.
async fn answers(pings: &Pings, id: NodeId) -> Option<bool> {
    for _ in 0..2 {
        if pings.send_ping(id, Ping::Alive, ANSWER).await.is_ok() {
            return Some(true);
        }
        if !pings.is_connected(id) {
            return None;
        }
    }
    Some(false)
}

async fn note(network: &NetworkState, answers: Vec<(NodeId, bool)>) {
    let is_new = |(id, answers): &(NodeId, bool)| {
        network.read(|state| state.responds(*id)) != Some(*answers)
    };
    let new: Vec<(NodeId, bool)> = answers.into_iter().filter(is_new).collect();
    if new.is_empty() {
        return;
    }
    for (id, answers) in &new {
        let does = if *answers { "answers again" } else { "does not answer" };
        tracing::info!("the router {id} {does}");
    }
    // An error means that the server is about to end.
    let _ = network.run(move |state, _| state.record_responses(&new)).await;
}
