//! Extractors of the API's handlers.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{FromRef, FromRequest, FromRequestParts, Path, Query, Request},
};
use coordinator::{Refusal, State, Time};
use hyper::{StatusCode, http::request::Parts};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    admit::Actor,
    answer::{ApiError, ApiResult},
};
use crate::{admin::state::AdminState, network::NetworkState};

/// Maximum time for a request's body to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// An administrator, with the network that the request is for.
pub(super) struct Admin {
    pub network: Arc<NetworkState>,
    actor: Actor,
}

impl Admin {
    /// Answers from the network's current state.
    pub(super) fn read(&self, look: impl FnOnce(&State) -> Result<Value, Refusal>) -> ApiResult {
        Ok(Json(self.network.read(look)?))
    }

    /// Runs a command. The audit log describes it by `what`.
    pub(super) async fn run(
        &self,
        what: String,
        mut command: impl FnMut(&mut State, Time) -> Result<Value, Refusal> + Send + 'static,
    ) -> ApiResult {
        let actor = self.actor.0.clone();
        let command = move |state: &mut State, now: Time| {
            let outcome = command(state, now);
            let refused = outcome.as_ref().err().map(ToString::to_string);
            state.record_audit(&actor, &what, refused, now);
            outcome
        };
        let outcome = self.network.run(command).await.map_err(ApiError::Failed)?;
        Ok(Json(outcome?))
    }
}

impl FromRequestParts<AdminState> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &AdminState,
    ) -> Result<Self, Self::Rejection> {
        // `admit` runs before all routes and adds the actor.
        let actor = parts.extensions.get::<Actor>().cloned().ok_or(ApiError::NoSuchThing)?;
        Ok(Self { network: FromRef::from_ref(state), actor })
    }
}

/// Parameters in the path.
pub(super) struct PathParams<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named)).map_err(|why| ApiError::BadRequest(why.body_text()))
    }
}

/// Parameters in the query.
pub(super) struct QueryParams<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(with)| Self(with)).map_err(|why| ApiError::BadRequest(why.body_text()))
    }
}

/// The body as JSON. Its size is limited by the router.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let read = serde_json::from_slice(&body(request, state).await?);
        read.map(Self).map_err(|why| ApiError::BadRequest(why.to_string()))
    }
}

/// Reads the body of a request. Its size is limited by the router.
pub(super) async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    let body = timeout(PATIENCE, Bytes::from_request(request, state)).await;
    body.map_err(|_| ApiError::TooSlow)?.map_err(|why| match why.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLong,
        _ => ApiError::BadRequest(why.body_text()),
    })
}

/// Parses a time in a request.
pub(super) fn time(text: &str) -> Result<Time, ApiError> {
    let bad =
        || ApiError::BadRequest(format!("{text:?} is not a time such as 2027-01-31T00:00:00Z"));
    Time::read(text).ok_or_else(bad)
}

/// Random bytes for a secret.
pub(super) fn random<const N: usize>() -> Result<[u8; N], ApiError> {
    let mut random = [0; N];
    getrandom::fill(&mut random).map_err(|error| ApiError::Failed(error.into()))?;
    Ok(random)
}
