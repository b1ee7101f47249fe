//! Headscale's API at headscale's paths (`proto/headscale/v1/headscale.proto`, 0.26 to 0.29), for
//! its clients. Each route runs a command of linerate's own API, and [`messages`] converts requests
//! and answers.
//!
//! An unknown query parameter is refused: if it were ignored, the answer could contain more than the
//! client wanted.

mod messages;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    routing::{delete, get, post, put},
};
use coordinator::{Hostinfo, Refusal, RegisterRequest, object::ApiKey, secret};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::json;
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};

use self::messages::{
    API_KEY, Body, CHANGES, Fields, HEALTH, NODE, NOTHING, POLICY, PRE_AUTH_KEY, RequestBody, USER,
    many, one, whole,
};
use super::{
    HEADSCALE_ROOT,
    answer::{ApiError, ApiResult},
    api_keys::{self, NewApiKey},
    extract::{Admin, JsonBody, PathParams, QueryParams, random},
    health,
    keys::{self, NewPreAuthKey},
    nodes::{self, Confirmation, Expiry, Registration, Routes, Tags, UserFilter},
    policy::{self, NewPolicy},
    route::Route,
    ssh_logins,
    users::{self, NewUser},
};
use crate::network::health::Health;

/// All routes of headscale's API.
pub(super) fn routes() -> Vec<Route> {
    let all = [of_users(), of_keys(), of_nodes(), of_the_rest()].into_iter().flatten();
    all.map(|route| route.below(HEADSCALE_ROOT).without_other_parameters()).collect()
}

fn of_users() -> Vec<Route> {
    vec![
        Route::get("user", "Headscale's ListUsers.", "HeadscaleUsers")
            .with(&[
                ("name", "Only the user with this name."),
                ("email", "Only users with this mail address."),
                ("id", "Only the user with this ID."),
            ])
            .by(get(list_users)),
        Route::post("user", "Headscale's CreateUser.", "HeadscaleOneUser")
            .takes("HeadscaleNewUser")
            .by(post(create_user)),
        Route::post("user/{id}/rename/{name}", "Headscale's RenameUser.", "HeadscaleOneUser")
            .by(post(rename_user)),
        Route::delete("user/{id}", "Headscale's DeleteUser.").by(delete(delete_user)),
    ]
}

fn of_keys() -> Vec<Route> {
    vec![
        Route::get("preauthkey", "Headscale's ListPreAuthKeys.", "HeadscalePreAuthKeys")
            .with(&[("user", "Only keys of this user, by ID or name.")])
            .by(get(list_keys)),
        Route::post("preauthkey", "Headscale's CreatePreAuthKey.", "HeadscaleOnePreAuthKey")
            .takes("HeadscaleNewPreAuthKey")
            .by(post(create_key)),
        Route::post("preauthkey/expire", "Headscale's ExpirePreAuthKey.", "HeadscaleNothing")
            .takes("HeadscaleWhichKey")
            .by(post(expire_key)),
        Route::delete("preauthkey", "Headscale's DeletePreAuthKey.")
            .with(&[("id", "The key's ID.")])
            .by(delete(delete_key)),
        Route::get("apikey", "Headscale's ListApiKeys.", "HeadscaleApiKeys").by(get(list_api_keys)),
        Route::post("apikey", "Headscale's CreateApiKey.", "HeadscaleOneApiKey")
            .takes("NewApiKey")
            .by(post(create_api_key)),
        Route::post("apikey/expire", "Headscale's ExpireApiKey.", "HeadscaleNothing")
            .takes("HeadscaleWhichApiKey")
            .by(post(expire_api_key)),
        Route::delete("apikey/{prefix}", "Headscale's DeleteApiKey.")
            .with(&[("id", "The key's ID.")])
            .by(delete(delete_api_key)),
    ]
}

fn of_nodes() -> Vec<Route> {
    vec![
        Route::get("node", "Headscale's ListNodes.", "HeadscaleNodes")
            .with(&[("user", "Only nodes of this user, by name or ID.")])
            .by(get(list_nodes)),
        Route::get("node/{id}", "Headscale's GetNode.", "HeadscaleOneNode").by(get(show_node)),
        Route::post("node/register", "Headscale's RegisterNode.", "HeadscaleOneNode")
            .with(&[("user", "The owner of the node."), ("key", "The key in the machine's link.")])
            .by(post(register_node)),
        Route::post("node/backfillips", "Headscale's BackfillNodeIPs.", "HeadscaleChanges")
            .with(&[("confirmed", "Must be `true`.")])
            .by(post(backfill)),
        Route::post("node/{id}/expire", "Headscale's ExpireNode.", "HeadscaleOneNode")
            .with(&[
                ("expiry", "The time, in RFC 3339."),
                ("disableExpiry", "`true`: the key never expires."),
            ])
            .by(post(expire_node)),
        Route::post("node/{id}/rename/{name}", "Headscale's RenameNode.", "HeadscaleOneNode")
            .by(post(rename_node)),
        Route::post("node/{id}/tags", "Headscale's SetTags.", "HeadscaleOneNode")
            .takes("Tags")
            .by(post(tag_node)),
        Route::post(
            "node/{id}/approve_routes",
            "Headscale's SetApprovedRoutes.",
            "HeadscaleOneNode",
        )
        .takes("Routes")
        .by(post(approve_routes)),
        Route::delete("node/{id}", "Headscale's DeleteNode.").by(delete(delete_node)),
        Route::post("debug/node", "Headscale's DebugCreateNode.", "HeadscaleOneNode")
            .takes("HeadscaleNewNode")
            .by(post(debug_node)),
    ]
}

fn of_the_rest() -> Vec<Route> {
    vec![
        Route::post("auth/register", "Headscale's AuthRegister.", "HeadscaleOneNode")
            .takes("HeadscaleRegistration")
            .by(post(auth_register)),
        Route::post("auth/approve", "Headscale's AuthApprove.", "HeadscaleNothing")
            .takes("HeadscaleLogin")
            .by(post(approve)),
        Route::post("auth/reject", "Headscale's AuthReject.", "HeadscaleNothing")
            .takes("HeadscaleLogin")
            .by(post(reject)),
        Route::get("policy", "Headscale's GetPolicy.", "HeadscalePolicy").by(get(show_policy)),
        Route::put("policy", "Headscale's SetPolicy.", "HeadscalePolicy")
            .takes("NewPolicy")
            .by(put(set_policy)),
        Route::post("policy/check", "Headscale's CheckPolicy.", "HeadscaleNothing")
            .takes("NewPolicy")
            .by(post(check_policy)),
        Route::get("health", "Headscale's Health.", "HeadscaleHealth").by(get(health)),
    ]
}

async fn list_users(admin: Admin, which: QueryParams<users::UserQuery>) -> ApiResult {
    many("users", USER, users::list(admin, which).await)
}

async fn create_user(admin: Admin, Body(new): Body<NewUser>) -> ApiResult {
    one("user", USER, users::create(admin, JsonBody(new)).await)
}

async fn rename_user(admin: Admin, PathParams((id, name)): PathParams<(u64, String)>) -> ApiResult {
    one("user", USER, users::rename(admin, PathParams((id.to_string(), name))).await)
}

async fn delete_user(admin: Admin, PathParams(id): PathParams<u64>) -> ApiResult {
    whole(NOTHING, users::delete(admin, PathParams(id.to_string())).await)
}

async fn list_keys(admin: Admin, of: QueryParams<UserFilter>) -> ApiResult {
    many("preAuthKeys", PRE_AUTH_KEY, keys::list(admin, of).await)
}

async fn create_key(admin: Admin, Body(new): Body<NewPreAuthKey>) -> ApiResult {
    one("preAuthKey", PRE_AUTH_KEY, keys::create(admin, JsonBody(new)).await)
}

/// A key, by its ID or, as in headscale up to 0.27, by its text.
#[derive(Deserialize)]
struct PreAuthKeySelector {
    id: Option<String>,
    key: Option<String>,
}

impl RequestBody for PreAuthKeySelector {
    const FIELDS: Fields = &["id", "key"];
}

async fn expire_key(
    admin: Admin,
    Body(PreAuthKeySelector { id, key }): Body<PreAuthKeySelector>,
) -> ApiResult {
    let id = match (id, key) {
        (Some(id), _) => number(&id)?,
        (None, Some(text)) => {
            let prefix = secret::prefix_of(&text);
            let find = |state: &coordinator::State| {
                state.keys().find(|key| key.prefix == prefix).map(|key| key.id.0)
            };
            // No key has the ID 0.
            admin.network.read(find).unwrap_or_default()
        }
        (None, None) => return Err(ApiError::BadRequest("must provide id".into())),
    };
    whole(NOTHING, keys::expire(admin, PathParams(id)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdParam {
    id: u64,
}

async fn delete_key(admin: Admin, QueryParams(IdParam { id }): QueryParams<IdParam>) -> ApiResult {
    whole(NOTHING, keys::delete(admin, PathParams(signed(id))).await)
}

async fn list_api_keys(admin: Admin) -> ApiResult {
    many("apiKeys", API_KEY, api_keys::list(admin).await)
}

async fn create_api_key(admin: Admin, Body(new): Body<NewApiKey>) -> ApiResult {
    let Json(made) = api_keys::create(admin, JsonBody(new)).await?;
    Ok(Json(json!({ "apiKey": made["key"] })))
}

/// Selects an API key by ID or by prefix.
#[derive(Deserialize)]
struct ApiKeySelector {
    id: Option<String>,
    prefix: Option<String>,
}

impl RequestBody for ApiKeySelector {
    const FIELDS: Fields = &["id", "prefix"];
}

impl ApiKeySelector {
    /// The ID of the key. A prefix of digits is not an ID.
    fn find(&self, admin: &Admin) -> Result<String, ApiError> {
        let bad = |why: &str| Err(ApiError::BadRequest(why.to_owned()));
        let id = self.id.as_deref().map(number).transpose()?.filter(|id| *id != 0);
        let prefix = self.prefix.as_deref().filter(|prefix| !prefix.is_empty());
        let is_it = |key: &&ApiKey| match (id, prefix) {
            (Some(id), _) => key.id.0 == id,
            (None, text) => text.is_some_and(|text| key.prefix == secret::prefix_of_api(text)),
        };
        match (id, prefix) {
            (Some(_), Some(_)) => return bad("provide either id or prefix, not both"),
            (None, None) => return bad("must provide id or prefix"),
            _ => {}
        }
        let network = &admin.network;
        let found = network.read(|state| state.api_keys().find(is_it).map(|key| key.id));
        let named = || prefix.map_or_else(|| id.unwrap_or_default().to_string(), str::to_owned);
        Ok(found.ok_or_else(|| Refusal::NoApiKey(named()))?.to_string())
    }
}

async fn expire_api_key(admin: Admin, Body(which): Body<ApiKeySelector>) -> ApiResult {
    let id = which.find(&admin)?;
    whole(NOTHING, api_keys::expire(admin, PathParams(id)).await)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OptionalIdParam {
    id: Option<u64>,
}

async fn delete_api_key(
    admin: Admin,
    PathParams(prefix): PathParams<String>,
    QueryParams(OptionalIdParam { id }): QueryParams<OptionalIdParam>,
) -> ApiResult {
    let which = ApiKeySelector { id: id.map(|id| id.to_string()), prefix: Some(prefix) };
    let id = which.find(&admin)?;
    whole(NOTHING, api_keys::delete(admin, PathParams(id)).await)
}

async fn list_nodes(admin: Admin, of: QueryParams<UserFilter>) -> ApiResult {
    many("nodes", NODE, nodes::list(admin, of).await)
}

async fn show_node(admin: Admin, PathParams(id): PathParams<u64>) -> ApiResult {
    one("node", NODE, nodes::show(admin, PathParams(signed(id))).await)
}

async fn register_node(admin: Admin, query: QueryParams<Registration>) -> ApiResult {
    one("node", NODE, nodes::register(admin, query).await)
}

async fn auth_register(admin: Admin, Body(body): Body<Registration>) -> ApiResult {
    one("node", NODE, nodes::register(admin, QueryParams(body)).await)
}

async fn backfill(admin: Admin, query: QueryParams<Confirmation>) -> ApiResult {
    whole(CHANGES, nodes::backfill(admin, query).await)
}

async fn expire_node(
    admin: Admin,
    PathParams(id): PathParams<u64>,
    query: QueryParams<Expiry>,
) -> ApiResult {
    one("node", NODE, nodes::expire(admin, PathParams(signed(id)), query).await)
}

async fn rename_node(admin: Admin, PathParams((id, name)): PathParams<(u64, String)>) -> ApiResult {
    one("node", NODE, nodes::rename(admin, PathParams((signed(id), name))).await)
}

async fn tag_node(
    admin: Admin,
    PathParams(id): PathParams<u64>,
    Body(tags): Body<Tags>,
) -> ApiResult {
    one("node", NODE, nodes::tag(admin, PathParams(signed(id)), JsonBody(tags)).await)
}

async fn approve_routes(
    admin: Admin,
    PathParams(id): PathParams<u64>,
    Body(nets): Body<Routes>,
) -> ApiResult {
    one("node", NODE, nodes::approve(admin, PathParams(signed(id)), JsonBody(nets)).await)
}

async fn delete_node(admin: Admin, PathParams(id): PathParams<u64>) -> ApiResult {
    whole(NOTHING, nodes::delete(admin, PathParams(signed(id))).await)
}

/// A registration for tests, without a machine.
#[derive(Deserialize)]
struct NewNode {
    user: String,
    key: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    routes: Vec<IpNet>,
}

impl RequestBody for NewNode {
    const FIELDS: Fields = &["user", "key", "name", "routes"];
}

async fn debug_node(admin: Admin, Body(new): Body<NewNode>) -> ApiResult {
    let (machine, node_key) = (MachinePublic(random()?), NodePublic(random()?));
    let what = format!("create a test registration for user {}", new.user);
    let made = admin.run(what, move |state, now| {
        let NewNode { user, key, name, routes } = &new;
        let user = state.find_user(user)?.clone();
        let hostinfo = Hostinfo {
            hostname: name.clone(),
            os: "TestOS".into(),
            routable: routes.clone(),
            ..Hostinfo::default()
        };
        let mut request = RegisterRequest::default();
        (request.node_key, request.hostinfo) = (node_key, hostinfo);
        state.add_registration(key, machine, request, now)?;
        Ok(json!({
            "id": 0, "machine_key": machine, "node_key": node_key,
            "disco_key": DiscoPublic::default(), "ip_addresses": [], "name": name,
            "user": super::views::user(&user, state.owner()), "last_seen": coordinator::ZERO_TIME,
            "expiry": coordinator::ZERO_TIME, "created_at": coordinator::ZERO_TIME, "given_name": "",
            "online": false, "approved_routes": [], "available_routes": routes, "tags": [],
        }))
    });
    one("node", NODE, made.await)
}

async fn approve(admin: Admin, Body(login): Body<ssh_logins::LoginId>) -> ApiResult {
    whole(NOTHING, ssh_logins::approve(admin, JsonBody(login)).await)
}

async fn reject(admin: Admin, Body(login): Body<ssh_logins::LoginId>) -> ApiResult {
    whole(NOTHING, ssh_logins::reject(admin, JsonBody(login)).await)
}

async fn show_policy(admin: Admin) -> ApiResult {
    whole(POLICY, policy::show(admin).await)
}

async fn set_policy(admin: Admin, Body(new): Body<NewPolicy>) -> ApiResult {
    match policy::set(admin, JsonBody(new)).await {
        // Clients recognize a syntax error by these words.
        Err(ApiError::BadRequest(why)) => {
            let why = format!("setting policy: parsing policy from bytes: {why}");
            Err(ApiError::BadRequest(why))
        }
        result => whole(POLICY, result),
    }
}

async fn check_policy(admin: Admin, Body(new): Body<NewPolicy>) -> ApiResult {
    whole(NOTHING, policy::check(admin, JsonBody(new)).await)
}

async fn health(health: State<Arc<Health>>, admin: Admin) -> ApiResult {
    whole(HEALTH, health::of_server(health, admin).await)
}

impl RequestBody for ssh_logins::LoginId {
    const FIELDS: Fields = &["auth_id"];
}

fn number(text: &str) -> Result<i64, ApiError> {
    let bad = |_| ApiError::BadRequest(format!("invalid value for uint64 field id: {text:?}"));
    text.parse().map(signed).map_err(bad)
}

/// Converts an ID to the type that objects have. No object has a larger ID.
fn signed(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
