//! The coordinator's maps.

use std::net::SocketAddr;

use netns::{Family, Switch};
use serde_json::{Value, json};

use super::DERP;

/// All nodes, in the order in which they registered.
pub(super) struct Network {
    regions: u16,
    nodes: Vec<Node>,
}

/// Data that a node reported about itself.
#[derive(Clone, Default)]
struct Node {
    key: String,
    disco: String,
    name: String,
    endpoints: Vec<SocketAddr>,
    home: u64,
}

impl Network {
    pub(super) fn of_regions(regions: u16) -> Self {
        Self { regions, nodes: Vec::new() }
    }

    /// Reads a request.
    pub(super) fn learn(&mut self, request: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = text(&request["NodeKey"]);
        let position = self.nodes.iter().position(|node| node.key == key);
        let at = position.unwrap_or_else(|| {
            self.nodes.push(Node { key, ..Node::default() });
            self.nodes.len() - 1
        });
        let node = &mut self.nodes[at];
        let hostinfo = &request["Hostinfo"];
        if hostinfo["Hostname"].is_string() {
            node.name = text(&hostinfo["Hostname"]);
            node.home = hostinfo["NetInfo"]["PreferredDERP"].as_u64().unwrap_or(node.home);
        }
        if request["DiscoKey"].is_string() {
            node.disco = text(&request["DiscoKey"]);
            let endpoints = request["Endpoints"].as_array().into_iter().flatten();
            node.endpoints = endpoints.filter_map(|one| one.as_str()?.parse().ok()).collect();
        }
    }

    /// The whole map, for the node with this key.
    pub(super) fn map(&self, key: &str) -> Value {
        let others = self.nodes.iter().enumerate().filter(|(_, node)| node.key != key);
        let own = self.nodes.iter().position(|node| node.key == key).unwrap_or_default();
        let regions = (1..=self.regions).map(|id| (id.to_string(), region(id)));
        json!({
            "Node": self.node(own),
            "Peers": others.map(|(at, _)| self.node(at)).collect::<Vec<_>>(),
            "DERPMap": { "Regions": regions.collect::<serde_json::Map<_, _>>() },
            "PacketFilter": [{
                "SrcIPs": ["*"],
                "DstPorts": [{ "IP": "*", "Ports": { "First": 0, "Last": 65535 } }],
            }],
            "Domain": "rig.test",
            "UserProfiles": [{ "ID": 1, "LoginName": "rig@rig.test", "DisplayName": "Rig" }],
        })
    }

    /// A node for its peers.
    fn node(&self, at: usize) -> Value {
        let Some(node) = self.nodes.get(at) else { return Value::Null };
        let mut view = peer(at + 1, &node.name, &node.key);
        view["DiscoKey"] = json!(node.disco);
        view["Endpoints"] = json!(node.endpoints);
        view["HomeDERP"] = json!(node.home);
        view["Online"] = json!(true);
        view
    }
}

fn region(id: u16) -> Value {
    let address = Switch::coordinator();
    let code = if id == 1 { "rig".to_owned() } else { format!("rig{id}") };
    let relay = json!({
        "Name": id.to_string(), "RegionID": id, "HostName": address.of(Family::V4),
        "DERPPort": DERP + id - 1, "IPv4": address.of(Family::V4), "IPv6": address.of(Family::V6),
    });
    json!({ "RegionID": id, "RegionCode": code, "RegionName": "Rig", "Nodes": [relay] })
}

/// A peer of this number that does not exist.
pub(crate) fn peer(number: usize, name: &str, key: &str) -> Value {
    let [high, low] = u16::try_from(number & 0xffff).expect("16 bits").to_be_bytes();
    let second = 64 + (number >> 16);
    let addresses =
        [format!("100.{second}.{high}.{low}/32"), format!("fd7a:115c:a1e0::{number:x}/128")];
    json!({
        "ID": number, "StableID": format!("n{number}"), "Name": format!("{name}.rig.test."),
        "User": 1, "Key": key, "Addresses": addresses, "AllowedIPs": addresses,
        "Hostinfo": { "OS": "linux", "Hostname": name }, "MachineAuthorized": true,
    })
}
