//! Questions about tailnet lock, which the agent asks and answers come back to: one at a time.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use tailnet::{keys::NodePublic, tka::follow::Question};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    Event,
    connection::{Connection, collect_up_to},
    trouble::Trouble,
};

const WHAT: &str = "tailnet lock";
/// The longest answer, in bytes: a whole chain in base64, and as much again for the form.
const LONGEST_ANSWER: usize = 4 << 20;
const _: () = assert!(LONGEST_ANSWER >= tailnet::tka::MOST_BYTES / 3 * 4 + (64 << 10));
/// How long an answer may take (tailscale `ipnlocal/tailnet-lock.go`).
const ANSWER: Duration = Duration::from_secs(60);

/// The latest question.
pub(super) type Questions = watch::Receiver<Option<Question>>;

/// Asks what comes from now on, until there is nobody who asks.
pub(super) async fn ask_all(
    connection: &Connection,
    node_key: NodePublic,
    questions: &mut Questions,
    events: &mpsc::Sender<Event>,
) {
    // What was asked over a former connection has no answer.
    questions.mark_unchanged();
    while questions.changed().await.is_ok() {
        let Some(question) = questions.borrow_and_update().clone() else { continue };
        let number = question.number;
        let answer = match timeout(ANSWER, ask(connection, node_key, question)).await {
            Ok(answer) => answer,
            Err(_) => Err(Trouble::Silent("the coordinator".into(), WHAT)),
        };
        if events.send(Event::LockAnswer { number, answer }).await.is_err() {
            return;
        }
    }
    std::future::pending().await
}

/// A GET with a body, as Tailscale's clients send it.
async fn ask(
    connection: &Connection,
    node_key: NodePublic,
    question: Question,
) -> Result<Bytes, Trouble> {
    let Question { path, body, .. } = question;
    let response = connection.ask(Method::GET, WHAT, path, &node_key, body).await?;
    collect_up_to(LONGEST_ANSWER, WHAT, response.into_body()).await
}
