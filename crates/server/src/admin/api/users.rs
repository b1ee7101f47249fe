//! Users.

use coordinator::object::{User, UserId};
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::ApiResult,
    extract::{Admin, JsonBody, PathParams, QueryParams},
    views,
};

/// A filter by name, else by mail address, else by ID, in headscale's order.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UserQuery {
    id: u64,
    name: String,
    email: String,
}

impl UserQuery {
    fn matches(&self, user: &User) -> bool {
        match self {
            Self { name, .. } if !name.is_empty() => user.name == *name,
            Self { email, .. } if !email.is_empty() => user.email == *email,
            Self { id: 0, .. } => true,
            Self { id, .. } => i64::try_from(*id).is_ok_and(|id| user.id == UserId(id)),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewUser {
    name: String,
    display_name: String,
    email: String,
    picture_url: String,
}

pub(super) async fn list(admin: Admin, QueryParams(which): QueryParams<UserQuery>) -> ApiResult {
    admin.read(|state| {
        let owner = state.owner();
        let users = state.users().filter(|user| which.matches(user));
        Ok(users.map(|user| views::user(user, owner)).collect())
    })
}

pub(super) async fn create(admin: Admin, JsonBody(new): JsonBody<NewUser>) -> ApiResult {
    let NewUser { name, display_name, email, picture_url } = new;
    let user = User { name, display_name, email, picture_url, ..User::default() };
    admin
        .run(format!("create user {}", user.name), move |state, now| {
            let user = state.create_user(user.clone(), now)?;
            Ok(views::user(&user, state.owner()))
        })
        .await
}

pub(super) async fn rename(
    admin: Admin,
    PathParams((user, name)): PathParams<(String, String)>,
) -> ApiResult {
    admin
        .run(format!("rename user {user} to {name}"), move |state, now| {
            let id = state.find_user(&user)?.id;
            let user = state.rename_user(id, &name, now)?;
            Ok(views::user(&user, state.owner()))
        })
        .await
}

pub(super) async fn make_owner(admin: Admin, PathParams(user): PathParams<String>) -> ApiResult {
    admin
        .run(format!("make user {user} the owner"), move |state, _| {
            let id = state.find_user(&user)?.id;
            let user = state.make_owner(id)?;
            Ok(views::user(&user, state.owner()))
        })
        .await
}

pub(super) async fn delete(admin: Admin, PathParams(user): PathParams<String>) -> ApiResult {
    admin
        .run(format!("delete user {user}"), move |state, _| {
            let id = state.find_user(&user)?.id;
            Ok(json!(state.delete_user(id)?))
        })
        .await
}
