//! Rules of the packet filter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Record;
use crate::{nil, raw_json::Json};

/// Accepts packets from sources to destinations, or grants capabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FilterRule {
    /// `*`, addresses, networks, ranges, or `cap:` and a capability.
    #[serde(rename = "SrcIPs", with = "nil")]
    pub sources: Vec<String>,
    /// The prefix lengths of the sources, in the old format.
    #[serde(rename = "SrcBits", with = "nil")]
    pub source_bits: Vec<i32>,
    /// The destinations.
    #[serde(rename = "DstPorts", with = "nil")]
    pub destinations: Vec<Destination>,
    /// IP protocols; empty for TCP, UDP and ICMP.
    #[serde(rename = "IPProto", with = "nil")]
    pub protocols: Vec<i32>,
    /// The capabilities of the sources at the destinations.
    #[serde(rename = "CapGrant", with = "nil")]
    pub grants: Vec<CapGrant>,
}

impl Record for FilterRule {
    /// A rule may name all addresses of a large network.
    const LONGEST: usize = 4 << 20;
}

/// Addresses with ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Destination {
    /// The same forms as for a source.
    #[serde(rename = "IP", deserialize_with = "nil::deserialize")]
    pub addresses: String,
    /// The prefix length, in the old format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<i32>,
    /// The ports.
    #[serde(deserialize_with = "nil::deserialize")]
    pub ports: PortRange,
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PortRange {
    /// The first.
    #[serde(deserialize_with = "nil::deserialize")]
    pub first: u16,
    /// The last.
    #[serde(deserialize_with = "nil::deserialize")]
    pub last: u16,
}

/// The capabilities of sources at destinations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CapGrant {
    /// The destination networks.
    #[serde(rename = "Dsts", with = "nil")]
    pub destinations: Vec<String>,
    /// The capabilities.
    #[serde(with = "nil")]
    pub caps: Vec<String>,
    /// The capabilities with their values.
    #[serde(with = "nil")]
    pub cap_map: BTreeMap<String, Json>,
}
