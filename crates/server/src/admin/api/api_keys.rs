//! API keys.

use coordinator::secret;
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::ApiResult,
    extract::{Admin, JsonBody, PathParams, random, time},
    views,
};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewApiKey {
    expiration: Option<String>,
}

pub(super) async fn list(admin: Admin) -> ApiResult {
    admin.read(|state| Ok(state.api_keys().map(|key| views::api_key(key, None)).collect()))
}

pub(super) async fn create(admin: Admin, JsonBody(request): JsonBody<NewApiKey>) -> ApiResult {
    let expires = request.expiration.as_deref().map(time).transpose()?;
    let text = secret::write_api(&random()?);
    admin
        .run("create API key".into(), move |state, now| {
            Ok(views::api_key(&state.create_api_key(expires, &text, now), Some(&text)))
        })
        .await
}

pub(super) async fn expire(admin: Admin, PathParams(which): PathParams<String>) -> ApiResult {
    admin
        .run(format!("expire API key {which}"), move |state, now| {
            Ok(views::api_key(&state.expire_api_key(&which, now)?, None))
        })
        .await
}

pub(super) async fn delete(admin: Admin, PathParams(which): PathParams<String>) -> ApiResult {
    admin
        .run(format!("delete API key {which}"), move |state, _| {
            Ok(json!(state.delete_api_key(&which)?))
        })
        .await
}
