//! Commands on API keys.

use super::State;
use crate::{
    object::{ApiKey, ApiKeyId, Kind},
    refusal::Refusal,
    secret::{self, Hash},
    time::Time,
};

impl State {
    pub fn api_keys(&self) -> impl Iterator<Item = &ApiKey> {
        self.api_keys.all()
    }

    /// Finds an API key by number or prefix.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn find_api_key(&self, which: &str) -> Result<&ApiKey, Refusal> {
        self.api_keys.find(which).ok_or_else(|| Refusal::NoApiKey(which.to_owned()))
    }

    /// Finds the API key with this text, if it is valid now. A wrong secret takes as long as an unknown prefix.
    pub fn find_valid_api_key(&self, text: &str, now: Time) -> Option<&ApiKey> {
        self.api_keys.find_valid(text, now)
    }

    /// Creates an API key with a random text from the caller. Only the hash of the text is stored.
    pub fn create_api_key(&mut self, expires: Option<Time>, text: &str, now: Time) -> ApiKey {
        let parts = secret::read_api(text).expect("the caller made it by secret::write_api");
        let id = ApiKeyId(self.journal.next_number(Kind::ApiKey));
        let (prefix, hash) = (parts.prefix.to_owned(), Hash::of(parts.secret));
        let key = ApiKey { id, prefix, hash, expires, created: now };
        self.store(&key);
        self.api_keys.insert(key.clone());
        key
    }

    /// Expires an API key.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn expire_api_key(&mut self, which: &str, now: Time) -> Result<ApiKey, Refusal> {
        let mut key = self.find_api_key(which)?.clone();
        key.expires = Some(key.expires.map_or(now, |at| at.min(now)));
        self.store(&key);
        self.api_keys.insert(key.clone());
        Ok(key)
    }

    /// Deletes an API key.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn delete_api_key(&mut self, which: &str) -> Result<(), Refusal> {
        let id = self.find_api_key(which)?.id;
        self.store_removal(Kind::ApiKey, id.0);
        self.api_keys.remove(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_key_is_valid_until_it_expires_and_its_text_is_not_stored() {
        let (mut state, now) = (State::new(Settings::default()), Time(1_000_000));
        let text = secret::write_api(&[7; 38]);
        let hour = Duration::from_secs(3600);
        let key = state.create_api_key(Some(now.after(hour)), &text, now);
        assert!(state.find_valid_api_key(&text, now).is_some());
        assert!(state.find_valid_api_key(&text, now.after(hour)).is_none());
        let last = if text.ends_with('0') { "1" } else { "0" };
        let wrong = format!("{}{last}", &text[..text.len() - 1]);
        assert!(state.find_valid_api_key(&wrong, now).is_none());
        assert!(state.find_valid_api_key(&secret::write(&[7; 38]), now).is_none());
        let written = state.take_writes();
        let body = written[0].body.clone().unwrap();
        assert!(body.contains(&key.prefix) && !body.contains(&text[text.len() - 64..]));
        let loaded = State::load(Settings::default(), &written, (1, 0), now).unwrap();
        assert_eq!(loaded.find_valid_api_key(&text, now), Some(&key));
    }

    #[test]
    fn a_key_is_found_by_number_or_prefix_to_expire_or_delete_it() {
        let (mut state, now) = (State::new(Settings::default()), Time(1_000_000));
        let text = secret::write_api(&[9; 38]);
        let key = state.create_api_key(None, &text, now);
        state.expire_api_key(&key.prefix, now).unwrap();
        assert!(state.find_valid_api_key(&text, now).is_none());
        state.delete_api_key(&key.id.to_string()).unwrap();
        let gone = Err(Refusal::NoApiKey(key.prefix.clone()));
        assert_eq!(state.delete_api_key(&key.prefix), gone);
        // Its number is not reused.
        assert!(state.create_api_key(None, &text, now).id > key.id);
    }
}
