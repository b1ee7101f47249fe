//! What a member asks of a coordinator over their connection.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Response, body::Incoming};
use tailnet::{
    control::messages::{MapRequest, RegisterRequest, RegisterResponse},
    keys::NodePublic,
};
use tokio::time::timeout;

use super::{
    connection::{ANSWER, Connection, collect},
    trouble::Trouble,
};

impl Connection {
    /// Asks to register. A request that waits for a person may take as long as it does.
    ///
    /// # Errors
    /// There is no answer, or none to this.
    pub async fn register(
        &self,
        node_key: &NodePublic,
        request: &RegisterRequest<'_>,
        waits: bool,
    ) -> Result<RegisterResponse, Trouble> {
        const WHAT: &str = "registration";
        let body = serde_json::to_vec(request)
            .map_err(|error| Trouble::BadAnswer(WHAT, error.to_string()))?;
        let asked = self.post(WHAT, "/machine/register", node_key, body);
        let response = if waits {
            asked.await?
        } else {
            timeout(ANSWER, asked)
                .await
                .map_err(|_| Trouble::Silent("the coordinator".into(), WHAT))??
        };
        let body = collect(WHAT, response.into_body()).await?;
        serde_json::from_slice(&body).map_err(|error| Trouble::BadAnswer(WHAT, error.to_string()))
    }

    /// Sends a request for the map.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn map(
        &self,
        node_key: NodePublic,
        what: &'static str,
        request: &MapRequest<'_>,
    ) -> Result<Response<Incoming>, Trouble> {
        let body = serde_json::to_vec(request)
            .map_err(|error| Trouble::BadAnswer(what, error.to_string()))?;
        let answer = self.post(what, "/machine/map", &node_key, body).await;
        // headscale has no such node (notes, section 1).
        answer.map_err(|trouble| match trouble {
            Trouble::Status(_, 404, _) => Trouble::UnknownNode,
            trouble => trouble,
        })
    }

    /// Tells what the node is now.
    ///
    /// # Errors
    /// There is no answer, or a refusal.
    pub async fn update(
        &self,
        node_key: NodePublic,
        request: &MapRequest<'_>,
    ) -> Result<(), Trouble> {
        const WHAT: &str = "update";
        match timeout(ANSWER, self.map(node_key, WHAT, request)).await {
            Ok(response) => collect(WHAT, response?.into_body()).await.map(drop),
            Err(_) => Err(Trouble::Silent("the coordinator".into(), WHAT)),
        }
    }

    /// The next bytes of the map's stream.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn next_piece(&self, body: &mut Incoming) -> Result<Bytes, Trouble> {
        loop {
            match body.frame().await {
                // Trailers are no data.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(data),
                    Err(_) => continue,
                },
                Some(Err(error)) => return Err(self.trouble(&error)),
                None => return Err(Trouble::Ended("the coordinator closed the stream".into())),
            }
        }
    }
}
