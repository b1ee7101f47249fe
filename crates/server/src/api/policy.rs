//! The policy.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use coordinator::{PolicyReview, Refusal, State, object};
use policy::{Difference, Fault, Policy};
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
    /// Whether to leave out unsupported parts.
    #[serde(default)]
    ignore_unsupported: bool,
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
pub async fn check(desk: Desk, Said(new): Said<NewPolicy>) -> Answered {
    let read = new.read()?;
    let judged = desk.server.network.read(|state| state.review_policy(&new.policy, &read))?;
    let mut answer = json!({});
    explain(&mut answer, &read, judged).await?;
    Ok(Json(answer))
}

pub async fn set(desk: Desk, Said(new): Said<NewPolicy>) -> Answered {
    let read = Arc::new(new.read()?);
    let judged = Arc::new(Mutex::new(None));
    let (slot, policy) = (Arc::clone(&judged), Arc::clone(&read));
    let command = move |state: &mut State, now| {
        let outcome = state.save_policy(&new.policy, &policy, now)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        Ok(shown(state.policy()))
    };
    let Json(mut answer) = desk.run("set the policy".into(), command).await?;
    desk.server.network.warn_of_names();
    // The network goes on while it is worked out.
    let judged = judged.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(judged) = judged {
        explain(&mut answer, &read, judged).await?;
    }
    Ok(Json(answer))
}

impl NewPolicy {
    fn read(&self) -> Result<Policy, Trouble> {
        let read = crate::policy::parse(&self.policy, self.ignore_unsupported);
        read.map_err(|refusal| Trouble::BadRequest(crate::policy::words(&refusal)))
    }
}

/// Adds the difference, the parts left out and the warnings to an answer.
async fn explain(answer: &mut Value, policy: &Policy, judged: PolicyReview) -> Result<(), Trouble> {
    let texts = |faults: &[Fault]| faults.iter().map(ToString::to_string).collect::<Vec<_>>();
    answer["left_out"] = json!(texts(policy.left_out()));
    answer["warnings"] = json!(texts(&judged.warnings));
    let routes = judged.routes.iter().map(|(node, net)| format!("{node}: {net}"));
    let routes: Vec<String> = routes.collect();
    let work = move || judged.after.difference(&judged.before, MOST_LINES);
    let found = tokio::task::spawn_blocking(work).await;
    let Difference { lines, left_off } = found.map_err(|error| Trouble::Failed(error.into()))?;
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    answer["difference"] = json!({ "lines": lines, "left_off": left_off, "routes": routes });
    Ok(())
}

fn shown(saved: Option<&object::Policy>) -> Value {
    match saved {
        Some(saved) => json!({
            "id": saved.id, "policy": saved.text, "updated_at": saved.created.text(),
        }),
        None => json!({ "id": null, "policy": "", "updated_at": null }),
    }
}
