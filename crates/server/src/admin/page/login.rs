//! Login and logout.

use std::sync::Arc;

use askama::Template;
use axum::{
    Extension, Form,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header::SET_COOKIE},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;

use super::{PageSession, assets, render};
use crate::{
    admin::{
        api::is_same_origin,
        sessions::{COOKIE_NAME, LIFETIME, Sessions},
        state::AdminSite,
    },
    clock::now,
    http::arrival::Arrival,
    network::NetworkState,
};

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    network: String,
    assets: &'static str,
    wrong: Option<&'static str>,
}

#[derive(Deserialize)]
pub(super) struct LoginForm {
    key: String,
}

#[derive(Deserialize)]
pub(super) struct LogoutForm {
    token: String,
}

pub(super) async fn show(State(network): State<Arc<NetworkState>>) -> Response {
    page(&network, None)
}

/// Opens a session with an API key or the token of a link.
pub(super) async fn log_in(
    State(network): State<Arc<NetworkState>>,
    State(sessions): State<Arc<Sessions>>,
    State(site): State<Arc<AdminSite>>,
    Extension(arrival): Extension<Arrival>,
    headers: HeaderMap,
    Form(LoginForm { key }): Form<LoginForm>,
) -> Response {
    if !is_same_origin(&site, &headers) {
        return (StatusCode::FORBIDDEN, page(&network, None)).into_response();
    }
    let key = key.trim();
    let prefix =
        network.read(|state| state.find_valid_api_key(key, now()).map(|key| key.prefix.clone()));
    let (actor, prefix) = match prefix {
        Some(prefix) => (format!("page, API key {prefix}"), Some(prefix)),
        None if sessions.use_link(key, now()) => ("page, by a link".to_owned(), None),
        None => return wrong((&network, &sessions), arrival),
    };
    let opened = sessions.open(actor.clone(), prefix, now());
    let recorded = network.run(move |state, now| {
        state.record_audit(&actor, "open the page", None, now);
    });
    match (opened, recorded.await) {
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

pub(super) async fn log_out(
    State(sessions): State<Arc<Sessions>>,
    session: PageSession,
    Form(LogoutForm { token }): Form<LogoutForm>,
) -> Response {
    if session.session.is_token(token.as_bytes()) {
        sessions.close(&token);
    }
    set("; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0")
}

fn wrong((network, sessions): (&NetworkState, &Sessions), arrival: Arrival) -> Response {
    network.counters().refused.api.add(1);
    let is_flood = match arrival {
        Arrival::Remote(from) => sessions.count_wrong_key(from.ip(), now()),
        Arrival::Socket { .. } => false,
    };
    let (status, words) = match is_flood {
        true => (StatusCode::TOO_MANY_REQUESTS, "Too many wrong keys: wait a minute."),
        false => (StatusCode::UNAUTHORIZED, "This key is invalid or has expired."),
    };
    (status, page(network, Some(words))).into_response()
}

fn page(network: &NetworkState, wrong: Option<&'static str>) -> Response {
    let network = network.read(|state| state.settings().base_domain.clone());
    render(&Login { network, assets: assets::version(), wrong })
}

fn set(cookie: &str) -> Response {
    let mut response = Redirect::to("/admin/").into_response();
    if let Ok(cookie) = HeaderValue::from_str(&format!("{COOKIE_NAME}={cookie}")) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}
