//! API keys.

use coordinator::secret;
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::Answered,
    desk::{Desk, Named, Said, random, time},
    shown,
};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskedApiKey {
    expiration: Option<String>,
}

pub async fn list(desk: Desk) -> Answered {
    desk.read(|state| Ok(state.api_keys().map(|key| shown::api_key(key, None)).collect()))
}

pub async fn create(desk: Desk, Said(asked): Said<AskedApiKey>) -> Answered {
    let expires = asked.expiration.as_deref().map(time).transpose()?;
    let text = secret::write_api(&random()?);
    desk.run("create API key".into(), move |state, now| {
        Ok(shown::api_key(&state.create_api_key(expires, &text, now), Some(&text)))
    })
    .await
}

pub async fn expire(desk: Desk, Named(which): Named<String>) -> Answered {
    desk.run(format!("expire API key {which}"), move |state, now| {
        Ok(shown::api_key(&state.expire_api_key(&which, now)?, None))
    })
    .await
}

pub async fn delete(desk: Desk, Named(which): Named<String>) -> Answered {
    desk.run(format!("delete API key {which}"), move |state, _| {
        Ok(json!(state.delete_api_key(&which)?))
    })
    .await
}
