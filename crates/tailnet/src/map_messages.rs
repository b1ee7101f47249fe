//! Messages of the coordinator that describe the network (tailscale `tailcfg/tailcfg.go`).
//!
//! Go omits an empty value or writes `null`, and both are read as empty. If their meanings differ,
//! a field is an [`Option`], or an `Option` in an `Option`. Unknown fields are ignored. An
//! unreadable record in a list is reported, and does not affect the others ([`Records`]).

mod derp_map;
mod filter_rules;
mod map_response;
mod node;
mod records;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{
    derp_map::{DerpMap, DerpNode, DerpRegion, HomeParams, RelayAddress},
    filter_rules::{CapGrant, Destination, FilterRule, PortRange},
    node::{CapMap, Hostinfo, Node, PeerChange, UserProfile, format_time, parse_time},
    records::{BadRecord, Record, Records},
};
use crate::nil;

/// A map, or its changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapResponse {
    /// Whether this is a keepalive, which has no other fields.
    pub keep_alive: bool,
    /// The coordinator's clock.
    pub control_time: Option<String>,
    /// This node.
    pub node: Option<Box<Node>>,
    /// The relays.
    pub derp_map: Option<DerpMap>,
    /// All peers. If present, the other fields with peers are ignored.
    pub peers: Records,
    /// New or changed peers.
    pub peers_changed: Records,
    /// The numbers of removed peers.
    pub peers_removed: Records,
    /// Changes of parts of peers.
    pub peers_changed_patch: Records,
    /// Whether peers were seen just now, or were disconnected.
    pub peer_seen_change: BTreeMap<i64, bool>,
    /// Whether peers are connected.
    pub online_change: BTreeMap<i64, bool>,
    /// The DNS settings.
    pub dns_config: Option<DnsConfig>,
    /// The name of the network.
    pub domain: String,
    /// The filter rules named `base`: absent means unchanged, empty means none.
    pub packet_filter: Option<Records>,
    /// Named filter rules; `null` removes a name, or all names if the name is `*`.
    pub packet_filters: Option<BTreeMap<String, Option<Records>>>,
    /// The owners of nodes.
    pub user_profiles: Records,
    /// Problems that the coordinator reports; absent means unchanged.
    pub health: Option<Vec<String>>,
    /// Named messages; `null` removes a name, or all names if the name is `*`.
    pub display_messages: Option<BTreeMap<String, Option<DisplayMessage>>>,
    /// The state of tailnet lock.
    pub tka: Option<TkaInfo>,
    /// A URL to show to the user.
    pub pop_browser_url: String,
    /// The unreadable parts. They are handled as absent.
    pub bad: Vec<BadRecord>,
}

/// The DNS settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DnsConfig {
    /// The resolvers for all names.
    #[serde(with = "nil")]
    pub resolvers: Vec<Resolver>,
    /// The resolvers for names with a suffix; empty means this node.
    #[serde(with = "nil")]
    pub routes: BTreeMap<String, Option<Vec<Resolver>>>,
    /// The resolvers for all names if an exit node is used and the network configures no others.
    #[serde(with = "nil")]
    pub fallback_resolvers: Vec<Resolver>,
    /// The search domains.
    #[serde(with = "nil")]
    pub domains: Vec<String>,
    /// Whether this node answers names of nodes.
    pub proxied: bool,
    /// The names for which certificates are available.
    #[serde(with = "nil")]
    pub cert_domains: Vec<String>,
    /// Names in addition to those of nodes.
    #[serde(with = "nil")]
    pub extra_records: Vec<crate::map_messages::DnsRecord>,
}

/// A record (`tailcfg.DNSRecord`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DnsRecord {
    /// Its full name.
    pub name: String,
    /// The type; empty for an address.
    #[serde(rename = "Type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its value.
    pub value: String,
}

/// A DNS resolver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Resolver {
    /// An address, with or without a port, or a URL.
    pub addr: String,
    /// The addresses of the URL's host.
    #[serde(with = "nil")]
    pub bootstrap_resolution: Vec<std::net::IpAddr>,
}

/// A message to the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DisplayMessage {
    /// A short title.
    pub title: String,
    /// The text.
    pub text: String,
    /// `high`, `medium` or `low`.
    pub severity: String,
}

/// The state of tailnet lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TkaInfo {
    /// The hash of the last update; empty if tailnet lock is off.
    pub head: String,
    /// Whether the node should turn it off.
    pub disabled: bool,
}
