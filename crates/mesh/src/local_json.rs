//! The JSON of Tailscale's local HTTP API (tailscale `ipn/ipnstate`, `ipn/backend.go`,
//! `client/tailscale/apitype`), which the `tailscale` command and exporters use.
//!
//! Go writes a nil list or map as `null`. So does this module, and it reads both forms.

mod node_status;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tailnet::{map_messages::UserProfile, raw_json::Json};

pub use self::node_status::{ExitNodeStatus, PeerStatus, Status, TailnetStatus, Timestamp};
use crate::prefs::Prefs;

/// The state of the node (`ipn.State`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum State {
    /// Unknown.
    #[default]
    NoState,
    /// Another user owns the daemon; not used on Linux.
    InUseOtherUser,
    /// The user must log in.
    NeedsLogin,
    /// An administrator must approve the machine.
    NeedsMachineAuth,
    /// The user disconnected the node.
    Stopped,
    /// Connecting.
    Starting,
    /// Connected.
    Running,
}

impl State {
    const ALL: [Self; 7] = [
        Self::NoState,
        Self::InUseOtherUser,
        Self::NeedsLogin,
        Self::NeedsMachineAuth,
        Self::Stopped,
        Self::Starting,
        Self::Running,
    ];
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<State> for u8 {
    fn from(state: State) -> Self {
        let at = State::ALL.iter().position(|other| *other == state);
        at.and_then(|at| Self::try_from(at).ok()).unwrap_or_default()
    }
}

impl TryFrom<u8> for State {
    type Error = &'static str;

    fn try_from(state: u8) -> Result<Self, Self::Error> {
        Self::ALL.get(usize::from(state)).copied().ok_or("a state is 0 to 6")
    }
}

/// A notification of the daemon, one per line (`ipn.Notify`). Absent fields have not changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Notify {
    /// The daemon's version.
    pub version: String,
    /// The ID of the connection, in the first line if [`WatchMask::INITIAL_STATE`] is set.
    #[serde(rename = "SessionID", skip_serializing_if = "String::is_empty")]
    pub session_id: String,
    /// An error that ends `tailscale up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub err_message: Option<String>,
    /// The login finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_finished: Option<Empty>,
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The preferences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefs: Option<Box<Prefs>>,
    /// This node in the map (`tailcfg.Node`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_change: Option<Json>,
    /// The complete status, if [`WatchMask::INITIAL_STATUS`] is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_status: Option<Box<Status>>,
    /// The URL at which the user must log in.
    #[serde(rename = "BrowseToURL", skip_serializing_if = "Option::is_none")]
    pub browse_to_url: Option<String>,
}

/// Something without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

impl Notify {
    /// Returns the notification as a line.
    pub fn line(&self) -> String {
        // Serialization fails only for maps with keys other than strings.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// The requested notifications (`ipn.NotifyWatchOpt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchMask(pub u64);

impl WatchMask {
    /// The first line contains the state, the login URL and the ID of the connection.
    pub const INITIAL_STATE: Self = Self(1 << 1);
    /// The first line contains the preferences.
    pub const INITIAL_PREFS: Self = Self(1 << 2);
    /// The first line contains the status.
    pub const INITIAL_STATUS: Self = Self(1 << 14);
    /// Reserved for the daemon.
    const IN_PROCESS: Self = Self(1 << 16);

    /// Returns whether all bits of `other` are set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl FromStr for WatchMask {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mask = if text.is_empty() { Ok(0) } else { text.parse() };
        let mask = Self(mask.map_err(|_| "bad mask")?);
        if mask.has(Self::IN_PROCESS) { Err("bad mask") } else { Ok(mask) }
    }
}

/// The options of a login (`ipn.Options`).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StartOptions {
    /// The new preferences.
    pub update_prefs: Option<Box<Prefs>>,
    /// The auth key; empty for none.
    pub auth_key: AuthKey,
}

/// An auth key. It is zeroized, and never printed.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct AuthKey(zeroize::Zeroizing<String>);

impl AuthKey {
    /// Creates the key from its text.
    pub fn new(text: String) -> Self {
        Self(zeroize::Zeroizing::new(text))
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { ".." })
    }
}

/// The type of a ping (`tailcfg.PingType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingKind {
    /// Below WireGuard.
    Disco,
    /// Through WireGuard, answered by the peer's daemon.
    Tsmp,
    /// Through WireGuard, answered by the peer's kernel.
    Icmp,
    /// To the peer's HTTP server.
    PeerApi,
}

impl FromStr for PingKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "disco" => Self::Disco,
            "TSMP" => Self::Tsmp,
            "ICMP" => Self::Icmp,
            "peerapi" => Self::PeerApi,
            "" => return Err("missing 'type' parameter"),
            _ => return Err("unknown ping type"),
        })
    }
}

/// The result of a ping (`ipnstate.PingResult`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PingResult {
    /// The pinged name or address.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The address of the node.
    #[serde(rename = "NodeIP")]
    pub node_ip: String,
    /// The name of the node.
    pub node_name: String,
    /// The reason of a failure, or empty.
    pub err: String,
    /// The round trip.
    pub latency_seconds: f64,
    /// The address that answered, if the path is direct.
    pub endpoint: String,
    /// The peer relay, if the path uses one.
    pub peer_relay: String,
    /// The DERP region, or 0.
    #[serde(rename = "DERPRegionID")]
    pub derp_region_id: u32,
    /// The code of the region.
    #[serde(rename = "DERPRegionCode")]
    pub derp_region_code: String,
    /// Whether the address belongs to this node.
    #[serde(rename = "IsLocalIP", skip_serializing_if = "std::ops::Not::not")]
    pub is_local_ip: bool,
}

/// The owner of an address (`apitype.WhoIsResponse`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WhoIs {
    /// The node (`tailcfg.Node`).
    pub node: Json,
    /// The owner of the node.
    pub user_profile: UserProfile,
    /// The capabilities at this node (`tailcfg.PeerCapMap`), or null.
    pub cap_map: Json,
}

/// The reasons why a node is reachable or not, for `linerate why`: the checks in the order in which
/// a packet passes them, up to the first that fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Why {
    /// The checks: map, key, rule, path, filter.
    pub steps: Vec<WhyStep>,
    /// Whether all checks succeeded.
    pub reaches: bool,
}

/// One of [`Why::steps`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhyStep {
    /// Whether the check succeeded.
    pub ok: bool,
    /// The result in words.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn notification_is_a_line_with_only_the_changed_fields() {
        let notify = Notify {
            version: "1".into(),
            state: Some(State::Running),
            login_finished: Some(Empty {}),
            browse_to_url: Some("https://x".into()),
            ..Notify::default()
        };
        let line = notify.line();
        let expected = r#"{"Version":"1","LoginFinished":{},"State":6,"BrowseToURL":"https://x"}"#;
        assert_eq!(line.trim_end(), expected);
        assert_eq!(serde_json::from_str::<Notify>(&line).unwrap(), notify);
    }

    #[test]
    fn watch_mask_is_parsed_from_a_number() {
        assert_eq!("".parse(), Ok(WatchMask(0)));
        let mask: WatchMask = "6".parse().unwrap();
        assert!(mask.has(WatchMask::INITIAL_STATE) && mask.has(WatchMask::INITIAL_PREFS));
        assert!(!mask.has(WatchMask::INITIAL_STATUS));
        for bad in ["x", "-1", "65536", "99999999999999999999"] {
            assert!(bad.parse::<WatchMask>().is_err(), "{bad}");
        }
    }

    #[test]
    fn auth_key_is_not_printed() {
        let options: StartOptions =
            serde_json::from_value(json!({"AuthKey": "tskey-secret", "UpdatePrefs": null}))
                .unwrap();
        assert_eq!(options.auth_key.text(), "tskey-secret");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
