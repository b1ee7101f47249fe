//! Logins until the provider answers. Each is sealed in a cookie of the browser that started it. The
//! server stores nothing about them, so a flood of logins cannot evict others.

use anyhow::Context;
use base64ct::{Base64UrlUnpadded, Encoding};
use coordinator::Time;
use openidconnect::{Nonce, PkceCodeVerifier};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce as SealNonce, UnboundKey},
    error::Unspecified,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Purpose, logins::LIFE};

/// Maximum size of a sealed login, in bytes.
const LONGEST: usize = 1 << 10;

/// Seals and opens logins, with a key of this process.
pub(super) struct Sealer(LessSafeKey);

/// A login until the provider answers.
#[derive(Serialize, Deserialize)]
pub(super) struct Begun {
    /// Its purpose.
    pub purpose: Purpose,
    /// ID of the registration or SSH login.
    pub number: String,
    /// Repeated in the ID token.
    pub nonce: Nonce,
    /// Proves to the provider that it is the same login.
    pub verifier: Option<PkceCodeVerifier>,
}

#[derive(Serialize, Deserialize)]
struct Dated {
    begun: Begun,
    until: Time,
}

impl Sealer {
    /// Creates a sealer with a new key.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key).context("randomness")?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key);
        key.map(|key| Self(LessSafeKey::new(key))).map_err(|Unspecified| anyhow::anyhow!("a key"))
    }

    /// Seals a login for the browser that returns with this state.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub(super) fn seal(&self, state: &str, begun: Begun, now: Time) -> anyhow::Result<String> {
        let mut sealed = serde_json::to_vec(&Dated { begun, until: now.after(LIFE) })?;
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).context("randomness")?;
        let (of_seal, state) = (SealNonce::assume_unique_for_key(nonce), Aad::from(state));
        self.0
            .seal_in_place_append_tag(of_seal, state, &mut sealed)
            .map_err(|Unspecified| anyhow::anyhow!("a login cannot be sealed"))?;
        Ok(Base64UrlUnpadded::encode_string(&[&nonce[..], &sealed].concat()))
    }

    /// Opens a login with this state, unless it has expired.
    pub(super) fn open(&self, state: &str, sealed: &str, now: Time) -> Option<Begun> {
        let sealed = Some(sealed).filter(|sealed| sealed.len() <= LONGEST)?;
        let mut sealed = Base64UrlUnpadded::decode_vec(sealed).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = SealNonce::assume_unique_for_key(*nonce);
        let text = self.0.open_in_place(nonce, Aad::from(state), sealed).ok()?;
        let Dated { begun, until } = serde_json::from_slice(text).ok()?;
        (now < until).then_some(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Begun {
        let verifier = Some(PkceCodeVerifier::new("v".repeat(43)));
        let (nonce, number) = (Nonce::new("n".into()), "0a".repeat(12));
        Begun { purpose: Purpose::Ssh, number, nonce, verifier }
    }

    #[test]
    fn a_sealed_login_opens_only_in_time_with_its_state_and_sealer() {
        let (sealer, now) = (Sealer::new().unwrap(), Time(1000));
        let sealed = sealer.seal("state", begun(), now).unwrap();
        let opened = sealer.open("state", &sealed, now).unwrap();
        assert_eq!((opened.purpose, &opened.number), (Purpose::Ssh, &begun().number));
        assert_eq!(opened.nonce.secret(), begun().nonce.secret());
        assert_eq!(opened.verifier.unwrap().secret(), begun().verifier.unwrap().secret());
        assert!(sealer.open("other", &sealed, now).is_none());
        assert!(sealer.open("state", &sealed, now.after(LIFE)).is_none());
        assert!(Sealer::new().unwrap().open("state", &sealed, now).is_none());
        let (first, last) = sealed.split_at(20);
        assert!(sealer.open("state", &format!("{first}A{}", &last[1..]), now).is_none());
        assert!(sealer.open("state", "", now).is_none());
        assert!(sealer.open("state", &"A".repeat(2 * LONGEST), now).is_none());
    }

    #[test]
    fn a_sealed_login_fits_into_a_cookie() {
        let sealed = Sealer::new().unwrap().seal("state", begun(), Time(0)).unwrap();
        assert!(sealed.len() <= LONGEST / 2, "{}", sealed.len());
    }
}
