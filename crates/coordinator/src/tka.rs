//! Tailnet lock (tailscale `tka`, `tailcfg/tka.go`). The coordinator verifies, stores and distributes updates and
//! signatures. It signs nothing, because no node trusts a key of it.
//!
//! ```text
//!   an administrator allows a node ──► begin ──► finish ──► on ──► send, sign ──► disable ──► off
//!                                    checkpoint  signatures                        secret
//! ```
//!
//! Maps have the head, and the signature of each node key.

mod request;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{
    keys::NodePublic,
    tka::{self, Authority, UpdateHash},
};

pub use self::request::TkaRequest;
pub(crate) use self::request::{Base64Bytes, Finish, Send, Sign, Verified};
use crate::{
    object::{self, NodeId, TkaId, TkaUpdate, TkaUpdateId},
    time::Time,
};

/// The number of the only object with the state of tailnet lock.
pub(crate) const TKA_ID: TkaId = TkaId(1);
/// The time within which an allowed node may turn tailnet lock on.
pub(crate) const INIT_WINDOW: Duration = Duration::from_secs(60 * 60);

/// The state and the updates of tailnet lock.
#[derive(Debug, Default)]
pub(crate) struct Tka {
    stored: object::TkaState,
    updates: BTreeMap<TkaUpdateId, TkaUpdate>,
    /// The authority by the updates, unless `is_stale`.
    authority: Option<Arc<Authority>>,
    /// Updates of other servers that follow those of the authority.
    unread: Vec<TkaUpdateId>,
    is_stale: bool,
}

/// The refusal of a request. The node's user sees the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TkaRefusal {
    /// No administrator allowed this node to turn tailnet lock on.
    NotAllowed,
    /// Tailnet lock is on.
    IsOn,
    /// Tailnet lock is off.
    IsOff,
    /// This node did not begin to turn tailnet lock on.
    NotBegun,
    /// The key of a node is not signed.
    UnsignedNode(String),
    /// The request has a disablement secret for the server.
    SupportSecret,
    /// The node of a signature does not exist.
    NoNode,
    /// Another update came first.
    Stale,
    /// The node's updates are from another chain.
    OtherChain,
    /// The disablement secret is wrong.
    WrongSecret,
    /// An update or a signature is invalid.
    Refused(tka::VerifyError),
}

impl fmt::Display for TkaRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str(
                "an administrator must allow this node to turn tailnet lock on: `linerate-server lock \
                 allow -i NODE`",
            ),
            Self::IsOn => f.write_str("tailnet lock is on already"),
            Self::IsOff => f.write_str("tailnet lock is off"),
            Self::NotBegun => f.write_str("this node did not begin to turn tailnet lock on"),
            Self::UnsignedNode(name) => {
                write!(f, "{name} would be locked out, because its key is not signed: try again")
            }
            Self::SupportSecret => f.write_str(
                "this server does not accept a secret that turns tailnet lock off: omit \
                 --gen-disablement-for-support",
            ),
            Self::NoNode => f.write_str("no node has this key"),
            Self::Stale => f.write_str("others have changed tailnet lock meanwhile: try again"),
            Self::OtherChain => f.write_str("this node has updates of another tailnet lock"),
            Self::WrongSecret => f.write_str("the secret does not turn tailnet lock off"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for TkaRefusal {}

impl From<tka::VerifyError> for TkaRefusal {
    fn from(why: tka::VerifyError) -> Self {
        Self::Refused(why)
    }
}

impl Tka {
    /// Sets or removes an update.
    pub(crate) fn put_update(&mut self, id: TkaUpdateId, update: Option<TkaUpdate>) {
        if self.updates.get(&id) == update.as_ref() {
            return;
        }
        let is_last = self.updates.last_key_value().is_some_and(|(last, _)| *last < id);
        match update {
            Some(update) => {
                self.updates.insert(id, update);
                match is_last && self.authority.is_some() {
                    true => self.unread.push(id),
                    false => self.is_stale = true,
                }
            }
            None => {
                self.updates.remove(&id);
                self.is_stale = true;
            }
        }
    }

    /// Reads the stored updates. After an error, the previous authority stays valid.
    pub(crate) fn restore(&mut self) -> Result<(), (i64, tka::VerifyError)> {
        let unread = std::mem::take(&mut self.unread);
        if self.is_stale {
            self.authority = self.read_all()?.map(Arc::new);
            self.is_stale = false;
        } else if !unread.is_empty() {
            let read = self.read_unread(&unread);
            // After an error all updates are read again.
            self.is_stale = read.is_err();
            read?;
        }
        match (self.stored.is_on, &self.authority) {
            (true, None) => Err((0, tka::VerifyError::NoCheckpoint)),
            _ => Ok(()),
        }
    }

    fn read_all(&self) -> Result<Option<Authority>, (i64, tka::VerifyError)> {
        let texts = self.updates.values().map(decoded).collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            return Ok(None);
        }
        let id_of = |position| self.updates.keys().nth(position).map_or(0, |id: &TkaUpdateId| id.0);
        let gathered = Authority::from_updates(&texts);
        gathered.map(Some).map_err(|(position, why)| (id_of(position), why))
    }

    /// Verifies new updates only. The ones before were verified when they came.
    fn read_unread(&mut self, unread: &[TkaUpdateId]) -> Result<(), (i64, tka::VerifyError)> {
        let Some(authority) = &self.authority else { return Ok(()) };
        let mut authority = Authority::clone(authority);
        for update in unread.iter().filter_map(|id| self.updates.get(id)) {
            let text = decoded(update)?;
            authority.inform_uncompacted(&[text]).map_err(|why| (update.id.0, why))?;
        }
        self.authority = Some(Arc::new(authority));
        Ok(())
    }

    /// The stored state.
    pub(crate) fn stored(&self) -> &object::TkaState {
        &self.stored
    }

    /// Sets the stored state.
    pub(crate) fn set_stored(&mut self, stored: object::TkaState) {
        self.stored = stored;
    }

    /// An update.
    pub(crate) fn update(&self, id: TkaUpdateId) -> Option<&TkaUpdate> {
        self.updates.get(&id)
    }

    /// The numbers of all updates.
    pub(crate) fn update_ids(&self) -> impl Iterator<Item = TkaUpdateId> {
        self.updates.keys().copied()
    }

    /// Adds an update that the present authority includes.
    pub(crate) fn add_update(&mut self, update: TkaUpdate) {
        self.updates.insert(update.id, update);
    }

    /// Sets the authority. Its new updates must be added.
    pub(crate) fn set_authority(&mut self, authority: Arc<Authority>) {
        self.authority = Some(authority);
    }

    /// Removes the authority and all updates.
    pub(crate) fn clear(&mut self) {
        self.authority = None;
        self.updates.clear();
    }

    /// The state for maps, as JSON of `tailcfg.TKAInfo`. `None` if it was never on.
    pub(crate) fn info(&self) -> Option<String> {
        let info = match (self.authority(), &self.stored.secret) {
            (Some(authority), _) => json!({ "Head": authority.head().to_string() }),
            (None, Some(_)) => json!({ "Disabled": true }),
            (None, None) => return None,
        };
        Some(info.to_string())
    }

    /// The authority, if tailnet lock is on.
    pub(crate) fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref().filter(|_| self.stored.is_on)
    }

    /// Whether an administrator allowed a node to turn tailnet lock on.
    pub(crate) fn is_init_allowed(&self, node: NodeId, now: Time) -> bool {
        self.stored.allowed.is_some_and(|(allowed, until)| allowed == node && now < until)
    }

    /// The first checkpoint, or the secret that turned tailnet lock off, as JSON.
    pub(crate) fn bootstrap(&self) -> Result<Value, TkaRefusal> {
        match (self.authority(), &self.stored.secret) {
            (Some(authority), _) => {
                Ok(json!({ "GenesisAUM": Base64::encode_string(&authority.oldest_update()) }))
            }
            (None, Some(secret)) => Ok(json!({ "DisablementSecret": secret })),
            (None, None) => Err(TkaRefusal::IsOff),
        }
    }

    /// The updates that a node misses, as JSON.
    pub(crate) fn sync_offer(
        &self,
        head: &UpdateHash,
        ancestors: &[UpdateHash],
    ) -> Result<Value, TkaRefusal> {
        let authority = self.require_on()?;
        // A node with updates that were lost here sends them, if they follow the known ones.
        let missing = authority.missing_updates(head, ancestors).ok_or(TkaRefusal::OtherChain)?;
        let missing = missing.iter().map(|text| Base64::encode_string(text));
        let own = authority.ancestors();
        Ok(json!({
            "Head": authority.head().to_string(),
            "Ancestors": own.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "MissingAUMs": missing.collect::<Vec<_>>(),
        }))
    }

    /// Whether tailnet lock is on, and the signature of a node is valid.
    pub(crate) fn is_signed(&self, node: &object::Node) -> bool {
        self.is_valid_signature(&node.key, &node.signature)
    }

    /// Whether tailnet lock is on, and this signature of a node key is valid.
    pub(crate) fn is_valid_signature(&self, node: &NodePublic, signature: &str) -> bool {
        let text = Base64::decode_vec(signature).ok().filter(|text| !text.is_empty());
        let authority = self.authority();
        text.zip(authority).is_some_and(|(text, authority)| authority.check(node, &text).is_ok())
    }

    /// The authority, or the refusal if tailnet lock is off.
    pub(crate) fn require_on(&self) -> Result<&Arc<Authority>, TkaRefusal> {
        self.authority().ok_or(TkaRefusal::IsOff)
    }
}

fn decoded(update: &TkaUpdate) -> Result<Vec<u8>, (i64, tka::VerifyError)> {
    let malformed = tka::VerifyError::Malformed(tka::DecodeError::NotCbor);
    Base64::decode_vec(&update.text).map_err(|_| (update.id.0, malformed))
}

/// Signatures by node ID.
type Signatures = BTreeMap<i64, Base64Bytes>;
