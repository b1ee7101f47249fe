//! What a node tells programs of its own machine, and they it: the JSON of Tailscale's local HTTP
//! interface (tailscale `ipn/ipnstate`, `ipn/backend.go`, `client/tailscale/apitype`), which the
//! `tailscale` command and exporters read.
//!
//! Go writes an empty list or map that was never made as `null`; so do we, and read both.

pub mod nil;
mod status;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
pub use status::{
    DnsRecord, ExitNodeStatus, PeerStatus, Status, TailnetStatus, Timestamp, UserProfile,
};

use crate::{json::Json, prefs::Prefs};

/// How far the node has come (`ipn.State`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum State {
    /// Not yet known.
    #[default]
    NoState,
    /// Another user has the daemon; never so on Linux.
    InUseOtherUser,
    /// Somebody has to log in.
    NeedsLogin,
    /// An administrator has to approve the machine.
    NeedsMachineAuth,
    /// The user does not want to be connected.
    Stopped,
    /// On the way.
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

/// News of the daemon, one a line (`ipn.Notify`). What is absent has not changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Notify {
    /// The daemon's version.
    pub version: String,
    /// Which connection this is, in its first line where [`WatchMask::INITIAL_STATE`] is asked for.
    #[serde(rename = "SessionID", skip_serializing_if = "String::is_empty")]
    pub session_id: String,
    /// What ends `tailscale up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub err_message: Option<String>,
    /// Somebody has logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_finished: Option<Empty>,
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The preferences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefs: Option<Box<Prefs>>,
    /// This node, as the coordinator describes it (`tailcfg.Node`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_change: Option<Json>,
    /// All, where [`WatchMask::INITIAL_STATUS`] is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_status: Option<Box<Status>>,
    /// A page to log in at.
    #[serde(rename = "BrowseToURL", skip_serializing_if = "Option::is_none")]
    pub browse_to_url: Option<String>,
}

/// Something without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

impl Notify {
    /// Its line.
    pub fn line(&self) -> String {
        // No map of it has keys that are not texts, which is all that fails.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// Which news are asked for (`ipn.NotifyWatchOpt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchMask(pub u64);

impl WatchMask {
    /// The first line has the state, the page to log in at, and the connection's number.
    pub const INITIAL_STATE: Self = Self(1 << 1);
    /// The first line has the preferences.
    pub const INITIAL_PREFS: Self = Self(1 << 2);
    /// The first line has the status.
    pub const INITIAL_STATUS: Self = Self(1 << 14);
    /// For the daemon itself.
    const IN_PROCESS: Self = Self(1 << 16);

    /// Whether the other's are among these.
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

/// What a login begins with (`ipn.Options`).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StartOptions {
    /// The preferences from now on.
    pub update_prefs: Option<Box<Prefs>>,
    /// A key that logs in without anybody; empty for none.
    pub auth_key: AuthKey,
}

/// A key that lets a node in. It is wiped, and never printed.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct AuthKey(zeroize::Zeroizing<String>);

impl AuthKey {
    /// The key that a text is.
    pub fn new(text: String) -> Self {
        Self(zeroize::Zeroizing::new(text))
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { ".." })
    }
}

/// How to ping (`tailcfg.PingType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingKind {
    /// The path beneath WireGuard.
    Disco,
    /// Through WireGuard, answered by the node's daemon.
    Tsmp,
    /// Through WireGuard, answered by the node's kernel.
    Icmp,
    /// The peer's HTTP server.
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

/// What a ping found (`ipnstate.PingResult`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PingResult {
    /// What was pinged.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The address of the node that has it.
    #[serde(rename = "NodeIP")]
    pub node_ip: String,
    /// Its name.
    pub node_name: String,
    /// Why there is no answer, or empty.
    pub err: String,
    /// The round trip.
    pub latency_seconds: f64,
    /// The address that answered, where the path is direct.
    pub endpoint: String,
    /// The peer that relays, where one does.
    pub peer_relay: String,
    /// The relays' region, or 0.
    #[serde(rename = "DERPRegionID")]
    pub derp_region_id: u32,
    /// Its code.
    #[serde(rename = "DERPRegionCode")]
    pub derp_region_code: String,
    /// Whether it is this node's own address.
    #[serde(rename = "IsLocalIP", skip_serializing_if = "std::ops::Not::not")]
    pub is_local_ip: bool,
}

/// Whose an address is (`apitype.WhoIsResponse`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WhoIs {
    /// The node (`tailcfg.Node`).
    pub node: Json,
    /// Its owner.
    pub user_profile: UserProfile,
    /// What it may do here (`tailcfg.PeerCapMap`), or null.
    pub cap_map: Json,
}

/// What is in the way to a node, for `linerate why`: each thing that was looked at, in the order in
/// which a packet meets it, up to the first that is in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Why {
    /// What was looked at: the map, the key, a rule, the path, the filter.
    pub steps: Vec<WhyStep>,
    /// Whether nothing is in the way.
    pub reaches: bool,
}

/// One of [`Why::steps`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhyStep {
    /// Whether it is not in the way.
    pub ok: bool,
    /// What was found.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn news_are_lines_with_what_has_changed_alone() {
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
    fn a_mask_is_a_number() {
        assert_eq!("".parse(), Ok(WatchMask(0)));
        let mask: WatchMask = "6".parse().unwrap();
        assert!(mask.has(WatchMask::INITIAL_STATE) && mask.has(WatchMask::INITIAL_PREFS));
        assert!(!mask.has(WatchMask::INITIAL_STATUS));
        for bad in ["x", "-1", "65536", "99999999999999999999"] {
            assert!(bad.parse::<WatchMask>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_auth_key_is_not_printed() {
        let options: StartOptions =
            serde_json::from_value(json!({"AuthKey": "tskey-secret", "UpdatePrefs": null}))
                .unwrap();
        assert_eq!(options.auth_key.text(), "tskey-secret");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
