//! A network that another program kept, as it becomes one of ours: object by object, with the numbers
//! that they have. What does not fit with what came before is refused, and the rest goes on.

use std::{
    collections::{BTreeMap, HashSet},
    fmt, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tailnet::keys::NodePublic;

use crate::{
    addresses::{Addresses, Allocation, Prefixes},
    admin::check_tags,
    names,
    object::{ApiKey, Kind, Node, NodeId, Object, PreAuthKey, Stored, User, UserId},
};

/// The largest number that Go's clients keep whole in JSON.
const LARGEST: i64 = (1 << 53) - 1;

/// Why an object does not become one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// Its number is none, or another has it.
    Number,
    /// Another has its name.
    Name(String),
    /// It has no name that may be one.
    NoName(String),
    /// Its user is not there.
    NoUser(UserId),
    /// It belongs to nobody, and has no tags.
    Nobodys,
    /// One of its tags is none.
    Tags,
    /// Another has the part of a key that names it.
    Prefix(String),
    /// Another has its node key.
    Key(NodePublic),
    /// Another has one of its addresses.
    Address,
    /// There is no address for it.
    NoAddress,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number => f.write_str("its number is none, or another has it"),
            Self::Name(name) => write!(f, "another has the name {name}"),
            Self::NoName(name) => write!(f, "{name:?} cannot be a name"),
            Self::NoUser(user) => write!(f, "there is no user {user}"),
            Self::Nobodys => f.write_str("it has neither a user nor tags"),
            Self::Tags => f.write_str("one of its tags is none"),
            Self::Prefix(prefix) => write!(f, "another begins with {prefix}"),
            Self::Key(key) => write!(f, "another has the node key {key}"),
            Self::Address => f.write_str("another has one of its addresses"),
            Self::NoAddress => f.write_str("there is no address for it"),
        }
    }
}

impl std::error::Error for Skipped {}

/// What came so far. Users come before keys and nodes, and [`Import::finish`] at the end.
pub struct Import {
    addresses: Addresses,
    had: HashSet<IpAddr>,
    users: BTreeMap<i64, User>,
    keys: BTreeMap<i64, PreAuthKey>,
    api_keys: BTreeMap<i64, ApiKey>,
    nodes: BTreeMap<i64, Node>,
    /// What lacks an address of one family has one when all others are known.
    halves: Vec<(Node, Option<Ipv4Addr>, Option<Ipv6Addr>)>,
    last: BTreeMap<Kind, i64>,
}

impl Import {
    /// With nothing. Nodes that lack an address get one of these networks.
    pub fn new(prefixes: Prefixes) -> Self {
        Self {
            addresses: Addresses::new(prefixes, Allocation::default()),
            had: HashSet::new(),
            users: BTreeMap::new(),
            keys: BTreeMap::new(),
            api_keys: BTreeMap::new(),
            nodes: BTreeMap::new(),
            halves: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Numbers up to this one were given.
    pub fn given(&mut self, kind: Kind, number: i64) {
        let last = self.last.entry(kind).or_default();
        *last = number.clamp(*last, LARGEST);
    }

    /// A user.
    ///
    /// # Errors
    /// Why it is left out.
    pub fn user(&mut self, user: User) -> Result<(), Skipped> {
        check_number(user.id.0, &self.users)?;
        if user.name.is_empty() {
            return Err(Skipped::NoName(user.name));
        }
        if self.users.values().any(|other| other.name == user.name) {
            return Err(Skipped::Name(user.name));
        }
        self.given(Kind::User, user.id.0);
        self.users.insert(user.id.0, user);
        Ok(())
    }

    /// A pre-auth key.
    ///
    /// # Errors
    /// Why it is left out.
    pub fn key(&mut self, key: PreAuthKey) -> Result<(), Skipped> {
        check_number(key.id.0, &self.keys)?;
        self.check_owner(key.user, &key.tags)?;
        if self.keys.values().any(|other| other.prefix == key.prefix) {
            return Err(Skipped::Prefix(key.prefix));
        }
        self.given(Kind::PreAuthKey, key.id.0);
        self.keys.insert(key.id.0, key);
        Ok(())
    }

    /// An API key.
    ///
    /// # Errors
    /// Why it is left out.
    pub fn api_key(&mut self, key: ApiKey) -> Result<(), Skipped> {
        check_number(key.id.0, &self.api_keys)?;
        if self.api_keys.values().any(|other| other.prefix == key.prefix) {
            return Err(Skipped::Prefix(key.prefix));
        }
        self.given(Kind::ApiKey, key.id.0);
        self.api_keys.insert(key.id.0, key);
        Ok(())
    }

    /// A node with the addresses that it has.
    ///
    /// # Errors
    /// Why it is left out.
    pub fn node(
        &mut self,
        mut node: Node,
        v4: Option<Ipv4Addr>,
        v6: Option<Ipv6Addr>,
    ) -> Result<(), Skipped> {
        check_number(node.id.0, &self.nodes)?;
        self.check_owner(node.user, &node.tags)?;
        if !names::is_label(&node.name) {
            return Err(Skipped::NoName(node.name));
        }
        let half = self.halves.iter().map(|(node, ..)| node);
        for other in self.nodes.values().chain(half) {
            if other.id == node.id {
                return Err(Skipped::Number);
            }
            if other.key == node.key {
                return Err(Skipped::Key(node.key));
            }
            if other.name == node.name {
                return Err(Skipped::Name(node.name));
            }
        }
        let own = v4.map(Into::into).into_iter().chain(v6.map(Into::into));
        let own: Vec<IpAddr> = own.collect();
        if own.iter().any(|address| self.had.contains(address)) {
            return Err(Skipped::Address);
        }
        self.had.extend(own);
        self.given(Kind::Node, node.id.0);
        // What is forgotten of the owner stays so, as when a tag is given here.
        node.user = node.user.filter(|_| node.tags.is_empty());
        node.auth_key = node.auth_key.filter(|key| self.keys.contains_key(&key.0));
        match (v4, v6) {
            (Some(v4), Some(v6)) => self.add(node, v4, v6),
            _ => self.halves.push((node, v4, v6)),
        }
        Ok(())
    }

    /// All of it, and the nodes that no address was left for.
    pub fn finish(mut self) -> (Vec<Stored>, Vec<(NodeId, Skipped)>) {
        let mut skipped = Vec::new();
        for (v4, v6) in self.halves.iter().map(|(_, v4, v6)| (*v4, *v6)) {
            let (v4, v6) =
                (v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6.unwrap_or(Ipv6Addr::UNSPECIFIED));
            self.addresses.take(v4, v6);
        }
        for (node, v4, v6) in mem::take(&mut self.halves) {
            match self.addresses.free(&[]) {
                Some((free_v4, free_v6)) => {
                    self.add(node, v4.unwrap_or(free_v4), v6.unwrap_or(free_v6));
                }
                None => skipped.push((node.id, Skipped::NoAddress)),
            }
        }
        let users = self.users.values().map(Object::stored);
        let keys = self.keys.values().map(Object::stored);
        let api_keys = self.api_keys.values().map(Object::stored);
        let nodes = self.nodes.values().map(Object::stored);
        let mut objects: Vec<Stored> = users.chain(keys).chain(api_keys).chain(nodes).collect();
        // A number that was given is not given again, even if what had it is gone.
        for (kind, id) in self.last {
            if !objects.iter().any(|object| (object.kind, object.id) == (kind, id)) {
                objects.push(Stored { kind, id, body: None });
            }
        }
        (objects, skipped)
    }

    fn add(&mut self, node: Node, v4: Ipv4Addr, v6: Ipv6Addr) {
        self.addresses.take(v4, v6);
        self.nodes.insert(node.id.0, Node { v4, v6, ..node });
    }

    fn check_owner(&self, user: Option<UserId>, tags: &[String]) -> Result<(), Skipped> {
        check_tags(tags).map_err(|_| Skipped::Tags)?;
        match user {
            Some(user) if !self.users.contains_key(&user.0) => Err(Skipped::NoUser(user)),
            None if tags.is_empty() => Err(Skipped::Nobodys),
            _ => Ok(()),
        }
    }
}

fn check_number<T>(number: i64, had: &BTreeMap<i64, T>) -> Result<(), Skipped> {
    let is_number = (1..=LARGEST).contains(&number) && !had.contains_key(&number);
    if is_number { Ok(()) } else { Err(Skipped::Number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RegisterRequest, Settings, State, Time, object::KeyId, secret::Hash};

    fn user(id: i64, name: &str) -> User {
        User { id: UserId(id), name: name.into(), ..User::default() }
    }

    fn node(id: i64, name: &str) -> Node {
        serde_json::from_value(serde_json::json!({
            "id": id, "machine": format!("mkey:{id:064x}"), "key": format!("nodekey:{id:064x}"),
            "disco": format!("discokey:{id:064x}"), "user": 1, "name": name, "v4": "0.0.0.0",
            "v6": "::", "hostinfo": {}, "auth_key": 9, "expires": null, "created": 0,
            "last_seen": null,
        }))
        .unwrap()
    }

    fn import() -> Import {
        let mut import = Import::new(Prefixes::default());
        import.user(user(1, "anna")).unwrap();
        import
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_rest_is_a_network() {
        let mut import = import();
        assert_eq!(import.user(user(1, "bert")), Err(Skipped::Number));
        assert_eq!(import.user(user(2, "anna")), Err(Skipped::Name("anna".into())));
        let v4 = |last| Some(Ipv4Addr::new(100, 64, 0, last));
        let v6 = |last: u16| Some(Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, last));
        import.node(node(5, "a"), v4(5), v6(5)).unwrap();
        assert_eq!(import.node(node(5, "b"), v4(6), v6(6)), Err(Skipped::Number));
        assert_eq!(import.node(node(6, "a"), v4(6), v6(6)), Err(Skipped::Name("a".into())));
        assert_eq!(import.node(node(6, "b"), v4(5), v6(6)), Err(Skipped::Address));
        let stranger = Node { user: Some(UserId(7)), ..node(6, "b") };
        assert_eq!(import.node(stranger, v4(6), v6(6)), Err(Skipped::NoUser(UserId(7))));
        let same_key = Node { key: node(5, "a").key, ..node(6, "b") };
        assert!(matches!(import.node(same_key, v4(6), v6(6)), Err(Skipped::Key(_))));
        // One that has an address of one family gets its like in the other.
        import.node(node(6, "b"), v4(6), None).unwrap();
        import.given(Kind::Node, 40);
        let (objects, skipped) = import.finish();
        assert!(skipped.is_empty(), "{skipped:?}");
        let mut state = State::load(Settings::default(), &objects, (1, 0), Time(0)).unwrap();
        let ids: Vec<i64> = state.nodes().map(|view| view.node.id.0).collect();
        assert_eq!(ids, [5, 6]);
        let half = state.node(NodeId(6)).unwrap().node;
        assert_eq!((half.v4, half.v6.is_unspecified()), (v4(6).unwrap(), false));
        // The key that made it is not there.
        assert_eq!(half.auth_key, None);
        assert_eq!(state.next_number(Kind::Node), 41);
    }

    #[test]
    fn a_key_of_bcrypt_is_good_once_it_is_proved() {
        let bcrypt = format!("$2a$10${}", "b".repeat(53));
        let text = format!("hskey-auth-abcdefghijkl-{}", "x".repeat(64));
        let mut import = import();
        import
            .key(PreAuthKey {
                id: KeyId(3),
                user: Some(UserId(1)),
                prefix: "abcdefghijkl".into(),
                hash: Hash::of_bcrypt(&bcrypt).unwrap(),
                reusable: false,
                ephemeral: false,
                used: false,
                expires: None,
                tags: Vec::new(),
                created: Time(0),
            })
            .unwrap();
        let mut state =
            State::load(Settings::default(), &import.finish().0, (1, 0), Time(0)).unwrap();
        let asked = |text: &str| {
            let request = serde_json::json!({"Auth": {"AuthKey": text}}).to_string();
            RegisterRequest::read(request.as_bytes()).unwrap()
        };
        let unproved = state.unproved(&asked(&text), Time(1)).unwrap();
        assert_eq!((&unproved.bcrypt, unproved.secret.len()), (&bcrypt, 64));
        state.prove(&unproved);
        assert!(state.unproved(&asked(&text), Time(1)).is_none());
        let kept = state.take_writes();
        assert!(kept[0].body.as_ref().is_some_and(|body| !body.contains("$2a$")));
    }
}
