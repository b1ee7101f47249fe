//! The audit log, and links to the page for administrators.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::{
    answer::{ApiError, ApiResult},
    extract::{Admin, QueryParams},
    views,
};
use crate::{
    admin::{sessions::Sessions, state::AdminSite},
    clock::now,
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limit {
    limit: usize,
}

impl Default for Limit {
    fn default() -> Self {
        Self { limit: 100 }
    }
}

pub(super) async fn list(
    admin: Admin,
    QueryParams(Limit { limit }): QueryParams<Limit>,
) -> ApiResult {
    admin.read(|state| Ok(state.audit().take(limit).map(views::audit).collect()))
}

pub(super) async fn head(admin: Admin) -> ApiResult {
    // Programs compare the head with the store, which has the entries of all servers.
    admin.network.refresh().await;
    admin.read(|state| {
        let (id, hash) = state.audit_head();
        Ok(json!({ "id": id, "hash": hash }))
    })
}

pub(super) async fn admin_link(
    State(site): State<Arc<AdminSite>>,
    State(sessions): State<Arc<Sessions>>,
    admin: Admin,
) -> ApiResult {
    let token = sessions.make_link(now()).map_err(ApiError::Failed)?;
    let link = site.link(&token);
    let answer = json!({
        "link": link, "certificate_fingerprint": site.fingerprint(),
    });
    admin.run("create a link to the page".into(), move |_, _| Ok(answer.clone())).await
}
