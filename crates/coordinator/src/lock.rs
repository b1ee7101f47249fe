//! Tailnet lock, as a coordinator keeps it: it verifies what it takes, passes it on, and signs
//! nothing, for it has no key that anybody trusts (tailscale `tka`, `tailcfg/tka.go`).
//!
//! ```text
//!   an administrator lets a node ──► begin ──► finish ──► on ──► send, sign ──► disable ──► off
//!                                     checkpoint  signatures                      secret
//! ```
//!
//! What each node needs of it goes with the map: the head, and the signature of each node key.

mod asked;
mod status;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{
    keys::{MachinePublic, NodePublic},
    tka::{self, Authority, KeyId, UpdateHash, read_public},
};

use self::asked::{Finish, Send, Sign, Text, Verified};
pub use self::{asked::Asked, status::LockStatus};
use crate::{
    log::{Change, Parts},
    object::{self, Kind, LockId, LockUpdate, LockUpdateId, NodeId},
    refusal,
    request::RegisterRequest,
    state::{Entry, State},
    time::Time,
};

/// There is one lock.
const ONLY: LockId = LockId(1);
/// How long a node may turn it on that an administrator lets.
const ALLOWED: Duration = Duration::from_secs(60 * 60);

/// What is known of tailnet lock.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    pub kept: object::Lock,
    pub updates: BTreeMap<LockUpdateId, LockUpdate>,
    /// By the updates, unless these are others since then.
    authority: Option<Arc<Authority>>,
    /// Updates that others have written, behind those of the authority.
    news: Vec<LockUpdateId>,
    is_stale: bool,
}

/// Why something is not done, in words that the node's user reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No administrator lets this node turn it on.
    NotAllowed,
    /// It is on.
    IsOn,
    /// It is off.
    IsOff,
    /// This node did not begin to turn it on.
    NotBegun,
    /// A node would be kept out.
    LeavesOut(String),
    /// The server would have a secret that turns it off.
    SecretForSupport,
    /// There is no node with this key.
    NoNode,
    /// Others have made an update meanwhile.
    Moved,
    /// What the node has is of another chain.
    OtherChain,
    /// The secret turns nothing off.
    WrongSecret,
    /// It does not count.
    Refused(tka::Refused),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str(
                "an administrator has to let this node turn tailnet lock on: `linerate-server lock \
                 allow -i NODE`",
            ),
            Self::IsOn => f.write_str("tailnet lock is on already"),
            Self::IsOff => f.write_str("tailnet lock is off"),
            Self::NotBegun => f.write_str("this node did not begin to turn tailnet lock on"),
            Self::LeavesOut(name) => {
                write!(f, "{name} would be locked out, whose key is not signed: try again")
            }
            Self::SecretForSupport => f.write_str(
                "this server takes no secret that turns tailnet lock off: leave out \
                 --gen-disablement-for-support",
            ),
            Self::NoNode => f.write_str("no node has this key"),
            Self::Moved => f.write_str("others have changed tailnet lock meanwhile: try again"),
            Self::OtherChain => f.write_str("what this node has is of another tailnet lock"),
            Self::WrongSecret => f.write_str("the secret does not turn tailnet lock off"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<tka::Refused> for Refusal {
    fn from(why: tka::Refused) -> Self {
        Self::Refused(why)
    }
}

impl Lock {
    /// An update is this, or is gone.
    pub fn put_update(&mut self, id: LockUpdateId, update: Option<LockUpdate>) {
        if self.updates.get(&id) == update.as_ref() {
            return;
        }
        let is_last = self.updates.last_key_value().is_some_and(|(last, _)| *last < id);
        match update {
            Some(update) => {
                self.updates.insert(id, update);
                match is_last && self.authority.is_some() {
                    true => self.news.push(id),
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
    pub fn restore(&mut self) -> Result<(), (i64, tka::Refused)> {
        let news = std::mem::take(&mut self.news);
        if self.is_stale {
            self.authority = self.read()?.map(Arc::new);
            self.is_stale = false;
        } else if !news.is_empty() {
            let read = self.read_on(&news);
            // After a refusal all updates are read again.
            self.is_stale = read.is_err();
            read?;
        }
        match (self.kept.is_on, &self.authority) {
            (true, None) => Err((0, tka::Refused::NoCheckpoint)),
            _ => Ok(()),
        }
    }

    fn read(&self) -> Result<Option<Authority>, (i64, tka::Refused)> {
        let texts = self.updates.values().map(decoded).collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            return Ok(None);
        }
        let id_of = |place| self.updates.keys().nth(place).map_or(0, |id: &LockUpdateId| id.0);
        let gathered = Authority::gathered(&texts);
        gathered.map(Some).map_err(|(place, why)| (id_of(place), why))
    }

    /// Verifies these alone: those before them were verified when they came.
    fn read_on(&mut self, news: &[LockUpdateId]) -> Result<(), (i64, tka::Refused)> {
        let Some(authority) = &self.authority else { return Ok(()) };
        let mut authority = Authority::clone(authority);
        for update in news.iter().filter_map(|id| self.updates.get(id)) {
            let text = decoded(update)?;
            authority.gather(&[text]).map_err(|why| (update.id.0, why))?;
        }
        self.authority = Some(Arc::new(authority));
        Ok(())
    }

    /// Who may sign, while it is on.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref().filter(|_| self.kept.is_on)
    }

    /// Whether an administrator lets a node turn it on.
    fn lets(&self, node: NodeId, now: Time) -> bool {
        self.kept.allowed.is_some_and(|(allowed, until)| allowed == node && now < until)
    }

    fn on(&self) -> Result<&Arc<Authority>, Refusal> {
        self.authority().ok_or(Refusal::IsOff)
    }
}

fn decoded(update: &LockUpdate) -> Result<Vec<u8>, (i64, tka::Refused)> {
    let malformed = tka::Refused::Malformed(tka::Malformed::NotCbor);
    Base64::decode_vec(&update.text).map_err(|_| (update.id.0, malformed))
}

impl State {
    /// What maps say of it, in JSON (`tailcfg.TKAInfo`); nothing where it was never on.
    pub(crate) fn lock_info(&self) -> Option<String> {
        let said = match (self.lock.authority(), &self.lock.kept.secret) {
            (Some(authority), _) => json!({ "Head": authority.head().to_string() }),
            (None, Some(_)) => json!({ "Disabled": true }),
            (None, None) => return None,
        };
        Some(said.to_string())
    }

    /// Whether a node of this machine is turning it on: it has much to say then.
    pub fn is_turning_lock_on(&self, machine: &MachinePublic, now: Time) -> bool {
        let begun = self.lock.kept.begun.as_ref().map(|(id, _)| *id);
        begun.is_some_and(|id| self.lock.lets(id, now) && self.is_of(id, machine))
    }

    /// Who may sign, while it is on: for [`Asked::verify`].
    pub fn lock_authority(&self) -> Option<Arc<Authority>> {
        self.lock.authority().cloned()
    }

    /// Whether it is on.
    pub fn is_locked(&self) -> bool {
        self.lock.authority().is_some()
    }

    /// Lets a node turn it on, within an hour, and no other any more.
    ///
    /// # Errors
    /// There is no such node.
    pub fn allow_lock(&mut self, id: NodeId, now: Time) -> Result<(), refusal::Refusal> {
        if !self.nodes.contains_key(&id) {
            return Err(refusal::Refusal::NoNode(id));
        }
        self.change_lock(|kept| {
            kept.allowed = Some((id, now.after(ALLOWED)));
            kept.begun = kept.begun.take().filter(|(by, _)| *by == id);
        });
        Ok(())
    }

    /// Answers a node, in JSON. One that changes something is an entry of the audit.
    ///
    /// # Errors
    /// It is not done. [`Refusal::Moved`]: there are new updates since [`Asked::verify`].
    pub fn ask_lock(&mut self, id: NodeId, asked: &Asked, now: Time) -> Result<String, Refusal> {
        let answer = match asked {
            Asked::Begin(checkpoint) => self.begin_lock(id, checkpoint, now)?,
            Asked::Finish(finish) => self.finish_lock(id, finish, now)?,
            Asked::Send(send) => self.send_lock(id, send, now)?,
            Asked::Disable { secret, hash } => self.disable_lock(id, secret, *hash, now)?,
            Asked::Sign(sign) => self.sign_by_lock(id, sign, now)?,
            question => return self.answer_lock(question),
        };
        Ok(answer.to_string())
    }

    /// Answers a node whose question changes nothing ([`Asked::is_question`]), in JSON.
    ///
    /// # Errors
    /// There is no answer.
    pub fn answer_lock(&self, asked: &Asked) -> Result<String, Refusal> {
        let answer = match asked {
            Asked::Bootstrap => self.bootstrap_lock()?,
            Asked::Offer { head, ancestors } => self.offer_lock(head, ancestors)?,
            Asked::Affected(key) => self.affected_by_lock(key)?,
            _ => return Err(Refusal::NotAllowed),
        };
        Ok(answer.to_string())
    }

    fn begin_lock(&mut self, id: NodeId, checkpoint: &Text, now: Time) -> Result<Value, Refusal> {
        if self.lock.kept.is_on {
            return Err(Refusal::IsOn);
        }
        if !self.lock.lets(id, now) {
            return Err(Refusal::NotAllowed);
        }
        Authority::begin(&checkpoint.0)?;
        let text = Base64::encode_string(&checkpoint.0);
        self.change_lock(|kept| kept.begun = Some((id, text)));
        let needed = self.nodes.values().map(|entry| {
            let node = &entry.node;
            let wrapping = read_public(&node.lock_key).ok();
            let wrapping = wrapping.map(|key| Base64::encode_string(&key));
            json!({ "NodeID": node.id, "NodePublic": node.key, "RotationPubkey": wrapping })
        });
        Ok(json!({ "NeedSignatures": needed.collect::<Vec<_>>() }))
    }

    /// All nodes that there are have to be signed: nobody is locked out by this.
    fn finish_lock(&mut self, id: NodeId, finish: &Finish, now: Time) -> Result<Value, Refusal> {
        if finish.has_secret {
            return Err(Refusal::SecretForSupport);
        }
        let begun =
            self.lock.kept.begun.clone().filter(|(by, _)| *by == id && !self.lock.kept.is_on);
        let (_, text) = begun.ok_or(Refusal::NotBegun)?;
        if !self.lock.lets(id, now) {
            return Err(Refusal::NotAllowed);
        }
        let malformed = Refusal::Refused(tka::Refused::Malformed(tka::Malformed::NotCbor));
        let checkpoint = Base64::decode_vec(&text).map_err(|_| malformed)?;
        let authority = Authority::begin(&checkpoint)?;
        for entry in self.nodes.values() {
            let (node, none) = (&entry.node, Text::default());
            let signature = finish.signatures.get(&node.id.0).unwrap_or(&none);
            let checked = authority.check(&node.key, &signature.0);
            checked.map_err(|_| Refusal::LeavesOut(node.name.clone()))?;
        }
        let head = authority.head();
        self.lock.authority = Some(Arc::new(authority));
        self.keep_updates(vec![checkpoint]);
        self.change_lock(|kept| *kept = object::Lock { is_on: true, ..object::Lock::default() });
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let signature = finish.signatures.get(&id.0).map(|text| Base64::encode_string(&text.0));
            self.set_signature(id, signature.unwrap_or_default(), now);
        }
        self.note(Change::Lock);
        self.note_lock_deed(id, format!("turn tailnet lock on, head {head}"), now);
        Ok(json!({}))
    }

    fn bootstrap_lock(&self) -> Result<Value, Refusal> {
        match (self.lock.authority(), &self.lock.kept.secret) {
            (Some(authority), _) => {
                Ok(json!({ "GenesisAUM": Base64::encode_string(&authority.first()) }))
            }
            (None, Some(secret)) => Ok(json!({ "DisablementSecret": secret })),
            (None, None) => Err(Refusal::IsOff),
        }
    }

    fn offer_lock(&self, head: &UpdateHash, ancestors: &[UpdateHash]) -> Result<Value, Refusal> {
        let authority = self.lock.on()?;
        // One that has updates which were lost here sends them, if they follow what is known.
        let missing = authority.missing(head, ancestors).ok_or(Refusal::OtherChain)?;
        let missing = missing.iter().map(|text| Base64::encode_string(text));
        let own = authority.ancestors();
        Ok(json!({
            "Head": authority.head().to_string(),
            "Ancestors": own.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "MissingAUMs": missing.collect::<Vec<_>>(),
        }))
    }

    fn send_lock(&mut self, id: NodeId, send: &Send, now: Time) -> Result<Value, Refusal> {
        let known = self.lock.on()?;
        let verified = match &send.verified {
            Some(verified) if Arc::ptr_eq(&verified.before, known) => Arc::clone(verified),
            Some(_) => return Err(Refusal::Moved),
            None => Arc::new(send.verify(known)?),
        };
        let Verified { authority, taken, .. } = &*verified;
        let head = authority.head();
        if !taken.is_empty() {
            let count = taken.len();
            self.lock.authority = Some(Arc::clone(authority));
            self.keep_updates(taken.clone());
            self.note(Change::Lock);
            self.note_lock_deed(id, format!("{count} updates of tailnet lock, head {head}"), now);
        }
        Ok(json!({ "Head": head.to_string() }))
    }

    fn disable_lock(
        &mut self,
        id: NodeId,
        secret: &Text,
        hash: Option<[u8; 32]>,
        now: Time,
    ) -> Result<Value, Refusal> {
        let authority = self.lock.on()?;
        if !hash.is_some_and(|hash| authority.is_disabled_by_hash(&hash)) {
            return Err(Refusal::WrongSecret);
        }
        self.lock.authority = None;
        for id in self.lock.updates.keys().copied().collect::<Vec<_>>() {
            self.bury(Kind::LockUpdate, id.0);
        }
        self.lock.updates.clear();
        let secret = Some(Base64::encode_string(&secret.0));
        self.change_lock(|kept| *kept = object::Lock { secret, ..object::Lock::default() });
        self.note(Change::Lock);
        self.note_lock_deed(id, "turn tailnet lock off".into(), now);
        Ok(json!({}))
    }

    fn sign_by_lock(&mut self, id: NodeId, sign: &Sign, now: Time) -> Result<Value, Refusal> {
        let known = self.lock.on()?;
        let node = match &sign.verified {
            Some((before, node)) if Arc::ptr_eq(before, known) => *node,
            Some(_) => return Err(Refusal::Moved),
            None => sign.verify(known)?,
        };
        let signature = &sign.signature;
        let signed = self.by_key.get(&node).copied().ok_or(Refusal::NoNode)?;
        let text = Base64::encode_string(&signature.0);
        if self.set_signature(signed, text, now) {
            let name = self.nodes[&signed].node.name.clone();
            self.note_lock_deed(id, format!("sign the key of {name}, node {signed}"), now);
        }
        Ok(json!({}))
    }

    /// The signatures that would not count any more without a key. All that are kept were verified
    /// when they came, so one counts for as long as the key is trusted that it is by: to verify ten
    /// thousand again takes half a second, and any node may ask.
    fn affected_by_lock(&self, key: &KeyId) -> Result<Value, Refusal> {
        let is_trusted = self.lock.on()?.trusts(key);
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
        self.counts(&node.key, &node.signature).is_some()
    }

    /// A signature, if it is on and that is one of this node key.
    fn counts(&self, node: &NodePublic, signature: &str) -> Option<Vec<u8>> {
        let text = Base64::decode_vec(signature).ok().filter(|text| !text.is_empty())?;
        self.lock.authority()?.check(node, &text).ok().map(|()| text)
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
        let id = self.owned_by(&machine, &request.old_node_key).filter(|_| asks)?;
        let node = &self.nodes.get(&id)?.node;
        self.is_signed(node).then_some(node.signature.as_str())
    }

    /// Takes what a registration says of tailnet lock.
    pub(crate) fn hear_lock(&mut self, id: NodeId, request: &RegisterRequest, now: Time) {
        let counts = self.counts(&request.node_key, &request.signature).is_some();
        let signature = counts.then(|| request.signature.clone());
        let key = Some(&request.lock_key).filter(|text| read_public(text).is_ok());
        self.change_node(id, now, |node| {
            if let Some(key) = key {
                node.lock_key.clone_from(key);
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

    fn change_lock(&mut self, change: impl FnOnce(&mut object::Lock)) {
        let mut kept = self.lock.kept.clone();
        change(&mut kept);
        kept.id = ONLY;
        self.keep(&kept);
        self.lock.kept = kept;
    }

    fn keep_updates(&mut self, texts: Vec<Vec<u8>>) {
        for text in texts {
            let id = LockUpdateId(self.next_number(Kind::LockUpdate));
            let update = LockUpdate { id, text: Base64::encode_string(&text) };
            self.keep(&update);
            self.lock.updates.insert(id, update);
        }
    }

    fn note_lock_deed(&mut self, id: NodeId, what: String, now: Time) {
        let name = self.nodes.get(&id).map(|entry| entry.node.name.clone()).unwrap_or_default();
        self.note_deed(&format!("node {id}, {name}"), &what, None, now);
    }
}

/// Signatures by the numbers of their nodes.
type Signatures = BTreeMap<i64, Text>;
