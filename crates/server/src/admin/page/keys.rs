//! Page of pre-auth keys and API keys.

use askama::Template;
use axum::response::Response;
use coordinator::{
    State, Time,
    object::{ApiKey, PreAuthKey},
};

use super::{Frame, PageSession, render, timestamp::Timestamp};
use crate::clock::now;

#[derive(Template)]
#[template(path = "keys.html")]
struct Keys {
    frame: Frame,
    users: Vec<String>,
    keys: Vec<Key>,
    api_keys: Vec<Key>,
}

struct Key {
    id: i64,
    prefix: String,
    owner: String,
    tags: Vec<String>,
    kind: &'static str,
    made: Timestamp,
    expires: Timestamp,
    is_good: bool,
    why_not: &'static str,
}

pub(super) async fn list(session: PageSession) -> Response {
    let frame = session.frame("keys");
    let now = now();
    let page = session.network.read(|state| {
        let mut keys: Vec<Key> = state.keys().map(|key| pre_auth(state, key, now)).collect();
        let mut api_keys: Vec<Key> = state.api_keys().map(|key| of_api(key, now)).collect();
        keys.reverse();
        api_keys.reverse();
        let users = state.users().map(|user| user.name.clone()).collect();
        Keys { frame, users, keys, api_keys }
    });
    render(&page)
}

fn pre_auth(state: &State, key: &PreAuthKey, now: Time) -> Key {
    let owner = state.users().find(|user| Some(user.id) == key.user);
    let has_expired = key.expires.is_some_and(|at| at <= now);
    let is_used = key.used && !key.reusable;
    Key {
        id: key.id.0,
        prefix: format!("lrkey-auth-{}", key.prefix),
        owner: owner.map(|user| user.name.clone()).unwrap_or_default(),
        tags: key.tags.clone(),
        kind: match (key.reusable, key.ephemeral) {
            (true, true) => "reusable, ephemeral",
            (true, false) => "reusable",
            (false, true) => "once, ephemeral",
            (false, false) => "once",
        },
        made: Timestamp::of(key.created, now),
        expires: Timestamp::or(key.expires, "never", now),
        is_good: !has_expired && !is_used,
        why_not: if is_used { "used" } else { "expired" },
    }
}

fn of_api(key: &ApiKey, now: Time) -> Key {
    Key {
        id: key.id.0,
        prefix: format!("lrkey-api-{}", key.prefix),
        owner: String::new(),
        tags: Vec::new(),
        kind: "",
        made: Timestamp::of(key.created, now),
        expires: Timestamp::or(key.expires, "never", now),
        is_good: key.is_valid(now),
        why_not: "expired",
    }
}
