//! Pages of the audit log and of the reachability check.

use askama::Template;
use axum::{extract::Query, response::Response};
use coordinator::{ReachabilityStep, object::AuditEntry};
use serde::Deserialize;

use super::{Frame, PageSession, render, timestamp::Timestamp};
use crate::clock::now;

/// Audit entries per page.
const EACH: usize = 50;
/// Maximum number of suggested names.
const OFFERED: usize = 500;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    entries: Vec<Entry>,
    /// ID and hash of the last entry.
    head: Option<(i64, String)>,
    number: usize,
    pages: usize,
}

struct Entry {
    what: String,
    who: String,
    at: Timestamp,
    refused: Option<String>,
}

#[derive(Template)]
#[template(path = "why.html")]
struct WhyPage {
    frame: Frame,
    from: String,
    to: String,
    port: String,
    here: String,
    names: Vec<String>,
    steps: Vec<ReachabilityStep>,
    reaches: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Paged {
    page: usize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WhyQuery {
    from: String,
    to: String,
    port: String,
}

pub(super) async fn audit(session: PageSession, Query(Paged { page }): Query<Paged>) -> Response {
    let frame = session.frame("audit");
    let now = now();
    let one = |entry: &AuditEntry| Entry {
        what: entry.what.clone(),
        who: entry.who.clone(),
        at: Timestamp::of(entry.at, now),
        refused: entry.refused.clone(),
    };
    let page = session.network.read(|state| {
        let pages = state.audit().count().div_ceil(EACH).max(1);
        let number = page.clamp(1, pages);
        let entries = state.audit().skip((number - 1) * EACH).take(EACH).map(one).collect();
        let (id, hash) = state.audit_head();
        let head = (id.0 > 0).then(|| (id.0, hash.to_string()));
        AuditPage { frame, entries, head, number, pages }
    });
    render(&page)
}

pub(super) async fn why(session: PageSession, Query(query): Query<WhyQuery>) -> Response {
    let frame = session.frame("why");
    let WhyQuery { from, to, port } = query;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs([("from", &from), ("to", &to), ("port", &port)]);
    let here = format!("/admin/why?{}", query.finish());
    let page = session.network.read(|state| {
        let is_complete = !from.is_empty() && !to.is_empty();
        let steps = if is_complete {
            state.check_reachability(&from, &to, port.parse().ok(), now())
        } else {
            Vec::new()
        };
        let names = state.nodes().take(OFFERED).map(|view| view.node.name.clone()).collect();
        let reaches = steps.iter().all(|step| step.is_met);
        WhyPage { frame, from, to, port, here, names, steps, reaches }
    });
    render(&page)
}
