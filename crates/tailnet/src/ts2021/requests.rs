//! The requests to a coordinator, and the parts of its answers that this module needs (tailscale
//! `tailcfg/tailcfg.go`). The map is in [`crate::map_messages`].

use std::net::{IpAddr, SocketAddr};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use super::CAPABILITY_VERSION;
use crate::{
    keys::{DiscoPublic, NodePublic},
    raw_json::Json,
};

/// The expiry that logs a node out: a time in the past (tailscale `controlclient/direct.go`).
pub const EXPIRED: &str = "1970-01-01T00:02:03Z";
/// Go's zero time.
const NO_TIME: &str = "0001-01-01T00:00:00Z";
/// Go's zero tailnet-lock key.
const NO_TKA_KEY: &str = "nlpub:0000000000000000000000000000000000000000000000000000000000000000";

/// A registration request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RegisterRequest<'a> {
    version: u16,
    node_key: NodePublic,
    old_node_key: NodePublic,
    #[serde(rename = "NLKey")]
    tka_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<Auth<'a>>,
    expiry: &'a str,
    followup: &'a str,
    hostinfo: &'a Value,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ephemeral: bool,
    /// In base64, as Go writes bytes.
    node_key_signature: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Auth<'a> {
    auth_key: &'a str,
}

/// The parameters of a registration request.
#[derive(Clone, Copy, Default)]
pub struct RegisterParams<'a> {
    /// The key to register.
    pub node_key: NodePublic,
    /// The key that it replaces.
    pub old_node_key: Option<NodePublic>,
    /// The auth key.
    pub auth_key: Option<&'a str>,
    /// The public tailnet-lock key, `nlpub:` and hexadecimal digits.
    pub tka_key: Option<&'a str>,
    /// The signature of the node key by a tailnet-lock key, in base64.
    pub signature: Option<&'a str>,
    /// Whether the coordinator removes the node when it disconnects.
    pub ephemeral: bool,
    /// The URL of the pending login.
    pub followup: Option<&'a str>,
}

impl<'a> RegisterRequest<'a> {
    /// Creates the request.
    pub fn new(from: RegisterParams<'a>, hostinfo: &'a Value) -> Self {
        Self {
            version: CAPABILITY_VERSION,
            node_key: from.node_key,
            old_node_key: from.old_node_key.unwrap_or_default(),
            tka_key: from.tka_key.unwrap_or(NO_TKA_KEY),
            auth: from.auth_key.map(|auth_key| Auth { auth_key }),
            expiry: NO_TIME,
            followup: from.followup.unwrap_or_default(),
            hostinfo,
            ephemeral: from.ephemeral,
            node_key_signature: from.signature,
        }
    }

    /// Creates a request that logs the node key out.
    pub fn logout(node_key: NodePublic, hostinfo: &'a Value) -> Self {
        let from = RegisterParams { node_key, ..RegisterParams::default() };
        Self { expiry: EXPIRED, ..Self::new(from, hostinfo) }
    }
}

/// The answer to a registration request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterResponse {
    /// The owner of the node.
    #[serde(deserialize_with = "or_default")]
    pub user: User,
    /// The login.
    #[serde(deserialize_with = "or_default")]
    pub login: User,
    /// Whether the node must register another node key.
    pub node_key_expired: bool,
    /// Whether the node may communicate without approval by an administrator.
    pub machine_authorized: bool,
    /// The URL at which the user must log in; empty if none is needed.
    #[serde(rename = "AuthURL")]
    pub auth_url: String,
    /// A tailnet-lock signature that the node must renew, in base64.
    #[serde(deserialize_with = "or_default")]
    pub node_key_signature: String,
    /// The reason of a refusal; empty on success.
    pub error: String,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct User {
    /// The user's number.
    #[serde(rename = "ID")]
    pub id: i64,
    /// The login name.
    pub login_name: String,
    /// The displayed name.
    pub display_name: String,
}

/// The origin of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EndpointKind {
    /// An address of this machine.
    Local = 1,
    /// The address that a STUN server observed.
    Stun = 2,
    /// A port that the router forwards to this machine.
    Portmapped = 3,
    /// The address that a STUN server observed, with the local port.
    StunLocalPort = 4,
    /// A configured address.
    Explicit = 5,
}

/// A request for the map, or an update of this node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct MapRequest<'a> {
    version: u16,
    compress: &'static str,
    keep_alive: bool,
    node_key: NodePublic,
    disco_key: DiscoPublic,
    stream: bool,
    hostinfo: &'a Value,
    endpoints: Vec<SocketAddr>,
    endpoint_types: Vec<u8>,
    #[serde(rename = "TKAHead", skip_serializing_if = "str::is_empty")]
    tka_head: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    omit_peers: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    resume: Option<&'a MapPosition>,
}

/// A position in a map stream. A new stream continues there if the coordinator supports it. Stock
/// clients do not use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapPosition {
    /// The name of the stream.
    #[serde(rename = "MapSessionHandle")]
    pub handle: String,
    /// The number of the last processed map.
    #[serde(rename = "MapSessionSeq")]
    pub seq: i64,
}

/// The state that a node announces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Announcement {
    /// Its `Hostinfo`, with `NetInfo`.
    pub hostinfo: Value,
    /// The endpoints.
    pub endpoints: Vec<(SocketAddr, EndpointKind)>,
    /// The key of its disco messages.
    pub disco_key: DiscoPublic,
    /// The head of the tailnet-lock chain; empty if unknown.
    pub tka_head: String,
}

impl<'a> MapRequest<'a> {
    /// Creates a request for the map stream.
    pub fn stream(node_key: NodePublic, announcement: &'a Announcement) -> Self {
        Self {
            version: CAPABILITY_VERSION,
            compress: "zstd",
            keep_alive: true,
            node_key,
            disco_key: announcement.disco_key,
            stream: true,
            hostinfo: &announcement.hostinfo,
            endpoints: announcement.endpoints.iter().map(|(at, _)| *at).collect(),
            endpoint_types: announcement.endpoints.iter().map(|(_, kind)| *kind as u8).collect(),
            tka_head: &announcement.tka_head,
            omit_peers: false,
            resume: None,
        }
    }

    /// Resumes the stream at this position.
    #[must_use]
    pub fn from(self, resume: Option<&'a MapPosition>) -> Self {
        Self { resume, ..self }
    }

    /// Creates an update of this node. The coordinator ignores the state in a request for the
    /// stream.
    pub fn update(node_key: NodePublic, announcement: &'a Announcement) -> Self {
        Self { stream: false, omit_peers: true, ..Self::stream(node_key, announcement) }
    }
}

/// The longest text of a ping request or of a dial plan, in bytes.
const LONGEST: usize = 64 << 10;

/// The part of a map that concerns the connection.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MapHead {
    /// Whether the message is a keepalive.
    pub keep_alive: bool,
    /// Whether the map contains this node. The first one must.
    #[serde(rename = "Node", deserialize_with = "is_there")]
    pub has_node: bool,
    /// A ping request to this node.
    #[serde(deserialize_with = "or_default")]
    pub ping_request: Option<PingRequest>,
    /// The plan for the next connection.
    #[serde(rename = "ControlDialPlan", deserialize_with = "or_default")]
    pub dial_plan: Option<DialPlan>,
    /// The name of the stream. It is sent in the first map, and in one that changes the name. Empty
    /// if the stream cannot be resumed.
    #[serde(rename = "MapSessionHandle")]
    pub handle: String,
    /// The number of this map in the stream; 0 if not set.
    pub seq: i64,
}

impl MapHead {
    /// Reads a frame.
    ///
    /// # Errors
    /// It is not a JSON object with these fields.
    pub fn read(frame: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(frame)
    }
}

/// A ping request to this node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PingRequest {
    /// The URL that receives the answer.
    #[serde(rename = "URL")]
    pub url: String,
    /// Whether the answer uses the Noise connection.
    #[serde(rename = "URLIsNoise")]
    pub over_noise: bool,
    /// The type of the ping; empty if an HTTP request is a sufficient answer.
    pub types: String,
    /// The address of the node to ping; empty if none.
    #[serde(rename = "IP", deserialize_with = "or_default")]
    pub ip: String,
}

/// The plan for the next connection.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DialPlan {
    #[serde(deserialize_with = "or_default")]
    candidates: Vec<CandidateRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct CandidateRecord {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "ACEHost")]
    ace_host: String,
    dial_start_delay_sec: f64,
    dial_timeout_sec: f64,
}

/// A candidate of the plan, with the numbers of the message. They may be anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedCandidate {
    /// Its address.
    pub address: IpAddr,
    /// Seconds from the start of the round to that of the attempt.
    pub delay: f64,
    /// Seconds until the timeout of the attempt.
    pub timeout: f64,
}

impl DialPlan {
    /// Returns the candidates. Those behind a proxy of the coordinator are left out.
    pub fn candidates(&self) -> Vec<PlannedCandidate> {
        let read = |record: &CandidateRecord| {
            let address: IpAddr = record.ip.parse().ok()?;
            let (delay, timeout) = (record.dial_start_delay_sec, record.dial_timeout_sec);
            let is_direct = record.ace_host.is_empty();
            is_direct.then_some(PlannedCandidate { address, delay, timeout })
        };
        self.candidates.iter().filter_map(read).collect()
    }
}

/// Go writes `null` for an empty value. An unreadable or too long value is read as empty, so that
/// the rest of the map can be used.
fn or_default<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = Json::deserialize(deserializer)?;
    let is_short = text.text().len() <= LONGEST;
    Ok(is_short.then(|| text.read().ok()).flatten().unwrap_or_default())
}

fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_has_the_fields_of_go() {
        let hostinfo = json!({ "Hostname": "a" });
        let from = RegisterParams {
            node_key: NodePublic([1; 32]),
            auth_key: Some("key"),
            ..RegisterParams::default()
        };
        let request = serde_json::to_value(RegisterRequest::new(from, &hostinfo)).unwrap();
        assert_eq!(request["Version"], 121);
        assert_eq!(request["Auth"], json!({ "AuthKey": "key" }));
        assert_eq!(request["NodeKey"], NodePublic([1; 32]).to_string());
        assert_eq!(request["OldNodeKey"], NodePublic::default().to_string());
        assert_eq!(request["Expiry"], NO_TIME);
        let request = RegisterRequest::logout(NodePublic([1; 32]), &hostinfo);
        let request = serde_json::to_value(request).unwrap();
        assert_eq!((&request["Expiry"], &request["Auth"]), (&json!(EXPIRED), &Value::Null));
    }

    #[test]
    fn update_omits_peers_and_stream_does_not() {
        let announcement = Announcement {
            endpoints: vec![("192.0.2.1:41641".parse().unwrap(), EndpointKind::Stun)],
            ..Announcement::default()
        };
        let update = MapRequest::update(NodePublic([1; 32]), &announcement);
        let update = serde_json::to_value(update).unwrap();
        assert_eq!((&update["Stream"], &update["OmitPeers"]), (&json!(false), &json!(true)));
        assert_eq!(update["Endpoints"], json!(["192.0.2.1:41641"]));
        assert_eq!(update["EndpointTypes"], json!([2]));
        let stream = MapRequest::stream(NodePublic([1; 32]), &announcement);
        let stream = serde_json::to_value(stream).unwrap();
        assert_eq!((&stream["Stream"], &stream["OmitPeers"]), (&json!(true), &Value::Null));
    }

    #[test]
    fn map_head_with_null_fields_is_read() {
        let head = |text: &str| serde_json::from_str::<MapHead>(text).unwrap();
        assert_eq!(head("{}"), MapHead::default());
        assert_eq!(head(r#"{"Node":null,"PingRequest":null}"#), MapHead::default());
        assert!(head(r#"{"Node":{"ID":1},"PingRequest":7}"#).has_node);
        let plan = head(
            r#"{"ControlDialPlan":{"Candidates":[{"IP":"192.0.2.1","DialTimeoutSec":2},
               {"IP":"","ACEHost":"a.example"},{"IP":"192.0.2.2","ACEHost":"a.example"}]}}"#,
        );
        let candidates = plan.dial_plan.unwrap().candidates();
        let address = [192, 0, 2, 1].into();
        assert_eq!(candidates, [PlannedCandidate { address, delay: 0.0, timeout: 2.0 }]);
        assert!(head(r#"{"ControlDialPlan":{"Candidates":null}}"#).dial_plan.is_some());
    }
}
