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
    answer::{ApiError, ApiResult},
    extract::{Admin, JsonBody, PathParams, QueryParams, time},
    views,
};

/// A filter by the name or number of a user.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UserFilter {
    #[serde(deserialize_with = "text")]
    pub user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registration {
    pub user: String,
    #[serde(alias = "auth_id")]
    pub key: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Expiry {
    expiry: Option<String>,
    #[serde(alias = "disableExpiry", alias = "disable_expiry", deserialize_with = "truth")]
    disable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Confirmation {
    #[serde(deserialize_with = "truth")]
    confirmed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tags {
    tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Routes {
    routes: Vec<IpNet>,
}

pub(super) async fn list(
    admin: Admin,
    QueryParams(UserFilter { user }): QueryParams<UserFilter>,
) -> ApiResult {
    admin.read(|state| {
        let user = user.map(|name| Ok::<_, Refusal>(state.find_user(&name)?.id)).transpose()?;
        let is_theirs = |owner: Option<UserId>| user.is_none() || owner == user;
        let nodes = state.nodes().filter(|view| is_theirs(view.node.user));
        Ok(nodes.map(|view| views::node(state, view)).collect())
    })
}

pub(super) async fn show(admin: Admin, PathParams(id): PathParams<i64>) -> ApiResult {
    admin.read(|state| node_view(state, NodeId(id)))
}

pub(super) async fn register(
    admin: Admin,
    QueryParams(request): QueryParams<Registration>,
) -> ApiResult {
    admin
        .run(format!("register a node of user {}", request.user), move |state, now| {
            let user = state.find_user(&request.user)?.id;
            let admission = Admission { user, method: RegisterMethod::Cli, expires: None };
            let id = state.admit(&request.key, admission, now)?;
            node_view(state, id)
        })
        .await
}

pub(super) async fn expire(
    admin: Admin,
    PathParams(id): PathParams<i64>,
    QueryParams(request): QueryParams<Expiry>,
) -> ApiResult {
    let at = request.expiry.as_deref().map(time).transpose()?;
    let never = request.disable;
    if never && at.is_some() {
        return Err(ApiError::BadRequest("`expiry` and `disable` exclude each other".into()));
    }
    let when = match (never, at) {
        (true, _) => "never".to_owned(),
        (false, Some(at)) => format!("at {}", at.text()),
        (false, None) => "now".to_owned(),
    };
    admin
        .run(format!("expire the key of node {id} {when}"), move |state, now| {
            let at = at.unwrap_or(now);
            state.set_expiry(NodeId(id), Some(at).filter(|_| !never), now)?;
            node_view(state, NodeId(id))
        })
        .await
}

pub(super) async fn rename(
    admin: Admin,
    PathParams((id, name)): PathParams<(i64, String)>,
) -> ApiResult {
    admin
        .run(format!("rename node {id} to {name}"), move |state, now| {
            state.rename_node(NodeId(id), &name, now)?;
            node_view(state, NodeId(id))
        })
        .await
}

pub(super) async fn tag(
    admin: Admin,
    PathParams(id): PathParams<i64>,
    JsonBody(Tags { tags }): JsonBody<Tags>,
) -> ApiResult {
    admin
        .run(format!("tag node {id}: {}", tags.join(" ")), move |state, now| {
            state.tag_node(NodeId(id), &tags, now)?;
            node_view(state, NodeId(id))
        })
        .await
}

pub(super) async fn approve(
    admin: Admin,
    PathParams(id): PathParams<i64>,
    JsonBody(Routes { routes }): JsonBody<Routes>,
) -> ApiResult {
    let texts: Vec<String> = routes.iter().map(ToString::to_string).collect();
    admin
        .run(format!("approve routes of node {id}: {}", texts.join(" ")), move |state, now| {
            state.approve_routes(NodeId(id), &routes, now)?;
            node_view(state, NodeId(id))
        })
        .await
}

pub(super) async fn delete(admin: Admin, PathParams(id): PathParams<i64>) -> ApiResult {
    admin
        .run(format!("delete node {id}"), move |state, _| Ok(json!(state.delete_node(NodeId(id))?)))
        .await
}

/// Gives addresses to nodes that lack one. It changes nothing, because every node has an IPv4 and an
/// IPv6 address.
pub(super) async fn backfill(
    _: Admin,
    QueryParams(request): QueryParams<Confirmation>,
) -> ApiResult {
    match request.confirmed {
        true => Ok(Json(json!({ "changes": [] }))),
        false => Err(ApiError::BadRequest("not confirmed: set `confirmed=true`".into())),
    }
}

fn node_view(state: &State, id: NodeId) -> Result<Value, Refusal> {
    let view = state.node(id).ok_or(Refusal::NoNode(id))?;
    Ok(views::node(state, view))
}

/// A string. An empty string means that the parameter is absent.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Some(String::deserialize(deserializer)?).filter(|text| !text.is_empty()))
}

/// A boolean as Go parses it (`strconv.ParseBool`).
fn truth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match &*String::deserialize(deserializer)? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(de::Error::custom(format!("{other:?} is neither true nor false"))),
    }
}
