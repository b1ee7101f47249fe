//! What nodes ask about tailnet lock, inside Noise: the state answers, and this says which of them may ask.

use std::sync::{Arc, LazyLock};

use coordinator::{State, TkaRefusal, TkaRequest, object::NodeId};
use hyper::{Response, StatusCode};
use tailnet::keys::MachinePublic;

use crate::{
    body::{Answer, json, text},
    fair_turns::FairTurns,
    network::Network,
    serve::Server,
};

/// Where all of it is asked.
pub const ROOT: &str = "/machine/tka/";
/// The longest body of a node that turns tailnet lock on: signatures of some 8,000 nodes.
pub const LONGEST: usize = 2 << 20;

/// How often updates are verified again, because others came meanwhile.
const TRIES: usize = 5;

/// To hash a secret takes 16 MiB and some time, and so do updates and signatures: one at a time, and the
/// machines that ask take turns.
static TURNS: LazyLock<FairTurns<MachinePublic>> = LazyLock::new(|| FairTurns::new(1, 1));

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
    let Some(read) = TkaRequest::read(path, body) else {
        return Ok(text(StatusCode::NOT_FOUND, "there is nothing here\n"));
    };
    let (key, asked) = match read {
        Ok(read) => read,
        Err(why) => return Ok(text(StatusCode::BAD_REQUEST, &format!("{why}\n"))),
    };
    // It may have been told of what another server wrote a moment ago, or have joined there.
    server.network.read_on().await;
    let Some(id) = server.network.read(|state| state.find_machine_node(&machine, &key)) else {
        return Ok(text(StatusCode::NOT_FOUND, "this machine has no such node\n"));
    };
    // Costly requests take turns by machine. A secret is hashed only for a node of the network, while tailnet
    // lock is on.
    let asked = match asked.needs_hash() && server.network.read(State::is_tka_on) {
        true => {
            let _turn = TURNS.take(machine).await?;
            hashed(asked).await?
        }
        false => asked,
    };
    let answered = match &asked {
        TkaRequest::Affected(_) => {
            let _turn = TURNS.take(machine).await?;
            server.network.read(|state| state.answer_tka_query(&asked))
        }
        asked if asked.is_query() => server.network.read(|state| state.answer_tka_query(asked)),
        _ => done(&server.network, (machine, id), asked).await?,
    };
    Ok(match answered {
        Ok(answer) => json(StatusCode::OK, answer),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    })
}

/// Changes tailnet lock. Signatures are verified before the writer runs the command.
async fn done(
    network: &Network,
    (machine, id): (MachinePublic, NodeId),
    asked: TkaRequest,
) -> anyhow::Result<Result<String, TkaRefusal>> {
    for _ in 0..TRIES {
        let mut asked = asked.clone();
        if asked.needs_verification()
            && let Some(known) = network.read(State::tka_authority)
        {
            // The turn ends before the writer is waited for.
            let turn = TURNS.take(machine).await?;
            let verified = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                asked.verify(&known).map(|()| asked)
            });
            asked = match verified.await? {
                Ok(verified) => verified,
                Err(why) => return Ok(Err(why)),
            };
        }
        let answered =
            network.run(move |state, now| state.handle_tka_request(id, &asked, now)).await?;
        // Another update came meanwhile.
        if answered != Err(TkaRefusal::Stale) {
            return Ok(answered);
        }
    }
    Ok(Err(TkaRefusal::Stale))
}

async fn hashed(mut asked: TkaRequest) -> anyhow::Result<TkaRequest> {
    let hashed = tokio::task::spawn_blocking(move || {
        asked.hash();
        asked
    });
    Ok(hashed.await?)
}
