//! Pre-auth keys.

use coordinator::{NewKey, Refusal, object::KeyId, secret};
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::ApiResult,
    extract::{Admin, JsonBody, PathParams, QueryParams, random, time},
    nodes::UserFilter,
    views,
};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewPreAuthKey {
    user: Option<String>,
    reusable: bool,
    ephemeral: bool,
    expiration: Option<String>,
    acl_tags: Vec<String>,
}

pub(super) async fn list(
    admin: Admin,
    QueryParams(UserFilter { user }): QueryParams<UserFilter>,
) -> ApiResult {
    admin.read(|state| {
        let user = user.map(|name| Ok::<_, Refusal>(state.find_user(&name)?.id)).transpose()?;
        let keys = state.keys().filter(|key| user.is_none() || key.user == user);
        Ok(keys.map(|key| views::key(state, key, None)).collect())
    })
}

pub(super) async fn create(admin: Admin, JsonBody(request): JsonBody<NewPreAuthKey>) -> ApiResult {
    let expires = request.expiration.as_deref().map(time).transpose()?;
    let text = secret::write(&random()?);
    let owner = request.user.as_ref().map(|user| format!(" of user {user}")).unwrap_or_default();
    let what = format!("create pre-auth key{owner} {}", request.acl_tags.join(" "));
    admin
        .run(what.trim_end().to_owned(), move |state, now| {
            let NewPreAuthKey { user, reusable, ephemeral, acl_tags, .. } = &request;
            let user = match user {
                Some(name) => Some(state.find_user(name)?.id),
                None => None,
            };
            let (reusable, ephemeral, tags) = (*reusable, *ephemeral, acl_tags.clone());
            let new = NewKey { user, reusable, ephemeral, tags, expires };
            let key = state.create_key(new, &text, now)?;
            Ok(views::key(state, &key, Some(&text)))
        })
        .await
}

pub(super) async fn expire(admin: Admin, PathParams(id): PathParams<i64>) -> ApiResult {
    admin
        .run(format!("expire pre-auth key {id}"), move |state, now| {
            Ok(json!(state.expire_key(KeyId(id), now)?))
        })
        .await
}

pub(super) async fn delete(admin: Admin, PathParams(id): PathParams<i64>) -> ApiResult {
    admin
        .run(format!("delete pre-auth key {id}"), move |state, _| {
            Ok(json!(state.delete_key(KeyId(id))?))
        })
        .await
}
