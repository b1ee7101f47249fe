//! The page of administrators: HTML made here, which shows the network and is made again where
//! something changes. What it commands it asks of the API, as everybody.
//!
//! ```text
//!   login (key or link) ──► session ──► pages ──┬─ GET /admin/events: something changed
//!                                               └─ commands: /api/linerate/v1/, with the session's cookie and token
//! ```

mod assets;
mod events;
mod keys;
mod login;
mod machines;
mod moment;
mod policy;
mod reports;
mod settings;
mod users;

use std::sync::Arc;

use askama::Template;
use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, Request},
    http::{
        HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY,
            X_CONTENT_TYPE_OPTIONS,
        },
        request::Parts,
    },
    middleware::{Next, from_fn},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};

use crate::{api, body, serve::Server, sessions::Session};

/// What the paths begin with.
pub const ROOT: &str = "/admin";
/// Where each page is, and what it is called.
pub const PAGES: [(&str, &str); 9] = [
    ("machines", "Machines"),
    ("users", "Users"),
    ("keys", "Keys"),
    ("policy", "Policy"),
    ("routes", "Routes"),
    ("dns", "DNS"),
    ("derp", "DERP"),
    ("audit", "Audit"),
    ("why", "Why?"),
];
/// Nothing from elsewhere, and no script but the files of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// The longest form of a page's own, in bytes.
const LONGEST: usize = 4 << 10;

/// Answers who opens the page.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/admin", get(home))
        .route("/admin/", get(home))
        .route("/admin/login", get(login::show).post(login::enter))
        .route("/admin/logout", post(login::leave))
        .route("/admin/events", get(events::follow))
        .route("/admin/machines", get(machines::list))
        .route("/admin/machines/{id}", get(machines::show))
        .route("/admin/users", get(users::list))
        .route("/admin/users/{id}", get(users::show))
        .route("/admin/keys", get(keys::list))
        .route("/admin/policy", get(policy::show))
        .route("/admin/routes", get(machines::routes))
        .route("/admin/dns", get(settings::dns))
        .route("/admin/derp", get(settings::derp))
        .route("/admin/audit", get(reports::audit))
        .route("/admin/why", get(reports::why))
        .route("/admin/assets/{name}", get(assets::file))
        .fallback(async || nothing())
        .layer(from_fn(guard))
        .with_state(server)
}

async fn home(_: Visitor) -> Redirect {
    Redirect::to("/admin/machines")
}

/// Reads the request's body, and sets the headers that restrict a page and keep it out of caches.
async fn guard(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let mut response = match body::read(body, LONGEST).await {
        Ok(body) => next.run(Request::from_parts(head, body.into())).await,
        Err(refusal) => refusal.map(Body::new),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Under `no-referrer` a browser would not say the origin of a form, either.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "there is nothing here\n").into_response()
}

fn shown(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(error) => {
            tracing::error!("a page: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Who has a session. Others are sent to where one is opened.
pub struct Visitor {
    server: Arc<Server>,
    session: Session,
}

/// What all pages have around them.
pub struct Frame {
    network: String,
    /// How often the network had changed by then.
    since: u64,
    token: String,
    here: &'static str,
    assets: &'static str,
}

impl Visitor {
    fn frame(&self, here: &'static str) -> Frame {
        let since = *self.server.network.kept().borrow();
        let network = self.server.network.read(|state| state.settings().base_domain.clone());
        Frame { network, since, token: self.session.token.clone(), here, assets: assets::version() }
    }
}

impl FromRequestParts<Arc<Server>> for Visitor {
    type Rejection = Redirect;

    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Self, Self::Rejection> {
        match api::session_of(server, &parts.headers) {
            Some(session) => Ok(Self { server: Arc::clone(server), session }),
            None => Err(Redirect::to("/admin/login")),
        }
    }
}
