//! The policy.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use coordinator::{Judged, Refusal, State, object};
use policy::{Difference, Policy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::{Answered, Trouble},
    desk::{Desk, Named, Said},
};

/// The most lines of a difference: more than anybody reads.
const MOST_LINES: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPolicy {
    policy: String,
}

pub async fn show(desk: Desk) -> Answered {
    desk.read(|state| Ok(shown(state.policy())))
}

/// All that are kept, the newest first.
pub async fn history(desk: Desk) -> Answered {
    let entry = |saved: &object::Policy| json!({ "id": saved.id, "updated_at": saved.created.text(), "bytes": saved.text.len() });
    desk.read(|state| {
        let entries: Vec<Value> = state.policies().map(entry).collect();
        Ok(entries.into_iter().rev().collect())
    })
}

pub async fn older(desk: Desk, Named(id): Named<i64>) -> Answered {
    desk.read(|state| {
        let found = state.policies().find(|saved| saved.id.0 == id);
        found.map(|saved| shown(Some(saved))).ok_or(Refusal::NoPolicy(id))
    })
}

/// What would be different, if this were the policy.
pub async fn check(desk: Desk, Said(NewPolicy { policy }): Said<NewPolicy>) -> Answered {
    let read = read(&policy)?;
    let judged = desk.server.network.read(|state| state.judge_policy(&read))?;
    Ok(Json(json!({ "difference": difference(judged).await? })))
}

pub async fn set(desk: Desk, Said(NewPolicy { policy }): Said<NewPolicy>) -> Answered {
    let read = read(&policy)?;
    let judged = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&judged);
    let command = move |state: &mut State, now| {
        let outcome = state.save_policy(&policy, &read, now)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        Ok(shown(state.policy()))
    };
    let Json(mut answer) = desk.run("set the policy".into(), command).await?;
    desk.server.network.warn_of_names();
    // The network goes on while it is worked out.
    let judged = judged.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(judged) = judged {
        answer["difference"] = difference(judged).await?;
    }
    Ok(Json(answer))
}

fn read(text: &str) -> Result<Policy, Trouble> {
    Policy::parse(text).map_err(|refusal| Trouble::BadRequest(refusal.to_string()))
}

async fn difference(judged: Judged) -> Result<Value, Trouble> {
    let work = move || judged.after.difference(&judged.before, MOST_LINES);
    let found = tokio::task::spawn_blocking(work).await;
    let Difference { lines, left_off } = found.map_err(|error| Trouble::Failed(error.into()))?;
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    Ok(json!({ "lines": lines, "left_off": left_off }))
}

fn shown(saved: Option<&object::Policy>) -> Value {
    match saved {
        Some(saved) => json!({
            "id": saved.id, "policy": saved.text, "updated_at": saved.created.text(),
        }),
        None => json!({ "id": null, "policy": "", "updated_at": null }),
    }
}
