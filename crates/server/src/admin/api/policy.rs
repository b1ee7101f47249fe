//! The policy.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use coordinator::{PolicyReview, Refusal, State, object};
use policy::{Difference, Fault, Policy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{ApiError, ApiResult},
    extract::{Admin, JsonBody, PathParams},
};

/// Maximum number of lines in a difference.
const MOST_LINES: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPolicy {
    policy: String,
    /// Whether to leave out unsupported parts.
    #[serde(default)]
    ignore_unsupported: bool,
}

pub(super) async fn show(admin: Admin) -> ApiResult {
    admin.read(|state| Ok(policy_view(state.policy())))
}

/// All stored policies, the newest first.
pub(super) async fn history(admin: Admin) -> ApiResult {
    let entry = |saved: &object::Policy| json!({ "id": saved.id, "updated_at": saved.created.text(), "bytes": saved.text.len() });
    admin.read(|state| {
        let entries: Vec<Value> = state.policies().map(entry).collect();
        Ok(entries.into_iter().rev().collect())
    })
}

pub(super) async fn older(admin: Admin, PathParams(id): PathParams<i64>) -> ApiResult {
    admin.read(|state| {
        let found = state.policies().find(|saved| saved.id.0 == id);
        found.map(|saved| policy_view(Some(saved))).ok_or(Refusal::NoPolicy(id))
    })
}

/// The changes that this policy would make.
pub(super) async fn check(admin: Admin, JsonBody(new): JsonBody<NewPolicy>) -> ApiResult {
    let read = new.read()?;
    let judged = admin.network.read(|state| state.review_policy(&new.policy, &read))?;
    let mut answer = json!({});
    explain(&mut answer, &read, judged).await?;
    Ok(Json(answer))
}

pub(super) async fn set(admin: Admin, JsonBody(new): JsonBody<NewPolicy>) -> ApiResult {
    let read = Arc::new(new.read()?);
    let judged = Arc::new(Mutex::new(None));
    let (slot, policy) = (Arc::clone(&judged), Arc::clone(&read));
    let command = move |state: &mut State, now| {
        let outcome = state.save_policy(&new.policy, &policy, now)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        Ok(policy_view(state.policy()))
    };
    let Json(mut answer) = admin.run("set the policy".into(), command).await?;
    admin.network.warn_of_names();
    // The difference is computed while the network continues.
    let judged = judged.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(judged) = judged {
        explain(&mut answer, &read, judged).await?;
    }
    Ok(Json(answer))
}

impl NewPolicy {
    fn read(&self) -> Result<Policy, ApiError> {
        let read = crate::admin::policy_text::parse(&self.policy, self.ignore_unsupported);
        read.map_err(|refusal| ApiError::BadRequest(crate::admin::policy_text::words(&refusal)))
    }
}

/// Adds the difference, the ignored parts and the warnings to an answer.
async fn explain(
    answer: &mut Value,
    policy: &Policy,
    judged: PolicyReview,
) -> Result<(), ApiError> {
    let texts = |faults: &[Fault]| faults.iter().map(ToString::to_string).collect::<Vec<_>>();
    answer["left_out"] = json!(texts(policy.left_out()));
    answer["warnings"] = json!(texts(&judged.warnings));
    let routes = judged.routes.iter().map(|(node, net)| format!("{node}: {net}"));
    let routes: Vec<String> = routes.collect();
    let work = move || judged.after.difference(&judged.before, MOST_LINES);
    let found = tokio::task::spawn_blocking(work).await;
    let Difference { lines, left_off } = found.map_err(|error| ApiError::Failed(error.into()))?;
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    answer["difference"] = json!({ "lines": lines, "left_off": left_off, "routes": routes });
    Ok(())
}

fn policy_view(saved: Option<&object::Policy>) -> Value {
    match saved {
        Some(saved) => json!({
            "id": saved.id, "policy": saved.text, "updated_at": saved.created.text(),
        }),
        None => json!({ "id": null, "policy": "", "updated_at": null }),
    }
}
