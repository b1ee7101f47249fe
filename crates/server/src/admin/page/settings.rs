//! Pages of the network's settings, which are changed in the server's configuration.

use askama::Template;
use axum::response::Response;
use coordinator::{Dns, State};
use serde_json::Value;

use super::{Frame, PageSession, render};

#[derive(Template)]
#[template(path = "dns.html")]
struct DnsPage {
    frame: Frame,
    dns: Dns,
}

#[derive(Template)]
#[template(path = "derp.html")]
struct DerpPage {
    frame: Frame,
    regions: Vec<Region>,
}

struct Region {
    id: i64,
    code: String,
    name: String,
    relays: Vec<String>,
    machines: usize,
}

pub(super) async fn dns(session: PageSession) -> Response {
    let frame = session.frame("dns");
    let dns = session.network.read(|state| state.settings().dns.clone());
    render(&DnsPage { frame, dns })
}

pub(super) async fn derp(session: PageSession) -> Response {
    let frame = session.frame("derp");
    render(&DerpPage { frame, regions: session.network.read(regions) })
}

/// The regions in the map for nodes.
fn regions(state: &State) -> Vec<Region> {
    let map: Value = serde_json::from_str(&state.settings().relays).unwrap_or_default();
    let regions = map["Regions"].as_object().into_iter().flatten();
    regions.map(|(_, region)| one(state, region)).collect()
}

fn one(state: &State, region: &Value) -> Region {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = region["RegionID"].as_i64().unwrap_or_default();
    let relay = |relay: &Value| {
        let port = relay["DERPPort"].as_i64().filter(|port| *port > 0).unwrap_or(443);
        format!("{}:{port}", text(&relay["HostName"]))
    };
    Region {
        id,
        code: text(&region["RegionCode"]),
        name: text(&region["RegionName"]),
        relays: region["Nodes"].as_array().into_iter().flatten().map(relay).collect(),
        machines: state.nodes().filter(|view| i64::from(view.node.home_relay) == id).count(),
    }
}
