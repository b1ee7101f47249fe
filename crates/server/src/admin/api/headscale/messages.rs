//! Messages of headscale's API in the JSON of its gateway (protobuf's JSON mapping): names in camel
//! case, 64-bit integers as strings, and every field present. A message is described by the names of
//! its fields in linerate's own API.

use axum::{
    Json,
    extract::{FromRequest, Request},
};
use coordinator::ZERO_TIME;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::admin::api::{
    answer::{ApiError, ApiResult},
    api_keys::NewApiKey,
    extract::body,
    keys::NewPreAuthKey,
    nodes::{Registration, Routes, Tags},
    policy::NewPolicy,
    users::NewUser,
};

pub(super) type Fields = &'static [&'static str];

pub(super) const USER: Fields = &[
    "id",
    "name",
    "created_at",
    "display_name",
    "email",
    "provider_id",
    "provider",
    "profile_pic_url",
];
pub(super) const PRE_AUTH_KEY: Fields =
    &["user", "id", "key", "reusable", "ephemeral", "used", "expiration", "created_at", "acl_tags"];
pub(super) const NODE: Fields = &[
    "id",
    "machine_key",
    "node_key",
    "disco_key",
    "ip_addresses",
    "name",
    "user",
    "last_seen",
    "expiry",
    "pre_auth_key",
    "created_at",
    "register_method",
    "given_name",
    "online",
    "approved_routes",
    "available_routes",
    "subnet_routes",
    "tags",
];
pub(super) const API_KEY: Fields = &["id", "prefix", "expiration", "created_at", "last_seen"];
pub(super) const POLICY: Fields = &["policy", "updated_at"];
pub(super) const HEALTH: Fields = &["database_connectivity"];
pub(super) const CHANGES: Fields = &["changes"];
pub(super) const NOTHING: Fields = &[];

/// The owner of all tagged nodes (headscale `types.TaggedDevices`).
fn tagged_devices() -> Value {
    json!({
        "id": 2_147_455_555_u32, "name": "tagged-devices", "created_at": ZERO_TIME,
        "display_name": "Tagged Devices", "email": "", "provider_id": "", "provider": "",
        "profile_pic_url": "",
    })
}

/// Converts an answer of linerate's own API to a message.
pub(super) fn message(own: &Value, fields: Fields) -> Value {
    if own.is_null() {
        return Value::Null;
    }
    let field = |name: &&str| (camel(name), field(own, name));
    fields.iter().map(field).collect::<Map<_, _>>().into()
}

fn field(own: &Value, name: &str) -> Value {
    let value = &own[name];
    match name {
        "id" => json!(value.to_string()),
        "user" if own["tags"].as_array().is_some_and(|tags| !tags.is_empty()) => {
            message(&tagged_devices(), USER)
        }
        "user" => message(value, USER),
        "pre_auth_key" => message(value, PRE_AUTH_KEY),
        "prefix" => json!(coordinator::secret::masked_api(value.as_str().unwrap_or_default())),
        "register_method" => {
            let method = value.as_str().unwrap_or("unspecified").to_uppercase();
            json!(format!("REGISTER_METHOD_{method}"))
        }
        // The networks for which the node is the primary router, and its exit routes.
        "subnet_routes" => {
            let is_exit = |net: &&Value| net.as_str().is_some_and(|net| net.ends_with("/0"));
            let exits = value.as_array().into_iter().flatten().filter(is_exit);
            own["primary_routes"].as_array().into_iter().flatten().chain(exits).cloned().collect()
        }
        _ => value.clone(),
    }
}

/// Converts an answer to a message.
pub(super) fn whole(fields: Fields, result: ApiResult) -> ApiResult {
    let Json(own) = result?;
    Ok(Json(match fields {
        [] => json!({}),
        fields => message(&own, fields),
    }))
}

/// Converts an answer to an object with one message under this name.
pub(super) fn one(name: &str, fields: Fields, result: ApiResult) -> ApiResult {
    let Json(own) = result?;
    Ok(Json(json!({ name: message(&own, fields) })))
}

/// Converts an answer to an object with a list of messages under this name.
pub(super) fn many(name: &str, fields: Fields, result: ApiResult) -> ApiResult {
    let Json(own) = result?;
    let all = own.as_array().into_iter().flatten().map(|own| message(own, fields));
    Ok(Json(json!({ name: all.collect::<Vec<_>>() })))
}

/// The body of a request to headscale's API.
pub(super) trait RequestBody: DeserializeOwned {
    /// The fields, by their names in linerate's own API.
    const FIELDS: Fields;
    /// Fields that are empty lists if they are absent.
    const LISTS: Fields = &[];
}

impl RequestBody for NewUser {
    const FIELDS: Fields = &["name", "display_name", "email", "picture_url"];
}

impl RequestBody for NewPreAuthKey {
    const FIELDS: Fields = &["user", "reusable", "ephemeral", "expiration", "acl_tags"];
}

impl RequestBody for NewApiKey {
    const FIELDS: Fields = &["expiration"];
}

impl RequestBody for Registration {
    const FIELDS: Fields = &["user", "auth_id"];
}

impl RequestBody for Tags {
    const FIELDS: Fields = &["tags"];
}

impl RequestBody for Routes {
    const FIELDS: Fields = &["routes"];
    const LISTS: Fields = &["routes"];
}

impl RequestBody for NewPolicy {
    const FIELDS: Fields = &["policy"];
}

/// A body as the gateway parses it. Names are in camel case or snake case, and numbers may be
/// strings. A field with `null` or Go's zero time is absent. Unknown fields are ignored. An empty
/// body is an empty message.
pub(super) struct Body<T>(pub T);

impl<T: RequestBody, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let bad = |why: serde_json::Error| ApiError::BadRequest(why.to_string());
        let mut members: Map<String, Value> = match body(request, state).await?.trim_ascii() {
            [] => Map::new(),
            text => serde_json::from_slice(text).map_err(bad)?,
        };
        let mut own: Map<String, Value> =
            T::LISTS.iter().map(|name| ((*name).to_owned(), json!([]))).collect();
        for name in T::FIELDS {
            let values = [camel(name), (*name).to_owned()].map(|name| members.remove(&name));
            let is_of_object = matches!(*name, "id" | "user");
            // In protobuf, zero and an empty text mean that a field is absent.
            let is_zero =
                |value: &Value| is_of_object && [json!(0), json!("0"), json!("")].contains(value);
            let mut values = values.into_iter().flatten();
            if let Some(value) = values.find(|value| !is_nothing(value) && !is_zero(value)) {
                let is_number = value.is_u64() && is_of_object;
                let value = if is_number { json!(value.to_string()) } else { value };
                own.insert((*name).to_owned(), value);
            }
        }
        serde_json::from_value(Value::Object(own)).map(Self).map_err(bad)
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.starts_with("0001-01-01T00:00:00"))
}

/// `display_name` as `displayName`.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |camel, part| camel + &part[..1].to_uppercase() + &part[1..])
}
