//! Headscale's API at headscale's paths (`proto/headscale/v1/headscale.proto`, 0.26 to 0.29), for its
//! clients. Each route runs a command of the own API, and [`messages`] converts requests and answers.
//!
//! An unknown query parameter is refused: without it, the answer could contain more than the client wanted.

mod messages;

use axum::{
    Json,
    routing::{delete, get, post, put},
};
use coordinator::{Hostinfo, Refusal, RegisterRequest, object::ApiKey, secret};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::json;
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};

use self::messages::{
    API_KEY, Asked, Body, CHANGES, Fields, HEALTH, NODE, NOTHING, POLICY, PRE_AUTH_KEY, USER, many,
    one, whole,
};
use super::{
    HEADSCALES,
    answer::{Answered, Trouble},
    api_keys::{self, AskedApiKey},
    auth,
    desk::{Desk, Named, Said, With, random},
    health,
    keys::{self, AskedKey},
    nodes::{self, Confirmed, Expiry, Of, Registration, Routes, Tags},
    policy::{self, NewPolicy},
    routes::Route,
    users::{self, NewUser},
};

/// The routes.
pub fn routes() -> Vec<Route> {
    let all = [of_users(), of_keys(), of_nodes(), of_the_rest()].into_iter().flatten();
    all.map(|route| route.below(HEADSCALES).without_other_parameters()).collect()
}

fn of_users() -> Vec<Route> {
    vec![
        Route::get("user", "Headscale's ListUsers.", "HeadscaleUsers")
            .with(&[
                ("name", "That of this name."),
                ("email", "Those of this address."),
                ("id", "That of this number."),
            ])
            .by(get(list_users)),
        Route::post("user", "Headscale's CreateUser.", "HeadscaleOneUser")
            .says("HeadscaleNewUser")
            .by(post(create_user)),
        Route::post("user/{id}/rename/{name}", "Headscale's RenameUser.", "HeadscaleOneUser")
            .by(post(rename_user)),
        Route::delete("user/{id}", "Headscale's DeleteUser.").by(delete(delete_user)),
    ]
}

fn of_keys() -> Vec<Route> {
    vec![
        Route::get("preauthkey", "Headscale's ListPreAuthKeys.", "HeadscalePreAuthKeys")
            .with(&[("user", "Those of this user, by number or name.")])
            .by(get(list_keys)),
        Route::post("preauthkey", "Headscale's CreatePreAuthKey.", "HeadscaleOnePreAuthKey")
            .says("HeadscaleNewPreAuthKey")
            .by(post(create_key)),
        Route::post("preauthkey/expire", "Headscale's ExpirePreAuthKey.", "HeadscaleNothing")
            .says("HeadscaleWhichKey")
            .by(post(expire_key)),
        Route::delete("preauthkey", "Headscale's DeletePreAuthKey.")
            .with(&[("id", "The key's number.")])
            .by(delete(delete_key)),
        Route::get("apikey", "Headscale's ListApiKeys.", "HeadscaleApiKeys").by(get(list_api_keys)),
        Route::post("apikey", "Headscale's CreateApiKey.", "HeadscaleOneApiKey")
            .says("NewApiKey")
            .by(post(create_api_key)),
        Route::post("apikey/expire", "Headscale's ExpireApiKey.", "HeadscaleNothing")
            .says("HeadscaleWhichApiKey")
            .by(post(expire_api_key)),
        Route::delete("apikey/{prefix}", "Headscale's DeleteApiKey.")
            .with(&[("id", "The key's number.")])
            .by(delete(delete_api_key)),
    ]
}

fn of_nodes() -> Vec<Route> {
    vec![
        Route::get("node", "Headscale's ListNodes.", "HeadscaleNodes")
            .with(&[("user", "Those of this user, by name or number.")])
            .by(get(list_nodes)),
        Route::get("node/{id}", "Headscale's GetNode.", "HeadscaleOneNode").by(get(show_node)),
        Route::post("node/register", "Headscale's RegisterNode.", "HeadscaleOneNode")
            .with(&[("user", "Whose it is to be."), ("key", "What the machine shows.")])
            .by(post(register_node)),
        Route::post("node/backfillips", "Headscale's BackfillNodeIPs.", "HeadscaleChanges")
            .with(&[("confirmed", "`true`.")])
            .by(post(backfill)),
        Route::post("node/{id}/expire", "Headscale's ExpireNode.", "HeadscaleOneNode")
            .with(&[("expiry", "When, in RFC 3339."), ("disableExpiry", "`true`: never.")])
            .by(post(expire_node)),
        Route::post("node/{id}/rename/{name}", "Headscale's RenameNode.", "HeadscaleOneNode")
            .by(post(rename_node)),
        Route::post("node/{id}/tags", "Headscale's SetTags.", "HeadscaleOneNode")
            .says("Tags")
            .by(post(tag_node)),
        Route::post(
            "node/{id}/approve_routes",
            "Headscale's SetApprovedRoutes.",
            "HeadscaleOneNode",
        )
        .says("Routes")
        .by(post(approve_routes)),
        Route::delete("node/{id}", "Headscale's DeleteNode.").by(delete(delete_node)),
        Route::post("debug/node", "Headscale's DebugCreateNode.", "HeadscaleOneNode")
            .says("HeadscaleNewNode")
            .by(post(debug_node)),
    ]
}

fn of_the_rest() -> Vec<Route> {
    vec![
        Route::post("auth/register", "Headscale's AuthRegister.", "HeadscaleOneNode")
            .says("HeadscaleRegistration")
            .by(post(auth_register)),
        Route::post("auth/approve", "Headscale's AuthApprove.", "HeadscaleNothing")
            .says("HeadscaleLogin")
            .by(post(approve)),
        Route::post("auth/reject", "Headscale's AuthReject.", "HeadscaleNothing")
            .says("HeadscaleLogin")
            .by(post(reject)),
        Route::get("policy", "Headscale's GetPolicy.", "HeadscalePolicy").by(get(show_policy)),
        Route::put("policy", "Headscale's SetPolicy.", "HeadscalePolicy")
            .says("NewPolicy")
            .by(put(set_policy)),
        Route::post("policy/check", "Headscale's CheckPolicy.", "HeadscaleNothing")
            .says("NewPolicy")
            .by(post(check_policy)),
        Route::get("health", "Headscale's Health.", "HeadscaleHealth").by(get(health)),
    ]
}

async fn list_users(desk: Desk, which: With<users::Which>) -> Answered {
    many("users", USER, users::list(desk, which).await)
}

async fn create_user(desk: Desk, Body(new): Body<NewUser>) -> Answered {
    one("user", USER, users::create(desk, Said(new)).await)
}

async fn rename_user(desk: Desk, Named((id, name)): Named<(u64, String)>) -> Answered {
    one("user", USER, users::rename(desk, Named((id.to_string(), name))).await)
}

async fn delete_user(desk: Desk, Named(id): Named<u64>) -> Answered {
    whole(NOTHING, users::delete(desk, Named(id.to_string())).await)
}

async fn list_keys(desk: Desk, of: With<Of>) -> Answered {
    many("preAuthKeys", PRE_AUTH_KEY, keys::list(desk, of).await)
}

async fn create_key(desk: Desk, Body(new): Body<AskedKey>) -> Answered {
    one("preAuthKey", PRE_AUTH_KEY, keys::create(desk, Said(new)).await)
}

/// A key, by number or, as in headscale up to 0.27, by its text.
#[derive(Deserialize)]
struct WhichKey {
    id: Option<String>,
    key: Option<String>,
}

impl Asked for WhichKey {
    const FIELDS: Fields = &["id", "key"];
}

async fn expire_key(desk: Desk, Body(WhichKey { id, key }): Body<WhichKey>) -> Answered {
    let id = match (id, key) {
        (Some(id), _) => number(&id)?,
        (None, Some(text)) => {
            let prefix = secret::prefix_of(&text);
            let find = |state: &coordinator::State| {
                state.keys().find(|key| key.prefix == prefix).map(|key| key.id.0)
            };
            // No key has the number 0.
            desk.server.network.read(find).unwrap_or_default()
        }
        (None, None) => return Err(Trouble::BadRequest("must provide id".into())),
    };
    whole(NOTHING, keys::expire(desk, Named(id)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ById {
    id: u64,
}

async fn delete_key(desk: Desk, With(ById { id }): With<ById>) -> Answered {
    whole(NOTHING, keys::delete(desk, Named(signed(id))).await)
}

async fn list_api_keys(desk: Desk) -> Answered {
    many("apiKeys", API_KEY, api_keys::list(desk).await)
}

async fn create_api_key(desk: Desk, Body(new): Body<AskedApiKey>) -> Answered {
    let Json(made) = api_keys::create(desk, Said(new)).await?;
    Ok(Json(json!({ "apiKey": made["key"] })))
}

/// An API key, by number or by prefix.
#[derive(Deserialize)]
struct WhichApiKey {
    id: Option<String>,
    prefix: Option<String>,
}

impl Asked for WhichApiKey {
    const FIELDS: Fields = &["id", "prefix"];
}

impl WhichApiKey {
    /// The number of the key. A prefix of digits is a prefix.
    fn find(&self, desk: &Desk) -> Result<String, Trouble> {
        let bad = |why: &str| Err(Trouble::BadRequest(why.to_owned()));
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
        let network = &desk.server.network;
        let found = network.read(|state| state.api_keys().find(is_it).map(|key| key.id));
        let named = || prefix.map_or_else(|| id.unwrap_or_default().to_string(), str::to_owned);
        Ok(found.ok_or_else(|| Refusal::NoApiKey(named()))?.to_string())
    }
}

async fn expire_api_key(desk: Desk, Body(which): Body<WhichApiKey>) -> Answered {
    let id = which.find(&desk)?;
    whole(NOTHING, api_keys::expire(desk, Named(id)).await)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MaybeId {
    id: Option<u64>,
}

async fn delete_api_key(
    desk: Desk,
    Named(prefix): Named<String>,
    With(MaybeId { id }): With<MaybeId>,
) -> Answered {
    let which = WhichApiKey { id: id.map(|id| id.to_string()), prefix: Some(prefix) };
    let id = which.find(&desk)?;
    whole(NOTHING, api_keys::delete(desk, Named(id)).await)
}

async fn list_nodes(desk: Desk, of: With<Of>) -> Answered {
    many("nodes", NODE, nodes::list(desk, of).await)
}

async fn show_node(desk: Desk, Named(id): Named<u64>) -> Answered {
    one("node", NODE, nodes::show(desk, Named(signed(id))).await)
}

async fn register_node(desk: Desk, asked: With<Registration>) -> Answered {
    one("node", NODE, nodes::register(desk, asked).await)
}

async fn auth_register(desk: Desk, Body(asked): Body<Registration>) -> Answered {
    one("node", NODE, nodes::register(desk, With(asked)).await)
}

async fn backfill(desk: Desk, asked: With<Confirmed>) -> Answered {
    whole(CHANGES, nodes::backfill(desk, asked).await)
}

async fn expire_node(desk: Desk, Named(id): Named<u64>, asked: With<Expiry>) -> Answered {
    one("node", NODE, nodes::expire(desk, Named(signed(id)), asked).await)
}

async fn rename_node(desk: Desk, Named((id, name)): Named<(u64, String)>) -> Answered {
    one("node", NODE, nodes::rename(desk, Named((signed(id), name))).await)
}

async fn tag_node(desk: Desk, Named(id): Named<u64>, Body(tags): Body<Tags>) -> Answered {
    one("node", NODE, nodes::tag(desk, Named(signed(id)), Said(tags)).await)
}

async fn approve_routes(desk: Desk, Named(id): Named<u64>, Body(nets): Body<Routes>) -> Answered {
    one("node", NODE, nodes::approve(desk, Named(signed(id)), Said(nets)).await)
}

async fn delete_node(desk: Desk, Named(id): Named<u64>) -> Answered {
    whole(NOTHING, nodes::delete(desk, Named(signed(id))).await)
}

/// A registration without a machine, for tests.
#[derive(Deserialize)]
struct NewNode {
    user: String,
    key: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    routes: Vec<IpNet>,
}

impl Asked for NewNode {
    const FIELDS: Fields = &["user", "key", "name", "routes"];
}

async fn debug_node(desk: Desk, Body(new): Body<NewNode>) -> Answered {
    let (machine, node_key) = (MachinePublic(random()?), NodePublic(random()?));
    let what = format!("make a registration for tests, of user {}", new.user);
    let made = desk.run(what, move |state, now| {
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
            "user": super::shown::user(&user, state.owner()), "last_seen": coordinator::ZERO_TIME,
            "expiry": coordinator::ZERO_TIME, "created_at": coordinator::ZERO_TIME, "given_name": "",
            "online": false, "approved_routes": [], "available_routes": routes, "tags": [],
        }))
    });
    one("node", NODE, made.await)
}

async fn approve(desk: Desk, Body(login): Body<auth::Which>) -> Answered {
    whole(NOTHING, auth::approve(desk, Said(login)).await)
}

async fn reject(desk: Desk, Body(login): Body<auth::Which>) -> Answered {
    whole(NOTHING, auth::reject(desk, Said(login)).await)
}

async fn show_policy(desk: Desk) -> Answered {
    whole(POLICY, policy::show(desk).await)
}

async fn set_policy(desk: Desk, Body(new): Body<NewPolicy>) -> Answered {
    match policy::set(desk, Said(new)).await {
        // Clients recognize a syntax error by these words.
        Err(Trouble::BadRequest(why)) => {
            let why = format!("setting policy: parsing policy from bytes: {why}");
            Err(Trouble::BadRequest(why))
        }
        answered => whole(POLICY, answered),
    }
}

async fn check_policy(desk: Desk, Body(new): Body<NewPolicy>) -> Answered {
    whole(NOTHING, policy::check(desk, Said(new)).await)
}

async fn health(desk: Desk) -> Answered {
    whole(HEALTH, health::of_server(desk).await)
}

impl Asked for auth::Which {
    const FIELDS: Fields = &["auth_id"];
}

fn number(text: &str) -> Result<i64, Trouble> {
    let bad = |_| Trouble::BadRequest(format!("invalid value for uint64 field id: {text:?}"));
    text.parse().map(signed).map_err(bad)
}

/// A number in the type that objects have. No object has a larger number.
fn signed(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
