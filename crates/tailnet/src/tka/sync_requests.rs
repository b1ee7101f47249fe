//! The requests that synchronize updates with the coordinator (`tka/sync.go`, `tailcfg/tka.go`).
//!
//! | request | when | answer |
//! |---|---|---|
//! | `/machine/tka/bootstrap` | tailnet lock is new here, or off | the first checkpoint, or the disablement secret |
//! | `/machine/tka/sync/offer` | the heads differ | the updates that are missing here |
//! | `/machine/tka/sync/send` | after the offer | the coordinator's head |

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{Authority, UpdateHash};
use crate::keys::NodePublic;

/// The path that returns the first checkpoint, and the disablement secret.
pub const BOOTSTRAP_PATH: &str = "/machine/tka/bootstrap";
/// The path that returns updates.
pub const OFFER_PATH: &str = "/machine/tka/sync/offer";
/// The path that receives the head and updates.
pub const SEND_PATH: &str = "/machine/tka/sync/send";

/// How far back ancestors are listed, in updates.
const MAX_DISTANCE: usize = 400;
/// The distance of the first ancestors, and the factor for the next distances.
const ANCESTOR_DISTANCE: (usize, usize) = (4, 4);

/// Requests the first checkpoint, or the disablement secret.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BootstrapRequest {
    version: u16,
    node_key: NodePublic,
    /// The node's head, or empty.
    head: String,
}

/// The answer to a [`BootstrapRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BootstrapResponse {
    /// The first checkpoint.
    #[serde(rename = "GenesisAUM", deserialize_with = "base64")]
    pub checkpoint: Vec<u8>,
    /// The disablement secret.
    #[serde(deserialize_with = "base64")]
    pub disablement_secret: Vec<u8>,
}

/// Requests updates.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct OfferRequest {
    version: u16,
    node_key: NodePublic,
    head: String,
    ancestors: Vec<String>,
}

/// The answer to an [`OfferRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OfferResponse {
    /// The coordinator's head.
    pub head: String,
    /// Some ancestors of the head.
    pub ancestors: Option<Vec<String>>,
    /// Updates, for [`Authority::inform`].
    #[serde(rename = "MissingAUMs")]
    pub missing: Option<Vec<Text>>,
}

/// An encoded update.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Text(#[serde(deserialize_with = "base64")] Vec<u8>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Sends the head, and updates that the coordinator does not have.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SendRequest {
    version: u16,
    node_key: NodePublic,
    head: String,
    #[serde(rename = "MissingAUMs")]
    missing: Vec<String>,
    interactive: bool,
}

/// The answer to a [`SendRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SendResponse {
    /// The coordinator's head.
    pub head: String,
}

/// Creates the requests of a node.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// The capability version.
    pub version: u16,
    /// The node key.
    pub node_key: NodePublic,
}

impl Requester {
    /// Creates the request for [`BOOTSTRAP_PATH`].
    pub fn bootstrap(self, known: Option<&Authority>) -> BootstrapRequest {
        let head = known.map(|known| known.head().to_string()).unwrap_or_default();
        BootstrapRequest { version: self.version, node_key: self.node_key, head }
    }

    /// Creates the request for [`OFFER_PATH`].
    pub fn offer(self, known: &Authority) -> OfferRequest {
        OfferRequest {
            version: self.version,
            node_key: self.node_key,
            head: known.head().to_string(),
            ancestors: known.ancestors().iter().map(ToString::to_string).collect(),
        }
    }

    /// Creates the request for [`SEND_PATH`] with updates that the coordinator does not have.
    /// `interactive`: a user just made them.
    pub fn send(self, known: &Authority, missing: &[Vec<u8>], interactive: bool) -> SendRequest {
        SendRequest {
            version: self.version,
            node_key: self.node_key,
            head: known.head().to_string(),
            missing: missing.iter().map(|text| Base64::encode_string(text)).collect(),
            interactive,
        }
    }
}

impl OfferResponse {
    /// Returns the updates that the coordinator does not have, if its head or an ancestor is known
    /// here.
    pub fn missing_at_coordinator(&self, known: &Authority) -> Vec<Vec<u8>> {
        let ancestors = self.ancestors.iter().flatten().filter_map(|text| text.parse().ok());
        let ancestors: Vec<UpdateHash> = ancestors.take(MAX_DISTANCE).collect();
        let missing = |head| known.missing_updates(&head, &ancestors);
        self.head.parse().ok().and_then(missing).unwrap_or_default()
    }
}

impl Authority {
    /// Returns some ancestors of the head at increasing distances, and the oldest update.
    pub fn ancestors(&self) -> Vec<UpdateHash> {
        let (mut ancestors, (mut apart, times)) = (Vec::new(), ANCESTOR_DISTANCE);
        let back = self.path.iter().rev().enumerate().take(MAX_DISTANCE);
        for (number, hash) in back.skip(1) {
            if number % apart == 0 {
                ancestors.push(*hash);
                apart *= times;
            }
        }
        ancestors.push(self.chain.oldest());
        ancestors
    }
}

/// Reads bytes in Go's encoding.
///
/// # Errors
/// The text is not base64.
pub fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Base64::decode_vec(&text).map_err(D::Error::custom)
}
