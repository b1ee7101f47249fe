//! The state of a node and of its peers (tailscale `ipn/ipnstate/ipnstate.go`).

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tailnet::{
    keys::NodePublic,
    map_messages::{DnsRecord, UserProfile},
    raw_json::Json,
};

use super::State;

/// The output of `tailscale status --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Whether an interface exists.
    #[serde(rename = "TUN")]
    pub tun: bool,
    /// The state of the node.
    #[serde(with = "state_name")]
    pub backend_state: State,
    /// Whether a node key exists. If not, `tailscale up` logs in.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub have_node_key: bool,
    /// The login URL, or empty.
    #[serde(rename = "AuthURL")]
    pub auth_url: String,
    /// This node's addresses.
    #[serde(rename = "TailscaleIPs", with = "tailnet::nil")]
    pub tailscale_ips: Vec<IpAddr>,
    /// This node. The `tailscale` command requires it in every state.
    #[serde(rename = "Self")]
    pub own: PeerStatus,
    /// The exit node in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_node_status: Option<ExitNodeStatus>,
    /// The problems, a sentence each.
    pub health: Vec<String>,
    /// The reason why the last connection to the coordinator failed. Tailscale does not have this
    /// field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coordinator_problem: String,
    /// As in [`TailnetStatus`].
    #[serde(rename = "MagicDNSSuffix")]
    pub magic_dns_suffix: String,
    /// The network.
    pub current_tailnet: Option<TailnetStatus>,
    /// The mapped port of the router: protocol, address and lifetime. Tailscale does not have this
    /// field.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub port_mapping: Value,
    /// The names for which the coordinator supports certificates.
    #[serde(with = "tailnet::nil")]
    pub cert_domains: Vec<String>,
    /// The extra DNS records of the coordinator.
    #[serde(with = "tailnet::nil")]
    pub extra_records: Vec<DnsRecord>,
    /// The others.
    #[serde(with = "tailnet::nil")]
    pub peer: BTreeMap<NodePublic, PeerStatus>,
    /// The owners of nodes by ID.
    #[serde(with = "tailnet::nil")]
    pub user: BTreeMap<i64, UserProfile>,
    /// The coordinator's information about newer versions.
    pub client_version: Option<Value>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TailnetStatus {
    /// Its name.
    pub name: String,
    /// The MagicDNS suffix, without leading and trailing dots.
    #[serde(rename = "MagicDNSSuffix")]
    pub magic_dns_suffix: String,
    /// Whether MagicDNS is enabled.
    #[serde(rename = "MagicDNSEnabled")]
    pub magic_dns_enabled: bool,
}

/// The exit node in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExitNodeStatus {
    /// The stable ID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Whether it is connected to the coordinator.
    pub online: bool,
    /// Its addresses.
    #[serde(rename = "TailscaleIPs", with = "tailnet::nil")]
    pub tailscale_ips: Vec<IpNet>,
}

/// This node or a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerStatus {
    /// The stable id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The ID in the map.
    #[serde(rename = "NodeID")]
    pub node_id: i64,
    /// The node key.
    pub public_key: NodePublic,
    /// The hostname.
    pub host_name: String,
    /// The full name with the final dot.
    #[serde(rename = "DNSName")]
    pub dns_name: String,
    /// The operating system, such as `linux`.
    #[serde(rename = "OS")]
    pub os: String,
    /// The owner.
    #[serde(rename = "UserID")]
    pub user_id: i64,
    /// The ID of the user that shared the node, or 0.
    #[serde(rename = "AltSharerUserID", skip_serializing_if = "is_zero")]
    pub alt_sharer_user_id: i64,
    /// The addresses.
    #[serde(rename = "TailscaleIPs", with = "tailnet::nil")]
    pub tailscale_ips: Vec<IpAddr>,
    /// The allowed IPs.
    #[serde(rename = "AllowedIPs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_ips: Vec<IpNet>,
    /// The tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The subnets that are routed to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub primary_routes: Vec<IpNet>,
    /// The endpoints; only for this node.
    #[serde(with = "tailnet::nil")]
    pub addrs: Vec<String>,
    /// The address of the direct path, or empty.
    pub cur_addr: String,
    /// The code of the DERP region.
    pub relay: String,
    /// The peer relay.
    pub peer_relay: String,
    /// The number of received bytes.
    pub rx_bytes: u64,
    /// The number of sent bytes.
    pub tx_bytes: u64,
    /// The time of the registration.
    pub created: Timestamp,
    /// The time of the last sent packet.
    pub last_write: Timestamp,
    /// The time of the last connection to the coordinator, if it is not connected now.
    pub last_seen: Timestamp,
    /// The time of the last handshake.
    pub last_handshake: Timestamp,
    /// Whether it is connected to the coordinator.
    pub online: bool,
    /// Whether it is the exit node in use.
    pub exit_node: bool,
    /// Whether it can be an exit node.
    pub exit_node_option: bool,
    /// Whether a packet was sent to it within two minutes.
    pub active: bool,
    /// Its HTTP servers.
    #[serde(rename = "PeerAPIURL", with = "tailnet::nil")]
    pub peer_api_url: Vec<String>,
    /// Whether it accepts files; 0 means unknown.
    pub taildrop_target: u8,
    /// The reason why it does not accept files.
    pub no_file_sharing_reason: String,
    /// The keys of [`Self::cap_map`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The capabilities (`tailcfg.NodeCapMap`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cap_map: BTreeMap<String, Json>,
    /// The keys of the SSH server.
    #[serde(rename = "sshHostKeys", skip_serializing_if = "Vec::is_empty")]
    pub ssh_host_keys: Vec<String>,
    /// Whether the node is visible only because another node is shared with its user.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sharee_node: bool,
    /// Whether the map contains it.
    pub in_network_map: bool,
    /// Whether the path selection contains it.
    pub in_magic_sock: bool,
    /// Whether the data plane contains it.
    pub in_engine: bool,
    /// Whether the node key expired.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The time when the node key expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_expiry: Option<Timestamp>,
    /// The time when the post-quantum secret of the session was agreed on. Tailscale does not have
    /// this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_quantum: Option<Timestamp>,
    /// The location (`tailcfg.Location`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Value>,
}

/// A time in the format of RFC 3339. An absent time is the year 1, Go's zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub String);

impl Default for Timestamp {
    fn default() -> Self {
        Self("0001-01-01T00:00:00Z".to_owned())
    }
}

impl Timestamp {
    /// Creates the time from the seconds since 1970.
    pub fn from_unix(seconds: u64) -> Self {
        let (days, second) = (seconds / 86400, seconds % 86400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        Self(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
    }
}

/// Returns the date of a number of days after 1970-01-01. Eras of 400 years begin in March, so that
/// a leap day is the last day of its year (Hinnant, chrono-compatible low-level date algorithms).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

mod state_name {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::State;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn serialize<S: Serializer>(state: &State, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(state)
    }

    /// An unknown name is read as `NoState`.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<State, D::Error> {
        let name = String::deserialize(from)?;
        let known = State::ALL.into_iter().find(|state| state.to_string() == name);
        Ok(known.unwrap_or_default())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_time_is_formatted_as_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp::from_unix(seconds).0, text);
        }
    }

    #[test]
    fn status_is_unchanged_after_serialization() {
        let peer = PeerStatus {
            tailscale_ips: vec!["100.64.0.2".parse().unwrap()],
            key_expiry: Some(Timestamp::from_unix(0)),
            ..PeerStatus::default()
        };
        let status = Status {
            backend_state: State::Running,
            peer: BTreeMap::from([(NodePublic([1; 32]), peer)]),
            user: BTreeMap::from([(7, UserProfile::default())]),
            ..Status::default()
        };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["BackendState"], "Running");
        assert_eq!(value["Self"]["Created"], "0001-01-01T00:00:00Z");
        for absent in ["CurrentTailnet", "TailscaleIPs", "CertDomains", "ClientVersion"] {
            assert_eq!(value.get(absent), Some(&Value::Null), "{absent}");
        }
        assert!(value["Health"].is_array());
        assert_eq!(value.get("ExitNodeStatus"), None);
        assert_eq!(serde_json::from_str::<Status>("{}").unwrap(), Status::default());
    }
}
