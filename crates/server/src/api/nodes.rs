//! Nodes.

use axum::Json;
use coordinator::{
    Admission, Refusal, State,
    object::{NodeId, RegisterMethod, UserId},
};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use super::{
    answer::{Answered, Trouble},
    desk::{Desk, Named, Said, With, time},
    shown,
};

/// A filter by the name or number of a user.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Of {
    #[serde(deserialize_with = "text")]
    pub user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub user: String,
    #[serde(alias = "auth_id")]
    pub key: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expiry {
    expiry: Option<String>,
    #[serde(alias = "disableExpiry", alias = "disable_expiry", deserialize_with = "truth")]
    disable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Confirmed {
    #[serde(deserialize_with = "truth")]
    confirmed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tags {
    tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    routes: Vec<IpNet>,
}

pub async fn list(desk: Desk, With(Of { user }): With<Of>) -> Answered {
    desk.read(|state| {
        let user = user.map(|name| Ok::<_, Refusal>(state.find_user(&name)?.id)).transpose()?;
        let is_theirs = |owner: Option<UserId>| user.is_none() || owner == user;
        let nodes = state.nodes().filter(|view| is_theirs(view.node.user));
        Ok(nodes.map(|view| shown::node(state, view)).collect())
    })
}

pub async fn show(desk: Desk, Named(id): Named<i64>) -> Answered {
    desk.read(|state| shown_node(state, NodeId(id)))
}

pub async fn register(desk: Desk, With(asked): With<Registration>) -> Answered {
    desk.run(format!("register a node of user {}", asked.user), move |state, now| {
        let user = state.find_user(&asked.user)?.id;
        let admission = Admission { user, method: RegisterMethod::Cli, expires: None };
        let id = state.admit(&asked.key, admission, now)?;
        shown_node(state, id)
    })
    .await
}

pub async fn expire(desk: Desk, Named(id): Named<i64>, With(asked): With<Expiry>) -> Answered {
    let at = asked.expiry.as_deref().map(time).transpose()?;
    let never = asked.disable;
    if never && at.is_some() {
        return Err(Trouble::BadRequest("both a time and no expiry are asked for".into()));
    }
    let when = match (never, at) {
        (true, _) => "never".to_owned(),
        (false, Some(at)) => format!("at {}", at.text()),
        (false, None) => "now".to_owned(),
    };
    desk.run(format!("have the key of node {id} expire {when}"), move |state, now| {
        let at = at.unwrap_or(now);
        state.set_expiry(NodeId(id), Some(at).filter(|_| !never), now)?;
        shown_node(state, NodeId(id))
    })
    .await
}

pub async fn rename(desk: Desk, Named((id, name)): Named<(i64, String)>) -> Answered {
    desk.run(format!("rename node {id} to {name}"), move |state, now| {
        state.rename_node(NodeId(id), &name, now)?;
        shown_node(state, NodeId(id))
    })
    .await
}

pub async fn tag(desk: Desk, Named(id): Named<i64>, Said(Tags { tags }): Said<Tags>) -> Answered {
    desk.run(format!("tag node {id}: {}", tags.join(" ")), move |state, now| {
        state.tag_node(NodeId(id), &tags, now)?;
        shown_node(state, NodeId(id))
    })
    .await
}

pub async fn approve(
    desk: Desk,
    Named(id): Named<i64>,
    Said(Routes { routes }): Said<Routes>,
) -> Answered {
    let texts: Vec<String> = routes.iter().map(ToString::to_string).collect();
    desk.run(format!("approve routes of node {id}: {}", texts.join(" ")), move |state, now| {
        state.approve_routes(NodeId(id), &routes, now)?;
        shown_node(state, NodeId(id))
    })
    .await
}

pub async fn delete(desk: Desk, Named(id): Named<i64>) -> Answered {
    desk.run(format!("delete node {id}"), move |state, _| Ok(json!(state.delete_node(NodeId(id))?)))
        .await
}

/// Gives addresses to nodes without one. It changes nothing: a new node has an IPv4 and an IPv6 address.
pub async fn backfill(_: Desk, With(asked): With<Confirmed>) -> Answered {
    match asked.confirmed {
        true => Ok(Json(json!({ "changes": [] }))),
        false => Err(Trouble::BadRequest("not confirmed: say `confirmed=true`".into())),
    }
}

fn shown_node(state: &State, id: NodeId) -> Result<Value, Refusal> {
    let view = state.node(id).ok_or(Refusal::NoNode(id))?;
    Ok(shown::node(state, view))
}

/// A string; an empty string means that the parameter is absent.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Some(String::deserialize(deserializer)?).filter(|text| !text.is_empty()))
}

/// A truth value as Go reads it (`strconv.ParseBool`).
fn truth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match &*String::deserialize(deserializer)? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(de::Error::custom(format!("{other:?} is neither true nor false"))),
    }
}
