//! Page of the policy, with an editor.

use askama::Template;
use axum::response::Response;

use super::{Frame, PageSession, render, timestamp::Timestamp};
use crate::clock::now;

#[derive(Template)]
#[template(path = "policy.html")]
struct PolicyPage {
    frame: Frame,
    number: i64,
    saved: Option<Timestamp>,
    text: String,
}

pub(super) async fn show(session: PageSession) -> Response {
    let frame = session.frame("policy");
    let page = session.network.read(|state| match state.policy() {
        Some(policy) => PolicyPage {
            frame,
            number: policy.id.0,
            saved: Some(Timestamp::of(policy.created, now())),
            text: policy.text.clone(),
        },
        None => PolicyPage { frame, number: 0, saved: None, text: String::new() },
    });
    render(&page)
}
