//! What was done, and why one machine does not reach another.

use askama::Template;
use axum::{extract::Query, response::Response};
use coordinator::{ReachabilityStep, object::AuditEntry};
use serde::Deserialize;

use super::{Frame, Visitor, moment::Moment, shown};
use crate::clock::now;

/// Entries of the audit on one page.
const EACH: usize = 50;
/// The most names that are offered.
const OFFERED: usize = 500;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    entries: Vec<Entry>,
    /// Number and hash of the last one.
    head: Option<(i64, String)>,
    number: usize,
    pages: usize,
}

struct Entry {
    what: String,
    who: String,
    at: Moment,
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
pub struct Paged {
    page: usize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    from: String,
    to: String,
    port: String,
}

pub async fn audit(visitor: Visitor, Query(Paged { page }): Query<Paged>) -> Response {
    let frame = visitor.frame("audit");
    let now = now();
    let one = |entry: &AuditEntry| Entry {
        what: entry.what.clone(),
        who: entry.who.clone(),
        at: Moment::of(entry.at, now),
        refused: entry.refused.clone(),
    };
    let page = visitor.server.network.read(|state| {
        let pages = state.audit().count().div_ceil(EACH).max(1);
        let number = page.clamp(1, pages);
        let entries = state.audit().skip((number - 1) * EACH).take(EACH).map(one).collect();
        let (id, hash) = state.audit_head();
        let head = (id.0 > 0).then(|| (id.0, hash.to_string()));
        AuditPage { frame, entries, head, number, pages }
    });
    shown(&page)
}

pub async fn why(visitor: Visitor, Query(asked): Query<Asked>) -> Response {
    let frame = visitor.frame("why");
    let Asked { from, to, port } = asked;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs([("from", &from), ("to", &to), ("port", &port)]);
    let here = format!("/admin/why?{}", query.finish());
    let page = visitor.server.network.read(|state| {
        let is_asked = !from.is_empty() && !to.is_empty();
        let steps = if is_asked {
            state.check_reachability(&from, &to, port.parse().ok(), now())
        } else {
            Vec::new()
        };
        let names = state.nodes().take(OFFERED).map(|view| view.node.name.clone()).collect();
        let reaches = steps.iter().all(|step| step.is_met);
        WhyPage { frame, from, to, port, here, names, steps, reaches }
    });
    shown(&page)
}
