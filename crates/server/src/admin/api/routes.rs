//! Table of all routes. The router and `openapi.json` are built from it.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::Method,
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post, put},
};

use super::{
    LONGEST, ROOT, admit::admit, answer::ApiError, api_keys, audit, headscale, health, keys, nodes,
    openapi, policy, ssh_logins, tka, users, why,
};
use crate::serve::Tenant;

/// Refuses unknown query parameters: a client whose parameter is ignored may delete more than it
/// intended.
async fn refuse_parameters(request: Request, next: Next) -> Response {
    match request.uri().query() {
        None | Some("") => next.run(request).await,
        Some(query) => ApiError::BadRequest(format!("unknown parameters: {query}")).into_response(),
    }
}

/// A route and its documentation.
pub struct Route {
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
    handler: MethodRouter<Arc<Tenant>>,
}

impl Route {
    /// The whole path.
    pub fn full_path(&self) -> String {
        format!("{}{}", self.root, self.path)
    }

    pub fn get(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        let (query, handler) = (&[][..], MethodRouter::new());
        let (root, method) = (ROOT, Method::GET);
        Self { method, root, path, summary, query, body: None, answer, handler }
    }

    pub fn post(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        Self { method: Method::POST, ..Self::get(path, summary, answer) }
    }

    pub fn put(path: &'static str, summary: &'static str, answer: &'static str) -> Self {
        Self { method: Method::PUT, ..Self::get(path, summary, answer) }
    }

    pub fn delete(path: &'static str, summary: &'static str) -> Self {
        Self { method: Method::DELETE, ..Self::get(path, summary, "Nothing") }
    }

    pub fn with(mut self, query: &'static [(&'static str, &'static str)]) -> Self {
        self.query = query;
        self
    }

    pub fn takes(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    /// Refuses query parameters if the route defines none. Otherwise, its handler refuses
    /// unknown ones.
    pub fn without_other_parameters(mut self) -> Self {
        if self.query.is_empty() {
            self.handler = self.handler.layer(from_fn(refuse_parameters));
        }
        self
    }

    /// Replaces the first part of the path.
    pub fn below(mut self, root: &'static str) -> Self {
        self.root = root;
        self
    }

    pub fn by(mut self, handler: MethodRouter<Arc<Tenant>>) -> Self {
        self.handler = handler;
        self
    }
}

/// All routes.
pub fn all() -> Vec<Route> {
    let mut routes = of_people_and_keys();
    routes.extend(of_nodes());
    routes.extend(of_the_policy());
    routes.extend(headscale::routes());
    routes.extend([
        Route::get("audit", "Commands of administrators, the newest first.", "AuditEntries")
            .with(&[("limit", "Maximum number of entries. The default is 100.")])
            .by(get(audit::list)),
        Route::get("audit/head", "ID and hash of the last entry.", "AuditHead")
            .by(get(audit::head)),
        Route::get("lock", "The state of tailnet lock.", "Lock").by(get(tka::show)),
        Route::post("lock/allow", "Allow a node to enable tailnet lock within an hour.", "Lock")
            .with(&[("node", "The node's ID.")])
            .by(post(tka::allow)),
        Route::get("why", "Whether one node reaches another, and the reason if not.", "Why")
            .with(&[
                ("from", "A node, by name, ID or address."),
                ("to", "A node, or an address behind a router."),
                ("port", "Only this TCP port."),
            ])
            .by(get(why::why)),
        Route::post("auth/approve", "Approve a waiting SSH login.", "Login")
            .takes("WaitingLogin")
            .by(post(ssh_logins::approve)),
        Route::post("auth/reject", "Reject a waiting SSH login.", "Login")
            .takes("WaitingLogin")
            .by(post(ssh_logins::reject)),
        Route::post("admin/link", "Create a link that opens the page once.", "Link")
            .by(post(audit::admin_link)),
        Route::get("health", "Whether the server is healthy.", "Health").by(get(health::of_server)),
        Route::get("openapi.json", "This document.", "Document").by(get(openapi::document)),
    ]);
    routes
}

fn of_people_and_keys() -> Vec<Route> {
    vec![
        Route::get("user", "All users.", "Users")
            .with(&[
                ("name", "Only the user with this name."),
                ("email", "Only users with this mail address."),
                ("id", "Only the user with this ID."),
            ])
            .by(get(users::list)),
        Route::post("user", "Create a user.", "User").takes("NewUser").by(post(users::create)),
        Route::post("user/{user}/rename/{name}", "Rename a user.", "User").by(post(users::rename)),
        Route::post("user/{user}/owner", "Make a user the owner of the network.", "User")
            .by(post(users::make_owner)),
        Route::delete("user/{user}", "Delete a user without nodes, except the owner.")
            .by(delete(users::delete)),
        Route::get("preauthkey", "All pre-auth keys, without their secrets.", "PreAuthKeys")
            .with(&[("user", "Only keys of this user, by ID or name.")])
            .by(get(keys::list)),
        Route::post(
            "preauthkey",
            "Create a pre-auth key. Only this answer contains it.",
            "PreAuthKey",
        )
        .takes("NewPreAuthKey")
        .by(post(keys::create)),
        Route::post("preauthkey/{id}/expire", "Expire a pre-auth key.", "Nothing")
            .by(post(keys::expire)),
        Route::delete("preauthkey/{id}", "Delete a pre-auth key.").by(delete(keys::delete)),
        Route::get("apikey", "All API keys, without their secrets.", "ApiKeys")
            .by(get(api_keys::list)),
        Route::post("apikey", "Create an API key. Only this answer contains it.", "ApiKey")
            .takes("NewApiKey")
            .by(post(api_keys::create)),
        Route::post("apikey/{key}/expire", "Expire an API key, by ID or prefix.", "ApiKey")
            .by(post(api_keys::expire)),
        Route::delete("apikey/{key}", "Delete an API key, by ID or prefix.")
            .by(delete(api_keys::delete)),
    ]
}

fn of_nodes() -> Vec<Route> {
    vec![
        Route::get("node", "All nodes.", "Nodes")
            .with(&[("user", "Only nodes of this user, by ID or name.")])
            .by(get(nodes::list)),
        Route::get("node/{id}", "A node.", "Node").by(get(nodes::show)),
        Route::get("node/{id}/health", "Health warnings of a node's client.", "Warnings")
            .by(get(health::show)),
        Route::post("node/register", "Admit a waiting machine.", "Node")
            .with(&[("user", "The owner of the node."), ("key", "The key in the machine's link.")])
            .by(post(nodes::register)),
        Route::post("node/backfillips", "Give addresses to nodes that lack one.", "Changes")
            .with(&[("confirmed", "Must be `true`.")])
            .by(post(nodes::backfill)),
        Route::post(
            "node/{id}/expire",
            "Set when a node's key expires. The default is now.",
            "Node",
        )
        .with(&[
            ("expiry", "The time, in RFC 3339."),
            ("disable", "`true`: the key never expires."),
        ])
        .by(post(nodes::expire)),
        Route::post("node/{id}/rename/{name}", "Rename a node.", "Node").by(post(nodes::rename)),
        Route::post("node/{id}/tags", "Replace a node's owner by tags.", "Node")
            .takes("Tags")
            .by(post(nodes::tag)),
        Route::post("node/{id}/approve_routes", "Set the approved routes of a node.", "Node")
            .takes("Routes")
            .by(post(nodes::approve)),
        Route::delete("node/{id}", "Delete a node.").by(delete(nodes::delete)),
    ]
}

fn of_the_policy() -> Vec<Route> {
    vec![
        Route::get("policy", "The policy in force.", "Policy").by(get(policy::show)),
        Route::put("policy", "Apply a policy, if its tests pass.", "Policy")
            .takes("NewPolicy")
            .by(put(policy::set)),
        Route::post(
            "policy/check",
            "The changes that a policy would make, if its tests pass.",
            "Policy",
        )
        .takes("NewPolicy")
        .by(post(policy::check)),
        Route::get("policy/history", "All stored policies, the newest first.", "Policies")
            .by(get(policy::history)),
        Route::get("policy/history/{id}", "A stored policy.", "Policy").by(get(policy::older)),
    ]
}

/// Method and path of every route.
pub fn listed_routes() -> Vec<(Method, String)> {
    all()
        .into_iter()
        .map(|route| {
            let path = route.full_path();
            (route.method, path)
        })
        .collect()
}

/// The router of the API.
pub fn router(tenant: Arc<Tenant>) -> Router {
    let routes = all()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(&route.full_path(), route.handler));
    routes
        .fallback(async || ApiError::NoSuchThing)
        .method_not_allowed_fallback(async || ApiError::NoSuchMethod)
        .layer(DefaultBodyLimit::max(LONGEST))
        .layer(from_fn_with_state(Arc::clone(&tenant), admit))
        .with_state(tenant)
}
