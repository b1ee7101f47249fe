//! Administration of tailnet lock. Signing keys are on nodes only.

use axum::Json;
use coordinator::{State, object::NodeId};
use serde::Deserialize;
use serde_json::Value;

use super::{
    answer::{ApiError, ApiResult},
    extract::{Admin, QueryParams},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeParam {
    node: i64,
}

pub(super) async fn show(admin: Admin) -> ApiResult {
    let status = admin.network.read(State::tka_status);
    let verified = tokio::task::spawn_blocking(move || status.verified()).await;
    verified.map(Json).map_err(|error| ApiError::Failed(error.into()))
}

pub(super) async fn allow(
    admin: Admin,
    QueryParams(NodeParam { node }): QueryParams<NodeParam>,
) -> ApiResult {
    let what = format!("allow node {node} to enable tailnet lock");
    let allow = move |state: &mut State, now| {
        state.allow_tka_init(NodeId(node), now)?;
        Ok(Value::Null)
    };
    let Json(_) = admin.run(what, allow).await?;
    show(admin).await
}
