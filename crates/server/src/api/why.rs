//! Why one machine does not reach another.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::Answered,
    desk::{Desk, With},
};
use crate::clock::now;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    from: String,
    to: String,
    #[serde(default)]
    port: Option<u16>,
}

pub async fn why(desk: Desk, With(Asked { from, to, port }): With<Asked>) -> Answered {
    desk.read(|state| {
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
