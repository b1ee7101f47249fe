//! Imports the network of another program, one object at a time. Objects keep their numbers. A name or address that
//! is invalid or in use is replaced, and reported. A policy with the old name of a renamed user then names another
//! user or none. Other objects that do not fit are skipped. A second import adds the objects that the first one
//! skipped.

use std::{
    collections::{BTreeMap, HashSet},
    fmt, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::de::DeserializeOwned;
use tailnet::keys::NodePublic;

use crate::{
    addresses::{Addresses, Allocation, Prefixes},
    names,
    object::{ApiKey, Kind, Node, NodeId, Object, PreAuthKey, Stored, User, UserId},
    tags::is_tag,
};

/// The largest integer that JSON represents exactly for all clients.
const MAX_NUMBER: i64 = (1 << 53) - 1;

/// The reason for which an object is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Its number is invalid, or in use.
    InvalidNumber,
    /// An object with its number was deleted since an earlier import.
    Deleted,
    /// Its user does not exist.
    NoUser(UserId),
    /// It has neither a user nor tags.
    NoOwner,
    /// One of its tags is invalid.
    Tag(String),
    /// The prefix of the key is in use.
    Prefix(String),
    /// The node key is in use.
    Key(NodePublic),
    /// All addresses are in use.
    NoAddress,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidNumber => f.write_str("its number is invalid or in use"),
            Self::Deleted => {
                f.write_str("the object with its number was deleted after an earlier import")
            }
            Self::NoUser(user) => write!(f, "user not found: {user}"),
            Self::NoOwner => f.write_str("it has neither a user nor tags"),
            Self::Tag(tag) => write!(f, "{tag:?} is not a valid tag"),
            Self::Prefix(prefix) => write!(f, "another key begins with {prefix}"),
            Self::Key(key) => write!(f, "another node has the key {key}"),
            Self::NoAddress => f.write_str("all addresses are in use"),
        }
    }
}

impl std::error::Error for SkipReason {}

/// The outcome of the import of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// The object was added, with these adjustments.
    New(Vec<Adjustment>),
    /// The object exists from an earlier import, and is not changed.
    AlreadyPresent,
}

/// A difference from the original object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// The name was invalid or in use.
    Name { old: String, new: String },
    /// The address was in use. The node gets a free one.
    Address(IpAddr),
}

impl fmt::Display for Adjustment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { old, new } => write!(f, "{old:?} becomes {new}"),
            Self::Address(address) => {
                write!(f, "{address} is in use: the node gets a free address")
            }
        }
    }
}

/// An import in progress. Users must be added before keys and nodes. [`Import::finish`] ends it.
pub struct Import {
    addresses: Addresses,
    used: Used,
    users: BTreeMap<i64, User>,
    keys: BTreeMap<i64, PreAuthKey>,
    api_keys: BTreeMap<i64, ApiKey>,
    nodes: BTreeMap<i64, Node>,
    /// Nodes without an address of one family. They get one when all other addresses are known.
    halves: Vec<(Node, Option<Ipv4Addr>, Option<Ipv6Addr>)>,
    last: BTreeMap<Kind, i64>,
    /// The existing objects of the network, including deleted ones.
    there: HashSet<(Kind, i64)>,
    /// Skipped objects. A later import may add them.
    left_out: HashSet<(Kind, i64)>,
}

/// Values that only one object may have.
#[derive(Default)]
struct Used {
    addresses: HashSet<IpAddr>,
    user_names: HashSet<String>,
    names: HashSet<String>,
    node_keys: HashSet<NodePublic>,
    prefixes: HashSet<(Kind, String)>,
}

impl Import {
    /// Begins an import into an empty network. Nodes without an address get one from these networks.
    pub fn new(prefixes: Prefixes) -> Self {
        Self {
            addresses: Addresses::new(prefixes, Allocation::default()),
            used: Used::default(),
            users: BTreeMap::new(),
            keys: BTreeMap::new(),
            api_keys: BTreeMap::new(),
            nodes: BTreeMap::new(),
            halves: Vec::new(),
            last: BTreeMap::new(),
            there: HashSet::new(),
            left_out: HashSet::new(),
        }
    }

    /// Begins an import into a network with these objects, which may be from an earlier import.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn onto(prefixes: Prefixes, objects: &[Stored]) -> Result<Self, serde_json::Error> {
        let mut import = Self::new(prefixes);
        for object in objects {
            import.there.insert((object.kind, object.id));
            import.reserve_numbers(object.kind, object.id);
            let Some(body) = &object.body else { continue };
            match object.kind {
                Kind::User => import.insert_user(read(body)?),
                Kind::PreAuthKey => import.insert_key(read(body)?),
                Kind::ApiKey => import.insert_api_key(read(body)?),
                Kind::Node => {
                    let node: Node = read(body)?;
                    let (v4, v6) = (node.v4, node.v6);
                    import.note_node(&node, [v4.into(), v6.into()]);
                    import.insert_node(node, v4, v6);
                }
                Kind::Policy | Kind::AuditEntry | Kind::TkaState | Kind::TkaUpdate => {}
            }
        }
        Ok(import)
    }

    /// Reserves the numbers up to this one.
    pub fn reserve_numbers(&mut self, kind: Kind, number: i64) {
        let last = self.last.entry(kind).or_default();
        *last = number.clamp(*last, MAX_NUMBER);
    }

    /// Skips an object. A later import may add it.
    pub fn leave_out(&mut self, kind: Kind, number: i64) {
        self.left_out.insert((kind, number));
    }

    /// Adds a user. If the name is in use, the mail address or a name with the number is taken. A user without a
    /// name is named by the number.
    ///
    /// # Errors
    /// The user is skipped.
    pub fn user(&mut self, mut user: User) -> Result<ImportOutcome, SkipReason> {
        let is_same = |other: &User| {
            let identities = other.identity.as_ref().zip(user.identity.as_ref());
            let is_same_identity =
                identities.is_some_and(|(stored, own)| own.matches(stored) || own == stored);
            is_same_identity || other.created == user.created || other.name == user.name
        };
        if check_number(&self.there, &self.users, &user, is_same)? == ImportOutcome::AlreadyPresent
        {
            return Ok(ImportOutcome::AlreadyPresent);
        }
        let (was, number) = (mem::take(&mut user.name), user.id);
        let mut names = vec![was.clone()];
        if !was.is_empty() {
            names.extend([user.email.clone(), format!("{was}-{number}")]);
        }
        let numbered = (1..).map(|more| format!("user-{number}-{more}"));
        let names = names.into_iter().chain([format!("user-{number}")]).chain(numbered);
        let is_free = |name: &String| !name.is_empty() && !self.used.user_names.contains(name);
        user.name = { names }.find(is_free).expect("numbers do not end");
        let changed = changed_name(was, &user.name);
        self.reserve_numbers(Kind::User, number.0);
        self.insert_user(user);
        Ok(ImportOutcome::New(changed))
    }

    /// Adds a pre-auth key.
    ///
    /// # Errors
    /// The key is skipped.
    pub fn key(&mut self, mut key: PreAuthKey) -> Result<ImportOutcome, SkipReason> {
        let is_same = |other: &PreAuthKey| other.prefix == key.prefix;
        if check_number(&self.there, &self.keys, &key, is_same)? == ImportOutcome::AlreadyPresent {
            return Ok(ImportOutcome::AlreadyPresent);
        }
        self.check_owner(key.user, &key.tags)?;
        key.user = key.user.filter(|user| self.users.contains_key(&user.0));
        self.check_prefix(Kind::PreAuthKey, &key.prefix)?;
        self.reserve_numbers(Kind::PreAuthKey, key.id.0);
        self.insert_key(key);
        Ok(ImportOutcome::New(Vec::new()))
    }

    /// Adds an API key.
    ///
    /// # Errors
    /// The key is skipped.
    pub fn api_key(&mut self, key: ApiKey) -> Result<ImportOutcome, SkipReason> {
        let is_same = |other: &ApiKey| other.prefix == key.prefix;
        if check_number(&self.there, &self.api_keys, &key, is_same)?
            == ImportOutcome::AlreadyPresent
        {
            return Ok(ImportOutcome::AlreadyPresent);
        }
        self.check_prefix(Kind::ApiKey, &key.prefix)?;
        self.reserve_numbers(Kind::ApiKey, key.id.0);
        self.insert_api_key(key);
        Ok(ImportOutcome::New(Vec::new()))
    }

    /// Adds a node with its addresses. Its name becomes a DNS label, with a number if the label is in use.
    ///
    /// # Errors
    /// The node is skipped.
    pub fn node(
        &mut self,
        mut node: Node,
        mut v4: Option<Ipv4Addr>,
        mut v6: Option<Ipv6Addr>,
    ) -> Result<ImportOutcome, SkipReason> {
        let is_same = |other: &Node| other.machine == node.machine;
        if check_number(&self.there, &self.nodes, &node, is_same)? == ImportOutcome::AlreadyPresent
        {
            return Ok(ImportOutcome::AlreadyPresent);
        }
        if self.halves.iter().any(|(other, ..)| other.id == node.id) {
            return Err(SkipReason::InvalidNumber);
        }
        self.check_owner(node.user, &node.tags)?;
        if self.used.node_keys.contains(&node.key) {
            return Err(SkipReason::Key(node.key));
        }
        let was = mem::take(&mut node.name);
        node.name = names::unique(names::label(&was), |name| !self.used.names.contains(name));
        node.renamed = !names::is_derived_from(&node.name, &node.hostinfo.hostname);
        let mut changed = changed_name(was, &node.name);
        let mut is_used = |address: IpAddr| {
            let is_used = self.used.addresses.contains(&address);
            changed.extend(is_used.then_some(Adjustment::Address(address)));
            is_used
        };
        v4 = v4.filter(|v4| !is_used((*v4).into()));
        v6 = v6.filter(|v6| !is_used((*v6).into()));
        let own = v4.map(IpAddr::from).into_iter().chain(v6.map(Into::into));
        self.note_node(&node, own);
        self.reserve_numbers(Kind::Node, node.id.0);
        // The tags of a node replace its user.
        node.user = node.user.filter(|_| node.tags.is_empty());
        node.auth_key = node.auth_key.filter(|key| self.keys.contains_key(&key.0));
        match (v4, v6) {
            (Some(v4), Some(v6)) => self.insert_node(node, v4, v6),
            _ => self.halves.push((node, v4, v6)),
        }
        Ok(ImportOutcome::New(changed))
    }

    /// Returns the new objects, and the nodes for which no address was free.
    pub fn finish(mut self) -> (Vec<Stored>, Vec<(NodeId, SkipReason)>) {
        let mut skipped = Vec::new();
        for (v4, v6) in self.halves.iter().map(|(_, v4, v6)| (*v4, *v6)) {
            let (v4, v6) =
                (v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6.unwrap_or(Ipv6Addr::UNSPECIFIED));
            self.addresses.reserve(v4, v6);
        }
        for (node, v4, v6) in mem::take(&mut self.halves) {
            match self.addresses.find_free(&[]) {
                Some((free_v4, free_v6)) => {
                    self.insert_node(node, v4.unwrap_or(free_v4), v6.unwrap_or(free_v6));
                }
                None => {
                    self.leave_out(Kind::Node, node.id.0);
                    skipped.push((node.id, SkipReason::NoAddress));
                }
            }
        }
        let users = self.users.values().map(Object::stored);
        let keys = self.keys.values().map(Object::stored);
        let api_keys = self.api_keys.values().map(Object::stored);
        let nodes = self.nodes.values().map(Object::stored);
        let all = users.chain(keys).chain(api_keys).chain(nodes);
        let is_new = |object: &Stored| !self.there.contains(&(object.kind, object.id));
        let mut objects: Vec<Stored> = all.filter(is_new).collect();
        // An object without a body marks the last used number, which is never reused. A skipped object is not
        // deleted, so the mark takes the next number.
        for (kind, last) in self.last {
            let is_left_out = self.left_out.contains(&(kind, last));
            let id = if is_left_out { last + 1 } else { last };
            let is_given = objects.iter().any(|object| (object.kind, object.id) == (kind, id));
            if !is_given && !self.there.contains(&(kind, id)) {
                objects.push(Stored { kind, id, body: None });
            }
        }
        (objects, skipped)
    }

    fn insert_user(&mut self, user: User) {
        self.used.user_names.insert(user.name.clone());
        self.users.insert(user.id.0, user);
    }

    fn insert_key(&mut self, key: PreAuthKey) {
        self.used.prefixes.insert((Kind::PreAuthKey, key.prefix.clone()));
        self.keys.insert(key.id.0, key);
    }

    fn insert_api_key(&mut self, key: ApiKey) {
        self.used.prefixes.insert((Kind::ApiKey, key.prefix.clone()));
        self.api_keys.insert(key.id.0, key);
    }

    fn insert_node(&mut self, node: Node, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.addresses.reserve(v4, v6);
        self.nodes.insert(node.id.0, Node { v4, v6, ..node });
    }

    fn note_node(&mut self, node: &Node, addresses: impl IntoIterator<Item = IpAddr>) {
        self.used.names.insert(node.name.clone());
        self.used.node_keys.insert(node.key);
        self.used.addresses.extend(addresses);
    }

    fn check_prefix(&self, kind: Kind, prefix: &str) -> Result<(), SkipReason> {
        match self.used.prefixes.contains(&(kind, prefix.to_owned())) {
            true => Err(SkipReason::Prefix(prefix.to_owned())),
            false => Ok(()),
        }
    }

    fn check_owner(&self, user: Option<UserId>, tags: &[String]) -> Result<(), SkipReason> {
        if let Some(tag) = tags.iter().find(|tag| !is_tag(tag)) {
            return Err(SkipReason::Tag(tag.clone()));
        }
        match user {
            // The user of a tagged object does not matter.
            Some(user) if tags.is_empty() && !self.users.contains_key(&user.0) => {
                Err(SkipReason::NoUser(user))
            }
            None if tags.is_empty() => Err(SkipReason::NoOwner),
            _ => Ok(()),
        }
    }
}

/// Checks the number of an object. It exists from an earlier import if the object with its number is the same.
fn check_number<T: Object>(
    there: &HashSet<(Kind, i64)>,
    imported: &BTreeMap<i64, T>,
    new: &T,
    is_same: impl Fn(&T) -> bool,
) -> Result<ImportOutcome, SkipReason> {
    let number = new.number();
    let is_there = there.contains(&(T::KIND, number));
    match imported.get(&number) {
        Some(other) if is_there && is_same(other) => Ok(ImportOutcome::AlreadyPresent),
        Some(_) => Err(SkipReason::InvalidNumber),
        None if is_there => Err(SkipReason::Deleted),
        None if !(1..=MAX_NUMBER).contains(&number) => Err(SkipReason::InvalidNumber),
        None => Ok(ImportOutcome::New(Vec::new())),
    }
}

fn changed_name(was: String, is: &str) -> Vec<Adjustment> {
    if was == is { Vec::new() } else { vec![Adjustment::Name { old: was, new: is.to_owned() }] }
}

fn read<T: DeserializeOwned>(body: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(body)
}

#[cfg(test)]
mod tests;
