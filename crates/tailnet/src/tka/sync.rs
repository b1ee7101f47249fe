//! How a node comes to have the updates that the coordinator has (`tka/sync.go`,
//! `tailcfg/tka.go`).
//!
//! | request | when | answer |
//! |---|---|---|
//! | `/machine/tka/bootstrap` | tailnet lock is new here, or off | the first checkpoint, or the secret |
//! | `/machine/tka/sync/offer` | the head is another | updates that are missing here |
//! | `/machine/tka/sync/send` | behind that | the coordinator's head |

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{Authority, UpdateHash};
use crate::{keys::NodePublic, messages::TkaInfo};

/// Where the first checkpoint is, and the secret that turns tailnet lock off.
pub const BOOTSTRAP_PATH: &str = "/machine/tka/bootstrap";
/// Where updates are.
pub const OFFER_PATH: &str = "/machine/tka/sync/offer";
/// Where the head is told.
pub const SEND_PATH: &str = "/machine/tka/sync/send";

/// The most updates back that are named.
const FURTHEST: usize = 400;
/// How far apart the first of them are, and how many times as far each next one.
const APART: (usize, usize) = (4, 4);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Ask for the first checkpoint.
    Begin,
    /// Ask for the secret that turned tailnet lock off, and believe nothing else.
    Disable,
    /// Ask for updates.
    Update,
}

/// What is to be done, by what the coordinator says of tailnet lock and what is known here.
pub fn step(said: Option<&TkaInfo>, known: Option<&Authority>) -> Step {
    let said = said.filter(|lock| !lock.disabled && !lock.head.is_empty());
    match (said, known) {
        (None, None) => Step::Nothing,
        (Some(_), None) => Step::Begin,
        (None, Some(_)) => Step::Disable,
        (Some(lock), Some(known)) if lock.head == known.head().to_string() => Step::Nothing,
        (Some(_), Some(_)) => Step::Update,
    }
}

/// Asks for the first checkpoint, or the secret.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BootstrapRequest {
    version: u16,
    node_key: NodePublic,
    /// The head that is known, or empty.
    head: String,
}

/// The answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BootstrapResponse {
    /// The first checkpoint.
    #[serde(rename = "GenesisAUM", deserialize_with = "base64")]
    pub checkpoint: Vec<u8>,
    /// The secret that turned tailnet lock off.
    #[serde(deserialize_with = "base64")]
    pub disablement_secret: Vec<u8>,
}

/// Asks for updates.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct OfferRequest {
    version: u16,
    node_key: NodePublic,
    head: String,
    ancestors: Vec<String>,
}

/// The answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OfferResponse {
    /// The coordinator's head.
    pub head: String,
    /// Some of the updates before it.
    pub ancestors: Option<Vec<String>>,
    /// Updates, for [`Authority::inform`].
    #[serde(rename = "MissingAUMs")]
    pub missing: Option<Vec<Text>>,
}

/// An update's text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Text(#[serde(deserialize_with = "base64")] Vec<u8>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Tells the head, and updates that the coordinator has not.
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

/// The answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SendResponse {
    /// The coordinator's head.
    pub head: String,
}

/// Makes the requests of a node.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// The capability version.
    pub version: u16,
    /// The node key.
    pub node_key: NodePublic,
}

impl Requester {
    /// For [`BOOTSTRAP_PATH`].
    pub fn bootstrap(self, known: Option<&Authority>) -> BootstrapRequest {
        let head = known.map(|known| known.head().to_string()).unwrap_or_default();
        BootstrapRequest { version: self.version, node_key: self.node_key, head }
    }

    /// For [`OFFER_PATH`].
    pub fn offer(self, known: &Authority) -> OfferRequest {
        OfferRequest {
            version: self.version,
            node_key: self.node_key,
            head: known.head().to_string(),
            ancestors: known.ancestors().iter().map(ToString::to_string).collect(),
        }
    }

    /// For [`SEND_PATH`]: updates that the coordinator lacks, which a person has just made or not.
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
    /// The updates that the coordinator lacks, as far as what it has is known here.
    pub fn missing_at_coordinator(&self, known: &Authority) -> Vec<Vec<u8>> {
        let ancestors = self.ancestors.iter().flatten().filter_map(|text| text.parse().ok());
        let ancestors: Vec<UpdateHash> = ancestors.take(FURTHEST).collect();
        let missing = |head| known.missing_updates(&head, &ancestors);
        self.head.parse().ok().and_then(missing).unwrap_or_default()
    }
}

impl Authority {
    /// Some of the updates before the head, further and further apart, and the oldest.
    pub fn ancestors(&self) -> Vec<UpdateHash> {
        let (mut ancestors, (mut apart, times)) = (Vec::new(), APART);
        let back = self.path.iter().rev().enumerate().take(FURTHEST);
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

/// Bytes as Go writes them.
pub(super) fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Base64::decode_vec(&text).map_err(D::Error::custom)
}
