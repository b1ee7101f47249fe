//! Requests of nodes about tailnet lock, inside Noise. The state answers, and this module decides
//! which nodes may send which request.

use std::sync::LazyLock;

use coordinator::{State, TkaRefusal, TkaRequest, object::NodeId};
use hyper::{Response, StatusCode};
use tailnet::keys::MachinePublic;

use crate::{
    http::body::{Answer, json, text},
    net::fair_semaphore::FairSemaphore,
    network::NetworkState,
};

/// Prefix of the paths.
pub(crate) const ROOT: &str = "/machine/tka/";

/// Number of attempts to verify an update if other updates are applied in the meantime.
const TRIES: usize = 5;

/// Hashing a secret takes 16 MiB and some time, and verifying updates and signatures is costly too.
/// They run one at a time, with one permit for each machine.
static PERMITS: LazyLock<FairSemaphore<MachinePublic>> = LazyLock::new(|| FairSemaphore::new(1, 1));

/// Answers a machine's request at a path below [`ROOT`].
///
/// # Errors
/// The change was not stored.
pub(crate) async fn answer(
    network: &NetworkState,
    machine: MachinePublic,
    path: &str,
    body: &[u8],
) -> anyhow::Result<Response<Answer>> {
    let Some(read) = TkaRequest::read(path, body) else {
        return Ok(text(StatusCode::NOT_FOUND, "not found\n"));
    };
    let (key, request) = match read {
        Ok(read) => read,
        Err(why) => return Ok(text(StatusCode::BAD_REQUEST, &format!("{why}\n"))),
    };
    // The node may have joined, or learned of a change, at another server a moment ago.
    network.refresh().await;
    let Some(id) = network.read(|state| state.find_machine_node(&machine, &key)) else {
        return Ok(text(StatusCode::NOT_FOUND, "this machine does not own this node\n"));
    };
    // Costly requests need a permit. A secret is hashed only for a node of the network, and while
    // tailnet lock is enabled.
    let request = match request.needs_hash() && network.read(State::is_tka_on) {
        true => {
            let _permit = PERMITS.acquire(machine).await?;
            hash(request).await?
        }
        false => request,
    };
    let answer = match &request {
        TkaRequest::Affected(_) => {
            let _permit = PERMITS.acquire(machine).await?;
            network.read(|state| state.answer_tka_query(&request))
        }
        request if request.is_query() => network.read(|state| state.answer_tka_query(request)),
        _ => apply(network, (machine, id), request).await?,
    };
    Ok(match answer {
        Ok(answer) => json(StatusCode::OK, answer),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    })
}

/// Changes tailnet lock. Signatures are verified before the writer runs the command.
async fn apply(
    network: &NetworkState,
    (machine, id): (MachinePublic, NodeId),
    request: TkaRequest,
) -> anyhow::Result<Result<String, TkaRefusal>> {
    for _ in 0..TRIES {
        let mut request = request.clone();
        if request.needs_verification()
            && let Some(known) = network.read(State::tka_authority)
        {
            // The permit is released before the command waits for the writer.
            let permit = PERMITS.acquire(machine).await?;
            let verified = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                request.verify(&known).map(|()| request)
            });
            request = match verified.await? {
                Ok(verified) => verified,
                Err(why) => return Ok(Err(why)),
            };
        }
        let answer =
            network.run(move |state, now| state.handle_tka_request(id, &request, now)).await?;
        // Another update was applied in the meantime.
        if answer != Err(TkaRefusal::Stale) {
            return Ok(answer);
        }
    }
    Ok(Err(TkaRefusal::Stale))
}

async fn hash(mut request: TkaRequest) -> anyhow::Result<TkaRequest> {
    let hash = tokio::task::spawn_blocking(move || {
        request.hash();
        request
    });
    Ok(hash.await?)
}
