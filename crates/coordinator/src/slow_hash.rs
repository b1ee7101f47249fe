//! Keys of which only bcrypt's hash is known. To compare one takes tens of milliseconds, on purpose, so
//! it is not done where everybody waits: the caller does it, and says that it is proved. From then on
//! the key is as fast as those that were made here.

use crate::{
    object::{ApiKey, ApiKeyId, KeyId, PreAuthKey},
    request::RegisterRequest,
    secret::{self, Hash},
    state::State,
    time::Time,
};

/// A key that may be a good one.
#[derive(Clone)]
pub struct UnverifiedKey {
    key: KeyRef,
    /// The hash that its secret is to have.
    pub bcrypt: String,
    /// The secret.
    pub secret: String,
}

#[derive(Clone, Copy)]
enum KeyRef {
    PreAuth(KeyId),
    Api(ApiKeyId),
}

impl State {
    /// The key of a request that is to be proved before the request is handled; none where that makes
    /// no difference.
    pub fn unverified_key(&self, request: &RegisterRequest, now: Time) -> Option<UnverifiedKey> {
        let parts = secret::read(request.auth_key()?)?;
        let key = self.by_prefix.get(parts.prefix).and_then(|id| self.keys.get(id))?;
        let is_valid = key.expires.is_none_or(|at| at > now) && (key.reusable || !key.used);
        UnverifiedKey::of(KeyRef::PreAuth(key.id), &key.hash, parts.secret).filter(|_| is_valid)
    }

    /// The same of an API key.
    pub fn unverified_api_key(&self, text: &str, now: Time) -> Option<UnverifiedKey> {
        let parts = secret::read_api(text)?;
        let mut good = self.api_keys().filter(|key| key.is_valid(now));
        let key = good.find(|key| key.prefix == parts.prefix)?;
        UnverifiedKey::of(KeyRef::Api(key.id), &key.hash, parts.secret)
    }

    /// A secret has the hash that its key has.
    pub fn confirm_key(&mut self, proved: &UnverifiedKey) {
        let is_same = |hash: &Hash| matches!(hash, Hash::Bcrypt(own) if *own == proved.bcrypt);
        let hash = Hash::of(&proved.secret);
        match proved.key {
            KeyRef::PreAuth(id) => {
                let Some(key) = self.keys.get(&id).filter(|key| is_same(&key.hash)) else { return };
                let key = PreAuthKey { hash, ..key.clone() };
                self.store(&key);
                self.keys.insert(id, key);
            }
            KeyRef::Api(id) => {
                let Ok(key) = self.find_api_key(&id.to_string()) else { return };
                if is_same(&key.hash) {
                    let key = ApiKey { hash, ..key.clone() };
                    self.store(&key);
                    self.api_keys.insert(key);
                }
            }
        }
    }
}

impl UnverifiedKey {
    fn of(key: KeyRef, hash: &Hash, secret: &str) -> Option<Self> {
        let Hash::Bcrypt(bcrypt) = hash else { return None };
        Some(Self { key, bcrypt: bcrypt.clone(), secret: secret.to_owned() })
    }
}
