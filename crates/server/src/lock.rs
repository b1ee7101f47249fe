//! What nodes ask about tailnet lock, inside Noise: the state answers, and this says which of them may ask.

use std::sync::Arc;

use coordinator::{LockAsked, State};
use hyper::{Response, StatusCode};
use tailnet::keys::MachinePublic;
use tokio::sync::Semaphore;

use crate::{
    body::{Answer, json, text},
    serve::Server,
};

/// Where all of it is asked.
pub const ROOT: &str = "/machine/tka/";
/// The longest body of a node that turns tailnet lock on: signatures of some 8,000 nodes.
pub const LONGEST: usize = 2 << 20;

/// To hash a secret takes 16 MiB and some time: one at a time.
static TURN: Semaphore = Semaphore::const_new(1);

/// Answers what a machine asks at a path behind [`ROOT`].
///
/// # Errors
/// The store did not take it.
pub async fn answer(
    server: &Arc<Server>,
    machine: MachinePublic,
    path: &str,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Some(read) = LockAsked::read(path, body) else {
        return Ok(text(StatusCode::NOT_FOUND, "there is nothing here\n"));
    };
    let (key, asked) = match read {
        Ok(read) => read,
        Err(why) => return Ok(text(StatusCode::BAD_REQUEST, &format!("{why}\n"))),
    };
    // It may have been told of what another server wrote a moment ago, or have joined there.
    server.network.read_on().await;
    let Some(id) = server.network.read(|state| state.owned_by(&machine, &key)) else {
        return Ok(text(StatusCode::NOT_FOUND, "this machine has no such node\n"));
    };
    // A secret is hashed for a node of the network, and where there is a lock to turn off.
    let asked = match asked.needs_hash() && server.network.read(State::is_locked) {
        true => hashed(asked).await?,
        false => asked,
    };
    let answered = match asked.is_question() {
        true => server.network.read(|state| state.answer_lock(&asked)),
        false => server.network.run(move |state, now| state.ask_lock(id, &asked, now)).await?,
    };
    Ok(match answered {
        Ok(answer) => json(StatusCode::OK, answer),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    })
}

async fn hashed(mut asked: LockAsked) -> anyhow::Result<LockAsked> {
    let _turn = TURN.acquire().await?;
    let hashed = tokio::task::spawn_blocking(move || {
        asked.hash();
        asked
    });
    Ok(hashed.await?)
}
