//! Requests to a coordinator.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Response, body::Incoming};
use tailnet::{
    keys::NodePublic,
    ts2021::requests::{MapRequest, RegisterRequest, RegisterResponse},
};
use tokio::time::timeout;

use super::{
    connection::{ANSWER_TIMEOUT, Connection, collect},
    error::ControlError,
};

impl Connection {
    /// Registers the node. Without a time limit if the coordinator waits for the user.
    ///
    /// # Errors
    /// The response is absent or malformed.
    pub async fn register(
        &self,
        node_key: &NodePublic,
        request: &RegisterRequest<'_>,
        waits_for_user: bool,
    ) -> Result<RegisterResponse, ControlError> {
        const WHAT: &str = "registration";
        let body = serde_json::to_vec(request)
            .map_err(|error| ControlError::BadResponse(WHAT, error.to_string()))?;
        let response = self.post(WHAT, "/machine/register", node_key, body);
        let response = if waits_for_user {
            response.await?
        } else {
            timeout(ANSWER_TIMEOUT, response)
                .await
                .map_err(|_| ControlError::NoAnswer("the coordinator".into(), WHAT))??
        };
        let body = collect(WHAT, response.into_body()).await?;
        serde_json::from_slice(&body)
            .map_err(|error| ControlError::BadResponse(WHAT, error.to_string()))
    }

    /// Sends a map request.
    ///
    /// # Errors
    /// The response is absent or an error.
    pub async fn map(
        &self,
        node_key: NodePublic,
        what: &'static str,
        request: &MapRequest<'_>,
    ) -> Result<Response<Incoming>, ControlError> {
        let body = serde_json::to_vec(request)
            .map_err(|error| ControlError::BadResponse(what, error.to_string()))?;
        let answer = self.post(what, "/machine/map", &node_key, body).await;
        // headscale does not know the node.
        answer.map_err(|error| match error {
            ControlError::Status(_, 404, _) => ControlError::UnknownNode,
            error => error,
        })
    }

    /// Sends the present state of the node.
    ///
    /// # Errors
    /// The response is absent or an error.
    pub async fn update(
        &self,
        node_key: NodePublic,
        request: &MapRequest<'_>,
    ) -> Result<(), ControlError> {
        const WHAT: &str = "update";
        match timeout(ANSWER_TIMEOUT, self.map(node_key, WHAT, request)).await {
            Ok(response) => collect(WHAT, response?.into_body()).await.map(drop),
            Err(_) => Err(ControlError::NoAnswer("the coordinator".into(), WHAT)),
        }
    }

    /// Returns the next bytes of the map stream.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn next_piece(&self, body: &mut Incoming) -> Result<Bytes, ControlError> {
        loop {
            match body.frame().await {
                // Ignores trailers.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(data);
                    }
                }
                Some(Err(error)) => return Err(self.error(&error)),
                None => {
                    return Err(ControlError::ConnectionEnded(
                        "the coordinator closed the stream".into(),
                    ));
                }
            }
        }
    }
}
