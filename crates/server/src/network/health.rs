//! Health of the server: commands are answered, and the store accepts writes. The result is cached,
//! because anyone can request it and each check writes to the disk.

use std::{sync::Arc, time::Duration};

use hyper::{Response, StatusCode};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::NetworkState;
use crate::http::body::{Answer, json};

/// Time for which a result is reused.
const GOOD: Duration = Duration::from_secs(2);
/// Maximum time for a healthy network to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The last result, and its time.
#[derive(Default)]
pub struct Health(Mutex<Option<(Instant, Result<(), HealthError>)>>);

/// What is wrong, in a form for anyone. The log has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthError {
    /// The store accepts no writes.
    Store,
    /// The network's writer task does not answer.
    Writer,
}

impl HealthError {
    /// A description for users.
    pub fn message(self) -> &'static str {
        match self {
            Self::Store => "the store cannot be written to",
            Self::Writer => "commands are not answered",
        }
    }
}

impl Health {
    /// Checks the health.
    ///
    /// # Errors
    /// The first fault.
    pub async fn check(&self, network: &Arc<NetworkState>) -> Result<(), HealthError> {
        // Concurrent requests wait for this result.
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
                Err(HealthError::Store)
            }
            Err(_) => {
                tracing::error!("commands are not answered within {PATIENCE:?}");
                Err(HealthError::Writer)
            }
        };
        *last = Some((Instant::now(), found));
        found
    }

    /// The answer to `/health`.
    pub async fn answer(&self, network: &Arc<NetworkState>) -> Response<Answer> {
        match self.check(network).await {
            Ok(()) => json(StatusCode::OK, r#"{"status":"pass"}"#.into()),
            Err(error) => failing(error.message()),
        }
    }
}

/// The answer to `/health` for a failure.
pub(crate) fn failing(output: &str) -> Response<Answer> {
    let text = serde_json::json!({ "status": "fail", "output": output });
    json(StatusCode::SERVICE_UNAVAILABLE, text.to_string())
}
