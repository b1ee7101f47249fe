//! Whether the server can do its work: the task that keeps the network answers, and the store takes
//! writes. Anybody may ask, so the disk is asked at most once in a while.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use hyper::{Response, StatusCode};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::{
    body::{Answer, json},
    network::Network,
    networks::{Networks, Place},
};

/// For so long an answer is good.
const GOOD: Duration = Duration::from_secs(2);
/// A network that takes longer is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was found last, and when.
#[derive(Default)]
pub struct Health(Mutex<Option<(Instant, Result<(), Ill>)>>);

/// What is wrong, as anybody may know it; the log has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ill {
    /// It takes no write.
    Store,
    /// The task that keeps the network does not answer.
    Writer,
}

impl Ill {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Store => "the store cannot be written to",
            Self::Writer => "commands are not answered",
        }
    }
}

impl Health {
    /// Whether all is well.
    ///
    /// # Errors
    /// What is not.
    pub async fn check(&self, network: &Arc<Network>) -> Result<(), Ill> {
        // A request that comes meanwhile waits for this answer.
        let mut last = self.0.lock().await;
        if let Some((at, found)) = *last
            && at.elapsed() < GOOD
        {
            return found;
        }
        let found = match timeout(PATIENCE, network.probe()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::error!("the store cannot be written to: {error:#}");
                Err(Ill::Store)
            }
            Err(_) => {
                tracing::error!("commands are not answered within {PATIENCE:?}");
                Err(Ill::Writer)
            }
        };
        *last = Some((Instant::now(), found));
        found
    }

    /// The answer to `/health`.
    pub async fn answer(&self, network: &Arc<Network>) -> Response<Answer> {
        match self.check(network).await {
            Ok(()) => json(StatusCode::OK, r#"{"status":"pass"}"#.into()),
            Err(ill) => failing(ill.words()),
        }
    }
}

/// The answer to `/health` for all networks: what is wrong with each.
pub async fn answer_of_all(networks: &Networks) -> Response<Answer> {
    if let [only] = networks.all()
        && let Some(server) = only.server()
    {
        return server.health.answer(&server.network).await;
    }
    let checks = networks.all().iter().map(|place| async move {
        let words = match place.server() {
            Some(server) => server.health.check(&server.network).await.err()?.words(),
            None => "it has not begun",
        };
        Some(format!("{}: {words}", named(place)))
    });
    let ill: Vec<String> = join_all(checks).await.into_iter().flatten().collect();
    match ill.is_empty() {
        true => json(StatusCode::OK, r#"{"status":"pass"}"#.into()),
        false => failing(&ill.join("; ")),
    }
}

fn named(place: &Place) -> &str {
    place.name.as_ref().map_or("the network of the top level", |name| name.text())
}

fn failing(output: &str) -> Response<Answer> {
    let text = serde_json::json!({ "status": "fail", "output": output });
    json(StatusCode::SERVICE_UNAVAILABLE, text.to_string())
}
