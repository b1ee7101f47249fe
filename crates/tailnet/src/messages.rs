//! What a coordinator says of the network (tailscale `tailcfg/tailcfg.go`).
//!
//! Go leaves out what is empty, or writes `null`; both are read as that. Where the two mean different
//! things, a field is an [`Option`], or an `Option` in an `Option`. What is unknown is passed over.
//! A record among many that cannot be read is told and does not spoil the others ([`Records`]).

mod node;
mod records;
mod relays;
mod response;
mod rules;
mod weight;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::weight::{Weight, block};
pub use self::{
    node::{CapMap, Hostinfo, Node, PeerChange, UserProfile, format_time, parse_time},
    records::{BadRecord, Record, Records},
    relays::{DerpMap, DerpNode, DerpRegion, HomeParams, RelayAddress},
    rules::{CapGrant, Destination, FilterRule, PortRange},
};
pub use crate::{json::Json, local::nil};

/// A map, or what changed of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapResponse {
    /// Nothing else may be in it.
    pub keep_alive: bool,
    /// The coordinator's clock.
    pub control_time: Option<String>,
    /// This node.
    pub node: Option<Box<Node>>,
    /// The relays.
    pub derp_map: Option<DerpMap>,
    /// All peers: nothing else of peers counts then.
    pub peers: Records,
    /// Peers that are new, or have changed.
    pub peers_changed: Records,
    /// Numbers of peers that are gone.
    pub peers_removed: Records,
    /// Parts of peers that changed.
    pub peers_changed_patch: Records,
    /// Whether peers were seen just now, or not any more.
    pub peer_seen_change: BTreeMap<i64, bool>,
    /// Whether peers are connected.
    pub online_change: BTreeMap<i64, bool>,
    /// How names are resolved.
    pub dns_config: Option<DnsConfig>,
    /// The name of the network.
    pub domain: String,
    /// The filter's rules named `base`: absent means unchanged, empty means none.
    pub packet_filter: Option<Records>,
    /// The filter's rules by name; `null` removes a name, and `*` all.
    pub packet_filters: Option<BTreeMap<String, Option<Records>>>,
    /// Who owns nodes.
    pub user_profiles: Records,
    /// What is wrong, in the coordinator's words; absent means unchanged.
    pub health: Option<Vec<String>>,
    /// The same by name; `null` removes a name, and `*` all.
    pub display_messages: Option<BTreeMap<String, Option<DisplayMessage>>>,
    /// The state of tailnet tka.
    pub tka: Option<TkaInfo>,
    /// A page to be shown.
    pub pop_browser_url: String,
    /// What of it could not be read, and is as if it had not been said.
    pub bad: Vec<BadRecord>,
}

/// How names are resolved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DnsConfig {
    /// Who answers for all names.
    #[serde(with = "nil")]
    pub resolvers: Vec<Resolver>,
    /// Who answers for names that end so; nobody means this node.
    #[serde(with = "nil")]
    pub routes: BTreeMap<String, Option<Vec<Resolver>>>,
    /// Who answers for all names where an exit node is used, and there are no others.
    #[serde(with = "nil")]
    pub fallback_resolvers: Vec<Resolver>,
    /// What is tried behind a short name.
    #[serde(with = "nil")]
    pub domains: Vec<String>,
    /// Whether names of nodes are resolved.
    pub proxied: bool,
    /// Names that certificates can be had for.
    #[serde(with = "nil")]
    pub cert_domains: Vec<String>,
    /// Names beside those of nodes.
    #[serde(with = "nil")]
    pub extra_records: Vec<crate::local::DnsRecord>,
}

/// Who is asked for names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Resolver {
    /// An address, with or without a port, or a URL.
    pub addr: String,
    /// Addresses of the URL's host.
    #[serde(with = "nil")]
    pub bootstrap_resolution: Vec<std::net::IpAddr>,
}

/// Something that a user is to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DisplayMessage {
    /// In a few words.
    pub title: String,
    /// In a few sentences.
    pub text: String,
    /// `high`, `medium` or `low`.
    pub severity: String,
}

/// The state of tailnet tka.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TkaInfo {
    /// The hash of the last update; empty if it is off.
    pub head: String,
    /// Whether it is to be switched off.
    pub disabled: bool,
}
