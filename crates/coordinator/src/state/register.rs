//! Registration of machines as nodes, and logout.
//!
//! ```text
//!   logout? ──► the key expires, or an ephemeral node is deleted
//!   a new key, and tailnet lock is on? ──► the signature of the previous key, to sign the new one with
//!   the node has this key, and it is valid? ──► no change: a restarted client repeats its request,
//!       │                                       and its auth key may be used up by now
//!   auth key? ──► valid? ──► the machine is a node of the same owner? ──► a new node key for it
//!       │                          └──► a new node
//!       └──► a pending registration, under a number that is in its URL
//! ```

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use serde_json::json;
use tailnet::keys::{MachinePublic, NodePublic};

use super::{State, policies::policy_node};
use crate::{
    change_log::Parts,
    hostinfo::Hostinfo,
    names,
    node_json::{login_of, user_of},
    object::{Kind, Node, NodeId, PreAuthKey, RegisterMethod, UserId},
    pending::{LONGEST_WAIT, Pending},
    refusal::Refusal,
    request::RegisterRequest,
    secret::{self, Hash},
    time::Time,
    timers::Timer,
};

/// The valid lengths of a registration's number. Those of headscale have 38 letters.
const NUMBER_LENGTHS: std::ops::RangeInclusive<usize> = 16..=64;

/// A request to register, with values from the caller.
#[derive(Clone, Copy, Debug)]
pub struct RegisterCommand<'a> {
    /// The machine: the other end of Noise.
    pub machine: MachinePublic,
    pub request: &'a RegisterRequest,
    /// A random number of letters and digits. A pending registration gets it.
    pub number: &'a str,
    /// The prefix of the URL of a registration, which ends with its number.
    pub url: &'a str,
    /// The address of the machine, if known.
    pub from: Option<IpAddr>,
}

/// The answer to a request to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterResponse {
    /// An immediate answer, as JSON.
    Immediate(String),
    /// A refusal, as JSON.
    Refused(String),
    /// The registration is pending. Send this JSON when the client's time is over, unless the registration changes
    /// before.
    Deferred(String),
}

/// A pending registration, for its approval.
#[derive(Clone, Copy, Debug)]
pub struct PendingRegistration<'a> {
    pub machine: &'a MachinePublic,
    pub hostinfo: &'a Hostinfo,
}

/// The approval of a pending registration.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The owner of the node.
    pub user: UserId,
    /// The way of the approval.
    pub method: RegisterMethod,
    /// The expiry of the node key. `None` for that of the settings.
    pub expires: Option<Time>,
}

/// The owner of a new node.
#[derive(Clone, Debug, Default)]
struct Owner {
    user: Option<UserId>,
    tags: Vec<String>,
    ephemeral: bool,
}

impl Owner {
    fn with(self, ephemeral: bool) -> Self {
        Self { ephemeral, ..self }
    }
}

/// The refusal of a registration. The machine's user sees the message.
struct RegisterError(String);

impl From<Refusal> for RegisterError {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.to_string())
    }
}

impl State {
    /// Handles a request to register.
    pub fn register(&mut self, command: RegisterCommand<'_>, now: Time) -> RegisterResponse {
        match self.try_register(command, now) {
            Ok(answer) => answer,
            Err(RegisterError(why)) => RegisterResponse::Refused(refused_answer(&why)),
        }
    }

    fn try_register(
        &mut self,
        command: RegisterCommand<'_>,
        now: Time,
    ) -> Result<RegisterResponse, RegisterError> {
        let RegisterCommand { machine, request, .. } = command;
        if request.node_key.is_zero() {
            return Err(RegisterError("the request lacks a node key".into()));
        }
        self.check_key(machine, request.node_key)?;
        let known = self.nodes.with_key(&request.node_key);
        if request.is_logout(now) {
            return Ok(RegisterResponse::Immediate(self.handle_logout(known, now)));
        }
        if let Some(signature) = self.signature_to_renew(machine, request) {
            return Ok(RegisterResponse::Immediate(signature_request(signature)));
        }
        if let Some(id) = known.filter(|id| !self.nodes[id].node.has_expired(now)) {
            self.apply_requested_tags(id, request, now)?;
            self.apply_tka_fields(id, request, now);
            self.apply_registered_hostinfo(id, request, now);
            return Ok(RegisterResponse::Immediate(self.registered_answer(id)));
        }
        if let Some(text) = request.auth_key() {
            let id = self.register_by_key(machine, request, text, now)?;
            return Ok(RegisterResponse::Immediate(self.registered_answer(id)));
        }
        Ok(self.await_approval(command, now))
    }

    /// Checks that a node key is not in use by another machine.
    fn check_key(&self, machine: MachinePublic, key: NodePublic) -> Result<(), Refusal> {
        let may = !self.has_key(&key) || self.find_machine_node(&machine, &key).is_some();
        may.then_some(()).ok_or(Refusal::NodeKeyInUse)
    }

    fn handle_logout(&mut self, known: Option<NodeId>, now: Time) -> String {
        let user = known.and_then(|id| self.nodes[&id].node.user);
        let answer = json!({
            "User": user_of(user.and_then(|id| self.directory.user(id))),
            "Login": login_of(user.and_then(|id| self.directory.user(id))),
            "NodeKeyExpired": true, "MachineAuthorized": false, "AuthURL": "", "Error": "",
        });
        match known.map(|id| (id, self.nodes[&id].node.ephemeral)) {
            Some((id, true)) => self.remove_node(id),
            Some((id, false)) => self.change_node(id, now, |node| {
                node.expires = Some(now);
                Parts::KEY
            }),
            None => {}
        }
        answer.to_string()
    }

    /// The answer for a registered machine.
    fn registered_answer(&self, id: NodeId) -> String {
        let user = self.nodes[&id].node.user.and_then(|user| self.directory.user(user));
        json!({
            "User": user_of(user), "Login": login_of(user), "NodeKeyExpired": false,
            "MachineAuthorized": true, "AuthURL": "", "Error": "",
        })
        .to_string()
    }

    fn register_by_key(
        &mut self,
        machine: MachinePublic,
        request: &RegisterRequest,
        text: &str,
        now: Time,
    ) -> Result<NodeId, RegisterError> {
        let key = self.valid_key(text, now)?.clone();
        let ephemeral = key.ephemeral || request.ephemeral;
        let owner = self.owner_of_new_node(key.user, &key.tags, request)?.with(ephemeral);
        let id = self.make_node(machine, request, &owner, now)?;
        self.change_node(id, now, |node| {
            (node.auth_key, node.method) = (Some(key.id), RegisterMethod::AuthKey);
            Parts::empty()
        });
        if !key.used {
            let key = PreAuthKey { used: true, ..key };
            self.store(&key);
            self.directory.put_key(key.id, Some(key));
        }
        Ok(id)
    }

    /// The owner of a new node: a user, or tags. Tags come from the key, or are requested and allowed by the policy.
    fn owner_of_new_node(
        &self,
        user: Option<UserId>,
        tags: &[String],
        request: &RegisterRequest,
    ) -> Result<Owner, Refusal> {
        let owner = policy::Node {
            user: user.map(|id| id.0.unsigned_abs()),
            tags: tags.to_vec(),
            ..policy::Node::default()
        };
        let tags = self.check_requested_tags(&owner, &request.hostinfo.tags)?;
        Ok(Owner { user: user.filter(|_| tags.is_empty()), tags, ephemeral: false })
    }

    /// Applies the requested tags of a registered node.
    fn apply_requested_tags(
        &mut self,
        id: NodeId,
        request: &RegisterRequest,
        now: Time,
    ) -> Result<(), RegisterError> {
        let node = &self.nodes[&id].node;
        let command = &request.hostinfo.tags;
        // A restarted client repeats its request. Tags may have been changed since.
        if command.is_empty() || *command == node.hostinfo.tags {
            return Ok(());
        }
        let tags = self.check_requested_tags(&policy_node(node), command)?;
        self.change_node(id, now, |node| {
            // The keys of tagged nodes do not expire.
            (node.tags, node.user, node.expires) = (tags, None, None);
            Parts::WHOLE
        });
        Ok(())
    }

    fn valid_key(&self, text: &str, now: Time) -> Result<&PreAuthKey, RegisterError> {
        let unknown = || RegisterError("invalid auth key".into());
        let parts = secret::read(text).ok_or_else(unknown)?;
        let key = self.directory.key_with_prefix(parts.prefix);
        let key = key.filter(|key| key.hash == Hash::of(parts.secret)).ok_or_else(unknown)?;
        if key.expires.is_some_and(|at| at <= now) {
            return Err(RegisterError("the auth key has expired".into()));
        }
        if key.used && !key.reusable {
            return Err(RegisterError("the auth key was used already".into()));
        }
        Ok(key)
    }

    /// Makes a machine a node of this owner with the requested key: its existing node or a new one.
    fn make_node(
        &mut self,
        machine: MachinePublic,
        request: &RegisterRequest,
        owner: &Owner,
        now: Time,
    ) -> Result<NodeId, Refusal> {
        self.check_key(machine, request.node_key)?;
        let same = self.existing_node(machine, request.node_key, owner);
        // The machine moves to another owner with its key. Its previous node is removed.
        if let Some(other) = self.find_machine_node(&machine, &request.node_key)
            && same != Some(other)
        {
            self.remove_node(other);
        }
        let id = match same {
            Some(id) => id,
            None => self.new_node(machine, request, owner, now)?,
        };
        let lifetime = self.settings.key_lifetime.filter(|_| owner.tags.is_empty());
        self.change_node(id, now, |node| {
            let is_same = node.tags == owner.tags && node.user == owner.user;
            node.key = request.node_key;
            node.expires = lifetime.map(|lifetime| now.after(lifetime));
            node.ephemeral = owner.ephemeral;
            node.tags.clone_from(&owner.tags);
            node.user = owner.user;
            node.version = request.version;
            if is_same { Parts::KEY.and(Parts::VERSION) } else { Parts::WHOLE }
        });
        self.apply_tka_fields(id, request, now);
        self.apply_registered_hostinfo(id, request, now);
        Ok(id)
    }

    /// The existing node of a machine for this owner.
    fn existing_node(
        &self,
        machine: MachinePublic,
        key: NodePublic,
        owner: &Owner,
    ) -> Option<NodeId> {
        let with_key = self.find_machine_node(&machine, &key);
        let of_machine = self.nodes.of_machine(&machine);
        with_key.into_iter().chain(of_machine).find(|id| {
            let node = &self.nodes[id].node;
            node.user == owner.user && node.is_tagged() != owner.tags.is_empty()
        })
    }

    fn new_node(
        &mut self,
        machine: MachinePublic,
        request: &RegisterRequest,
        owner: &Owner,
        now: Time,
    ) -> Result<NodeId, Refusal> {
        let (v4, v6) = self.free_addresses(owner)?;
        let id = NodeId(self.journal.next_number(Kind::Node));
        let name = self.free_name(names::label(&request.hostinfo.hostname), None);
        let node = Node {
            id,
            machine,
            key: request.node_key,
            disco: Default::default(),
            user: owner.user,
            tags: owner.tags.clone(),
            name,
            renamed: false,
            v4,
            v6,
            endpoints: Vec::new(),
            home_relay: 0,
            version: request.version,
            hostinfo: request.hostinfo.clone(),
            ephemeral: owner.ephemeral,
            auth_key: None,
            method: RegisterMethod::default(),
            expires: None,
            created: now,
            rekeyed: None,
            changes: 0,
            last_seen: None,
            approved: Vec::new(),
            primaries: Vec::new(),
            tka_key: String::new(),
            signature: String::new(),
        };
        self.add_node(node, now);
        Ok(id)
    }

    /// Finds addresses for a new node: in its pool if the policy has one, else outside all pools.
    fn free_addresses(&self, owner: &Owner) -> Result<(Ipv4Addr, Ipv6Addr), Refusal> {
        let node = policy::Node {
            user: owner.user.map(|id| id.0.unsigned_abs()),
            tags: owner.tags.clone(),
            ..policy::Node::default()
        };
        let pools = self.pools(node);
        let free = self.nodes.find_free_addresses(&pools.own, &pools.all);
        free.ok_or(if pools.own.is_empty() { Refusal::NoAddress } else { Refusal::NoPoolAddress })
    }

    fn apply_registered_hostinfo(&mut self, id: NodeId, request: &RegisterRequest, now: Time) {
        // A request without a host name is without information about the machine.
        if !request.hostinfo.hostname.is_empty() {
            self.apply_hostinfo(id, &request.hostinfo, now);
        }
    }

    /// Adds a pending registration, or continues one.
    fn await_approval(&mut self, command: RegisterCommand<'_>, now: Time) -> RegisterResponse {
        let RegisterCommand { machine, request, number, url, from } = command;
        let followed = request.followup.strip_prefix(url);
        let answer = |number: &str| {
            json!({
                "User": user_of(None), "Login": login_of(None), "NodeKeyExpired": false,
                "MachineAuthorized": false, "AuthURL": format!("{url}{number}"), "Error": "",
            })
            .to_string()
        };
        if let Some(number) = followed
            && self.pending.get(number).is_some_and(|pending| {
                pending.machine == machine && pending.request.node_key == request.node_key
            })
        {
            return RegisterResponse::Deferred(answer(number));
        }
        self.add_pending(number, Pending { machine, request: request.clone(), from, since: now });
        RegisterResponse::Immediate(answer(number))
    }

    fn add_pending(&mut self, number: &str, pending: Pending) {
        self.journal.save_pending(&self.pending);
        let until = pending.since.after(LONGEST_WAIT);
        if let Some((evicted, _)) = self.pending.insert(number.to_owned(), Arc::new(pending)) {
            self.timers.clear(Timer::Registration(evicted));
        }
        self.timers.set(Timer::Registration(number.to_owned()), until);
    }

    /// Adds a pending registration without a machine, for tests of the API.
    ///
    /// # Errors
    /// The number is invalid, or a registration has it already.
    pub fn add_registration(
        &mut self,
        number: &str,
        machine: MachinePublic,
        request: RegisterRequest,
        now: Time,
    ) -> Result<(), Refusal> {
        let is_number = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !NUMBER_LENGTHS.contains(&number.len()) || !number.bytes().all(is_number) {
            return Err(Refusal::InvalidRegistrationId);
        }
        if self.pending.get(number).is_some() {
            return Err(Refusal::NameTaken(number.to_owned()));
        }
        self.add_pending(number, Pending { machine, request, from: None, since: now });
        Ok(())
    }

    /// Whether the registration with this number is pending, and its machine was not registered otherwise, for
    /// example by another server.
    pub fn is_registration_pending(&self, number: &str, now: Time) -> bool {
        self.pending.get(number).is_some_and(|pending| {
            let node = self.nodes.with_key(&pending.request.node_key);
            node.is_none_or(|id| self.nodes[&id].node.has_expired(now))
        })
    }

    /// The pending registration with this number.
    pub fn pending_registration(&self, number: &str) -> Option<PendingRegistration<'_>> {
        let Pending { machine, request, .. } = &**self.pending.get(number)?;
        Some(PendingRegistration { machine, hostinfo: &request.hostinfo })
    }

    /// The existing node of a user for the machine of a pending registration.
    pub fn existing_node_for(&self, number: &str, user: UserId) -> Option<&Node> {
        let Pending { machine, request, .. } = &**self.pending.get(number)?;
        let owner = Owner { user: Some(user), ..Owner::default() };
        let id = self.existing_node(*machine, request.node_key, &owner)?;
        self.nodes.get(id).map(|entry| &entry.node)
    }

    /// Approves a pending registration as a node of a user.
    ///
    /// # Errors
    /// The registration or the user does not exist, or no address is free.
    pub fn admit(
        &mut self,
        number: &str,
        admission: Admission,
        now: Time,
    ) -> Result<NodeId, Refusal> {
        let Admission { user, method, expires } = admission;
        if !self.directory.has_user(user) {
            return Err(Refusal::NoUser(user.to_string()));
        }
        let pending = Arc::clone(self.pending.get(number).ok_or(Refusal::NoRegistration)?);
        let Pending { machine, request, .. } = &*pending;
        let owner = self.owner_of_new_node(Some(user), &[], request)?.with(request.ephemeral);
        let id = self.make_node(*machine, request, &owner, now)?;
        self.journal.save_pending(&self.pending);
        self.pending.remove(number);
        self.change_node(id, now, |node| {
            (node.auth_key, node.method) = (None, method);
            node.expires = expires.or(node.expires);
            Parts::empty()
        });
        Ok(id)
    }
}

/// The answer that requests a signature of the new key, made from that of the previous key.
fn signature_request(signature: &str) -> String {
    json!({
        "User": user_of(None), "Login": login_of(None), "NodeKeyExpired": false,
        "MachineAuthorized": false, "AuthURL": "", "Error": "", "NodeKeySignature": signature,
    })
    .to_string()
}

/// The answer for a refusal, which a client shows to its user.
fn refused_answer(why: &str) -> String {
    json!({
        "User": user_of(None), "Login": login_of(None), "NodeKeyExpired": false,
        "MachineAuthorized": false, "AuthURL": "", "Error": why,
    })
    .to_string()
}
