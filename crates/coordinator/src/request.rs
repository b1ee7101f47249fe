//! What clients ask, as it is read.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de::Error};
use tailnet::keys::{DiscoPublic, NodePublic};

use crate::{hostinfo::Hostinfo, time::Time};

/// The most endpoints of a node that are kept.
const MOST_ENDPOINTS: usize = 64;
/// The longest text of a registration, in bytes. A signature by tailnet lock has up to fifteen others inside.
const LONGEST: usize = 8 << 10;

/// Asks to be a node, or to be one no more (tailscale `tailcfg.RegisterRequest`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterRequest {
    /// What it speaks.
    pub version: u16,
    /// The key to be registered.
    pub node_key: NodePublic,
    /// The one that it replaces.
    pub old_node_key: NodePublic,
    #[serde(deserialize_with = "or_default")]
    auth: Auth,
    /// When it should expire; in the past: now.
    #[serde(deserialize_with = "bounded")]
    pub expiry: String,
    /// The URL of the login that it waits for.
    #[serde(deserialize_with = "bounded")]
    pub followup: String,
    /// What it says of itself.
    #[serde(deserialize_with = "or_default")]
    pub hostinfo: Hostinfo,
    /// Whether it is to be forgotten when it goes.
    pub ephemeral: bool,
    /// The public half of its key of tailnet lock.
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
    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut read: Self = serde_json::from_slice(text)?;
        read.hostinfo = read.hostinfo.bounded();
        Ok(read)
    }

    /// The key that stands for a login, if there is one.
    pub fn auth_key(&self) -> Option<&str> {
        Some(self.auth.auth_key.trim()).filter(|key| !key.is_empty())
    }

    /// Whether it is to be a node no more. Go's zero time asks for nothing.
    pub fn is_logout(&self, now: Time) -> bool {
        Time::read(&self.expiry).is_some_and(|at| at <= now)
    }
}

/// Asks for the map, or tells of the node (tailscale `tailcfg.MapRequest`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MapRequest {
    /// What it speaks.
    pub version: u16,
    /// The node's.
    pub node_key: NodePublic,
    /// The node's; zero if it says nothing of it.
    #[serde(deserialize_with = "or_default")]
    pub disco_key: DiscoPublic,
    /// Whether it asks for maps as they change.
    pub stream: bool,
    /// Whether it tells of itself, and asks for nothing.
    pub omit_peers: bool,
    /// Whether what it says of itself is to be passed over.
    pub read_only: bool,
    /// What it says of itself.
    #[serde(deserialize_with = "or_default")]
    pub hostinfo: Option<Hostinfo>,
    /// Where it may be reached.
    #[serde(deserialize_with = "readable")]
    pub endpoints: Vec<SocketAddr>,
    /// The stream that it followed before, if it could go on with it.
    #[serde(rename = "MapSessionHandle", deserialize_with = "bounded")]
    pub previous_stream: String,
    /// The last map that it took of that one.
    #[serde(rename = "MapSessionSeq")]
    pub previous_seq: i64,
}

impl MapRequest {
    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut read: Self = serde_json::from_slice(text)?;
        read.hostinfo = read.hostinfo.map(Hostinfo::bounded);
        Ok(read)
    }

    /// Whether what it says of the node counts. A stream tells nothing since capability 68, and may
    /// have less than a request that does.
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
    if text.len() <= LONGEST { Ok(text) } else { Err(D::Error::custom("a text is too long")) }
}

/// Those that can be read: one on a link of the machine's own has a name in it.
fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(texts.iter().filter_map(|text| text.parse().ok()).take(MOST_ENDPOINTS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_go_writes_them() {
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
    fn a_registration_with_a_text_that_is_too_long_is_refused() {
        for field in ["Expiry", "Followup", "NLKey", "NodeKeySignature", "AuthKey"] {
            let read = |length| {
                let text = "x".repeat(length);
                let auth =
                    serde_json::json!({ "AuthKey": if field == "AuthKey" { &text } else { "" } });
                let request = serde_json::json!({ "Auth": auth, field: text });
                RegisterRequest::read(request.to_string().as_bytes())
            };
            assert!(read(LONGEST).is_ok() && read(LONGEST + 1).is_err(), "{field}");
        }
    }

    #[test]
    fn a_stream_tells_nothing_of_its_node() {
        let text = r#"{"Version":131,"NodeKey":"","DiscoKey":null,"Stream":true,"KeepAlive":true,
            "Endpoints":["192.0.2.1:1","[fe80::1%eth0]:1",""],"EndpointTypes":[1],"Hostinfo":{}}"#;
        let read = MapRequest::read(text.as_bytes()).unwrap();
        assert!(!read.updates_node() && read.endpoints.len() == 1 && read.hostinfo.is_some());
        let many = serde_json::json!({ "Endpoints": vec!["192.0.2.1:1"; 2 * MOST_ENDPOINTS] });
        let read = MapRequest::read(many.to_string().as_bytes()).unwrap();
        assert_eq!(read.endpoints.len(), MOST_ENDPOINTS);
        assert!(MapRequest::read(b"{\"OmitPeers\":true}").unwrap().updates_node());
        assert!(MapRequest::read(b"7").is_err());
    }
}
