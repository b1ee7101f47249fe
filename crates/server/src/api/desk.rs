//! Where an administrator's question or command is taken, and what of it is read.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
};
use coordinator::{Refusal, State, Time};
use hyper::{StatusCode, http::request::Parts};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    admit::Who,
    answer::{Answered, Trouble},
};
use crate::serve::Server;

/// Within this a body has come, or its sender is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// The server, and who asks it.
pub struct Desk {
    pub server: Arc<Server>,
    who: Who,
}

impl Desk {
    /// Answers from the network as it is.
    pub fn read(&self, look: impl FnOnce(&State) -> Result<Value, Refusal>) -> Answered {
        Ok(Json(self.server.network.read(look)?))
    }

    /// Runs a command. In the audit it says this.
    pub async fn run(
        &self,
        what: String,
        mut command: impl FnMut(&mut State, Time) -> Result<Value, Refusal> + Send + 'static,
    ) -> Answered {
        let who = self.who.0.clone();
        let command = move |state: &mut State, now: Time| {
            let outcome = command(state, now);
            let refused = outcome.as_ref().err().map(ToString::to_string);
            state.record_audit(&who, &what, refused, now);
            outcome
        };
        let outcome = self.server.network.run(command).await.map_err(Trouble::Failed)?;
        Ok(Json(outcome?))
    }
}

impl FromRequestParts<Arc<Server>> for Desk {
    type Rejection = Trouble;

    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Self, Self::Rejection> {
        // `admit` stands before all routes.
        let who = parts.extensions.get::<Who>().cloned().ok_or(Trouble::NoSuchThing)?;
        Ok(Self { server: Arc::clone(server), who })
    }
}

/// What stands in the path.
pub struct Named<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named)).map_err(|why| Trouble::BadRequest(why.body_text()))
    }
}

/// What stands behind the path.
pub struct With<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for With<T> {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(with)| Self(with)).map_err(|why| Trouble::BadRequest(why.body_text()))
    }
}

/// What the body says, in JSON; its bound is the routes'.
pub struct Said<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Said<T> {
    type Rejection = Trouble;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let read = serde_json::from_slice(&body(request, state).await?);
        read.map(Self).map_err(|why| Trouble::BadRequest(why.to_string()))
    }
}

/// The body of a request; its bound is the routes'.
pub async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Trouble> {
    let body = timeout(PATIENCE, Bytes::from_request(request, state)).await;
    body.map_err(|_| Trouble::TooSlow)?.map_err(|why| match why.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Trouble::TooLong,
        _ => Trouble::BadRequest(why.body_text()),
    })
}

/// A time that somebody wrote.
pub fn time(text: &str) -> Result<Time, Trouble> {
    let bad =
        || Trouble::BadRequest(format!("{text:?} is not a time such as 2027-01-31T00:00:00Z"));
    Time::read(text).ok_or_else(bad)
}

/// Randomness for a secret.
pub fn random<const N: usize>() -> Result<[u8; N], Trouble> {
    let mut random = [0; N];
    getrandom::fill(&mut random).map_err(|error| Trouble::Failed(error.into()))?;
    Ok(random)
}
