//! Commands on tailnet lock.

mod status;

use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{
    keys::MachinePublic,
    tka::{self, Authority, KeyId, read_public},
};

pub use self::status::TkaStatus;
use super::State;
use crate::{
    change_log::{Change, Parts},
    nodes::Entry,
    object::{self, Kind, NodeId, TkaUpdate, TkaUpdateId},
    refusal,
    request::RegisterRequest,
    time::Time,
    tka::{Base64Bytes, Finish, INIT_WINDOW, Send, Sign, TKA_ID, TkaRefusal, TkaRequest, Verified},
};

impl State {
    /// The state for maps, as JSON of `tailcfg.TKAInfo`. `None` if it was never on.
    pub(crate) fn tka_info(&self) -> Option<String> {
        self.tka.info()
    }

    /// Whether a node of this machine is turning tailnet lock on. Its requests may be long.
    pub fn is_initializing_tka(&self, machine: &MachinePublic, now: Time) -> bool {
        let begun = self.tka.stored().begun.as_ref().map(|(id, _)| *id);
        begun.is_some_and(|id| {
            self.tka.is_init_allowed(id, now) && self.belongs_to_machine(id, machine)
        })
    }

    /// The authority if tailnet lock is on, for [`TkaRequest::verify`].
    pub fn tka_authority(&self) -> Option<Arc<Authority>> {
        self.tka.authority().cloned()
    }

    /// Whether tailnet lock is on.
    pub fn is_tka_on(&self) -> bool {
        self.tka.authority().is_some()
    }

    /// Allows a node to turn tailnet lock on within an hour, instead of any other node.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn allow_tka_init(&mut self, id: NodeId, now: Time) -> Result<(), refusal::Refusal> {
        if !self.nodes.contains(id) {
            return Err(refusal::Refusal::NoNode(id));
        }
        self.change_tka(|stored| {
            stored.allowed = Some((id, now.after(INIT_WINDOW)));
            stored.begun = stored.begun.take().filter(|(by, _)| *by == id);
        });
        Ok(())
    }

    /// Handles a node's request, and returns the answer as JSON. A change is recorded in the audit log.
    ///
    /// # Errors
    /// The request is refused. [`TkaRefusal::Stale`] if there are new updates since [`TkaRequest::verify`].
    pub fn handle_tka_request(
        &mut self,
        id: NodeId,
        request: &TkaRequest,
        now: Time,
    ) -> Result<String, TkaRefusal> {
        let answer = match request {
            TkaRequest::Begin(checkpoint) => self.begin_init(id, checkpoint, now)?,
            TkaRequest::Finish(finish) => self.finish_init(id, finish, now)?,
            TkaRequest::Send(send) => self.sync_send(id, send, now)?,
            TkaRequest::Disable { secret, hash } => self.disable_tka(id, secret, *hash, now)?,
            TkaRequest::Sign(sign) => self.store_signature(id, sign, now)?,
            query => return self.answer_tka_query(query),
        };
        Ok(answer.to_string())
    }

    /// Answers a query ([`TkaRequest::is_query`]) as JSON.
    ///
    /// # Errors
    /// The query is refused.
    pub fn answer_tka_query(&self, request: &TkaRequest) -> Result<String, TkaRefusal> {
        let answer = match request {
            TkaRequest::Bootstrap => self.tka.bootstrap()?,
            TkaRequest::Offer { head, ancestors } => self.tka.sync_offer(head, ancestors)?,
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
        if self.tka.stored().is_on {
            return Err(TkaRefusal::IsOn);
        }
        if !self.tka.is_init_allowed(id, now) {
            return Err(TkaRefusal::NotAllowed);
        }
        Authority::bootstrap(&checkpoint.0)?;
        let text = Base64::encode_string(&checkpoint.0);
        self.change_tka(|stored| stored.begun = Some((id, text)));
        let nodes = self.nodes.all().map(|entry| {
            let node = &entry.node;
            let wrapping = read_public(&node.tka_key).ok();
            let wrapping = wrapping.map(|key| Base64::encode_string(&key));
            json!({ "NodeID": node.id, "NodePublic": node.key, "RotationPubkey": wrapping })
        });
        Ok(json!({ "NeedSignatures": nodes.collect::<Vec<_>>() }))
    }

    /// Turns tailnet lock on. All nodes must be signed, so that none is locked out.
    fn finish_init(&mut self, id: NodeId, finish: &Finish, now: Time) -> Result<Value, TkaRefusal> {
        if finish.has_secret {
            return Err(TkaRefusal::SupportSecret);
        }
        let begun =
            self.tka.stored().begun.clone().filter(|(by, _)| *by == id && !self.tka.stored().is_on);
        let (_, text) = begun.ok_or(TkaRefusal::NotBegun)?;
        if !self.tka.is_init_allowed(id, now) {
            return Err(TkaRefusal::NotAllowed);
        }
        let malformed = TkaRefusal::Refused(tka::VerifyError::Malformed(tka::DecodeError::NotCbor));
        let checkpoint = Base64::decode_vec(&text).map_err(|_| malformed)?;
        let authority = Authority::bootstrap(&checkpoint)?;
        for entry in self.nodes.all() {
            let (node, none) = (&entry.node, Base64Bytes::default());
            let signature = finish.signatures.get(&node.id.0).unwrap_or(&none);
            let checked = authority.check(&node.key, &signature.0);
            checked.map_err(|_| TkaRefusal::UnsignedNode(node.name.clone()))?;
        }
        let head = authority.head();
        self.tka.set_authority(Arc::new(authority));
        self.store_updates(vec![checkpoint]);
        self.change_tka(|stored| {
            *stored = object::TkaState { is_on: true, ..object::TkaState::default() }
        });
        for id in self.nodes.ids().collect::<Vec<_>>() {
            let signature = finish.signatures.get(&id.0).map(|text| Base64::encode_string(&text.0));
            self.set_signature(id, signature.unwrap_or_default(), now);
        }
        self.journal.note(Change::Tka);
        self.record_tka_audit(id, format!("turn tailnet lock on, head {head}"), now);
        Ok(json!({}))
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
            self.tka.set_authority(Arc::clone(authority));
            self.store_updates(taken.clone());
            self.journal.note(Change::Tka);
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
        for id in self.tka.update_ids().collect::<Vec<_>>() {
            self.store_removal(Kind::TkaUpdate, id.0);
        }
        self.tka.clear();
        let secret = Some(Base64::encode_string(&secret.0));
        self.change_tka(|stored| {
            *stored = object::TkaState { secret, ..object::TkaState::default() }
        });
        self.journal.note(Change::Tka);
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
        let signed = self.nodes.with_key(&node).ok_or(TkaRefusal::NoNode)?;
        let text = Base64::encode_string(&signature.0);
        if self.set_signature(signed, text, now) {
            let name = self.nodes[&signed].node.name.clone();
            self.record_tka_audit(id, format!("sign the key of {name}, node {signed}"), now);
        }
        Ok(json!({}))
    }

    /// The signatures that become invalid when a key is removed. Stored signatures were verified when they came, so
    /// they are valid while their key is trusted. They are not verified again, because that takes half a second
    /// for ten thousand, and any node may send this query.
    fn affected_signatures(&self, key: &KeyId) -> Result<Value, TkaRefusal> {
        let is_trusted = self.tka.require_on()?.trusts(key);
        let is_by = |entry: &&Entry| {
            let signature = Base64::decode_vec(&entry.node.signature).unwrap_or_default();
            let claim = tka::claim(&signature);
            claim.is_ok_and(|claim| claim.signer == *key && claim.node == entry.node.key)
        };
        let nodes = self.nodes.all().filter(|entry| is_trusted && is_by(entry));
        let signatures: Vec<&String> = nodes.map(|entry| &entry.node.signature).collect();
        Ok(json!({ "Signatures": signatures }))
    }

    /// The signature of the node key that a machine replaces. The machine makes a signature of the new key from it,
    /// and registers again.
    pub(super) fn signature_to_renew(
        &self,
        machine: MachinePublic,
        request: &RegisterRequest,
    ) -> Option<&str> {
        let needs_signature = request.signature.is_empty()
            && request.followup.is_empty()
            && request.node_key != request.old_node_key;
        let id =
            self.find_machine_node(&machine, &request.old_node_key).filter(|_| needs_signature)?;
        let node = &self.nodes.get(id)?.node;
        self.tka.is_signed(node).then_some(node.signature.as_str())
    }

    /// Applies the fields of a registration that concern tailnet lock.
    pub(super) fn apply_tka_fields(&mut self, id: NodeId, request: &RegisterRequest, now: Time) {
        let is_valid = self.tka.is_valid_signature(&request.node_key, &request.signature);
        let signature = is_valid.then(|| request.signature.clone());
        let key = Some(&request.tka_key).filter(|text| read_public(text).is_ok());
        self.change_node(id, now, |node| {
            if let Some(key) = key {
                node.tka_key.clone_from(key);
            }
            let is_of = |text: &str| {
                let text = Base64::decode_vec(text).unwrap_or_default();
                tka::claim(&text).is_ok_and(|claim| claim.node == node.key)
            };
            // A signature of the previous key is not valid for this one.
            let stored =
                if is_of(&node.signature) { node.signature.clone() } else { String::new() };
            let signature = signature.unwrap_or(stored);
            let parts = if node.signature == signature { Parts::empty() } else { Parts::WHOLE };
            node.signature = signature;
            parts
        });
    }

    /// Sets the signature of a node. Returns whether it changed.
    fn set_signature(&mut self, id: NodeId, signature: String, now: Time) -> bool {
        let has_changed = self.nodes.get(id).is_some_and(|entry| entry.node.signature != signature);
        self.change_node(id, now, |node| {
            node.signature = signature;
            Parts::WHOLE
        });
        has_changed
    }

    fn change_tka(&mut self, change: impl FnOnce(&mut object::TkaState)) {
        let mut stored = self.tka.stored().clone();
        change(&mut stored);
        stored.id = TKA_ID;
        self.store(&stored);
        self.tka.set_stored(stored);
    }

    fn store_updates(&mut self, texts: Vec<Vec<u8>>) {
        for text in texts {
            let id = TkaUpdateId(self.journal.next_number(Kind::TkaUpdate));
            let update = TkaUpdate { id, text: Base64::encode_string(&text) };
            self.store(&update);
            self.tka.add_update(update);
        }
    }

    fn record_tka_audit(&mut self, id: NodeId, what: String, now: Time) {
        let name = self.nodes.get(id).map(|entry| entry.node.name.clone()).unwrap_or_default();
        self.record_audit(&format!("node {id}, {name}"), &what, None, now);
    }
}
