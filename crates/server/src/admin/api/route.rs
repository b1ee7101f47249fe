//! A route of the API and its documentation.

use axum::{
    Router,
    extract::Request,
    http::Method,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::MethodRouter,
};

use super::{ROOT, answer::ApiError};
use crate::admin::state::AdminState;

/// Refuses unknown query parameters: a client whose parameter is ignored may delete more than it
/// intended.
async fn refuse_parameters(request: Request, next: Next) -> Response {
    match request.uri().query() {
        None | Some("") => next.run(request).await,
        Some(query) => ApiError::BadRequest(format!("unknown parameters: {query}")).into_response(),
    }
}

/// A route and its documentation.
pub(super) struct Route {
    /// HTTP method.
    pub method: Method,
    /// First part of the path.
    pub root: &'static str,
    /// The rest of the path.
    pub path: &'static str,
    /// Description for `openapi.json`.
    pub summary: &'static str,
    /// Query parameters: names and descriptions.
    pub query: &'static [(&'static str, &'static str)],
    /// Schema of the body, if the route has one.
    pub body: Option<&'static str>,
    /// Schema of the answer.
    pub answer: &'static str,
    handler: MethodRouter<AdminState>,
}

impl Route {
    /// The whole path.
    pub(super) fn full_path(&self) -> String {
        format!("{}{}", self.root, self.path)
    }

    pub(super) fn get(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        let (query, handler) = (&[][..], MethodRouter::new());
        let (root, method) = (ROOT, Method::GET);
        Self { method, root, path, summary, query, body: None, answer, handler }
    }

    pub(super) fn post(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        Self { method: Method::POST, ..Self::get(path, summary, answer) }
    }

    pub(super) fn put(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        Self { method: Method::PUT, ..Self::get(path, summary, answer) }
    }

    pub(super) fn delete(path: &'static str, summary: &'static str) -> Self {
        Self { method: Method::DELETE, ..Self::get(path, summary, "Nothing") }
    }

    pub(super) fn with(mut self, query: &'static [(&'static str, &'static str)]) -> Self {
        self.query = query;
        self
    }

    pub(super) fn takes(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    /// Refuses query parameters if the route defines none. Otherwise, its handler refuses
    /// unknown ones.
    pub(super) fn without_other_parameters(mut self) -> Self {
        if self.query.is_empty() {
            self.handler = self.handler.layer(from_fn(refuse_parameters));
        }
        self
    }

    /// Replaces the first part of the path.
    pub(super) fn below(mut self, root: &'static str) -> Self {
        self.root = root;
        self
    }

    /// Adds the route to a router.
    pub(super) fn add_to(self, router: Router<AdminState>) -> Router<AdminState> {
        router.route(&self.full_path(), self.handler)
    }

    pub(super) fn by(mut self, handler: MethodRouter<AdminState>) -> Self {
        self.handler = handler;
        self
    }
}
