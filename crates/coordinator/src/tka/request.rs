//! What nodes ask about tailnet lock, as it is read (tailscale `tailcfg/tka.go`).

use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Deserializer, de::Error as _};
use tailnet::{
    keys::NodePublic,
    tka::{self, Authority, KeyId, UpdateHash, disablement_hash},
};

use super::{Signatures, TkaRefusal};

/// The most updates that are looked for behind a node's head.
const MOST_ANCESTORS: usize = 512;

/// What a node asks.
#[derive(Clone, Debug)]
pub enum TkaRequest {
    /// To turn it on with this checkpoint.
    Begin(Base64Bytes),
    /// The same, with the signatures of all nodes.
    Finish(Finish),
    /// For the first checkpoint, or the secret that turned it off.
    Bootstrap,
    /// For updates behind these.
    Offer {
        /// The last one that the node has.
        head: UpdateHash,
        /// Some before it.
        ancestors: Vec<UpdateHash>,
    },
    /// To take updates.
    Send(Send),
    /// To turn it off.
    Disable {
        /// By this secret.
        secret: Base64Bytes,
        /// Its hash, once [`TkaRequest::hash`] has made it.
        hash: Option<[u8; 32]>,
    },
    /// To take the signature of a node key.
    Sign(Sign),
    /// For the signatures by this key.
    Affected(KeyId),
}

/// See [`TkaRequest::Finish`].
#[derive(Clone, Debug)]
pub struct Finish {
    pub(super) signatures: Signatures,
    pub(super) has_secret: bool,
}

/// See [`TkaRequest::Send`].
#[derive(Clone, Debug)]
pub struct Send {
    pub(super) head: UpdateHash,
    pub(super) updates: Vec<Base64Bytes>,
    pub(super) is_interactive: bool,
    /// Set by [`TkaRequest::verify`].
    pub(super) verified: Option<Arc<Verified>>,
}

/// Updates that were verified.
#[derive(Debug)]
pub(super) struct Verified {
    /// Who could sign before. Updates of a fork that loses change this and leave the head as it is.
    pub before: Arc<Authority>,
    /// Who may sign by them.
    pub authority: Arc<Authority>,
    /// Those that were new.
    pub taken: Vec<Vec<u8>>,
}

/// See [`TkaRequest::Sign`].
#[derive(Clone, Debug)]
pub struct Sign {
    pub(super) signature: Base64Bytes,
    /// Set by [`TkaRequest::verify`]: the authority at that time, and the signed node key.
    pub(super) verified: Option<(Arc<Authority>, NodePublic)>,
}

/// Bytes as Go writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Base64Bytes(#[serde(deserialize_with = "base64")] pub(super) Vec<u8>);

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
    /// Reads what is asked at a path behind `/machine/tka/`, with the node key of who asks. `None`:
    /// nothing is asked there.
    ///
    /// # Errors
    /// It is no such question.
    pub fn read(path: &str, body: &[u8]) -> Option<Result<(NodePublic, Self), serde_json::Error>> {
        Some(match path {
            "init/begin" => read(body, |begin: Begin| Ok(Self::Begin(begin.checkpoint))),
            "init/finish" => read(body, |body: FinishBody| {
                let has_secret = !body.support_disablement.0.is_empty();
                let mut signatures = Signatures::new();
                for (number, text) in body.signatures.unwrap_or_default() {
                    let number = number.parse().map_err(|_| "a node's number is none")?;
                    signatures.insert(number, text);
                }
                Ok(Self::Finish(Finish { signatures, has_secret }))
            }),
            "bootstrap" => read(body, |Nothing {}| Ok(Self::Bootstrap)),
            "sync/offer" => read(body, |Offer { head, ancestors }| {
                let texts = ancestors.unwrap_or_default();
                let ancestors = texts.iter().take(MOST_ANCESTORS).map(|text| text.parse());
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

    /// Whether it has a secret that is to be hashed before it is answered.
    pub fn needs_hash(&self) -> bool {
        matches!(self, Self::Disable { hash: None, .. })
    }

    /// Hashes the secret that it has. Takes 16 MiB and about 50 ms.
    pub fn hash(&mut self) {
        if let Self::Disable { secret, hash } = self {
            *hash = disablement_hash(&secret.0);
        }
    }

    /// Whether its signatures have to be verified before the answer.
    pub fn needs_verification(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Sign(_))
    }

    /// Verifies its signatures. This takes some time for each update, and also for an invalid one.
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

    /// Whether nothing changes by it.
    pub fn is_query(&self) -> bool {
        matches!(self, Self::Bootstrap | Self::Offer { .. } | Self::Affected(_))
    }
}

impl Send {
    pub(super) fn verify(&self, known: &Arc<Authority>) -> Result<Verified, TkaRefusal> {
        // A person's update has to follow the current head. Otherwise the person makes it again.
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
    /// Returns the node key that is signed.
    pub(super) fn verify(&self, known: &Authority) -> Result<NodePublic, TkaRefusal> {
        let node = tka::claim(&self.signature.0)?.node;
        known.check(&node, &self.signature.0)?;
        Ok(node)
    }
}

fn read<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    asked: impl FnOnce(T) -> Result<TkaRequest, &'static str>,
) -> Result<(NodePublic, TkaRequest), serde_json::Error> {
    let Body { node_key, rest } = serde_json::from_slice(body)?;
    let asked = asked(rest).map_err(serde_json::Error::custom)?;
    Ok((node_key, asked))
}

fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Base64::decode_vec(&text).map_err(D::Error::custom)
}

fn hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UpdateHash, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
