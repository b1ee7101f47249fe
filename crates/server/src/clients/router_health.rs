//! Checks whether routers answer that another router could replace. A connection may stay open
//! although its client hangs or has lost its uplink.

use std::{sync::Weak, time::Duration};

use coordinator::object::NodeId;
use tokio::{task::JoinSet, time::sleep};

use crate::{clients::pings::Ping, serve::Tenant};

/// Pause between two rounds.
const REST: Duration = Duration::from_secs(3);
/// Timeout of each of two pings. One may be lost with a connection that the client has just
/// replaced.
const ANSWER: Duration = Duration::from_secs(2);

/// Checks routers as long as the tenant exists.
pub async fn watch(tenant: Weak<Tenant>) {
    loop {
        sleep(REST).await;
        let Some(tenant) = tenant.upgrade() else { return };
        let mut routers = tenant.network.read(coordinator::State::contested_routers);
        // Other servers check their own routers. A router that reconnects is checked when it
        // is here.
        routers.retain(|id| tenant.pings.is_connected(*id));
        let mut checks = JoinSet::new();
        for id in routers {
            let tenant = std::sync::Arc::clone(&tenant);
            checks.spawn(async move { Some((id, answers(&tenant, id).await?)) });
        }
        let mut answers: Vec<_> = checks.join_all().await.into_iter().flatten().collect();
        // If no router answers, the server itself is likely unreachable.
        if answers.iter().any(|(_, answers)| *answers) {
            for (id, answers) in &mut answers {
                *answers &= !tenant.data_paths.is_broken(*id);
            }
            note(&tenant, answers).await;
        }
    }
}

/// Whether a router answers. `None` if its connection is gone: it may reconnect soon, and goes
/// offline otherwise.
async fn answers(tenant: &Tenant, id: NodeId) -> Option<bool> {
    for _ in 0..2 {
        if tenant.pings.send_ping(id, Ping::Alive, ANSWER).await.is_ok() {
            return Some(true);
        }
        if !tenant.pings.is_connected(id) {
            return None;
        }
    }
    Some(false)
}

async fn note(tenant: &Tenant, answers: Vec<(NodeId, bool)>) {
    let is_new = |(id, answers): &(NodeId, bool)| {
        tenant.network.read(|state| state.responds(*id)) != Some(*answers)
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
    let _ = tenant.network.run(move |state, _| state.record_responses(&new)).await;
}
