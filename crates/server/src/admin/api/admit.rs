//! Authentication of requests, from their heads only.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, Method,
        header::{
            AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, RETRY_AFTER,
            WWW_AUTHENTICATE,
        },
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use hyper::StatusCode;

use super::answer::{Code, refusal};
use crate::{
    admin::{
        sessions::{COOKIE_NAME, Session, Sessions},
        slow_hash,
        state::AdminSite,
    },
    clock::now,
    http::arrival::Arrival,
    net::address::ServerUrl,
    network::NetworkState,
};

/// CSRF token of the page. Pages of other sites do not have it.
const TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The actor of a command, as the audit log names it.
#[derive(Clone, Debug)]
pub(super) struct Actor(pub String);

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRefusal {
    /// The request is not authenticated.
    Unauthenticated,
    /// Too many wrong keys came from its source.
    TooManyAttempts,
    /// A command with a session's cookie that does not come from the page.
    ForeignOrigin,
}

impl IntoResponse for AccessRefusal {
    /// All wrong keys get the same answer. Clients of headscale compare the word `Unauthorized`.
    fn into_response(self) -> Response {
        let mut response = match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
            Self::TooManyAttempts => refusal(
                StatusCode::TOO_MANY_REQUESTS,
                Code::ResourceExhausted,
                "too many wrong keys: wait a minute",
            ),
            Self::ForeignOrigin => refusal(
                StatusCode::FORBIDDEN,
                Code::PermissionDenied,
                "the page was left open for too long",
            ),
        };
        match self {
            Self::Unauthenticated => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Self::TooManyAttempts => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"))
            }
            Self::ForeignOrigin => None,
        };
        response
    }
}

/// Middleware that authenticates a request and adds its [`Actor`], or refuses it.
pub(super) async fn admit(
    State(network): State<Arc<NetworkState>>,
    State(sessions): State<Arc<Sessions>>,
    State(site): State<Arc<AdminSite>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(Arrival::Remote(from)) = request.extensions().get()
        && let Some(text) = request.headers().get(AUTHORIZATION).and_then(bearer)
    {
        let find = |state: &coordinator::State, now| state.unverified_api_key(text, now);
        let proved = slow_hash::prove(&network, &sessions, from.ip(), find);
        if let Err(error) = proved.await {
            tracing::warn!("an API key: {error:#}");
        }
    }
    match authenticate((&network, &sessions), &site, &request) {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

fn authenticate(
    (network, sessions): (&NetworkState, &Sessions),
    site: &AdminSite,
    request: &Request,
) -> Result<Actor, AccessRefusal> {
    let from = match request.extensions().get() {
        Some(Arrival::Socket { user: Some(user) }) => {
            return Ok(Actor(format!("command line, user {user}")));
        }
        Some(Arrival::Socket { user: None }) => return Ok(Actor("command line".into())),
        Some(Arrival::Remote(from)) => from,
        None => return Err(AccessRefusal::Unauthenticated),
    };
    if let Some(header) = request.headers().get(AUTHORIZATION) {
        return authenticate_key((network, sessions), header, *from);
    }
    let session =
        session_of(network, sessions, request.headers()).ok_or(AccessRefusal::Unauthenticated)?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let token = request.headers().get(TOKEN).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_from_the_page = is_same_origin(site, request.headers()) && session.is_token(token);
        is_from_the_page.then_some(()).ok_or(AccessRefusal::ForeignOrigin)?;
    }
    Ok(Actor(session.who))
}

fn bearer(header: &HeaderValue) -> Option<&str> {
    Some(header.to_str().ok()?.strip_prefix("Bearer ")?.trim())
}

fn authenticate_key(
    (network, sessions): (&NetworkState, &Sessions),
    header: &HeaderValue,
    from: SocketAddr,
) -> Result<Actor, AccessRefusal> {
    let (text, now) = (bearer(header).unwrap_or_default(), now());
    let (name, is_slow) = network.read(|state| {
        let name = state.find_valid_api_key(text, now).map(|key| key.prefix.clone());
        (name, state.unverified_api_key(text, now).is_some())
    });
    match name {
        Some(prefix) => Ok(Actor(format!("API key {prefix}"))),
        None => {
            network.counters().refused.api.add(1);
            let from = from.ip();
            // `slow_hash` counts wrong secrets of keys that have a slow hash.
            let is_guessing = match is_slow {
                true => sessions.is_guessing(from, now),
                false => sessions.count_wrong_key(from, now),
            };
            match is_guessing {
                true => Err(AccessRefusal::TooManyAttempts),
                false => Err(AccessRefusal::Unauthenticated),
            }
        }
    }
}

/// The session of a request's cookie.
pub fn session_of(
    network: &NetworkState,
    sessions: &Sessions,
    headers: &HeaderMap,
) -> Option<Session> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).map(str::trim);
    let token = pairs.find_map(|pair| pair.strip_prefix(COOKIE_NAME)?.strip_prefix('='))?;
    let session = sessions.find(token, now())?;
    // A session that was opened with an API key ends with that key.
    let is_good = session.key.as_ref().is_none_or(|prefix| {
        network
            .read(|state| state.api_keys().any(|key| key.prefix == *prefix && key.is_valid(now())))
    });
    is_good.then_some(session)
}

/// Whether a browser sent this request from a page of this server. Headers that the browser does not
/// send are not checked. The origin must be that of the page's URL, or that of the host that the
/// request names.
pub fn is_same_origin(site: &AdminSite, headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| Some(headers.get(name)?.to_str().unwrap_or_default());
    let is_same_site = text(FETCH_SITE).is_none_or(|site| site == "same-origin");
    let is_own = text(ORIGIN).is_none_or(|origin| {
        let origin = origin.parse::<ServerUrl>();
        origin.is_ok_and(|origin| site.origin().is_origin(&origin, text(HOST)))
    });
    is_same_site && is_own
}
