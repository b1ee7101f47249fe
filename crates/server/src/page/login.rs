//! How a session is opened, and ended.

use std::sync::Arc;

use askama::Template;
use axum::{
    Extension, Form,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header::SET_COOKIE},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;

use super::{Visitor, assets, shown};
use crate::{
    api::{Arrival, is_from_here},
    clock::now,
    serve::Server,
    sessions::{COOKIE_NAME, LIFETIME},
};

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    network: String,
    assets: &'static str,
    wrong: Option<&'static str>,
}

#[derive(Deserialize)]
pub struct Entering {
    key: String,
}

#[derive(Deserialize)]
pub struct Leaving {
    token: String,
}

pub async fn show(State(server): State<Arc<Server>>) -> Response {
    page(&server, None)
}

/// Opens a session for an API key, or for the token of a link.
pub async fn enter(
    State(server): State<Arc<Server>>,
    Extension(arrival): Extension<Arrival>,
    headers: HeaderMap,
    Form(Entering { key }): Form<Entering>,
) -> Response {
    if !is_from_here(&server, &headers) {
        return (StatusCode::FORBIDDEN, page(&server, None)).into_response();
    }
    let key = key.trim();
    let prefix = server
        .network
        .read(|state| state.find_valid_api_key(key, now()).map(|key| key.prefix.clone()));
    let (who, prefix) = match prefix {
        Some(prefix) => (format!("page, API key {prefix}"), Some(prefix)),
        None if server.sessions.use_link(key, now()) => ("page, by a link".to_owned(), None),
        None => return wrong(&server, arrival),
    };
    let opened = server.sessions.open(who.clone(), prefix, now());
    let noted = server.network.run(move |state, now| {
        state.record_audit(&who, "open the page", None, now);
    });
    match (opened, noted.await) {
        (Ok(cookie), Ok(())) => {
            let age = LIFETIME.as_secs();
            set(&format!("{cookie}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={age}"))
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!("opening the page: {error:#}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

pub async fn leave(visitor: Visitor, Form(Leaving { token }): Form<Leaving>) -> Response {
    if visitor.session.is_token(token.as_bytes()) {
        visitor.server.sessions.close(&token);
    }
    set("; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0")
}

fn wrong(server: &Server, arrival: Arrival) -> Response {
    server.network.counted().refused.api.add(1);
    let is_flood = match arrival {
        Arrival::Network(from) => server.sessions.wrong_from(from.ip(), now()),
        Arrival::Socket { .. } => false,
    };
    let (status, words) = match is_flood {
        true => (StatusCode::TOO_MANY_REQUESTS, "Too many wrong keys: wait a minute."),
        false => (StatusCode::UNAUTHORIZED, "That is no key, or it has expired."),
    };
    (status, page(server, Some(words))).into_response()
}

fn page(server: &Server, wrong: Option<&'static str>) -> Response {
    let network = server.network.read(|state| state.settings().base_domain.clone());
    shown(&Login { network, assets: assets::version(), wrong })
}

fn set(cookie: &str) -> Response {
    let mut response = Redirect::to("/admin/").into_response();
    if let Ok(cookie) = HeaderValue::from_str(&format!("{COOKIE_NAME}={cookie}")) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}
