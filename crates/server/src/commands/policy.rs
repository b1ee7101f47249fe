//! What the command line asks a running server of its policy.

use hyper::Method;
use serde_json::{Value, json};

use super::{Common, ask::Ask, table};

/// Prints the policy in force, or an older one.
///
/// # Errors
/// The server does not answer, or there is none.
pub async fn policy_in_force(common: &Common, id: Option<i64>) -> anyhow::Result<()> {
    let path = id.map_or_else(|| "policy".to_owned(), |id| format!("policy/history/{id}"));
    let text = |saved: &Value| match saved["policy"].as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => "// There is no policy: every node reaches every other.\n{}".into(),
    };
    Ask::new(common)?.says(Method::GET, &path, None, text).await
}

/// Prints when policies were saved.
///
/// # Errors
/// The server does not answer.
pub async fn policies(common: &Common) -> anyhow::Result<()> {
    Ask::new(common)?.says(Method::GET, "policy/history", None, table::policies).await
}

/// Has the server check a policy or put it in force, and prints the difference.
///
/// # Errors
/// The server does not answer, or refuses the policy.
pub async fn policy_says(common: &Common, text: &str, is_saved: bool) -> anyhow::Result<()> {
    let (method, path) = match is_saved {
        true => (Method::PUT, "policy"),
        false => (Method::POST, "policy/check"),
    };
    let body = json!({ "policy": text });
    Ask::new(common)?.says(method, path, Some(body), |answer| difference(answer, is_saved)).await
}

fn difference(answer: &Value, is_saved: bool) -> String {
    let difference = &answer["difference"];
    let lines = difference["lines"].as_array().into_iter().flatten();
    let mut words: Vec<String> = lines.filter_map(Value::as_str).map(str::to_owned).collect();
    if words.is_empty() {
        words.push("who reaches whom stays the same".into());
    }
    if let Some(more) = difference["left_off"].as_u64().filter(|more| *more > 0) {
        words.push(format!("... and {more} more"));
    }
    if is_saved {
        words.push(format!("policy {} is in force", answer["id"]));
    }
    words.join("\n")
}
