//! Views of users, keys and nodes for administrators. Names of fields are headscale's, and times are
//! in RFC 3339.

use coordinator::{
    AuditHash, NodeView, State,
    object::{ApiKey, AuditEntry, PreAuthKey, RegisterMethod, User, UserId},
    secret,
};
use serde_json::{Value, json};

/// A user. `owner` is the owner of the network.
pub(super) fn user(user: &User, owner: Option<UserId>) -> Value {
    let (provider, identifier) = match &user.identity {
        Some(identity) => ("oidc", identity.joined()),
        None => ("", String::new()),
    };
    json!({
        "id": user.id, "name": user.name, "display_name": user.display_name, "email": user.email,
        "profile_pic_url": user.picture_url, "created_at": user.created.text(),
        "provider": provider, "provider_id": identifier, "groups": user.groups,
        "owner": Some(user.id) == owner,
    })
}

fn owner(state: &State, id: Option<UserId>) -> Value {
    let found = state.users().find(|user| Some(user.id) == id);
    found.map_or(Value::Null, |found| user(found, state.owner()))
}

/// A pre-auth key. The text is given only right after its creation.
pub(super) fn key(state: &State, key: &PreAuthKey, text: Option<&str>) -> Value {
    let shown = match text {
        Some(text) => text.to_owned(),
        None => secret::masked(&key.prefix),
    };
    json!({
        "id": key.id, "user": owner(state, key.user), "key": shown, "reusable": key.reusable,
        "ephemeral": key.ephemeral, "used": key.used,
        "expiration": key.expires.map(|at| at.text()), "created_at": key.created.text(),
        "acl_tags": key.tags,
    })
}

pub(super) fn node(state: &State, view: NodeView<'_>) -> Value {
    let node = view.node;
    let method = match node.method {
        RegisterMethod::AuthKey => "auth_key",
        RegisterMethod::Cli => "cli",
        RegisterMethod::Oidc => "oidc",
    };
    let routes: Vec<_> = node.routes().collect();
    json!({
        "id": node.id, "machine_key": node.machine, "node_key": node.key, "disco_key": node.disco,
        "ip_addresses": [node.v4.to_string(), node.v6.to_string()],
        "name": node.hostinfo.hostname, "given_name": node.name, "user": owner(state, node.user),
        "pre_auth_key": node.auth_key.and_then(|id| state.key(id)).map(|one| key(state, one, None)),
        "last_seen": node.last_seen.map(|at| at.text()), "expiry": node.expires.map(|at| at.text()),
        "created_at": node.created.text(), "register_method": method, "online": view.online,
        "ephemeral": node.ephemeral, "tags": node.tags, "approved_routes": node.approved,
        "available_routes": node.hostinfo.routable, "subnet_routes": routes,
        "primary_routes": view.node.primaries, "os": node.hostinfo.os,
        "client_version": node.hostinfo.program,
        "endpoints": node.endpoints, "home_derp": node.home_relay,
    })
}

/// An API key. The text is given only right after its creation.
pub(super) fn api_key(key: &ApiKey, text: Option<&str>) -> Value {
    json!({
        "id": key.id, "prefix": key.prefix, "key": text,
        "expiration": key.expires.map(|at| at.text()), "created_at": key.created.text(),
    })
}

pub(super) fn audit(entry: &AuditEntry) -> Value {
    json!({
        "id": entry.id, "at": entry.at.text(), "who": entry.who, "what": entry.what,
        "refused": entry.refused, "previous": entry.previous, "hash": AuditHash::of(entry),
    })
}
