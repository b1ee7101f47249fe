//! Requests of nodes about tailnet lock (tailscale `tailcfg/tka.go`).

use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Deserializer, de::Error as _};
use tailnet::{
    keys::NodePublic,
    tka::{self, Authority, KeyId, UpdateHash, disablement_hash},
};

use super::{Signatures, TkaRefusal};

/// The maximum number of ancestors in an offer.
const MAX_ANCESTORS: usize = 512;

/// A node's request.
#[derive(Clone, Debug)]
pub enum TkaRequest {
    /// Begins to turn tailnet lock on with this checkpoint.
    Begin(Base64Bytes),
    /// Turns tailnet lock on, with the signatures of all nodes.
    Finish(Finish),
    /// Requests the first checkpoint, or the secret that turned tailnet lock off.
    Bootstrap,
    /// Requests updates that follow the node's.
    Offer {
        /// The node's last update.
        head: UpdateHash,
        /// Some updates before it.
        ancestors: Vec<UpdateHash>,
    },
    /// Sends updates.
    Send(Send),
    /// Turns tailnet lock off.
    Disable {
        /// The disablement secret.
        secret: Base64Bytes,
        /// Its hash, set by [`TkaRequest::hash`].
        hash: Option<[u8; 32]>,
    },
    /// Sends the signature of a node key.
    Sign(Sign),
    /// Requests the signatures by this key.
    Affected(KeyId),
}

/// See [`TkaRequest::Finish`].
#[derive(Clone, Debug)]
pub struct Finish {
    pub(crate) signatures: Signatures,
    pub(crate) has_secret: bool,
}

/// See [`TkaRequest::Send`].
#[derive(Clone, Debug)]
pub struct Send {
    pub(crate) head: UpdateHash,
    pub(crate) updates: Vec<Base64Bytes>,
    pub(crate) is_interactive: bool,
    /// Set by [`TkaRequest::verify`].
    pub(crate) verified: Option<Arc<Verified>>,
}

/// Verified updates.
#[derive(Debug)]
pub(crate) struct Verified {
    /// The authority before the updates. Updates of a losing fork change it, but not the head.
    pub before: Arc<Authority>,
    /// The authority after the updates.
    pub authority: Arc<Authority>,
    /// The new updates.
    pub taken: Vec<Vec<u8>>,
}

/// See [`TkaRequest::Sign`].
#[derive(Clone, Debug)]
pub struct Sign {
    pub(crate) signature: Base64Bytes,
    /// Set by [`TkaRequest::verify`]: the authority at that time, and the signed node key.
    pub(crate) verified: Option<(Arc<Authority>, NodePublic)>,
}

/// Bytes in Go's JSON format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Base64Bytes(#[serde(deserialize_with = "base64")] pub(crate) Vec<u8>);

impl AsRef<[u8]> for Base64Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Body<T> {
    node_key: NodePublic,
    #[serde(flatten)]
    rest: T,
}

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct Begin {
    #[serde(rename = "GenesisAUM")]
    checkpoint: Base64Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FinishBody {
    #[serde(default)]
    signatures: Option<std::collections::BTreeMap<String, Base64Bytes>>,
    #[serde(default)]
    support_disablement: Base64Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Offer {
    #[serde(deserialize_with = "hash")]
    head: UpdateHash,
    #[serde(default)]
    ancestors: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SendBody {
    #[serde(deserialize_with = "hash")]
    head: UpdateHash,
    #[serde(default, rename = "MissingAUMs")]
    updates: Option<Vec<Base64Bytes>>,
    #[serde(default)]
    interactive: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Disable {
    disablement_secret: Base64Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SignBody {
    signature: Base64Bytes,
}

#[derive(Deserialize)]
struct Affected {
    #[serde(rename = "KeyID")]
    key: Base64Bytes,
}

impl TkaRequest {
    /// Reads a request at a path below `/machine/tka/`, with the node key of the sender. `None` if the path is
    /// unknown.
    ///
    /// # Errors
    /// The body is invalid.
    pub fn read(path: &str, body: &[u8]) -> Option<Result<(NodePublic, Self), serde_json::Error>> {
        Some(match path {
            "init/begin" => read(body, |begin: Begin| Ok(Self::Begin(begin.checkpoint))),
            "init/finish" => read(body, |body: FinishBody| {
                let has_secret = !body.support_disablement.0.is_empty();
                let mut signatures = Signatures::new();
                for (number, text) in body.signatures.unwrap_or_default() {
                    let number = number.parse().map_err(|_| "not the number of a node")?;
                    signatures.insert(number, text);
                }
                Ok(Self::Finish(Finish { signatures, has_secret }))
            }),
            "bootstrap" => read(body, |Nothing {}| Ok(Self::Bootstrap)),
            "sync/offer" => read(body, |Offer { head, ancestors }| {
                let texts = ancestors.unwrap_or_default();
                let ancestors = texts.iter().take(MAX_ANCESTORS).map(|text| text.parse());
                let ancestors = ancestors.collect::<Result<_, _>>().map_err(|_| "not a hash")?;
                Ok(Self::Offer { head, ancestors })
            }),
            "sync/send" => read(body, |SendBody { head, updates, interactive }| {
                let updates = updates.unwrap_or_default();
                let is_interactive = interactive;
                Ok(Self::Send(Send { head, updates, is_interactive, verified: None }))
            }),
            "disable" => read(body, |Disable { disablement_secret: secret }| {
                Ok(Self::Disable { secret, hash: None })
            }),
            "sign" => read(body, |SignBody { signature }| {
                Ok(Self::Sign(Sign { signature, verified: None }))
            }),
            "affected-sigs" => read(body, |Affected { key }| {
                Ok(Self::Affected(key.0.try_into().map_err(|_| "not a key")?))
            }),
            _ => return None,
        })
    }

    /// Whether the request has a secret that must be hashed before the request is handled.
    pub fn needs_hash(&self) -> bool {
        matches!(self, Self::Disable { hash: None, .. })
    }

    /// Hashes the secret. Takes 16 MiB and about 50 ms.
    pub fn hash(&mut self) {
        if let Self::Disable { secret, hash } = self {
            *hash = disablement_hash(&secret.0);
        }
    }

    /// Whether the request has signatures that must be verified before it is handled.
    pub fn needs_verification(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Sign(_))
    }

    /// Verifies the signatures. Each update takes some time, even an invalid one.
    ///
    /// # Errors
    /// A signature is invalid, or an update follows another head.
    pub fn verify(&mut self, known: &Arc<Authority>) -> Result<(), TkaRefusal> {
        match self {
            Self::Send(send) => send.verified = Some(Arc::new(send.verify(known)?)),
            Self::Sign(sign) => sign.verified = Some((Arc::clone(known), sign.verify(known)?)),
            _ => {}
        }
        Ok(())
    }

    /// Whether the request changes nothing.
    pub fn is_query(&self) -> bool {
        matches!(self, Self::Bootstrap | Self::Offer { .. } | Self::Affected(_))
    }
}

impl Send {
    pub(crate) fn verify(&self, known: &Arc<Authority>) -> Result<Verified, TkaRefusal> {
        // An interactive update must follow the present head. Otherwise the user makes it again.
        if self.is_interactive && self.head != known.head() {
            return Err(TkaRefusal::Stale);
        }
        let mut authority = Authority::clone(known);
        let taken = authority.inform_uncompacted(&self.updates)?;
        let before = Arc::clone(known);
        Ok(Verified { before, authority: Arc::new(authority), taken })
    }
}

impl Sign {
    /// Returns the signed node key.
    pub(crate) fn verify(&self, known: &Authority) -> Result<NodePublic, TkaRefusal> {
        let node = tka::claim(&self.signature.0)?.node;
        known.check(&node, &self.signature.0)?;
        Ok(node)
    }
}

fn read<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    convert: impl FnOnce(T) -> Result<TkaRequest, &'static str>,
) -> Result<(NodePublic, TkaRequest), serde_json::Error> {
    let Body { node_key, rest } = serde_json::from_slice(body)?;
    let request = convert(rest).map_err(serde_json::Error::custom)?;
    Ok((node_key, request))
}

fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Base64::decode_vec(&text).map_err(D::Error::custom)
}

fn hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UpdateHash, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
