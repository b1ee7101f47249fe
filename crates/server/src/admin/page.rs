//! The administrators' web page. Its HTML is rendered on the server, and again after changes of the
//! network. Its commands are requests to the API.
//!
//! ```text
//!   login (key or link) ──► session ──► pages ──┬─ GET /admin/events: notifications of changes
//!                                               └─ commands: /api/linerate/v1/, with the session's cookie and token
//! ```

mod assets;
mod events;
mod keys;
mod login;
mod machines;
mod policy;
mod reports;
mod settings;
mod timestamp;
mod users;

use std::sync::Arc;

use askama::Template;
use axum::{
    Router,
    body::Body,
    extract::{FromRef, FromRequestParts, Request},
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

use crate::{
    admin::{
        api,
        sessions::{Session, Sessions},
        state::AdminState,
    },
    http::body,
    network::NetworkState,
};

/// Prefix of the paths.
pub(crate) const ROOT: &str = "/admin";
/// Path and title of each page.
pub(crate) const PAGES: [(&str, &str); 9] = [
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
/// Allows only content and scripts from this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// Maximum size of a page's form, in bytes.
const LONGEST: usize = 4 << 10;

/// Router of the page.
pub(crate) fn router(state: AdminState) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/admin", get(home))
        .route("/admin/", get(home))
        .route("/admin/login", get(login::show).post(login::log_in))
        .route("/admin/logout", post(login::log_out))
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
        .fallback(async || not_found())
        .layer(from_fn(guard))
        .with_state(state)
}

async fn home(_: PageSession) -> Redirect {
    Redirect::to("/admin/machines")
}

/// Reads the request's body, and sets headers that restrict the page and prevent caching.
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
        // With `no-referrer`, a browser would not send the origin of a form either.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found\n").into_response()
}

fn render(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(error) => {
            tracing::error!("a page: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// An administrator with a session. Others are redirected to the login page.
pub(crate) struct PageSession {
    network: Arc<NetworkState>,
    session: Session,
}

/// Data of the layout that all pages share.
pub(crate) struct Frame {
    network: String,
    /// Number of commits that the page reflects.
    since: u64,
    token: String,
    here: &'static str,
    assets: &'static str,
}

impl PageSession {
    fn frame(&self, here: &'static str) -> Frame {
        let since = *self.network.committed().borrow();
        let network = self.network.read(|state| state.settings().base_domain.clone());
        Frame { network, since, token: self.session.token.clone(), here, assets: assets::version() }
    }
}

impl FromRequestParts<AdminState> for PageSession {
    type Rejection = Redirect;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &AdminState,
    ) -> Result<Self, Self::Rejection> {
        let network = Arc::<NetworkState>::from_ref(state);
        let sessions = Arc::<Sessions>::from_ref(state);
        match api::session_of(&network, &sessions, &parts.headers) {
            Some(session) => Ok(Self { network, session }),
            None => Err(Redirect::to("/admin/login")),
        }
    }
}
