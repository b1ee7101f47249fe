//! Users, and the pre-auth keys that register nodes for them.

use std::collections::{BTreeMap, HashMap};

use crate::{
    object::{Identity, KeyId, PreAuthKey, User, UserId},
    refusal::Refusal,
};

/// The maximum length of a user's name, in bytes.
const MAX_NAME: usize = 128;

/// All users and pre-auth keys.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    users: BTreeMap<UserId, User>,
    keys: BTreeMap<KeyId, PreAuthKey>,
    /// The keys by the public part of their texts.
    by_prefix: HashMap<String, KeyId>,
}

impl Directory {
    /// All users, in order.
    pub(crate) fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    pub(crate) fn user(&self, id: UserId) -> Option<&User> {
        self.users.get(&id)
    }

    pub(crate) fn has_user(&self, id: UserId) -> bool {
        self.users.contains_key(&id)
    }

    /// Sets or removes a user.
    pub(crate) fn put_user(&mut self, id: UserId, user: Option<User>) {
        match user {
            Some(user) => self.users.insert(id, user),
            None => self.users.remove(&id),
        };
    }

    /// The owner of the network. This is the first user, unless another one was made the owner.
    pub(crate) fn owner(&self) -> Option<UserId> {
        let made = self.users.values().find(|user| user.is_owner);
        made.or_else(|| self.users.values().next()).map(|user| user.id)
    }

    /// Finds a user by name or number.
    pub(crate) fn find_user(&self, name: &str) -> Option<&User> {
        let by_name = self.users.values().find(|user| user.name == name);
        by_name.or_else(|| self.users.get(&UserId(name.parse().ok()?)))
    }

    /// The user with this identity.
    pub(crate) fn user_of_identity(&self, identity: &Identity) -> Option<&User> {
        let own = |user: &&User| user.identity.as_ref().is_some_and(|own| own.matches(identity));
        let is_exact = |user: &&User| user.identity.as_ref() == Some(identity);
        self.users.values().find(is_exact).or_else(|| self.users.values().find(own))
    }

    /// Whether a user has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.users.values().any(|user| user.name == name)
    }

    /// Checks that a name is valid and free.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Refusal> {
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(|letter| !letter.is_control() && !letter.is_whitespace())
            && name.parse::<i64>().is_err();
        if !is_name {
            return Err(Refusal::InvalidName(name.to_owned()));
        }
        match self.has_name(name) {
            true => Err(Refusal::NameTaken(name.to_owned())),
            false => Ok(()),
        }
    }

    /// All pre-auth keys, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &PreAuthKey> {
        self.keys.values()
    }

    pub(crate) fn key(&self, id: KeyId) -> Option<&PreAuthKey> {
        self.keys.get(&id)
    }

    /// The key with this prefix.
    pub(crate) fn key_with_prefix(&self, prefix: &str) -> Option<&PreAuthKey> {
        self.keys.get(self.by_prefix.get(prefix)?)
    }

    /// Sets or removes a key.
    pub(crate) fn put_key(&mut self, id: KeyId, key: Option<PreAuthKey>) {
        if let Some(before) = self.keys.remove(&id) {
            self.by_prefix.remove(&before.prefix);
        }
        if let Some(key) = key {
            self.by_prefix.insert(key.prefix.clone(), id);
            self.keys.insert(id, key);
        }
    }
}
