//! Health of the server, and the health warnings of a node's client.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, ensure};
use axum::extract::State;
use coordinator::{Refusal, object::NodeId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{ApiError, ApiResult},
    extract::{Admin, PathParams},
};
use crate::{
    clients::pings::{Ping, Pings},
    network::health::Health,
};

/// Path of the client's health (`ipn/ipnlocal/c2n.go`).
const PATH: &str = "/debug/health";
/// Maximum time for the client's answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn of_server(State(health): State<Arc<Health>>, admin: Admin) -> ApiResult {
    match health.check(&admin.network).await {
        Ok(()) => Ok(axum::Json(json!({ "database_connectivity": true }))),
        Err(error) => Err(ApiError::Failed(anyhow!(error.message()))),
    }
}

pub(super) async fn show(
    State(pings): State<Arc<Pings>>,
    admin: Admin,
    PathParams(id): PathParams<i64>,
) -> ApiResult {
    let id = NodeId(id);
    if admin.network.read(|state| state.node(id).is_none()) {
        return Err(Refusal::NoNode(id).into());
    }
    let answer = pings.send_ping(id, Ping::Get(PATH), PATIENCE).await;
    let answer = answer.and_then(|answer| warnings(&answer));
    answer.map(axum::Json).map_err(ApiError::Failed)
}

/// Parses the warnings in an HTTP/1.1 answer whose body extends to its end.
fn warnings(answer: &[u8]) -> anyhow::Result<Value> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("the node's answer lacks an HTTP header")?);
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    ensure!(status == b"200", "the client does not report its health: it may be too old");
    let answer: Option<ClientHealth> = serde_json::from_slice(body).context("the node's answer")?;
    let warnings = answer.unwrap_or_default().warnings.unwrap_or_default();
    let warning = |(code, warning): (String, Warning)| {
        let Warning { severity, title, text } = warning;
        json!({ "code": code, "severity": severity, "title": title, "text": text })
    };
    Ok(warnings.into_iter().map(warning).collect())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ClientHealth {
    warnings: Option<BTreeMap<String, Warning>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Warning {
    severity: String,
    title: String,
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_parsed_and_any_other_answer_is_an_error() {
        let answer = |status: &str, body: &str| {
            format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}").into_bytes()
        };
        let warning = r#"{"Warnings":{"a":{"Severity":"low","Title":"T","Text":"x"}}}"#;
        let read = warnings(&answer("200 OK", warning)).unwrap();
        assert_eq!(read, json!([{ "code": "a", "severity": "low", "title": "T", "text": "x" }]));
        assert_eq!(warnings(&answer("200 OK", "{}")).unwrap(), json!([]));
        assert_eq!(warnings(&answer("200 OK", "null")).unwrap(), json!([]));
        for wrong in [answer("400 Bad Request", "unknown"), answer("200 OK", "x"), b"x".to_vec()] {
            assert!(warnings(&wrong).is_err());
        }
    }
}
