//! The state of a node and of its peers (tailscale `ipn/ipnstate/ipnstate.go`).

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::State;
use crate::{json::Json, keys::NodePublic};

/// All that `tailscale status --json` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Whether there is an interface.
    #[serde(rename = "TUN")]
    pub tun: bool,
    /// How far the node has come.
    #[serde(with = "state_name")]
    pub backend_state: State,
    /// Whether a node key exists. `tailscale up` logs in where none does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub have_node_key: bool,
    /// The page to log in at, or empty.
    #[serde(rename = "AuthURL")]
    pub auth_url: String,
    /// This node's addresses.
    #[serde(rename = "TailscaleIPs", with = "super::nil")]
    pub tailscale_ips: Vec<IpAddr>,
    /// This node. The command line needs one in every state.
    #[serde(rename = "Self")]
    pub own: PeerStatus,
    /// The exit node in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_node_status: Option<ExitNodeStatus>,
    /// What is wrong, a sentence each.
    pub health: Vec<String>,
    /// Why the last connection to the coordinator failed. Tailscale does not have this field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coordinator_problem: String,
    /// As in [`TailnetStatus`].
    #[serde(rename = "MagicDNSSuffix")]
    pub magic_dns_suffix: String,
    /// The network.
    pub current_tailnet: Option<TailnetStatus>,
    /// The port that the router forwards, which tailscale does not tell: by what, where, and for how
    /// long.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub port_mapping: Value,
    /// Names that the coordinator helps to get certificates for.
    #[serde(with = "super::nil")]
    pub cert_domains: Vec<String>,
    /// Records that the coordinator adds.
    #[serde(with = "super::nil")]
    pub extra_records: Vec<DnsRecord>,
    /// The others.
    #[serde(with = "super::nil")]
    pub peer: BTreeMap<NodePublic, PeerStatus>,
    /// Who owns nodes, by number.
    #[serde(with = "super::nil")]
    pub user: BTreeMap<i64, UserProfile>,
    /// What the coordinator says of newer versions.
    pub client_version: Option<Value>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TailnetStatus {
    /// Its name.
    pub name: String,
    /// What names of nodes end with, without dots around it.
    #[serde(rename = "MagicDNSSuffix")]
    pub magic_dns_suffix: String,
    /// Whether the network has MagicDNS.
    #[serde(rename = "MagicDNSEnabled")]
    pub magic_dns_enabled: bool,
}

/// The exit node in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExitNodeStatus {
    /// Its stable id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Whether the coordinator sees it.
    pub online: bool,
    /// Its addresses.
    #[serde(rename = "TailscaleIPs", with = "super::nil")]
    pub tailscale_ips: Vec<IpNet>,
}

/// A record (`tailcfg.DNSRecord`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DnsRecord {
    /// Its full name.
    pub name: String,
    /// Empty for an address.
    #[serde(rename = "Type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its value.
    pub value: String,
}

/// A user (`tailcfg.UserProfile`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UserProfile {
    /// The number.
    #[serde(rename = "ID", deserialize_with = "super::nil::deserialize")]
    pub id: i64,
    /// Such as an address of mail.
    #[serde(deserialize_with = "super::nil::deserialize")]
    pub login_name: String,
    /// Such as a person's name.
    #[serde(deserialize_with = "super::nil::deserialize")]
    pub display_name: String,
    /// A picture.
    #[serde(
        rename = "ProfilePicURL",
        skip_serializing_if = "String::is_empty",
        deserialize_with = "super::nil::deserialize"
    )]
    pub profile_pic_url: String,
}

/// A node, this one or another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerStatus {
    /// The stable id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The number in the map.
    #[serde(rename = "NodeID")]
    pub node_id: i64,
    /// The node key.
    pub public_key: NodePublic,
    /// What the machine calls itself.
    pub host_name: String,
    /// The full name, with a dot at its end.
    #[serde(rename = "DNSName")]
    pub dns_name: String,
    /// The system, such as `linux`.
    #[serde(rename = "OS")]
    pub os: String,
    /// The owner.
    #[serde(rename = "UserID")]
    pub user_id: i64,
    /// Who shared it, where that is another, or 0.
    #[serde(rename = "AltSharerUserID", skip_serializing_if = "is_zero")]
    pub alt_sharer_user_id: i64,
    /// The addresses.
    #[serde(rename = "TailscaleIPs", with = "super::nil")]
    pub tailscale_ips: Vec<IpAddr>,
    /// What it may send from.
    #[serde(rename = "AllowedIPs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_ips: Vec<IpNet>,
    /// The tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The subnets that go to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub primary_routes: Vec<IpNet>,
    /// Where it may be reached; known for this node.
    #[serde(with = "super::nil")]
    pub addrs: Vec<String>,
    /// The direct path's address, or empty.
    pub cur_addr: String,
    /// The code of the relays' region.
    pub relay: String,
    /// The peer that relays.
    pub peer_relay: String,
    /// Bytes from it.
    pub rx_bytes: u64,
    /// Bytes to it.
    pub tx_bytes: u64,
    /// When it was registered.
    pub created: Timestamp,
    /// When something was last sent to it.
    pub last_write: Timestamp,
    /// When the coordinator last saw it, if it does not now.
    pub last_seen: Timestamp,
    /// When the last handshake was.
    pub last_handshake: Timestamp,
    /// Whether the coordinator sees it.
    pub online: bool,
    /// Whether it is the exit node in use.
    pub exit_node: bool,
    /// Whether it may be one.
    pub exit_node_option: bool,
    /// Whether something was sent to it within two minutes.
    pub active: bool,
    /// Its HTTP servers.
    #[serde(rename = "PeerAPIURL", with = "super::nil")]
    pub peer_api_url: Vec<String>,
    /// Whether files can be sent to it; 0 is "unknown".
    pub taildrop_target: u8,
    /// Why not.
    pub no_file_sharing_reason: String,
    /// The keys of [`Self::cap_map`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// What it may do (`tailcfg.NodeCapMap`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cap_map: BTreeMap<String, Json>,
    /// The keys of its SSH server.
    #[serde(rename = "sshHostKeys", skip_serializing_if = "Vec::is_empty")]
    pub ssh_host_keys: Vec<String>,
    /// Whether it is here only because a node is shared with its user.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sharee_node: bool,
    /// Whether the map has it.
    pub in_network_map: bool,
    /// Whether paths to it are looked for.
    pub in_magic_sock: bool,
    /// Whether WireGuard knows it.
    pub in_engine: bool,
    /// Whether its key has expired.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// When its key does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_expiry: Option<Timestamp>,
    /// When the secret of its session against quantum computers was agreed on, if there is one. A field of
    /// linerate's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_quantum: Option<Timestamp>,
    /// Where it is (`tailcfg.Location`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Value>,
}

/// A time as RFC 3339 writes it, which is how the map has it. None at all is the year 1, Go's zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub String);

impl Default for Timestamp {
    fn default() -> Self {
        Self("0001-01-01T00:00:00Z".to_owned())
    }
}

impl Timestamp {
    /// So many seconds after 1970 began.
    pub fn from_unix(seconds: u64) -> Self {
        let (days, second) = (seconds / 86400, seconds % 86400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        Self(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
    }
}

/// The date so many days after 1970-01-01, by eras of 400 years that begin in March, so that a
/// leap day is the last day of its year (Hinnant, chrono-compatible low-level date algorithms).
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

    /// A name that is not known is no state.
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
    fn a_time_is_its_date() {
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
    fn a_status_is_its_own_text() {
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
