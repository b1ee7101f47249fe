//! All routes in one table: the router is made of it, and so is what `openapi.json` says of them.

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
    LONGEST, ROOT, admit::admit, answer::Trouble, api_keys, audit, auth, headscale, health, keys,
    lock, nodes, openapi, policy, users, why,
};
use crate::serve::Server;

/// A client that is answered as if it had not sent a parameter may delete more than it meant.
async fn refuse_parameters(request: Request, next: Next) -> Response {
    match request.uri().query() {
        None | Some("") => next.run(request).await,
        Some(query) => Trouble::BadRequest(format!("unknown parameters: {query}")).into_response(),
    }
}

/// A route, and what is said of it.
pub struct Route {
    /// What it is asked by.
    pub method: Method,
    /// The beginning of its path.
    pub root: &'static str,
    /// The rest of the path.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// What may stand behind the path: name, and what it is.
    pub query: &'static [(&'static str, &'static str)],
    /// The schema of its body, if it has one.
    pub body: Option<&'static str>,
    /// The schema of its answer.
    pub answer: &'static str,
    handler: MethodRouter<Arc<Server>>,
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

    pub fn says(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    /// Refuses query parameters if the route defines none. Otherwise its handler refuses unknown ones.
    pub fn without_other_parameters(mut self) -> Self {
        if self.query.is_empty() {
            self.handler = self.handler.layer(from_fn(refuse_parameters));
        }
        self
    }

    /// Replaces the beginning of the path.
    pub fn below(mut self, root: &'static str) -> Self {
        self.root = root;
        self
    }

    pub fn by(mut self, handler: MethodRouter<Arc<Server>>) -> Self {
        self.handler = handler;
        self
    }
}

/// All of them.
pub fn all() -> Vec<Route> {
    let mut routes = of_people_and_keys();
    routes.extend(of_nodes());
    routes.extend(of_the_policy());
    routes.extend(headscale::routes());
    routes.extend([
        Route::get("audit", "What administrators did, the newest first.", "AuditEntries")
            .with(&[("limit", "How many entries; 100 without it.")])
            .by(get(audit::list)),
        Route::get("audit/head", "The number and hash of the last entry.", "AuditHead")
            .by(get(audit::head)),
        Route::get("lock", "The state of tailnet lock.", "Lock").by(get(lock::show)),
        Route::post("lock/allow", "Let a node turn tailnet lock on, within an hour.", "Lock")
            .with(&[("node", "The node's number.")])
            .by(post(lock::allow)),
        Route::get("why", "Whether one reaches another, and what stands in the way.", "Why")
            .with(&[
                ("from", "A node, by name, number or address."),
                ("to", "Likewise, or an address behind a router."),
                ("port", "Only this port of TCP."),
            ])
            .by(get(why::why)),
        Route::post("auth/approve", "Let a login by SSH go on that waits.", "Login")
            .says("WaitingLogin")
            .by(post(auth::approve)),
        Route::post("auth/reject", "End a login by SSH that waits.", "Login")
            .says("WaitingLogin")
            .by(post(auth::reject)),
        Route::post("admin/link", "Make a link that opens the page, once.", "Link")
            .by(post(audit::admin_link)),
        Route::get("health", "Whether the server can do its work.", "Health")
            .by(get(health::of_server)),
        Route::get("openapi.json", "This document.", "Document").by(get(openapi::document)),
    ]);
    routes
}

fn of_people_and_keys() -> Vec<Route> {
    vec![
        Route::get("user", "All users.", "Users")
            .with(&[
                ("name", "That of this name."),
                ("email", "Those of this address."),
                ("id", "That of this number."),
            ])
            .by(get(users::list)),
        Route::post("user", "Make a user.", "User").says("NewUser").by(post(users::create)),
        Route::post("user/{user}/rename/{name}", "Give a user another name.", "User")
            .by(post(users::rename)),
        Route::post("user/{user}/owner", "Make a user the owner of the network.", "User")
            .by(post(users::make_owner)),
        Route::delete("user/{user}", "Delete a user without nodes, except the owner.")
            .by(delete(users::delete)),
        Route::get("preauthkey", "All pre-auth keys, without what is secret.", "PreAuthKeys")
            .with(&[("user", "Those of this user, by number or name.")])
            .by(get(keys::list)),
        Route::post("preauthkey", "Make a pre-auth key; only this answer has it.", "PreAuthKey")
            .says("NewPreAuthKey")
            .by(post(keys::create)),
        Route::post("preauthkey/{id}/expire", "Have a key make no more nodes.", "Nothing")
            .by(post(keys::expire)),
        Route::delete("preauthkey/{id}", "Delete a pre-auth key.").by(delete(keys::delete)),
        Route::get("apikey", "All API keys, without what is secret.", "ApiKeys")
            .by(get(api_keys::list)),
        Route::post("apikey", "Make an API key; only this answer has it.", "ApiKey")
            .says("NewApiKey")
            .by(post(api_keys::create)),
        Route::post("apikey/{key}/expire", "End an API key, by number or prefix.", "ApiKey")
            .by(post(api_keys::expire)),
        Route::delete("apikey/{key}", "Delete an API key, by number or prefix.")
            .by(delete(api_keys::delete)),
    ]
}

fn of_nodes() -> Vec<Route> {
    vec![
        Route::get("node", "All nodes.", "Nodes")
            .with(&[("user", "Those of this user, by number or name.")])
            .by(get(nodes::list)),
        Route::get("node/{id}", "A node.", "Node").by(get(nodes::show)),
        Route::get("node/{id}/health", "What a node's client itself finds wrong.", "Warnings")
            .by(get(health::show)),
        Route::post("node/register", "Let a machine in that waits.", "Node")
            .with(&[("user", "Whose it is to be."), ("key", "What the machine shows.")])
            .by(post(nodes::register)),
        Route::post("node/backfillips", "Give addresses to nodes that lack one.", "Changes")
            .with(&[("confirmed", "`true`.")])
            .by(post(nodes::backfill)),
        Route::post("node/{id}/expire", "Have a node's key expire, now without a time.", "Node")
            .with(&[("expiry", "When, in RFC 3339."), ("disable", "`true`: never.")])
            .by(post(nodes::expire)),
        Route::post("node/{id}/rename/{name}", "Give a node another name.", "Node")
            .by(post(nodes::rename)),
        Route::post("node/{id}/tags", "Give a node tags instead of an owner.", "Node")
            .says("Tags")
            .by(post(nodes::tag)),
        Route::post(
            "node/{id}/approve_routes",
            "Let a node route these networks, and no others.",
            "Node",
        )
        .says("Routes")
        .by(post(nodes::approve)),
        Route::delete("node/{id}", "Delete a node.").by(delete(nodes::delete)),
    ]
}

fn of_the_policy() -> Vec<Route> {
    vec![
        Route::get("policy", "The policy in force.", "Policy").by(get(policy::show)),
        Route::put("policy", "Put a policy in force, if its tests pass.", "Policy")
            .says("NewPolicy")
            .by(put(policy::set)),
        Route::post("policy/check", "What a policy would change, if its tests pass.", "Policy")
            .says("NewPolicy")
            .by(post(policy::check)),
        Route::get("policy/history", "All policies that are kept, the newest first.", "Policies")
            .by(get(policy::history)),
        Route::get("policy/history/{id}", "One of them.", "Policy").by(get(policy::older)),
    ]
}

/// Method and path of every route.
pub fn listed() -> Vec<(Method, String)> {
    all()
        .into_iter()
        .map(|route| {
            let path = route.full_path();
            (route.method, path)
        })
        .collect()
}

/// What answers administrators.
pub fn router(server: Arc<Server>) -> Router {
    let routes = all()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(&route.full_path(), route.handler));
    routes
        .fallback(async || Trouble::NoSuchThing)
        .method_not_allowed_fallback(async || Trouble::NoSuchMethod)
        .layer(DefaultBodyLimit::max(LONGEST))
        .layer(from_fn_with_state(Arc::clone(&server), admit))
        .with_state(server)
}
