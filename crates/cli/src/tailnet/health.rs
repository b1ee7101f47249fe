//! The state of a node of a tailnet, for `linerate doctor`.

use doctor::{Member, Tunnel};
use serde_json::{Map, Value};

use super::{
    NodeSelector, is_running_node,
    queries::{word, words},
    runtime,
};

/// Adds the state of the tailnet node with this interface, if there is one.
pub(crate) fn add_node_health(tunnel: &mut Tunnel) {
    if !is_running_node(&tunnel.name) {
        return;
    }
    match query_node(&tunnel.name) {
        Ok((status, prefs)) => {
            tunnel.member = Some(member(&status));
            let routes = words(&prefs["AdvertiseRoutes"]);
            tunnel.offers.extend(routes.iter().filter_map(|net| net.parse::<ipnet::IpNet>().ok()));
        }
        Err(error) => tunnel.member = Some(Member::NoAnswer(format!("{error:#}"))),
    }
}

fn query_node(name: &str) -> anyhow::Result<(Value, Value)> {
    let client = NodeSelector::new(Some(name.to_owned())).client()?;
    let runtime = runtime()?;
    Ok((runtime.block_on(client.get("status"))?, runtime.block_on(client.get("prefs"))?))
}

fn member(status: &Value) -> Member {
    let peers = status["Peer"].as_object().into_iter().flat_map(Map::values);
    let relayed = peers.filter(|peer| {
        let is_empty = |key: &str| peer[key].as_str().is_none_or(str::is_empty);
        let has_way = !is_empty("CurAddr") || !is_empty("PeerRelay");
        peer["Active"] == Value::Bool(true) && !has_way && !is_empty("Relay")
    });
    let name =
        |peer: &Value| word(&peer["DNSName"]).split('.').next().unwrap_or_default().to_owned();
    Member::Answers {
        state: status["BackendState"].as_str().unwrap_or("unknown").to_owned(),
        health: words(&status["Health"]),
        relayed: relayed.map(name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn active_peers_without_a_direct_path_are_listed_as_relayed() {
        let peer = |name: &str, active: bool, direct: &str, relay: &str| json!({"DNSName": format!("{name}.net."), "Active": active, "CurAddr": direct, "Relay": relay});
        let status = json!({
            "BackendState": "Running",
            "Health": ["the clock is wrong"],
            "Peer": {
                "1": peer("direct", true, "192.0.2.1:1", "r1"),
                "2": peer("relayed", true, "", "r1"),
                "3": peer("idle", false, "", "r1"),
                "4": peer("unknown", true, "", ""),
            },
        });
        let expected = Member::Answers {
            state: "Running".into(),
            health: vec!["the clock is wrong".into()],
            relayed: vec!["relayed".into()],
        };
        assert_eq!(member(&status), expected);
    }
}
