//! Reading a response, each field for itself: one that cannot be read costs no other.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    BadRecord, DerpMap, DerpRegion, MapResponse, Records,
    records::{note, short},
};

impl<'de> Deserialize<'de> for MapResponse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Fields { fields: Map::deserialize(deserializer)?, bad: Vec::new() };
        Ok(Self {
            keep_alive: fields.take("KeepAlive"),
            control_time: fields.take("ControlTime"),
            node: fields.take("Node"),
            derp_map: fields.relays("DERPMap"),
            peers: fields.take("Peers"),
            peers_changed: fields.take("PeersChanged"),
            peers_removed: fields.take("PeersRemoved"),
            peers_changed_patch: fields.take("PeersChangedPatch"),
            peer_seen_change: fields.take("PeerSeenChange"),
            online_change: fields.take("OnlineChange"),
            dns_config: fields.take("DNSConfig"),
            domain: fields.take("Domain"),
            packet_filter: fields.take("PacketFilter"),
            packet_filters: fields.by_name("PacketFilters"),
            user_profiles: fields.each("UserProfiles"),
            health: fields.take("Health"),
            display_messages: fields.by_name("DisplayMessages"),
            lock: fields.take("TKAInfo"),
            pop_browser_url: fields.take("PopBrowserURL"),
            client_version: fields.take("ClientVersion"),
            bad: fields.bad,
        })
    }
}

struct Fields {
    fields: Map<String, Value>,
    bad: Vec<BadRecord>,
}

impl Fields {
    /// A field. As in Go, `null` is as good as none.
    fn take<T: Default + DeserializeOwned>(&mut self, field: &'static str) -> T {
        let value = self.fields.remove(field).filter(|value| !value.is_null());
        value.and_then(|value| self.read(field, "", value)).unwrap_or_default()
    }

    fn read<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
        which: &str,
        value: Value,
    ) -> Option<T> {
        let read = serde_json::from_value(value);
        read.map_err(|error| note(&mut self.bad, field, short(which), &error)).ok()
    }

    /// Each record of a list.
    fn each<T: DeserializeOwned>(&mut self, field: &'static str) -> Vec<T> {
        let records: Records = self.take(field);
        records.read(field, &mut self.bad)
    }

    /// Each value of a map. A name with `null` is there; one with what cannot be read is not.
    fn by_name<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
    ) -> Option<BTreeMap<String, Option<T>>> {
        let values: Option<BTreeMap<String, Value>> = self.take(field);
        let read = values?.into_iter().filter_map(|(name, value)| {
            let read = if value.is_null() { None } else { Some(self.read(field, &name, value)?) };
            Some((name, read))
        });
        Some(read.collect())
    }

    /// The relays, each region for itself.
    fn relays(&mut self, field: &'static str) -> Option<DerpMap> {
        let mut fields: Map<String, Value> = self.take::<Option<_>>(field)?;
        let regions = fields.remove("Regions").filter(|regions| !regions.is_null());
        let mut map: DerpMap = self.read(field, "", Value::Object(fields))?;
        if let Some(regions) = regions {
            let regions: BTreeMap<u16, Value> = self.read(field, "Regions", regions)?;
            let read = regions.into_iter().filter_map(|(number, region)| {
                let region = self.read::<Option<DerpRegion>>(field, &number.to_string(), region)?;
                Some((number, region))
            });
            map.regions = Some(read.collect());
        }
        Some(map)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::messages::Node;

    fn read(value: Value) -> MapResponse {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_field_that_cannot_be_read_costs_no_other() {
        let region = json!({"RegionID": 1, "RegionCode": "a"});
        let response = read(json!({
            "KeepAlive": 1, "ControlTime": 7, "DNSConfig": 7, "Peers": {}, "Domain": "net",
            "PeersRemoved": ["x"], "OnlineChange": {"x": true}, "PacketFilter": 1,
            "UserProfiles": [{"ID": 1}, {"ID": "x"}], "Health": "ill",
            "PacketFilters": {"a": null, "b": [], "c": 7},
            "DisplayMessages": {"*": null, "a": {"Title": "t"}, "b": 7},
            "DERPMap": {"Regions": {"1": region, "2": {"RegionID": "x"}, "3": null}},
        }));
        assert_eq!((&*response.domain, response.user_profiles.len()), ("net", 1));
        assert!(response.dns_config.is_none() && response.peers.is_empty());
        let filters = response.packet_filters.unwrap();
        assert_eq!(filters.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(filters["a"].is_none() && filters["b"].is_some());
        let messages = response.display_messages.unwrap();
        assert_eq!(messages.keys().collect::<Vec<_>>(), ["*", "a"]);
        let regions = response.derp_map.unwrap().regions.unwrap();
        assert_eq!(regions.keys().collect::<Vec<_>>(), [&1, &3]);
        assert!(regions[&1].is_some() && regions[&3].is_none());
        let kinds: Vec<&str> = response.bad.iter().map(|bad| bad.kind).collect();
        assert_eq!(kinds.len(), 12, "{kinds:?}");
        let told: Vec<String> = response.bad.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|told| told.starts_with("DERPMap 2: ")), "{told:?}");
        assert!(serde_json::from_str::<MapResponse>("7").is_err());
    }

    #[test]
    fn null_is_none_in_every_field() {
        let fields = [
            "KeepAlive",
            "ControlTime",
            "Node",
            "DERPMap",
            "Peers",
            "PeersChanged",
            "PeersRemoved",
            "PeersChangedPatch",
            "PeerSeenChange",
            "OnlineChange",
            "DNSConfig",
            "Domain",
            "PacketFilter",
            "PacketFilters",
            "UserProfiles",
            "Health",
            "DisplayMessages",
            "TKAInfo",
            "PopBrowserURL",
            "ClientVersion",
        ];
        let nulls = fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect();
        assert_eq!(read(Value::Object(nulls)), MapResponse::default());
        let of_node = serde_json::to_value(Node::default()).unwrap();
        let names = of_node.as_object().unwrap().keys();
        let mut nulls: Map<String, Value> = names.map(|name| (name.clone(), Value::Null)).collect();
        nulls.insert("Hostinfo".into(), json!({"OS": null, "Hostname": null, "RoutableIPs": null}));
        nulls.insert("CapMap".into(), json!({"x": null}));
        let mut bad = Vec::new();
        let nodes: Vec<Node> = Records(vec![Value::Object(nulls)]).read("peer", &mut bad);
        assert_eq!(bad, []);
        assert!(nodes[0].may("x"), "a capability without values is one");
    }

    #[test]
    fn an_endpoint_on_a_link_of_the_peers_own_costs_no_other() {
        let endpoints = json!(["[fe80::1%eth0]:41641", "192.0.2.1:41641", ""]);
        let mut bad = Vec::new();
        let node = json!({"ID": 1, "Endpoints": endpoints});
        let nodes: Vec<Node> = Records(vec![node]).read("peer", &mut bad);
        assert_eq!((bad, nodes[0].endpoints.len()), (vec![], 1));
    }

    #[test]
    fn what_is_told_is_bounded() {
        let long = "é".repeat(10_000);
        let peer = json!({"Name": long, "Key": long});
        let mut bad = Vec::new();
        let none: Vec<Node> = Records(vec![peer; 1000]).read("peer", &mut bad);
        assert!(none.is_empty() && bad.len() < 50);
        assert!(bad.iter().all(|bad| bad.to_string().len() < 500));
    }
}
