//! The health of the server, and the health that the client of a node reports when the server requests it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, anyhow, ensure};
use coordinator::{Refusal, object::NodeId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{Answered, Trouble},
    desk::{Desk, Named},
};
use crate::pings::Question;

/// Where clients say so (`ipn/ipnlocal/c2n.go`).
const PATH: &str = "/debug/health";
/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn of_server(desk: Desk) -> Answered {
    match desk.server.health.check(&desk.server.network).await {
        Ok(()) => Ok(axum::Json(json!({ "database_connectivity": true }))),
        Err(ill) => Err(Trouble::Failed(anyhow!(ill.words()))),
    }
}

pub async fn show(desk: Desk, Named(id): Named<i64>) -> Answered {
    let id = NodeId(id);
    if desk.server.network.read(|state| state.node(id).is_none()) {
        return Err(Refusal::NoNode(id).into());
    }
    let said = desk.server.pings.ask(id, Question::Get(PATH), PATIENCE).await;
    let said = said.and_then(|said| warnings(&said));
    said.map(axum::Json).map_err(Trouble::Failed)
}

/// The warnings in an answer, which is one of HTTP/1.1 whose body goes to its end.
fn warnings(said: &[u8]) -> anyhow::Result<Value> {
    let end = said.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = said.split_at(end.context("the node's answer has no end of its head")?);
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    ensure!(status == b"200", "the client does not say how it is: it may be too old");
    let said: Option<Health> = serde_json::from_slice(body).context("the node's answer")?;
    let warnings = said.unwrap_or_default().warnings.unwrap_or_default();
    let warning = |(code, warning): (String, Warning)| {
        let Warning { severity, title, text } = warning;
        json!({ "code": code, "severity": severity, "title": title, "text": text })
    };
    Ok(warnings.into_iter().map(warning).collect())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Health {
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
    fn an_answer_is_read_and_anything_else_is_an_error() {
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
