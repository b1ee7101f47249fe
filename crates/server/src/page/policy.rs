//! The policy, and an editor for it.

use askama::Template;
use axum::response::Response;

use super::{Frame, Visitor, moment::Moment, shown};
use crate::clock::now;

#[derive(Template)]
#[template(path = "policy.html")]
struct PolicyPage {
    frame: Frame,
    number: i64,
    saved: Option<Moment>,
    text: String,
}

pub async fn show(visitor: Visitor) -> Response {
    let frame = visitor.frame("policy");
    let page = visitor.server.network.read(|state| match state.policy() {
        Some(policy) => PolicyPage {
            frame,
            number: policy.id.0,
            saved: Some(Moment::of(policy.created, now())),
            text: policy.text.clone(),
        },
        None => PolicyPage { frame, number: 0, saved: None, text: String::new() },
    });
    shown(&page)
}
