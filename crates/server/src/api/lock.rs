//! Tailnet lock, as far as it is an administrator's: the keys that sign are the nodes'.

use axum::Json;
use coordinator::{State, object::NodeId};
use serde::Deserialize;
use serde_json::Value;

use super::{
    answer::{Answered, Trouble},
    desk::{Desk, With},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    node: i64,
}

pub async fn show(desk: Desk) -> Answered {
    let status = desk.server.network.read(State::tka_status);
    let verified = tokio::task::spawn_blocking(move || status.verified()).await;
    verified.map(Json).map_err(|error| Trouble::Failed(error.into()))
}

pub async fn allow(desk: Desk, With(Which { node }): With<Which>) -> Answered {
    let what = format!("let node {node} turn tailnet lock on");
    let allow = move |state: &mut State, now| {
        state.allow_tka_init(NodeId(node), now)?;
        Ok(Value::Null)
    };
    let Json(_) = desk.run(what, allow).await?;
    show(desk).await
}
