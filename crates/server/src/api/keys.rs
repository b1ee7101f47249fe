//! Pre-auth keys.

use coordinator::{NewKey, Refusal, object::KeyId, secret};
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::Answered,
    desk::{Desk, Named, Said, With, random, time},
    nodes::Of,
    shown,
};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskedKey {
    user: Option<String>,
    reusable: bool,
    ephemeral: bool,
    expiration: Option<String>,
    acl_tags: Vec<String>,
}

pub async fn list(desk: Desk, With(Of { user }): With<Of>) -> Answered {
    desk.read(|state| {
        let user = user.map(|name| Ok::<_, Refusal>(state.find_user(&name)?.id)).transpose()?;
        let keys = state.keys().filter(|key| user.is_none() || key.user == user);
        Ok(keys.map(|key| shown::key(state, key, None)).collect())
    })
}

pub async fn create(desk: Desk, Said(asked): Said<AskedKey>) -> Answered {
    let expires = asked.expiration.as_deref().map(time).transpose()?;
    let text = secret::write(&random()?);
    let owner = asked.user.as_ref().map(|user| format!(" of user {user}")).unwrap_or_default();
    let what = format!("create pre-auth key{owner} {}", asked.acl_tags.join(" "));
    desk.run(what.trim_end().to_owned(), move |state, now| {
        let AskedKey { user, reusable, ephemeral, acl_tags, .. } = &asked;
        let user = match user {
            Some(name) => Some(state.find_user(name)?.id),
            None => None,
        };
        let (reusable, ephemeral, tags) = (*reusable, *ephemeral, acl_tags.clone());
        let new = NewKey { user, reusable, ephemeral, tags, expires };
        let key = state.create_key(new, &text, now)?;
        Ok(shown::key(state, &key, Some(&text)))
    })
    .await
}

pub async fn expire(desk: Desk, Named(id): Named<i64>) -> Answered {
    desk.run(format!("expire pre-auth key {id}"), move |state, now| {
        Ok(json!(state.expire_key(KeyId(id), now)?))
    })
    .await
}

pub async fn delete(desk: Desk, Named(id): Named<i64>) -> Answered {
    desk.run(format!("delete pre-auth key {id}"), move |state, _| {
        Ok(json!(state.delete_key(KeyId(id))?))
    })
    .await
}
