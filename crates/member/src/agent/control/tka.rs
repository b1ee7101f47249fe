//! Requests about tailnet lock, one at a time.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use mesh::tka_follower::SyncRequest;
use tailnet::keys::NodePublic;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    Event,
    connection::{Connection, collect_up_to},
    error::ControlError,
};

const WHAT: &str = "tailnet lock";
/// The longest answer, in bytes: a whole chain in base64, and 64 KiB for the JSON around it.
const MAX_ANSWER: usize = 4 << 20;
const _: () = assert!(MAX_ANSWER >= tailnet::tka::MAX_BYTES / 3 * 4 + (64 << 10));
/// The time limit of an answer (tailscale `ipnlocal/tailnet-lock.go`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The latest request.
pub(super) type TkaRequests = watch::Receiver<Option<SyncRequest>>;

/// Sends each new request and reports its response.
pub(super) async fn forward_all(
    connection: &Connection,
    node_key: NodePublic,
    requests: &mut TkaRequests,
    events: &mpsc::Sender<Event>,
) {
    // A request of a previous connection is lost.
    requests.mark_unchanged();
    while requests.changed().await.is_ok() {
        let Some(request) = requests.borrow_and_update().clone() else { continue };
        let number = request.number;
        let answer = match timeout(ANSWER_TIMEOUT, send(connection, node_key, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(ControlError::NoAnswer("the coordinator".into(), WHAT)),
        };
        if events.send(Event::TkaResponse { number, answer }).await.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Sends a GET request with a body, as Tailscale's clients do.
async fn send(
    connection: &Connection,
    node_key: NodePublic,
    request: SyncRequest,
) -> Result<Bytes, ControlError> {
    let SyncRequest { path, body, .. } = request;
    let response = connection.request(Method::GET, WHAT, path, &node_key, body).await?;
    collect_up_to(MAX_ANSWER, WHAT, response.into_body()).await
}
