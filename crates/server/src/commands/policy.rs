//! Commands for the policy of the running server.

use std::fmt::Display;

use hyper::Method;
use serde_json::{Value, json};

use super::{Common, client::Client, table};

/// Prints the current policy, or an older one.
///
/// # Errors
/// The server does not answer, or there is no such policy.
pub(crate) async fn policy_in_force(common: &Common, id: Option<i64>) -> anyhow::Result<()> {
    let path = id.map_or_else(|| "policy".to_owned(), |id| format!("policy/history/{id}"));
    let text = |saved: &Value| match saved["policy"].as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => "// Without a policy, every node can reach every other node.\n{}".into(),
    };
    Client::new(common)?.print_answer(Method::GET, &path, None, text).await
}

/// Lists the stored policies with their times.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn policies(common: &Common) -> anyhow::Result<()> {
    Client::new(common)?.print_answer(Method::GET, "policy/history", None, table::policies).await
}

/// Sends a policy to the server, which checks or applies it, and prints the difference.
///
/// # Errors
/// The server does not answer, or refuses the policy.
pub(crate) async fn submit_policy(
    common: &Common,
    text: &str,
    ignore_unsupported: bool,
    is_saved: bool,
) -> anyhow::Result<()> {
    let (method, path) = match is_saved {
        true => (Method::PUT, "policy"),
        false => (Method::POST, "policy/check"),
    };
    let body = json!({ "policy": text, "ignore_unsupported": ignore_unsupported });
    Client::new(common)?
        .print_answer(method, path, Some(body), |answer| difference(answer, is_saved))
        .await
}

/// The ignored parts of a policy and the warnings, one per line.
pub(crate) fn remarks<T: Display>(left_out: &[T], warnings: &[T]) -> Vec<String> {
    let left_out = left_out.iter().map(|fault| format!("left out: {fault}"));
    left_out.chain(warnings.iter().map(|fault| format!("warning: {fault}"))).collect()
}

fn difference(answer: &Value, is_saved: bool) -> String {
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut words = remarks(&texts(&answer["left_out"]), &texts(&answer["warnings"]));
    let difference = &answer["difference"];
    let lines = texts(&difference["lines"]);
    if lines.is_empty() {
        words.push("the reachability between nodes does not change".into());
    }
    words.extend(lines);
    if let Some(more) = difference["left_off"].as_u64().filter(|more| *more > 0) {
        words.push(format!("... and {more} more"));
    }
    words.extend(
        texts(&difference["routes"]).iter().map(|route| format!("approved automatically: {route}")),
    );
    if is_saved {
        words.push(format!("policy {} is now active", answer["id"]));
    }
    words.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approved_routes_are_printed_without_any_difference_in_reachability() {
        let difference = json!({ "lines": [], "left_off": 0, "routes": ["gate: 10.0.0.0/24"] });
        let answer = json!({
            "id": 4, "difference": difference, "left_out": ["line 2, a: is not supported"],
            "warnings": ["line 3, b: \"x@\" matches no user"],
        });
        let wanted = "left out: line 2, a: is not supported\n\
                      warning: line 3, b: \"x@\" matches no user\n\
                      the reachability between nodes does not change\n\
                      approved automatically: gate: 10.0.0.0/24\n\
                      policy 4 is now active";
        assert_eq!(super::difference(&answer, true), wanted);
    }
}
