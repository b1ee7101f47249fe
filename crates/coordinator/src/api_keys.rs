//! API keys, with which programs of administrators authenticate.

use std::collections::BTreeMap;

use crate::{
    object::{ApiKey, ApiKeyId},
    secret::{self, Hash},
    time::Time,
};

/// All API keys.
#[derive(Debug, Default)]
pub(crate) struct ApiKeys(BTreeMap<ApiKeyId, ApiKey>);

impl ApiKeys {
    pub(crate) fn all(&self) -> impl Iterator<Item = &ApiKey> {
        self.0.values()
    }

    pub(crate) fn get(&self, id: ApiKeyId) -> Option<&ApiKey> {
        self.0.get(&id)
    }

    /// Finds a key by number or prefix.
    pub(crate) fn find(&self, which: &str) -> Option<&ApiKey> {
        let by_prefix = self.all().find(|key| key.prefix == which);
        by_prefix.or_else(|| self.get(ApiKeyId(which.parse().ok()?)))
    }

    /// Finds the key with this text, if it is valid now. A wrong secret takes as long as an unknown prefix.
    pub(crate) fn find_valid(&self, text: &str, now: Time) -> Option<&ApiKey> {
        let parts = secret::read_api(text)?;
        let hash = Hash::of(parts.secret);
        self.all().find(|key| key.prefix == parts.prefix && key.hash == hash && key.is_valid(now))
    }

    pub(crate) fn insert(&mut self, key: ApiKey) {
        self.0.insert(key.id, key);
    }

    pub(crate) fn remove(&mut self, id: ApiKeyId) {
        self.0.remove(&id);
    }
}

impl ApiKey {
    /// Whether the key has not expired.
    pub fn is_valid(&self, now: Time) -> bool {
        self.expires.is_none_or(|at| at > now)
    }
}
