//! Commands of administrators on users and pre-auth keys.

use super::State;
use crate::{
    change_log::Parts,
    object::{KeyId, Kind, PreAuthKey, User, UserId},
    refusal::Refusal,
    secret::{self, Hash},
    tags::check_tags,
    time::Time,
};

/// The properties of a new pre-auth key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewKey {
    /// The owner of its nodes.
    pub user: Option<UserId>,
    /// Whether it can register more than one node.
    pub reusable: bool,
    /// Whether its nodes are deleted after they disconnect.
    pub ephemeral: bool,
    /// The tags of its nodes, which replace the owner.
    pub tags: Vec<String>,
    pub expires: Option<Time>,
}

impl State {
    /// Creates a user.
    ///
    /// # Errors
    /// The name is taken or invalid.
    pub fn create_user(&mut self, user: User, now: Time) -> Result<User, Refusal> {
        self.directory.check_name(&user.name)?;
        let id = UserId(self.journal.next_number(Kind::User));
        let user = User { id, created: now, is_owner: false, ..user };
        self.store(&user);
        self.directory.put_user(id, Some(user.clone()));
        Ok(user)
    }

    /// Renames a user, in the policy as well.
    ///
    /// # Errors
    /// The user does not exist, its name comes from a provider, or the new name is taken, invalid or in the policy.
    pub fn rename_user(&mut self, id: UserId, name: &str, now: Time) -> Result<User, Refusal> {
        let user = self.directory.user(id).ok_or_else(|| Refusal::NoUser(id.to_string()))?.clone();
        if user.identity.is_some() {
            return Err(Refusal::NameFromProvider(id));
        }
        self.directory.check_name(name)?;
        self.rename_user_in_policy(id, name, now)?;
        let user = User { name: name.to_owned(), ..user };
        self.change_user(user.clone());
        Ok(user)
    }

    /// The owner of the network. This is the first user, unless another one was made the owner.
    pub fn owner(&self) -> Option<UserId> {
        self.directory.owner()
    }

    /// Makes a user the owner of the network instead of its current owner.
    ///
    /// # Errors
    /// The user does not exist.
    pub fn make_owner(&mut self, id: UserId) -> Result<User, Refusal> {
        let user = self.directory.user(id).ok_or_else(|| Refusal::NoUser(id.to_string()))?;
        let owner = User { is_owner: true, ..user.clone() };
        let previous = self.directory.users().filter(|user| user.is_owner && user.id != id);
        let previous: Vec<User> =
            previous.map(|user| User { is_owner: false, ..user.clone() }).collect();
        for user in previous.into_iter().chain([owner.clone()]) {
            self.store(&user);
            self.directory.put_user(user.id, Some(user));
        }
        Ok(owner)
    }

    /// Replaces an existing user, and notifies the peers of its nodes.
    pub(super) fn change_user(&mut self, user: User) {
        let id = user.id;
        self.store(&user);
        self.directory.put_user(id, Some(user));
        for node in self.nodes.of_user(id) {
            self.note_parts(node, Parts::WHOLE);
        }
    }

    /// Deletes a user and the user's pre-auth keys.
    ///
    /// # Errors
    /// The user does not exist, has nodes, owns a network with other users, or is named in the
    /// policy.
    pub fn delete_user(&mut self, id: UserId) -> Result<(), Refusal> {
        if !self.directory.has_user(id) {
            return Err(Refusal::NoUser(id.to_string()));
        }
        let nodes = self.nodes.of_user(id).len();
        if nodes > 0 {
            return Err(Refusal::HasNodes(id, nodes));
        }
        if self.directory.users().nth(1).is_some() && self.owner() == Some(id) {
            return Err(Refusal::IsOwner(id));
        }
        if let Some(location) = self.named_in_policy(id) {
            return Err(Refusal::InPolicy(id, location));
        }
        let is_theirs = |key: &&PreAuthKey| key.user == Some(id);
        for key in self.directory.keys().filter(is_theirs).map(|key| key.id).collect::<Vec<_>>() {
            self.delete_key(key)?;
        }
        self.store_removal(Kind::User, id.0);
        self.directory.put_user(id, None);
        Ok(())
    }

    /// Finds a user by name or number.
    ///
    /// # Errors
    /// The user does not exist.
    pub fn find_user(&self, name: &str) -> Result<&User, Refusal> {
        self.directory.find_user(name).ok_or_else(|| Refusal::NoUser(name.to_owned()))
    }

    /// Creates a pre-auth key with a random text from the caller. Only the hash of the text is stored.
    ///
    /// # Errors
    /// The key has neither a user nor tags, the user does not exist, or a tag is invalid.
    pub fn create_key(
        &mut self,
        new: NewKey,
        text: &str,
        now: Time,
    ) -> Result<PreAuthKey, Refusal> {
        if let Some(user) = new.user.filter(|user| !self.directory.has_user(*user)) {
            return Err(Refusal::NoUser(user.to_string()));
        }
        if new.user.is_none() && new.tags.is_empty() {
            return Err(Refusal::KeyWithoutOwner);
        }
        check_tags(&new.tags)?;
        let parts = secret::read(text).expect("the caller made it by secret::write");
        let id = KeyId(self.journal.next_number(Kind::PreAuthKey));
        let key = PreAuthKey {
            id,
            user: new.user,
            prefix: parts.prefix.to_owned(),
            hash: Hash::of(parts.secret),
            reusable: new.reusable,
            ephemeral: new.ephemeral,
            used: false,
            expires: new.expires,
            tags: new.tags,
            created: now,
        };
        self.store(&key);
        self.directory.put_key(id, Some(key.clone()));
        Ok(key)
    }

    /// Expires a pre-auth key.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn expire_key(&mut self, id: KeyId, now: Time) -> Result<(), Refusal> {
        let mut key = self.directory.key(id).ok_or(Refusal::NoKey(id))?.clone();
        key.expires = Some(key.expires.map_or(now, |at| at.min(now)));
        self.store(&key);
        self.directory.put_key(id, Some(key));
        Ok(())
    }

    /// Deletes a pre-auth key.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn delete_key(&mut self, id: KeyId) -> Result<(), Refusal> {
        if self.directory.key(id).is_none() {
            return Err(Refusal::NoKey(id));
        }
        self.store_removal(Kind::PreAuthKey, id.0);
        self.directory.put_key(id, None);
        Ok(())
    }
}
