//! Users.

use coordinator::object::{User, UserId};
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::Answered,
    desk::{Desk, Named, Said, With},
    shown,
};

/// A filter by name, or else by mail address, or else by number, in headscale's order.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    id: u64,
    name: String,
    email: String,
}

impl Which {
    fn is_met(&self, user: &User) -> bool {
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
pub struct NewUser {
    name: String,
    display_name: String,
    email: String,
    picture_url: String,
}

pub async fn list(desk: Desk, With(which): With<Which>) -> Answered {
    desk.read(|state| {
        let owner = state.owner();
        let users = state.users().filter(|user| which.is_met(user));
        Ok(users.map(|user| shown::user(user, owner)).collect())
    })
}

pub async fn create(desk: Desk, Said(new): Said<NewUser>) -> Answered {
    let NewUser { name, display_name, email, picture_url } = new;
    let user = User { name, display_name, email, picture_url, ..User::default() };
    desk.run(format!("create user {}", user.name), move |state, now| {
        let user = state.create_user(user.clone(), now)?;
        Ok(shown::user(&user, state.owner()))
    })
    .await
}

pub async fn rename(desk: Desk, Named((user, name)): Named<(String, String)>) -> Answered {
    desk.run(format!("rename user {user} to {name}"), move |state, now| {
        let id = state.find_user(&user)?.id;
        let user = state.rename_user(id, &name, now)?;
        Ok(shown::user(&user, state.owner()))
    })
    .await
}

pub async fn make_owner(desk: Desk, Named(user): Named<String>) -> Answered {
    desk.run(format!("make user {user} the owner"), move |state, _| {
        let id = state.find_user(&user)?.id;
        let user = state.make_owner(id)?;
        Ok(shown::user(&user, state.owner()))
    })
    .await
}

pub async fn delete(desk: Desk, Named(user): Named<String>) -> Answered {
    desk.run(format!("delete user {user}"), move |state, _| {
        let id = state.find_user(&user)?.id;
        Ok(json!(state.delete_user(id)?))
    })
    .await
}
