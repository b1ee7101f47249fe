//! Who asks: decided before anything of a request but its head is looked at.

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
    address::ServerUrl,
    clock::now,
    serve::Server,
    sessions::{COOKIE_NAME, Session},
    slow_hash,
};

/// What the page says of itself with every command, which no other site can.
const TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How a request came.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// By the local socket, from a process of this user.
    Socket { user: Option<u32> },
    /// From this address.
    Network(SocketAddr),
}

/// Who asks, as the audit says it.
#[derive(Clone, Debug)]
pub struct Who(pub String);

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nobody that is known.
    Nobody,
    /// There were too many wrong keys from there.
    TooMany,
    /// A command with a session's cookie that does not come from the page.
    Elsewhere,
}

impl IntoResponse for Refused {
    /// The same for whatever is wrong with a key. Clients of headscale compare the word `Unauthorized`.
    fn into_response(self) -> Response {
        let mut response = match self {
            Self::Nobody => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
            Self::TooMany => refusal(
                StatusCode::TOO_MANY_REQUESTS,
                Code::ResourceExhausted,
                "too many wrong keys: wait a minute",
            ),
            Self::Elsewhere => refusal(
                StatusCode::FORBIDDEN,
                Code::PermissionDenied,
                "the page was left open for too long",
            ),
        };
        match self {
            Self::Nobody => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Self::TooMany => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"))
            }
            Self::Elsewhere => None,
        };
        response
    }
}

/// Lets a request through to the routes with who asks, or refuses it.
pub async fn admit(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(Arrival::Network(from)) = request.extensions().get()
        && let Some(text) = request.headers().get(AUTHORIZATION).and_then(bearer)
    {
        let find = |state: &coordinator::State, now| state.unverified_api_key(text, now);
        let proved = slow_hash::prove(&server.network, &server.sessions, from.ip(), find);
        if let Err(error) = proved.await {
            tracing::warn!("an API key: {error:#}");
        }
    }
    match who(&server, &request) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

fn who(server: &Server, request: &Request) -> Result<Who, Refused> {
    let from = match request.extensions().get() {
        Some(Arrival::Socket { user: Some(user) }) => {
            return Ok(Who(format!("command line, user {user}")));
        }
        Some(Arrival::Socket { user: None }) => return Ok(Who("command line".into())),
        Some(Arrival::Network(from)) => from,
        None => return Err(Refused::Nobody),
    };
    if let Some(shown) = request.headers().get(AUTHORIZATION) {
        return by_key(server, shown, *from);
    }
    let session = session_of(server, request.headers()).ok_or(Refused::Nobody)?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let token = request.headers().get(TOKEN).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_from_the_page = is_from_here(server, request.headers()) && session.is_token(token);
        is_from_the_page.then_some(()).ok_or(Refused::Elsewhere)?;
    }
    Ok(Who(session.who))
}

fn bearer(shown: &HeaderValue) -> Option<&str> {
    Some(shown.to_str().ok()?.strip_prefix("Bearer ")?.trim())
}

fn by_key(server: &Server, shown: &HeaderValue, from: SocketAddr) -> Result<Who, Refused> {
    let (text, now) = (bearer(shown).unwrap_or_default(), now());
    let (name, is_slow) = server.network.read(|state| {
        let name = state.find_valid_api_key(text, now).map(|key| key.prefix.clone());
        (name, state.unverified_api_key(text, now).is_some())
    });
    match name {
        Some(prefix) => Ok(Who(format!("API key {prefix}"))),
        None => {
            server.network.counted().refused.api.add(1);
            let (sessions, from) = (&server.sessions, from.ip());
            // `slow_hash` counts wrong secrets of keys with a slow hash.
            let is_guessing = match is_slow {
                true => sessions.is_guessing(from, now),
                false => sessions.wrong_from(from, now),
            };
            match is_guessing {
                true => Err(Refused::TooMany),
                false => Err(Refused::Nobody),
            }
        }
    }
}

/// The session that a request's cookie is of.
pub fn session_of(server: &Server, headers: &HeaderMap) -> Option<Session> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).map(str::trim);
    let token = pairs.find_map(|pair| pair.strip_prefix(COOKIE_NAME)?.strip_prefix('='))?;
    let session = server.sessions.find(token, now())?;
    // Who came by a key that is good no more has to go as well.
    let is_good = session.key.as_ref().is_none_or(|prefix| {
        server
            .network
            .read(|state| state.api_keys().any(|key| key.prefix == *prefix && key.is_valid(now())))
    });
    is_good.then_some(session)
}

/// Whether a browser sends this request from a page of this server, as far as the browser says so. Its origin
/// is that of the page's usual address, or that of the address that the request itself names.
pub fn is_from_here(server: &Server, headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| Some(headers.get(name)?.to_str().unwrap_or_default());
    let is_same_site = text(FETCH_SITE).is_none_or(|site| site == "same-origin");
    let is_own = text(ORIGIN).is_none_or(|origin| {
        let origin = origin.parse::<ServerUrl>();
        origin.is_ok_and(|origin| server.admin_origin.is_origin(&origin, text(HOST)))
    });
    is_same_site && is_own
}
