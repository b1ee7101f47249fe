//! Pages of machines and their routes.

use std::sync::Arc;

use askama::Template;
use axum::{
    extract::{self, Path, Query},
    response::Response,
};
use coordinator::{
    NodeView, State, Time,
    object::{NodeId, RegisterMethod, User},
};
use ipnet::IpNet;
use serde::Deserialize;

use super::{Frame, PageSession, not_found, render, timestamp::Timestamp};
use crate::{admin::state::AdminSite, clock::now};

/// Machines per page: about 50 kB of HTML.
const EACH: usize = 50;

#[derive(Template)]
#[template(path = "machines.html")]
struct Machines {
    frame: Frame,
    machines: Vec<Machine>,
    total: usize,
    online: usize,
    wanted: String,
    number: usize,
    pages: usize,
    here: String,
    other: String,
    join: String,
    users: Vec<String>,
    registration: String,
}

#[derive(Template)]
#[template(path = "machine.html")]
struct One {
    frame: Frame,
    machine: Machine,
    method: &'static str,
    ephemeral: bool,
    os_version: String,
    hostname: String,
    home: u16,
    endpoints: Vec<String>,
    key: String,
    routes: Vec<Route>,
}

#[derive(Template)]
#[template(path = "routes.html")]
struct Routes {
    frame: Frame,
    routes: Vec<Route>,
}

struct Machine {
    id: i64,
    name: String,
    owner: String,
    tags: Vec<String>,
    v4: String,
    v6: String,
    online: bool,
    seen: Timestamp,
    joined: Timestamp,
    keyed: Timestamp,
    expires: Timestamp,
    expired: bool,
    os: String,
    version: String,
    /// Number of routes that are not approved.
    waiting: usize,
}

struct Route {
    net: String,
    machine: i64,
    name: String,
    online: bool,
    approved: bool,
    is_exit: bool,
    is_primary: bool,
    /// The other approved routes of the machine.
    others: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    q: String,
    page: usize,
    registration: String,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { q: String::new(), page: 1, registration: String::new() }
    }
}

pub(super) async fn list(
    extract::State(site): extract::State<Arc<AdminSite>>,
    session: PageSession,
    Query(wanted): Query<Wanted>,
) -> Response {
    let Wanted { q, page, registration } = wanted;
    let frame = session.frame("machines");
    let join = site.join_command().to_owned();
    let mut query = form_urlencoded::Serializer::new(String::new());
    if !q.is_empty() {
        query.append_pair("q", &q);
    }
    let query = query.finish();
    let other = format!("/admin/machines?{query}{}", if query.is_empty() { "" } else { "&" });
    let page = session.network.read(|state| {
        let found: Vec<NodeView<'_>> =
            state.nodes().filter(|view| matches(state, *view, &q.to_lowercase())).collect();
        let pages = found.len().div_ceil(EACH).max(1);
        let number = page.clamp(1, pages);
        let these = found.into_iter().skip((number - 1) * EACH).take(EACH);
        Machines {
            frame,
            machines: these.map(|view| machine(state, view, now())).collect(),
            total: state.nodes().count(),
            online: state.nodes().filter(|view| view.online).count(),
            here: format!("{other}page={number}"),
            wanted: q,
            number,
            pages,
            other,
            join,
            users: state.users().map(|user| user.name.clone()).collect(),
            registration,
        }
    });
    render(&page)
}

pub(super) async fn show(session: PageSession, Path(id): Path<i64>) -> Response {
    let frame = session.frame("machines");
    let page = session.network.read(|state| {
        let view = state.node(NodeId(id))?;
        let node = view.node;
        Some(One {
            frame,
            machine: machine(state, view, now()),
            method: match node.method {
                RegisterMethod::AuthKey => "by a pre-auth key",
                _ => "by an administrator or a login",
            },
            ephemeral: node.ephemeral,
            os_version: node.hostinfo.os_version.clone(),
            hostname: node.hostinfo.hostname.clone(),
            home: node.home_relay,
            endpoints: node.endpoints.iter().map(ToString::to_string).collect(),
            key: node.key.to_string(),
            routes: offered(view),
        })
    });
    page.map_or_else(not_found, |page| render(&page))
}

pub(super) async fn routes(session: PageSession) -> Response {
    let frame = session.frame("routes");
    let mut routes: Vec<Route> =
        session.network.read(|state| state.nodes().flat_map(offered).collect());
    routes.sort_by(|a, b| (a.approved, &a.net, a.machine).cmp(&(b.approved, &b.net, b.machine)));
    render(&Routes { frame, routes })
}

/// The routes that a machine offers.
fn offered(view: NodeView<'_>) -> Vec<Route> {
    let node = view.node;
    let approved: Vec<IpNet> = node.routes().collect();
    let one = |net: &IpNet| Route {
        net: net.to_string(),
        machine: node.id.0,
        name: node.name.clone(),
        online: view.online,
        approved: approved.contains(net),
        is_exit: net.prefix_len() == 0,
        is_primary: view.node.primaries.contains(net),
        others: approved.iter().filter(|own| *own != net).map(ToString::to_string).collect(),
    };
    node.hostinfo.routable.iter().map(one).collect()
}

fn machine(state: &State, view: NodeView<'_>, now: Time) -> Machine {
    let node = view.node;
    Machine {
        id: node.id.0,
        name: node.name.clone(),
        owner: owner(state, view).map(|user| user.name.clone()).unwrap_or_default(),
        tags: node.tags.clone(),
        v4: node.v4.to_string(),
        v6: node.v6.to_string(),
        online: view.online,
        seen: Timestamp::or(node.last_seen, "never", now),
        joined: Timestamp::of(node.created, now),
        keyed: Timestamp::of(node.rekeyed.unwrap_or(node.created), now),
        expires: Timestamp::or(node.expires, "never", now),
        expired: node.has_expired(now),
        os: node.hostinfo.os.clone(),
        version: node.hostinfo.program.clone(),
        waiting: node.hostinfo.routable.len() - node.routes().count(),
    }
}

fn owner<'a>(state: &'a State, view: NodeView<'_>) -> Option<&'a User> {
    state.users().find(|user| Some(user.id) == view.node.user)
}

/// Whether a machine matches a search.
fn matches(state: &State, view: NodeView<'_>, wanted: &str) -> bool {
    let node = view.node;
    let has = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || has(&node.name)
        || has(&node.v4.to_string())
        || has(&node.v6.to_string())
        || node.tags.iter().any(|tag| has(tag))
        || owner(state, view).is_some_and(|user| has(&user.name))
}
