//! Keys with a bcrypt hash. Verification takes tens of milliseconds by design, so the caller does it outside the state's
//! mutex. After that the key gets a fast hash, like the keys that were created here.

use crate::{
    object::{ApiKey, ApiKeyId, KeyId, PreAuthKey},
    request::RegisterRequest,
    secret::{self, Hash},
    state::State,
    time::Time,
};

/// A key with a secret that is not verified yet.
#[derive(Clone)]
pub struct UnverifiedKey {
    key: KeyRef,
    /// The hash that the secret must match.
    pub bcrypt: String,
    pub secret: String,
}

#[derive(Clone, Copy)]
enum KeyRef {
    PreAuth(KeyId),
    Api(ApiKeyId),
}

impl State {
    /// The key of a request that must be verified before the request is handled. `None` if verification would change
    /// nothing.
    pub fn unverified_key(&self, request: &RegisterRequest, now: Time) -> Option<UnverifiedKey> {
        let parts = secret::read(request.auth_key()?)?;
        let key = self.directory.key_with_prefix(parts.prefix)?;
        let is_valid = key.expires.is_none_or(|at| at > now) && (key.reusable || !key.used);
        UnverifiedKey::of(KeyRef::PreAuth(key.id), &key.hash, parts.secret).filter(|_| is_valid)
    }

    /// The API key with this text that must be verified.
    pub fn unverified_api_key(&self, text: &str, now: Time) -> Option<UnverifiedKey> {
        let parts = secret::read_api(text)?;
        let mut good = self.api_keys().filter(|key| key.is_valid(now));
        let key = good.find(|key| key.prefix == parts.prefix)?;
        UnverifiedKey::of(KeyRef::Api(key.id), &key.hash, parts.secret)
    }

    /// Replaces the hash of a key, after its secret was verified.
    pub fn confirm_key(&mut self, verified: &UnverifiedKey) {
        let is_same = |hash: &Hash| matches!(hash, Hash::Bcrypt(own) if *own == verified.bcrypt);
        let hash = Hash::of(&verified.secret);
        match verified.key {
            KeyRef::PreAuth(id) => {
                let Some(key) = self.directory.key(id).filter(|key| is_same(&key.hash)) else {
                    return;
                };
                let key = PreAuthKey { hash, ..key.clone() };
                self.store(&key);
                self.directory.put_key(id, Some(key));
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
