//! Parsing of responses, with each field parsed separately. An unreadable field does not affect the
//! others.
//!
//! Nothing is parsed into a tree of values. The memory of a field is limited to a few times the
//! longest frame, because the length of each text is limited, and records of lists are parsed
//! later, one at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    BadRecord, DerpMap, DisplayMessage, HomeParams, MapResponse, Records,
    records::{for_each_entry, note, read, short},
};
use crate::raw_json::Json;

/// The longest text of a short field, in bytes.
const SHORT: usize = 4 << 10;
/// The longest text of this node.
const NODE: usize = 1 << 20;
/// The longest text of the relays.
const RELAYS: usize = 256 << 10;
/// The longest text of the DNS settings, which may contain thousands of records.
const DNS: usize = 1 << 20;
/// The longest text of the connection states of peers.
const PRESENCE: usize = 2 << 20;
/// The longest text of health messages.
const HEALTH: usize = 64 << 10;
/// The maximum number of names in an object, and the longest name.
const NAMES: usize = 1000;
const NAME: usize = 256;

/// The unparsed fields of a response.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Texts<'a> {
    #[serde(borrow)]
    keep_alive: Option<&'a RawValue>,
    control_time: Option<&'a RawValue>,
    node: Option<&'a RawValue>,
    #[serde(rename = "DERPMap")]
    derp_map: Option<&'a RawValue>,
    peers: Option<&'a RawValue>,
    peers_changed: Option<&'a RawValue>,
    peers_removed: Option<&'a RawValue>,
    peers_changed_patch: Option<&'a RawValue>,
    peer_seen_change: Option<&'a RawValue>,
    online_change: Option<&'a RawValue>,
    #[serde(rename = "DNSConfig")]
    dns_config: Option<&'a RawValue>,
    domain: Option<&'a RawValue>,
    packet_filter: Option<&'a RawValue>,
    packet_filters: Option<&'a RawValue>,
    user_profiles: Option<&'a RawValue>,
    health: Option<&'a RawValue>,
    display_messages: Option<&'a RawValue>,
    #[serde(rename = "TKAInfo")]
    tka: Option<&'a RawValue>,
    #[serde(rename = "PopBrowserURL")]
    pop_browser_url: Option<&'a RawValue>,
}

impl MapResponse {
    /// Parses a frame. As in Go, `null` means absent.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub fn read(frame: &[u8]) -> serde_json::Result<Self> {
        let texts: Texts<'_> = serde_json::from_slice(frame)?;
        let mut reader = Reader::default();
        Ok(Self {
            keep_alive: reader.read("KeepAlive", texts.keep_alive, SHORT).unwrap_or_default(),
            control_time: reader.read("ControlTime", texts.control_time, SHORT),
            node: reader.read("Node", texts.node, NODE),
            derp_map: reader.relays("DERPMap", texts.derp_map),
            peers: reader.records("Peers", texts.peers).unwrap_or_default(),
            peers_changed: reader.records("PeersChanged", texts.peers_changed).unwrap_or_default(),
            peers_removed: reader.records("PeersRemoved", texts.peers_removed).unwrap_or_default(),
            peers_changed_patch: reader
                .records("PeersChangedPatch", texts.peers_changed_patch)
                .unwrap_or_default(),
            peer_seen_change: reader
                .read("PeerSeenChange", texts.peer_seen_change, PRESENCE)
                .unwrap_or_default(),
            online_change: reader
                .read("OnlineChange", texts.online_change, PRESENCE)
                .unwrap_or_default(),
            dns_config: reader.read("DNSConfig", texts.dns_config, DNS),
            domain: reader.read("Domain", texts.domain, SHORT).unwrap_or_default(),
            packet_filter: reader.records("PacketFilter", texts.packet_filter),
            packet_filters: reader.by_name("PacketFilters", texts.packet_filters, Records::new),
            user_profiles: reader.records("UserProfiles", texts.user_profiles).unwrap_or_default(),
            health: reader.read("Health", texts.health, HEALTH),
            display_messages: reader.by_name(
                "DisplayMessages",
                texts.display_messages,
                |message| read::<DisplayMessage>(message, SHORT),
            ),
            tka: reader.read("TKAInfo", texts.tka, SHORT),
            pop_browser_url: reader
                .read("PopBrowserURL", texts.pop_browser_url, SHORT)
                .unwrap_or_default(),
            bad: reader.bad,
        })
    }
}

#[derive(Default)]
struct Reader {
    bad: Vec<BadRecord>,
}

impl Reader {
    /// Returns the value, or reports the error.
    fn taken<T>(
        &mut self,
        field: &'static str,
        which: &str,
        read: serde_json::Result<T>,
    ) -> Option<T> {
        read.map_err(|error| note(&mut self.bad, field, short(which), &error)).ok()
    }

    /// Parses a field of at most `most` bytes.
    fn read<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
        text: Option<&RawValue>,
        most: usize,
    ) -> Option<T> {
        let value = read(text?, most);
        self.taken(field, "", value)
    }

    fn records(&mut self, field: &'static str, text: Option<&RawValue>) -> Option<Records> {
        self.taken(field, "", Records::new(text?))
    }

    /// Parses each value of an object. A `null` becomes `None`, and an unreadable value is left
    /// out.
    fn by_name<T>(
        &mut self,
        field: &'static str,
        text: Option<&RawValue>,
        read: impl Fn(&RawValue) -> serde_json::Result<T>,
    ) -> Option<BTreeMap<String, Option<T>>> {
        let (mut values, mut left_out) = (BTreeMap::new(), 0);
        let whole = for_each_entry(text?, |name, value| {
            if values.len() >= NAMES || name.len() > NAME {
                left_out += 1;
            } else if value.get() == "null" {
                values.insert(name, None);
            } else if let Some(value) = self.taken(field, &name, read(value)) {
                values.insert(name, Some(value));
            }
        });
        self.note_left_out(field, left_out);
        self.taken(field, "", whole).map(|()| values)
    }

    /// Parses the relays, each region separately.
    fn relays(&mut self, field: &'static str, text: Option<&RawValue>) -> Option<DerpMap> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        struct Relays {
            home_params: Option<HomeParams>,
            regions: Option<Json>,
            omit_default_regions: bool,
        }
        let relays: Relays = self.read(field, text, RELAYS)?;
        let regions = relays.regions.map(|regions| {
            let by_text = self.by_name(field, Some(regions.raw()), |region| read(region, RELAYS));
            let mut by_number = BTreeMap::new();
            for (number, region) in by_text? {
                let number = serde_json::from_str(&number);
                if let Some(number) = self.taken(field, "Regions", number) {
                    by_number.insert(number, region);
                }
            }
            Some(by_number)
        });
        Some(DerpMap {
            home_params: relays.home_params,
            regions: regions.flatten(),
            omit_default_regions: relays.omit_default_regions,
        })
    }

    fn note_left_out(&mut self, field: &'static str, left_out: usize) {
        if left_out > 0 {
            let why = format!(
                "{left_out} names are ignored, because they are too long or more than {NAMES}"
            );
            self.bad.push(BadRecord { kind: field, which: String::new(), why });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json, value::to_raw_value};

    use super::*;
    use crate::{
        keys::NodePublic,
        map_messages::{Node, Record, UserProfile},
    };

    fn read(value: Value) -> MapResponse {
        MapResponse::read(value.to_string().as_bytes()).unwrap()
    }

    fn all<T: Record>(records: &Records) -> (Vec<T>, Vec<BadRecord>) {
        let (mut read, mut bad) = (Vec::new(), Vec::new());
        records.for_each("peer", &mut bad, |record| read.push(record));
        (read, bad)
    }

    fn nodes(list: &Value) -> (Vec<Node>, Vec<BadRecord>) {
        all(&Records::new(&to_raw_value(list).unwrap()).unwrap())
    }

    #[test]
    fn unreadable_field_does_not_affect_the_others() {
        let region = json!({"RegionID": 1, "RegionCode": "a"});
        let response = read(json!({
            "KeepAlive": 1, "ControlTime": 7, "DNSConfig": 7, "Peers": {}, "Domain": "net",
            "PeersRemoved": ["x"], "OnlineChange": {"x": true}, "PacketFilter": 1,
            "UserProfiles": [{"ID": 1}, {"ID": "x"}], "Health": "ill",
            "PacketFilters": {"a": null, "b": [], "c": 7},
            "DisplayMessages": {"*": null, "a": {"Title": "t"}, "b": 7},
            "DERPMap": {"Regions": {"1": region, "2": {"RegionID": "x"}, "3": null}},
        }));
        assert_eq!(
            (&*response.domain, all::<UserProfile>(&response.user_profiles).0.len()),
            ("net", 1)
        );
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
        assert_eq!(kinds.len(), 10, "{kinds:?}");
        let (removed, bad) = all::<i64>(&response.peers_removed);
        assert_eq!((removed.len(), bad.len()), (0, 1), "records are read when they are taken");
        let told: Vec<String> = response.bad.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|told| told.starts_with("DERPMap 2: ")), "{told:?}");
        assert!(MapResponse::read(b"7").is_err());
    }

    /// Returns a peer with these fields.
    fn peer(fields: &Value) -> Map<String, Value> {
        let addresses = json!(["100.64.0.1/32"]);
        let mut peer = json!({"ID": 1, "Key": NodePublic([1; 32]), "Addresses": addresses});
        let peer = peer.as_object_mut().unwrap();
        peer.extend(fields.as_object().unwrap().clone());
        std::mem::take(peer)
    }

    #[test]
    fn null_means_absent_in_every_field() {
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
        ];
        let nulls = fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect();
        assert_eq!(read(Value::Object(nulls)), MapResponse::default());
        let of_node = serde_json::to_value(Node::default()).unwrap();
        let names = of_node.as_object().unwrap().keys();
        let mut nulls: Map<String, Value> = names.map(|name| (name.clone(), Value::Null)).collect();
        nulls.insert("Hostinfo".into(), json!({"OS": null, "Hostname": null, "RoutableIPs": null}));
        nulls.insert("CapMap".into(), json!({"x": null}));
        let node: Node = serde_json::from_value(nulls.clone().into()).unwrap();
        assert_eq!((node.id, node.addresses), (0, vec![]));
        // A peer must have these three.
        nulls.extend(peer(&json!({})));
        let (nodes, bad) = nodes(&json!([nulls]));
        assert_eq!(bad, []);
        assert!(nodes[0].has_capability("x"), "a capability without values is one");
    }

    #[test]
    fn endpoint_with_an_interface_name_is_left_out() {
        let endpoints = json!(["[fe80::1%eth0]:41641", "192.0.2.1:41641", ""]);
        let (nodes, bad) = nodes(&json!([peer(&json!({"Endpoints": endpoints}))]));
        assert_eq!((bad, nodes[0].endpoints.len()), (vec![], 1));
    }

    #[test]
    fn reported_records_are_limited() {
        let long = "é".repeat(10_000);
        let peer = json!({"Name": long, "Key": long});
        let (none, bad) = nodes(&json!(vec![peer; 1000]));
        assert!(none.is_empty() && bad.len() < 50);
        assert!(bad.iter().all(|bad| bad.to_string().len() < 500));
    }
}
