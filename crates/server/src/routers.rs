//! Asks routers whether they answer, where another could take their networks over: a connection
//! outlives a client that hangs, and one whose uplink is cut.

use std::{sync::Weak, time::Duration};

use coordinator::object::NodeId;
use tokio::{task::JoinSet, time::sleep};

use crate::{pings::Question, serve::Server};

/// Between two rounds.
const REST: Duration = Duration::from_secs(3);
/// How long an answer may take, of each of two questions: one may be lost with a connection that the
/// client has just replaced.
const ANSWER: Duration = Duration::from_secs(2);

/// Goes on for as long as there is a server.
pub async fn watch(server: Weak<Server>) {
    loop {
        sleep(REST).await;
        let Some(server) = server.upgrade() else { return };
        let mut routers = server.network.read(coordinator::State::contested_routers);
        // Those of other servers are asked there, and one that is coming back when it is here.
        routers.retain(|id| server.pings.is_connected(*id));
        let mut asked = JoinSet::new();
        for id in routers {
            let server = std::sync::Arc::clone(&server);
            asked.spawn(async move { Some((id, answers(&server, id).await?)) });
        }
        let mut answers: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
        // Where none answers it is the server that nobody reaches.
        if answers.iter().any(|(_, answers)| *answers) {
            for (id, answers) in &mut answers {
                *answers &= !server.data_paths.is_broken(*id);
            }
            note(&server, answers).await;
        }
    }
}

/// Whether a router answers. Not known of one whose connection is gone: it may be back in a moment, and
/// goes offline otherwise.
async fn answers(server: &Server, id: NodeId) -> Option<bool> {
    for _ in 0..2 {
        if server.pings.ask(id, Question::Alive, ANSWER).await.is_ok() {
            return Some(true);
        }
        if !server.pings.is_connected(id) {
            return None;
        }
    }
    Some(false)
}

async fn note(server: &Server, answers: Vec<(NodeId, bool)>) {
    let is_new = |(id, answers): &(NodeId, bool)| {
        server.network.read(|state| state.responds(*id)) != Some(*answers)
    };
    let new: Vec<(NodeId, bool)> = answers.into_iter().filter(is_new).collect();
    if new.is_empty() {
        return;
    }
    for (id, answers) in &new {
        let does = if *answers { "answers again" } else { "does not answer" };
        tracing::info!("the router {id} {does}");
    }
    // The server is about to end otherwise.
    let _ = server.network.run(move |state, _| state.record_responses(&new)).await;
}
