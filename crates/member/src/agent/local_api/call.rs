//! One request of a program: whether it is for us and allowed, and its parts.

use std::{borrow::Cow, str::FromStr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Method, Response,
    body::Incoming,
    header::{HOST, HeaderMap, HeaderValue, ORIGIN, REFERER},
};
use serde::de::DeserializeOwned;
use tokio::{sync::oneshot, time::timeout};

use super::{
    ApiError, Reply, Request,
    body::{self, Body},
    routes,
    serve::Api,
};

/// The host of each request, which no page of the web can say (tailscale `apitype.LocalAPIHost`).
const LOCAL_HOST: &str = "local-tailscaled.sock";
const PREFIX: &str = "/localapi/v0/";
/// The longest body: preferences with many routes.
const MAX_BODY: usize = 256 << 10;
/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: the longest of the agent's own limits, those of a login, and some.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A request, taken apart.
pub(super) struct Call<'a> {
    pub(super) api: &'a Api,
    pub(super) method: Method,
    pub(super) query: String,
    may_write: bool,
    body: Incoming,
}

/// Answers a request of a user.
pub(super) async fn answer(
    api: &Api,
    user: u32,
    request: hyper::Request<Incoming>,
) -> Response<Body> {
    let mut response = match route(api, user, request).await {
        Ok(response) => response,
        Err(error) => error.into(),
    };
    let headers = response.headers_mut();
    headers.insert("Content-Security-Policy", HeaderValue::from_static("default-src 'none'"));
    headers.insert("X-Content-Type-Options", HeaderValue::from_static("nosniff"));
    // No Tailscale-Version: the command would warn that it differs from its own.
    response
}

async fn route(
    api: &Api,
    user: u32,
    request: hyper::Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let (head, body) = request.into_parts();
    if !is_local(&head.headers) {
        return Err(ApiError::denied("invalid localapi request"));
    }
    let path = head.uri.path();
    let Some(name) = path.strip_prefix(PREFIX) else {
        return match path {
            "/" => Ok(body::text("linerate\n")),
            _ => Err(ApiError::absent(format_args!("there is no {path}"))),
        };
    };
    let call = Call {
        api,
        method: head.method,
        query: head.uri.query().unwrap_or_default().to_owned(),
        may_write: api.writers.has(user),
        body,
    };
    routes::answer(name, call).await
}

/// Whether a request comes from a program, and not from a page in a browser that was led here.
fn is_local(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().map_or(&b""[..], HeaderValue::as_bytes);
    (host.is_empty() || host == LOCAL_HOST.as_bytes())
        && hosts.next().is_none()
        && !headers.contains_key(ORIGIN)
        && !headers.contains_key(REFERER)
}

impl Call<'_> {
    /// Goes on for one method, for all users.
    pub(super) fn check_read(&self, method: &Method) -> Result<(), ApiError> {
        if self.method == method || (method == Method::GET && self.method == Method::HEAD) {
            return Ok(());
        }
        Err(ApiError::new(
            hyper::StatusCode::METHOD_NOT_ALLOWED,
            format_args!("only {method} is allowed"),
        ))
    }

    /// Goes on for one method, for those that may write.
    pub(super) fn check_write(&self, method: &Method) -> Result<(), ApiError> {
        self.check_read(method)?;
        if self.may_write {
            Ok(())
        } else {
            Err(ApiError::denied("only root and the operator may"))
        }
    }

    /// A parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut all = form_urlencoded::parse(self.query.as_bytes());
        all.find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value)
    }

    /// A parameter of the query that has to be there.
    pub(super) fn required<T: FromStr>(&self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::bad(format_args!("missing '{name}' parameter"));
        let value = self.parameter(name).ok_or_else(missing)?;
        value.parse().map_err(|_| ApiError::bad(format_args!("invalid '{name}' parameter")))
    }

    /// The body.
    pub(super) async fn bytes(self) -> Result<Bytes, ApiError> {
        let body = timeout(BODY_TIMEOUT, Limited::new(self.body, MAX_BODY).collect()).await;
        let body = body.map_err(|_| ApiError::bad("the body did not come"))?;
        Ok(body.map_err(ApiError::bad)?.to_bytes())
    }

    /// The body, as JSON.
    pub(super) async fn body<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let body = self.bytes().await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::bad(format_args!("body: {error}")))
    }

    /// Asks the agent.
    pub(super) async fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ApiError> {
        request_agent(self.api, request).await
    }
}

/// Asks the agent.
pub(super) async fn request_agent<T>(
    api: &Api,
    request: impl FnOnce(Reply<T>) -> Request,
) -> Result<T, ApiError> {
    let (reply, answer) = oneshot::channel();
    let answered = async {
        let ended = || ApiError::not_now("the node is ending");
        api.requests.send(request(reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    };
    let late = |_| ApiError::new(hyper::StatusCode::GATEWAY_TIMEOUT, "the node did not answer");
    timeout(ANSWER_TIMEOUT, answered).await.map_err(late)?
}
