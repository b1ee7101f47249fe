//! Table of all routes. The router and `openapi.json` are built from it.

use axum::{
    Json, Router,
    extract::DefaultBodyLimit,
    http::Method,
    middleware::from_fn_with_state,
    routing::{delete, get, post, put},
};
use serde_json::Value;

use super::{
    LONGEST, admit::admit, answer::ApiError, api_keys, audit, headscale, health, keys, nodes,
    openapi::describe, policy, route::Route, ssh_logins, tka, users, why,
};
use crate::admin::state::AdminState;

/// All routes.
pub(super) fn all() -> Vec<Route> {
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
        Route::get("openapi.json", "This document.", "Document").by(get(document)),
    ]);
    routes
}

async fn document() -> Json<Value> {
    Json(describe(&all()))
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
pub fn router(state: AdminState) -> Router {
    let routes = all().into_iter().fold(Router::new(), |router, route| route.add_to(router));
    routes
        .fallback(async || ApiError::NoSuchThing)
        .method_not_allowed_fallback(async || ApiError::NoSuchMethod)
        .layer(DefaultBodyLimit::max(LONGEST))
        .layer(from_fn_with_state(state.clone(), admit))
        .with_state(state)
}
