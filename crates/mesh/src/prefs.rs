//! The user's preferences, in the JSON of Tailscale's preferences (tailscale `ipn/prefs.go`).

#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, de::Error as _};
use serde_json::{Map, Value};
use tailnet::{keys::MachinePublic, map_messages::UserProfile};

/// The preferences of a node. Absent fields have Go's zero values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Prefs {
    /// The coordinator's URL; empty before the first login.
    #[serde(rename = "ControlURL")]
    pub control_url: String,
    /// The coordinator's key, which is required to match; zero until the first connection.
    /// Tailscale does not have this field.
    #[serde(skip_serializing_if = "MachinePublic::is_zero")]
    pub server_key: MachinePublic,
    /// Whether subnets of other nodes are routed into the network.
    pub route_all: bool,
    /// The stable ID of the exit node.
    #[serde(rename = "ExitNodeID")]
    pub exit_node_id: String,
    /// The address of the exit node, if its ID is not known yet.
    #[serde(rename = "ExitNodeIP", with = "address")]
    pub exit_node_ip: Option<IpAddr>,
    /// Whether local networks stay reachable while an exit node is in use.
    #[serde(rename = "ExitNodeAllowLANAccess")]
    pub exit_node_allow_lan_access: bool,
    /// Whether the network's DNS settings are used.
    #[serde(rename = "CorpDNS")]
    pub corp_dns: bool,
    /// Whether the node should be connected.
    pub want_running: bool,
    /// Whether the user logged out.
    pub logged_out: bool,
    /// Whether all incoming connections are rejected.
    pub shields_up: bool,
    /// The requested tags.
    #[serde(with = "tailnet::nil")]
    pub advertise_tags: Vec<String>,
    /// The requested name; empty for the hostname.
    pub hostname: String,
    /// The offered subnets. Both default routes make an exit node.
    #[serde(with = "tailnet::nil")]
    pub advertise_routes: Vec<IpNet>,
    /// Whether packets into offered subnets retain their source.
    #[serde(rename = "NoSNAT")]
    pub no_snat: bool,
    /// How the host's packet filter is configured.
    pub netfilter_mode: NetfilterMode,
    /// The user that may change the preferences, in addition to root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator_user: String,
    /// The UDP port of the peer relay, 0 for any; `None` disables it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_server_port: Option<u16>,
    /// Whether birthday probing is disabled ([`crate::peer_paths`]). Tailscale does not have this field.
    #[serde(skip_serializing_if = "is_false")]
    pub no_port_guessing: bool,
    /// The displayed name of the profile.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile_name: String,
    /// The login.
    #[serde(rename = "Config")]
    pub login: Option<Login>,
    /// The preferences of features that linerate does not support.
    #[serde(flatten)]
    pub foreign: Foreign,
}

/// How the host's packet filter is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum NetfilterMode {
    /// Not at all.
    #[default]
    Off,
    /// Rules are created but not called.
    NoDivert,
    /// All needed rules.
    On,
}

/// The login, without its keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Login {
    /// The user.
    pub user_profile: UserProfile,
    /// The stable ID of the node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
}

/// Preferences of features that linerate does not support. They are parsed so that a request for
/// one of them is refused and not ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "named and explained by tailscale ipn/prefs.go")]
#[expect(clippy::struct_excessive_bools, reason = "so they are on the wire")]
pub struct Foreign {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auto_exit_node: String,
    pub internal_exit_node_prior: String,
    #[serde(rename = "RunSSH")]
    pub run_ssh: bool,
    pub run_web_client: bool,
    #[serde(rename = "NotepadURLs")]
    pub notepad_urls: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub force_daemon: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub egg: bool,
    #[serde(with = "tailnet::nil")]
    pub advertise_services: Vec<String>,
    pub sync: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_stateful_filtering: Option<bool>,
    pub auto_update: AutoUpdate,
    pub app_connector: AppConnector,
    pub posture_checking: bool,
    pub netfilter_kind: String,
    pub remote_config: bool,
    pub drive_shares: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_server_static_endpoints: Option<Vec<String>>,
}

/// See [`Foreign`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AutoUpdate {
    /// Whether to look for new versions.
    pub check: bool,
    /// Whether to install them.
    pub apply: Option<bool>,
}

/// See [`Foreign`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppConnector {
    /// Whether this node offers to be an app connector.
    pub advertise: bool,
}

/// Edits of some preferences: `XSet` marks the field `X` as edited (`ipn.MaskedPrefs`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MaskedPrefs(Map<String, Value>);

/// The reason why preferences cannot be changed.
#[derive(Debug)]
pub enum PrefsError {
    /// The preference does not exist.
    Unknown(String),
    /// The preference is internal to the daemon.
    Internal,
    /// A value has a wrong type.
    Malformed(serde_json::Error),
    /// linerate does not support the feature.
    Unsupported(&'static str),
}

impl fmt::Display for PrefsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "there is no preference {name}"),
            Self::Internal => f.write_str("InternalExitNodePrior cannot be set"),
            Self::Malformed(error) => write!(f, "preferences: {error}"),
            Self::Unsupported(what) => write!(f, "not supported by linerate: {what}"),
        }
    }
}

impl std::error::Error for PrefsError {}

impl Prefs {
    /// Returns the preferences of a new node (`ipn.NewPrefs`).
    pub fn new() -> Self {
        Self {
            corp_dns: true,
            netfilter_mode: NetfilterMode::On,
            foreign: Foreign { no_stateful_filtering: Some(true), ..Foreign::default() },
            ..Self::default()
        }
    }

    /// Returns these preferences with the edits.
    ///
    /// # Errors
    /// A preference is unknown, or its value has a wrong type.
    pub fn edited(&self, edits: &MaskedPrefs) -> Result<Self, PrefsError> {
        let Value::Object(mut all) = serde_json::to_value(self).map_err(PrefsError::Malformed)?
        else {
            return Err(PrefsError::Malformed(serde_json::Error::custom("not an object")));
        };
        let zero = serde_json::to_value(Self::default()).map_err(PrefsError::Malformed)?;
        for (key, set) in &edits.0 {
            let Some(name) = key.strip_suffix("Set").filter(|_| *set != Value::Bool(false)) else {
                continue;
            };
            match name {
                "InternalExitNodePrior" => return Err(PrefsError::Internal),
                _ if !NAMES.contains(&name) => return Err(PrefsError::Unknown(name.to_owned())),
                _ => {}
            }
            match (set, edits.0.get(name)) {
                (Value::Object(parts), value) => edit_parts(&mut all, name, parts, value),
                (_, Some(value)) => drop(all.insert(name.to_owned(), value.clone())),
                // Go omits empty values.
                (_, None) => match zero.get(name) {
                    Some(value) => drop(all.insert(name.to_owned(), value.clone())),
                    None => drop(all.remove(name)),
                },
            }
        }
        let mut edited: Self =
            serde_json::from_value(Value::Object(all)).map_err(PrefsError::Malformed)?;
        edited.login.clone_from(&self.login);
        let sets_key = edits.0.get("ServerKeySet").is_some_and(|set| *set != Value::Bool(false));
        if !sets_key {
            edited.server_key = self.server_key_at(&edited.control_url);
        }
        Ok(edited)
    }

    /// Returns the key of the coordinator at a URL, if it is known.
    fn server_key_at(&self, control_url: &str) -> MachinePublic {
        if control_url == self.control_url { self.server_key } else { MachinePublic::default() }
    }

    /// Sets the coordinator's URL and key. Without a key, the previous key stays if the URL has not
    /// changed.
    pub fn set_coordinator(&mut self, control_url: String, server_key: Option<MachinePublic>) {
        self.server_key = server_key.unwrap_or_else(|| self.server_key_at(&control_url));
        self.control_url = control_url;
    }

    /// Checks that linerate supports these preferences.
    ///
    /// # Errors
    /// The first that is not supported.
    pub fn check(&self) -> Result<(), PrefsError> {
        let Foreign { app_connector, auto_update, .. } = &self.foreign;
        let foreign = &self.foreign;
        let asked = [
            (foreign.run_ssh, "the SSH server (--ssh)"),
            (foreign.run_web_client, "the web client (--webclient)"),
            (
                !foreign.auto_exit_node.is_empty(),
                "automatic selection of an exit node (--exit-node=auto:)",
            ),
            (!foreign.advertise_services.is_empty(), "services (--advertise-services)"),
            (foreign.sync == Some(false), "ignoring the coordinator (--sync=false)"),
            (foreign.no_stateful_filtering == Some(false), "--stateful-filtering"),
            (auto_update.apply == Some(true), "updating itself (--auto-update)"),
            (app_connector.advertise, "app connectors (--advertise-connector)"),
            (foreign.posture_checking, "posture checks (--report-posture)"),
            (foreign.remote_config, "control of this machine by the network (--remote-config)"),
            (
                foreign.relay_server_static_endpoints.as_ref().is_some_and(|s| !s.is_empty()),
                "static endpoints of the relay (--relay-server-static-endpoints)",
            ),
            (foreign.drive_shares.as_ref().is_some_and(|s| !s.is_empty()), "shared folders"),
            (self.netfilter_mode == NetfilterMode::NoDivert, "--netfilter-mode=nodivert"),
        ];
        match asked.into_iter().find(|(asked, _)| *asked) {
            Some((_, what)) => Err(PrefsError::Unsupported(what)),
            None => Ok(()),
        }
    }

    /// Returns whether both default routes are offered.
    pub fn advertises_exit_node(&self) -> bool {
        let defaults = self.advertise_routes.iter().filter(|net| net.prefix_len() == 0);
        let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) = defaults.partition(|net| net.addr().is_ipv4());
        !v4.is_empty() && !v6.is_empty()
    }
}

impl MaskedPrefs {
    /// Returns whether nothing is edited.
    pub fn is_empty(&self) -> bool {
        !self.0.iter().any(|(key, set)| key.ends_with("Set") && *set != Value::Bool(false))
    }

    /// Adds an edit of a preference, by its JSON name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self.0.insert(format!("{name}Set"), Value::Bool(true));
        self
    }
}

impl Default for MaskedPrefs {
    fn default() -> Self {
        Self(Map::new())
    }
}

/// The preferences that may be edited; not `InternalExitNodePrior` and the login.
const NAMES: [&str; 35] = [
    "AdvertiseRoutes",
    "AdvertiseServices",
    "AdvertiseTags",
    "AppConnector",
    "AutoExitNode",
    "AutoUpdate",
    "ControlURL",
    "CorpDNS",
    "DriveShares",
    "Egg",
    "ExitNodeAllowLANAccess",
    "ExitNodeID",
    "ExitNodeIP",
    "ForceDaemon",
    "Hostname",
    "LoggedOut",
    "NetfilterKind",
    "NetfilterMode",
    "NoPortGuessing",
    "NoSNAT",
    "NoStatefulFiltering",
    "NotepadURLs",
    "OperatorUser",
    "PostureChecking",
    "ProfileName",
    "RelayServerPort",
    "RelayServerStaticEndpoints",
    "RemoteConfig",
    "RouteAll",
    "RunSSH",
    "RunWebClient",
    "ServerKey",
    "ShieldsUp",
    "Sync",
    "WantRunning",
];

/// Edits parts of a nested preference, such as `AutoUpdate`.
fn edit_parts(
    all: &mut Map<String, Value>,
    name: &str,
    parts: &Map<String, Value>,
    value: Option<&Value>,
) {
    let Some(Value::Object(old)) = all.get_mut(name) else { return };
    for (key, set) in parts {
        if let Some(part) = key.strip_suffix("Set").filter(|_| *set == Value::Bool(true)) {
            let new = value.and_then(|value| value.get(part)).cloned();
            old.insert(part.to_owned(), new.unwrap_or_default());
        }
    }
}

impl From<NetfilterMode> for u8 {
    fn from(mode: NetfilterMode) -> Self {
        match mode {
            NetfilterMode::Off => 0,
            NetfilterMode::NoDivert => 1,
            NetfilterMode::On => 2,
        }
    }
}

impl TryFrom<u8> for NetfilterMode {
    type Error = &'static str;

    fn try_from(mode: u8) -> Result<Self, Self::Error> {
        match mode {
            0 => Ok(Self::Off),
            1 => Ok(Self::NoDivert),
            2 => Ok(Self::On),
            _ => Err("NetfilterMode is 0, 1 or 2"),
        }
    }
}

/// An optional address, which Go writes as an empty string if absent.
mod address {
    use std::net::IpAddr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        address: &Option<IpAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        let address = (!text.is_empty()).then(|| text.parse()).transpose();
        address.map_err(D::Error::custom)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
