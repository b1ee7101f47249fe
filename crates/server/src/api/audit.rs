//! What administrators did; and the link that makes somebody one for a while.

use serde::Deserialize;
use serde_json::json;

use super::{
    answer::{Answered, Trouble},
    desk::{Desk, With},
    shown,
};
use crate::clock::now;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Last {
    limit: usize,
}

impl Default for Last {
    fn default() -> Self {
        Self { limit: 100 }
    }
}

pub async fn list(desk: Desk, With(Last { limit }): With<Last>) -> Answered {
    desk.read(|state| Ok(state.audit().take(limit).map(shown::audit).collect()))
}

pub async fn head(desk: Desk) -> Answered {
    // A program that compares it with the store sees what all servers wrote.
    desk.server.network.read_on().await;
    desk.read(|state| {
        let (id, hash) = state.audit_head();
        Ok(json!({ "id": id, "hash": hash }))
    })
}

pub async fn admin_link(desk: Desk) -> Answered {
    let token = desk.server.sessions.make_link(now()).map_err(Trouble::Failed)?;
    let link = desk.server.admin_link(&token);
    let answer = json!({
        "link": link, "certificate_fingerprint": desk.server.admin_fingerprint,
    });
    desk.run("make a link to the page".into(), move |_, _| Ok(answer.clone())).await
}
