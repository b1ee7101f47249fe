//! Pre-auth keys of which only bcrypt's hash is known. To compare one takes tens of milliseconds, on
//! purpose, so it is not done where everybody waits: the caller does it, and says that it is proved.
//! From then on the key is as fast as those that were made here.

use crate::{
    object::{KeyId, PreAuthKey},
    request::RegisterRequest,
    secret::{self, Hash},
    state::State,
    time::Time,
};

/// A key that may be a good one.
#[derive(Clone, PartialEq, Eq)]
pub struct Unproved {
    /// The number of the key that it would be.
    pub id: KeyId,
    /// The hash that its secret is to have.
    pub bcrypt: String,
    /// The secret.
    pub secret: String,
}

impl State {
    /// The key of a request that is to be proved before the request is handled; none where it makes
    /// no difference.
    pub fn unproved(&self, request: &RegisterRequest, now: Time) -> Option<Unproved> {
        let parts = secret::read(request.auth_key()?)?;
        let key = self.by_prefix.get(parts.prefix).and_then(|id| self.keys.get(id))?;
        let Hash::Bcrypt(bcrypt) = &key.hash else { return None };
        let is_good = key.expires.is_none_or(|at| at > now) && (key.reusable || !key.used);
        is_good.then(|| Unproved {
            id: key.id,
            bcrypt: bcrypt.clone(),
            secret: parts.secret.to_owned(),
        })
    }

    /// A secret has the hash that its key has.
    pub fn prove(&mut self, proved: &Unproved) {
        let key = self.keys.get(&proved.id);
        let is_same =
            |key: &&PreAuthKey| matches!(&key.hash, Hash::Bcrypt(own) if *own == proved.bcrypt);
        if let Some(key) = key.filter(is_same) {
            let key = PreAuthKey { hash: Hash::of(&proved.secret), ..key.clone() };
            self.keep(&key);
            self.keys.insert(key.id, key);
        }
    }
}
