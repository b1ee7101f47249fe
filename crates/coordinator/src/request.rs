//! Requests of clients.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de::Error};
use tailnet::keys::{DiscoPublic, NodePublic};

use crate::{hostinfo::Hostinfo, time::Time};

/// The maximum number of endpoints of a node.
const MAX_ENDPOINTS: usize = 64;
/// The maximum length of a text in a request, in bytes. A signature of tailnet lock may contain fifteen others.
const MAX_TEXT: usize = 8 << 10;

/// A request to register or to log out (tailscale `tailcfg.RegisterRequest`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterRequest {
    /// The capability version of the client.
    pub version: u16,
    /// The node key to register.
    pub node_key: NodePublic,
    /// The node key that it replaces.
    pub old_node_key: NodePublic,
    #[serde(deserialize_with = "or_default")]
    auth: Auth,
    /// The requested expiry. A time in the past is a logout.
    #[serde(deserialize_with = "bounded")]
    pub expiry: String,
    /// The URL of the pending registration that the client waits for.
    #[serde(deserialize_with = "bounded")]
    pub followup: String,
    #[serde(deserialize_with = "or_default")]
    pub hostinfo: Hostinfo,
    /// Whether the node is deleted after it disconnects.
    pub ephemeral: bool,
    /// The node's public key for tailnet lock.
    #[serde(rename = "NLKey", deserialize_with = "bounded")]
    pub tka_key: String,
    /// The signature of its node key by tailnet lock, in base64.
    #[serde(rename = "NodeKeySignature", deserialize_with = "bounded")]
    pub signature: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Auth {
    #[serde(deserialize_with = "bounded")]
    auth_key: String,
}

impl RegisterRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// The text is not a valid request.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut read: Self = serde_json::from_slice(text)?;
        read.hostinfo = read.hostinfo.bounded();
        Ok(read)
    }

    /// The pre-auth key, if there is one.
    pub fn auth_key(&self) -> Option<&str> {
        Some(self.auth.auth_key.trim()).filter(|key| !key.is_empty())
    }

    /// Whether this is a logout. Go's zero time means that no expiry is requested.
    pub fn is_logout(&self, now: Time) -> bool {
        Time::read(&self.expiry).is_some_and(|at| at <= now)
    }
}

/// A request for maps, or an update of the node (tailscale `tailcfg.MapRequest`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MapRequest {
    /// The capability version of the client.
    pub version: u16,
    pub node_key: NodePublic,
    /// The disco key; zero if absent.
    #[serde(deserialize_with = "or_default")]
    pub disco_key: DiscoPublic,
    /// Whether a stream of maps is requested.
    pub stream: bool,
    /// Whether the request is an update without an answer.
    pub omit_peers: bool,
    /// Whether the node's information in the request must be ignored.
    pub read_only: bool,
    #[serde(deserialize_with = "or_default")]
    pub hostinfo: Option<Hostinfo>,
    #[serde(deserialize_with = "valid_endpoints")]
    pub endpoints: Vec<SocketAddr>,
    /// The handle of the previous stream, if the client can resume it.
    #[serde(rename = "MapSessionHandle", deserialize_with = "bounded")]
    pub previous_stream: String,
    /// The position of the last received frame of that stream.
    #[serde(rename = "MapSessionSeq")]
    pub previous_seq: i64,
}

impl MapRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// The text is not a valid request.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut read: Self = serde_json::from_slice(text)?;
        read.hostinfo = read.hostinfo.map(Hostinfo::bounded);
        Ok(read)
    }

    /// Whether the request updates the node. Since capability version 68, a stream request does not, and it may have
    /// fewer fields.
    pub fn updates_node(&self) -> bool {
        !self.stream && !self.read_only
    }
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A text of bounded length.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text: String = or_default(deserializer)?;
    if text.len() <= MAX_TEXT { Ok(text) } else { Err(D::Error::custom("a text is too long")) }
}

/// Parses endpoints. A link-local one with a zone name is not valid, and skipped.
fn valid_endpoints<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(texts.iter().filter_map(|text| text.parse().ok()).take(MAX_ENDPOINTS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_go_are_read() {
        let key = NodePublic([1; 32]);
        let text = format!(
            r#"{{"Version":131,"NodeKey":"{key}","OldNodeKey":"nodekey:{}","NLKey":"nlpub:00",
               "Auth":{{"AuthKey":" k "}},"Expiry":"0001-01-01T00:00:00Z","Followup":"",
               "Hostinfo":null,"NodeKeySignature":null,"Tailnet":"x"}}"#,
            "0".repeat(64)
        );
        let read = RegisterRequest::read(text.as_bytes()).unwrap();
        assert_eq!((read.node_key, read.auth_key()), (key, Some("k")));
        assert!(read.old_node_key.is_zero() && !read.is_logout(Time(1)));
        let text = text.replace("0001-01-01T00:00:00Z", "1970-01-01T00:02:03Z");
        assert!(RegisterRequest::read(text.as_bytes()).unwrap().is_logout(Time(1_000_000)));
    }

    #[test]
    fn a_registration_with_a_too_long_text_is_refused() {
        for field in ["Expiry", "Followup", "NLKey", "NodeKeySignature", "AuthKey"] {
            let read = |length| {
                let text = "x".repeat(length);
                let auth =
                    serde_json::json!({ "AuthKey": if field == "AuthKey" { &text } else { "" } });
                let request = serde_json::json!({ "Auth": auth, field: text });
                RegisterRequest::read(request.to_string().as_bytes())
            };
            assert!(read(MAX_TEXT).is_ok() && read(MAX_TEXT + 1).is_err(), "{field}");
        }
    }

    #[test]
    fn a_stream_request_does_not_update_the_node() {
        let text = r#"{"Version":131,"NodeKey":"","DiscoKey":null,"Stream":true,"KeepAlive":true,
            "Endpoints":["192.0.2.1:1","[fe80::1%eth0]:1",""],"EndpointTypes":[1],"Hostinfo":{}}"#;
        let read = MapRequest::read(text.as_bytes()).unwrap();
        assert!(!read.updates_node() && read.endpoints.len() == 1 && read.hostinfo.is_some());
        let many = serde_json::json!({ "Endpoints": vec!["192.0.2.1:1"; 2 * MAX_ENDPOINTS] });
        let read = MapRequest::read(many.to_string().as_bytes()).unwrap();
        assert_eq!(read.endpoints.len(), MAX_ENDPOINTS);
        assert!(MapRequest::read(b"{\"OmitPeers\":true}").unwrap().updates_node());
        assert!(MapRequest::read(b"7").is_err());
    }
}
