//! One request of a program: its parts, and the checks of origin and permission.

use std::{borrow::Cow, str::FromStr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Method, Response,
    body::Incoming,
    header::{HOST, HeaderMap, HeaderValue, ORIGIN, REFERER},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{ApiError, Reply, Request, api::Api, body::Body};

/// The host header of each request, which no web page can send (tailscale `apitype.LocalAPIHost`).
const LOCAL_HOST: &str = "local-tailscaled.sock";
const PREFIX: &str = "/localapi/v0/";
/// The longest body, in bytes: preferences with many routes.
const MAX_BODY: usize = 256 << 10;
/// The time limit of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A parsed request.
pub(super) struct Call<'a> {
    pub(super) api: &'a Api,
    pub(super) method: Method,
    pub(super) path: String,
    query: String,
    may_write: bool,
    body: Incoming,
}

pub(super) type Answer = Result<Response<Body>, ApiError>;

impl<'a> Call<'a> {
    /// Checks the origin of a request of a user, and parses its head. Returns the name of the
    /// request; `None` for a path that does not belong to the interface.
    pub(super) fn new(
        api: &'a Api,
        user: u32,
        request: hyper::Request<Incoming>,
    ) -> Result<(Option<String>, Self), ApiError> {
        let (head, body) = request.into_parts();
        if !is_local(&head.headers) {
            return Err(ApiError::denied("invalid localapi request"));
        }
        let name = head.uri.path().strip_prefix(PREFIX).map(str::to_owned);
        let call = Self {
            api,
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            may_write: api.may_write(user),
            body,
        };
        Ok((name, call))
    }

    /// Checks the method of a request that all users may make.
    pub(super) fn check_read(&self, method: &Method) -> Result<(), ApiError> {
        if self.method == method || (method == Method::GET && self.method == Method::HEAD) {
            return Ok(());
        }
        Err(ApiError::new(
            hyper::StatusCode::METHOD_NOT_ALLOWED,
            format_args!("only {method} is allowed"),
        ))
    }

    /// Checks the method of a request that only writers may make.
    pub(super) fn check_write(&self, method: &Method) -> Result<(), ApiError> {
        self.check_read(method)?;
        if self.may_write {
            Ok(())
        } else {
            Err(ApiError::denied("only root and the operator may do this"))
        }
    }

    /// A parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut all = form_urlencoded::parse(self.query.as_bytes());
        all.find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value)
    }

    /// A required parameter of the query.
    pub(super) fn required<T: FromStr>(&self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::bad(format_args!("missing '{name}' parameter"));
        let value = self.parameter(name).ok_or_else(missing)?;
        value.parse().map_err(|_| ApiError::bad(format_args!("invalid '{name}' parameter")))
    }

    pub(super) async fn bytes(self) -> Result<Bytes, ApiError> {
        let body = timeout(BODY_TIMEOUT, Limited::new(self.body, MAX_BODY).collect()).await;
        let body = body.map_err(|_| ApiError::bad("the body did not arrive in time"))?;
        Ok(body.map_err(ApiError::bad)?.to_bytes())
    }

    pub(super) async fn body<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let body = self.bytes().await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::bad(format_args!("body: {error}")))
    }

    /// Sends a request to the agent and returns its answer.
    pub(super) async fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ApiError> {
        self.api.request(request).await
    }
}

/// Whether a request comes from a program, and not from a web page in a browser.
fn is_local(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().map_or(&b""[..], HeaderValue::as_bytes);
    (host.is_empty() || host == LOCAL_HOST.as_bytes())
        && hosts.next().is_none()
        && !headers.contains_key(ORIGIN)
        && !headers.contains_key(REFERER)
}
