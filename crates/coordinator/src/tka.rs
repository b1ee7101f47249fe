//! Tailnet lock, as a coordinator keeps it: it verifies what it takes, passes it on, and signs
//! nothing, for it has no key that anybody trusts (tailscale `tka`, `tailcfg/tka.go`).
//!
//! ```text
//!   an administrator lets a node ──► begin ──► finish ──► on ──► send, sign ──► disable ──► off
//!                                     checkpoint  signatures                      secret
//! ```
//!
//! What each node needs of it goes with the map: the head, and the signature of each node key.

mod request;
mod status;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{
    keys::{MachinePublic, NodePublic},
    tka::{self, Authority, KeyId, UpdateHash, read_public},
};

use self::request::{Base64Bytes, Finish, Send, Sign, Verified};
pub use self::{request::TkaRequest, status::TkaStatus};
use crate::{
    log::{Change, Parts},
    object::{self, Kind, NodeId, TkaId, TkaUpdate, TkaUpdateId},
    refusal,
    request::RegisterRequest,
    state::{Entry, State},
    time::Time,
};

/// There is one lock.
const ONLY: TkaId = TkaId(1);
/// How long a node may turn it on that an administrator lets.
const ALLOWED: Duration = Duration::from_secs(60 * 60);

/// What is known of tailnet lock.
#[derive(Debug, Default)]
pub(crate) struct Tka {
    pub stored: object::TkaState,
    pub updates: BTreeMap<TkaUpdateId, TkaUpdate>,
    /// By the updates, unless these are others since then.
    authority: Option<Arc<Authority>>,
    /// Updates that others have written, behind those of the authority.
    unread: Vec<TkaUpdateId>,
    is_stale: bool,
}

/// Why something is not done, in words that the node's user reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TkaRefusal {
    /// No administrator lets this node turn it on.
    NotAllowed,
    /// It is on.
    IsOn,
    /// It is off.
    IsOff,
    /// This node did not begin to turn it on.
    NotBegun,
    /// A node would be kept out.
    UnsignedNode(String),
    /// The server would have a secret that turns it off.
    SupportSecret,
    /// There is no node with this key.
    NoNode,
    /// Others have made an update meanwhile.
    Stale,
    /// What the node has is of another chain.
    OtherChain,
    /// The secret turns nothing off.
    WrongSecret,
    /// It does not count.
    Refused(tka::VerifyError),
}

impl fmt::Display for TkaRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str(
                "an administrator has to let this node turn tailnet lock on: `linerate-server lock \
                 allow -i NODE`",
            ),
            Self::IsOn => f.write_str("tailnet lock is on already"),
            Self::IsOff => f.write_str("tailnet lock is off"),
            Self::NotBegun => f.write_str("this node did not begin to turn tailnet lock on"),
            Self::UnsignedNode(name) => {
                write!(f, "{name} would be locked out, whose key is not signed: try again")
            }
            Self::SupportSecret => f.write_str(
                "this server takes no secret that turns tailnet lock off: leave out \
                 --gen-disablement-for-support",
            ),
            Self::NoNode => f.write_str("no node has this key"),
            Self::Stale => f.write_str("others have changed tailnet lock meanwhile: try again"),
            Self::OtherChain => f.write_str("what this node has is of another tailnet lock"),
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
    /// An update is this, or is gone.
    pub fn put_update(&mut self, id: TkaUpdateId, update: Option<TkaUpdate>) {
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

    /// Reads the updates that were kept. Where one does not count, the same keys may sign as before.
    pub fn restore(&mut self) -> Result<(), (i64, tka::VerifyError)> {
        let unread = std::mem::take(&mut self.unread);
        if self.is_stale {
            self.authority = self.read_all()?.map(Arc::new);
            self.is_stale = false;
        } else if !unread.is_empty() {
            let read = self.read_unread(&unread);
            // After a refusal all updates are read again.
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

    /// Verifies these alone: those before them were verified when they came.
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

    /// Who may sign, while it is on.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref().filter(|_| self.stored.is_on)
    }

    /// Whether an administrator lets a node turn it on.
    fn is_init_allowed(&self, node: NodeId, now: Time) -> bool {
        self.stored.allowed.is_some_and(|(allowed, until)| allowed == node && now < until)
    }

    fn require_on(&self) -> Result<&Arc<Authority>, TkaRefusal> {
        self.authority().ok_or(TkaRefusal::IsOff)
    }
}

fn decoded(update: &TkaUpdate) -> Result<Vec<u8>, (i64, tka::VerifyError)> {
    let malformed = tka::VerifyError::Malformed(tka::DecodeError::NotCbor);
    Base64::decode_vec(&update.text).map_err(|_| (update.id.0, malformed))
}

impl State {
    /// What maps say of it, in JSON (`tailcfg.TKAInfo`); nothing where it was never on.
    pub(crate) fn tka_info(&self) -> Option<String> {
        let said = match (self.tka.authority(), &self.tka.stored.secret) {
            (Some(authority), _) => json!({ "Head": authority.head().to_string() }),
            (None, Some(_)) => json!({ "Disabled": true }),
            (None, None) => return None,
        };
        Some(said.to_string())
    }

    /// Whether a node of this machine is turning it on: it has much to say then.
    pub fn is_initializing_tka(&self, machine: &MachinePublic, now: Time) -> bool {
        let begun = self.tka.stored.begun.as_ref().map(|(id, _)| *id);
        begun.is_some_and(|id| {
            self.tka.is_init_allowed(id, now) && self.belongs_to_machine(id, machine)
        })
    }

    /// Who may sign, while it is on: for [`TkaRequest::verify`].
    pub fn tka_authority(&self) -> Option<Arc<Authority>> {
        self.tka.authority().cloned()
    }

    /// Whether it is on.
    pub fn is_tka_on(&self) -> bool {
        self.tka.authority().is_some()
    }

    /// Lets a node turn it on, within an hour, and no other any more.
    ///
    /// # Errors
    /// There is no such node.
    pub fn allow_tka_init(&mut self, id: NodeId, now: Time) -> Result<(), refusal::Refusal> {
        if !self.nodes.contains_key(&id) {
            return Err(refusal::Refusal::NoNode(id));
        }
        self.change_tka(|kept| {
            kept.allowed = Some((id, now.after(ALLOWED)));
            kept.begun = kept.begun.take().filter(|(by, _)| *by == id);
        });
        Ok(())
    }

    /// Answers a node, in JSON. One that changes something is an entry of the audit.
    ///
    /// # Errors
    /// It is not done. [`TkaRefusal::Stale`]: there are new updates since [`TkaRequest::verify`].
    pub fn handle_tka_request(
        &mut self,
        id: NodeId,
        asked: &TkaRequest,
        now: Time,
    ) -> Result<String, TkaRefusal> {
        let answer = match asked {
            TkaRequest::Begin(checkpoint) => self.begin_init(id, checkpoint, now)?,
            TkaRequest::Finish(finish) => self.finish_init(id, finish, now)?,
            TkaRequest::Send(send) => self.sync_send(id, send, now)?,
            TkaRequest::Disable { secret, hash } => self.disable_tka(id, secret, *hash, now)?,
            TkaRequest::Sign(sign) => self.store_signature(id, sign, now)?,
            question => return self.answer_tka_query(question),
        };
        Ok(answer.to_string())
    }

    /// Answers a node whose question changes nothing ([`TkaRequest::is_query`]), in JSON.
    ///
    /// # Errors
    /// There is no answer.
    pub fn answer_tka_query(&self, asked: &TkaRequest) -> Result<String, TkaRefusal> {
        let answer = match asked {
            TkaRequest::Bootstrap => self.bootstrap()?,
            TkaRequest::Offer { head, ancestors } => self.sync_offer(head, ancestors)?,
            TkaRequest::Affected(key) => self.affected_signatures(key)?,
            _ => return Err(TkaRefusal::NotAllowed),
        };
        Ok(answer.to_string())
    }

    fn begin_init(
        &mut self,
        id: NodeId,
        checkpoint: &Base64Bytes,
        now: Time,
    ) -> Result<Value, TkaRefusal> {
        if self.tka.stored.is_on {
            return Err(TkaRefusal::IsOn);
        }
        if !self.tka.is_init_allowed(id, now) {
            return Err(TkaRefusal::NotAllowed);
        }
        Authority::bootstrap(&checkpoint.0)?;
        let text = Base64::encode_string(&checkpoint.0);
        self.change_tka(|kept| kept.begun = Some((id, text)));
        let needed = self.nodes.values().map(|entry| {
            let node = &entry.node;
            let wrapping = read_public(&node.tka_key).ok();
            let wrapping = wrapping.map(|key| Base64::encode_string(&key));
            json!({ "NodeID": node.id, "NodePublic": node.key, "RotationPubkey": wrapping })
        });
        Ok(json!({ "NeedSignatures": needed.collect::<Vec<_>>() }))
    }

    /// All nodes that there are have to be signed: nobody is locked out by this.
    fn finish_init(&mut self, id: NodeId, finish: &Finish, now: Time) -> Result<Value, TkaRefusal> {
        if finish.has_secret {
            return Err(TkaRefusal::SupportSecret);
        }
        let begun =
            self.tka.stored.begun.clone().filter(|(by, _)| *by == id && !self.tka.stored.is_on);
        let (_, text) = begun.ok_or(TkaRefusal::NotBegun)?;
        if !self.tka.is_init_allowed(id, now) {
            return Err(TkaRefusal::NotAllowed);
        }
        let malformed = TkaRefusal::Refused(tka::VerifyError::Malformed(tka::DecodeError::NotCbor));
        let checkpoint = Base64::decode_vec(&text).map_err(|_| malformed)?;
        let authority = Authority::bootstrap(&checkpoint)?;
        for entry in self.nodes.values() {
            let (node, none) = (&entry.node, Base64Bytes::default());
            let signature = finish.signatures.get(&node.id.0).unwrap_or(&none);
            let checked = authority.check(&node.key, &signature.0);
            checked.map_err(|_| TkaRefusal::UnsignedNode(node.name.clone()))?;
        }
        let head = authority.head();
        self.tka.authority = Some(Arc::new(authority));
        self.store_updates(vec![checkpoint]);
        self.change_tka(|kept| {
            *kept = object::TkaState { is_on: true, ..object::TkaState::default() }
        });
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let signature = finish.signatures.get(&id.0).map(|text| Base64::encode_string(&text.0));
            self.set_signature(id, signature.unwrap_or_default(), now);
        }
        self.note(Change::Tka);
        self.record_tka_audit(id, format!("turn tailnet lock on, head {head}"), now);
        Ok(json!({}))
    }

    fn bootstrap(&self) -> Result<Value, TkaRefusal> {
        match (self.tka.authority(), &self.tka.stored.secret) {
            (Some(authority), _) => {
                Ok(json!({ "GenesisAUM": Base64::encode_string(&authority.oldest_update()) }))
            }
            (None, Some(secret)) => Ok(json!({ "DisablementSecret": secret })),
            (None, None) => Err(TkaRefusal::IsOff),
        }
    }

    fn sync_offer(&self, head: &UpdateHash, ancestors: &[UpdateHash]) -> Result<Value, TkaRefusal> {
        let authority = self.tka.require_on()?;
        // One that has updates which were lost here sends them, if they follow what is known.
        let missing = authority.missing_updates(head, ancestors).ok_or(TkaRefusal::OtherChain)?;
        let missing = missing.iter().map(|text| Base64::encode_string(text));
        let own = authority.ancestors();
        Ok(json!({
            "Head": authority.head().to_string(),
            "Ancestors": own.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "MissingAUMs": missing.collect::<Vec<_>>(),
        }))
    }

    fn sync_send(&mut self, id: NodeId, send: &Send, now: Time) -> Result<Value, TkaRefusal> {
        let known = self.tka.require_on()?;
        let verified = match &send.verified {
            Some(verified) if Arc::ptr_eq(&verified.before, known) => Arc::clone(verified),
            Some(_) => return Err(TkaRefusal::Stale),
            None => Arc::new(send.verify(known)?),
        };
        let Verified { authority, taken, .. } = &*verified;
        let head = authority.head();
        if !taken.is_empty() {
            let count = taken.len();
            self.tka.authority = Some(Arc::clone(authority));
            self.store_updates(taken.clone());
            self.note(Change::Tka);
            self.record_tka_audit(id, format!("{count} updates of tailnet lock, head {head}"), now);
        }
        Ok(json!({ "Head": head.to_string() }))
    }

    fn disable_tka(
        &mut self,
        id: NodeId,
        secret: &Base64Bytes,
        hash: Option<[u8; 32]>,
        now: Time,
    ) -> Result<Value, TkaRefusal> {
        let authority = self.tka.require_on()?;
        if !hash.is_some_and(|hash| authority.is_disabled_by_hash(&hash)) {
            return Err(TkaRefusal::WrongSecret);
        }
        self.tka.authority = None;
        for id in self.tka.updates.keys().copied().collect::<Vec<_>>() {
            self.store_removal(Kind::TkaUpdate, id.0);
        }
        self.tka.updates.clear();
        let secret = Some(Base64::encode_string(&secret.0));
        self.change_tka(|kept| *kept = object::TkaState { secret, ..object::TkaState::default() });
        self.note(Change::Tka);
        self.record_tka_audit(id, "turn tailnet lock off".into(), now);
        Ok(json!({}))
    }

    fn store_signature(&mut self, id: NodeId, sign: &Sign, now: Time) -> Result<Value, TkaRefusal> {
        let known = self.tka.require_on()?;
        let node = match &sign.verified {
            Some((before, node)) if Arc::ptr_eq(before, known) => *node,
            Some(_) => return Err(TkaRefusal::Stale),
            None => sign.verify(known)?,
        };
        let signature = &sign.signature;
        let signed = self.by_key.get(&node).copied().ok_or(TkaRefusal::NoNode)?;
        let text = Base64::encode_string(&signature.0);
        if self.set_signature(signed, text, now) {
            let name = self.nodes[&signed].node.name.clone();
            self.record_tka_audit(id, format!("sign the key of {name}, node {signed}"), now);
        }
        Ok(json!({}))
    }

    /// The signatures that would not count any more without a key. All that are kept were verified
    /// when they came, so one counts for as long as the key is trusted that it is by: to verify ten
    /// thousand again takes half a second, and any node may ask.
    fn affected_signatures(&self, key: &KeyId) -> Result<Value, TkaRefusal> {
        let is_trusted = self.tka.require_on()?.trusts(key);
        let is_by = |entry: &&Entry| {
            let signature = Base64::decode_vec(&entry.node.signature).unwrap_or_default();
            let claim = tka::claim(&signature);
            claim.is_ok_and(|claim| claim.signer == *key && claim.node == entry.node.key)
        };
        let nodes = self.nodes.values().filter(|entry| is_trusted && is_by(entry));
        let signatures: Vec<&String> = nodes.map(|entry| &entry.node.signature).collect();
        Ok(json!({ "Signatures": signatures }))
    }

    fn is_signed(&self, node: &object::Node) -> bool {
        self.verified_signature(&node.key, &node.signature).is_some()
    }

    /// A signature, if it is on and that is one of this node key.
    fn verified_signature(&self, node: &NodePublic, signature: &str) -> Option<Vec<u8>> {
        let text = Base64::decode_vec(signature).ok().filter(|text| !text.is_empty())?;
        self.tka.authority()?.check(node, &text).ok().map(|()| text)
    }

    /// The signature of a machine's node key that it now replaces: it makes that of the other one of
    /// it, and asks again.
    pub(crate) fn signature_to_renew(
        &self,
        machine: MachinePublic,
        request: &RegisterRequest,
    ) -> Option<&str> {
        let asks = request.signature.is_empty()
            && request.followup.is_empty()
            && request.node_key != request.old_node_key;
        let id = self.find_machine_node(&machine, &request.old_node_key).filter(|_| asks)?;
        let node = &self.nodes.get(&id)?.node;
        self.is_signed(node).then_some(node.signature.as_str())
    }

    /// Takes what a registration says of tailnet lock.
    pub(crate) fn apply_tka_fields(&mut self, id: NodeId, request: &RegisterRequest, now: Time) {
        let counts = self.verified_signature(&request.node_key, &request.signature).is_some();
        let signature = counts.then(|| request.signature.clone());
        let key = Some(&request.tka_key).filter(|text| read_public(text).is_ok());
        self.change_node(id, now, |node| {
            if let Some(key) = key {
                node.tka_key.clone_from(key);
            }
            let is_of = |text: &str| {
                let text = Base64::decode_vec(text).unwrap_or_default();
                tka::claim(&text).is_ok_and(|claim| claim.node == node.key)
            };
            // What signed a former key is not the signature of this one.
            let kept = if is_of(&node.signature) { node.signature.clone() } else { String::new() };
            let signature = signature.unwrap_or(kept);
            let parts = if node.signature == signature { Parts::none() } else { Parts::WHOLE };
            node.signature = signature;
            parts
        });
    }

    /// Whether it is another than before.
    fn set_signature(&mut self, id: NodeId, signature: String, now: Time) -> bool {
        let is_other = self.nodes.get(&id).is_some_and(|entry| entry.node.signature != signature);
        self.change_node(id, now, |node| {
            node.signature = signature;
            Parts::WHOLE
        });
        is_other
    }

    fn change_tka(&mut self, change: impl FnOnce(&mut object::TkaState)) {
        let mut kept = self.tka.stored.clone();
        change(&mut kept);
        kept.id = ONLY;
        self.store(&kept);
        self.tka.stored = kept;
    }

    fn store_updates(&mut self, texts: Vec<Vec<u8>>) {
        for text in texts {
            let id = TkaUpdateId(self.next_number(Kind::TkaUpdate));
            let update = TkaUpdate { id, text: Base64::encode_string(&text) };
            self.store(&update);
            self.tka.updates.insert(id, update);
        }
    }

    fn record_tka_audit(&mut self, id: NodeId, what: String, now: Time) {
        let name = self.nodes.get(&id).map(|entry| entry.node.name.clone()).unwrap_or_default();
        self.record_audit(&format!("node {id}, {name}"), &what, None, now);
    }
}

/// Signatures by the numbers of their nodes.
type Signatures = BTreeMap<i64, Base64Bytes>;
