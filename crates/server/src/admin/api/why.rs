//! Explains why one machine does not reach another.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::ApiResult,
    extract::{Admin, QueryParams},
};
use crate::clock::now;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhyQuery {
    from: String,
    to: String,
    #[serde(default)]
    port: Option<u16>,
}

pub(super) async fn why(
    admin: Admin,
    QueryParams(WhyQuery { from, to, port }): QueryParams<WhyQuery>,
) -> ApiResult {
    admin.read(|state| {
        let steps = state.check_reachability(&from, &to, port, now());
        let reaches = steps.iter().all(|step| step.is_met);
        let steps: Vec<Value> = steps
            .iter()
            .map(|step| {
                json!({ "question": step.question, "met": step.is_met, "answer": step.answer })
            })
            .collect();
        Ok(json!({ "reaches": reaches, "steps": steps }))
    })
}
