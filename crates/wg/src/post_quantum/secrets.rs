//! The secrets of a pair of peers, and the choice of the secret for each handshake.
//!
//! An initiation does not depend on a preshared key, so the responder chooses: the newest secret
//! that the peer is known to have. The initiator tries each of its secrets on the response, and
//! last none. A peer that lost its secrets cannot read the response. It soon starts another
//! handshake, which is answered without a secret. If it does not, the third response is sent
//! without one.

use std::time::Duration;

use crypto::blake2s::{Job, derive};
use zeroize::Zeroizing;

use super::{
    constants::{SECRET_LIFETIME, UNREADABLE_WITHIN},
    kem::Shared,
};
use crate::{
    PresharedKey, PublicKey,
    time::{Now, Time},
};

const LABEL: &[u8; 24] = b"linerate post-quantum v1";

/// After this many responses with a secret without a session, one is sent without a secret.
const MAX_UNCONFIRMED_RESPONSES: u32 = 2;

#[derive(Default)]
pub(crate) struct Secrets {
    current: Option<StoredSecret>,
    /// A secret that was agreed on, but no session uses it yet.
    pending: Option<StoredSecret>,
    /// Responses with a secret since the last session.
    unconfirmed_responses: u32,
    last_response: Option<Time>,
}

/// A secret that both sides have or will have.
pub(crate) struct StoredSecret {
    pub id: u32,
    secret: Shared,
    /// Whether the peer is known to have the secret.
    is_shared: bool,
    agreed: Time,
    /// Time of the agreement since the Unix epoch.
    agreed_wall: Duration,
}

impl StoredSecret {
    pub(crate) fn new(id: u32, secret: Shared, now: Now) -> Self {
        Self { id, secret, is_shared: false, agreed: now.time, agreed_wall: now.wall }
    }

    /// Returns the preshared key of a handshake: a combination of the configured key and the
    /// secret, bound to this pair. An attacker needs both.
    fn combined(&self, configured: &PresharedKey, pair: [&PublicKey; 2]) -> PresharedKey {
        let mut pair = pair;
        pair.sort();
        let mut input = Zeroizing::new([0; 24 + 3 * 32]);
        input[..24].copy_from_slice(LABEL);
        input[24..56].copy_from_slice(self.secret.as_slice());
        input[56..88].copy_from_slice(pair[0].as_bytes());
        input[88..].copy_from_slice(pair[1].as_bytes());
        let [key] = derive(Job { key: configured.as_bytes(), input: input.as_slice() });
        PresharedKey::from_bytes(&key)
    }
}

impl Secrets {
    pub(crate) fn add(&mut self, secret: StoredSecret) {
        self.pending = Some(secret);
    }

    /// Marks a secret as known to the peer.
    pub(crate) fn mark_shared(&mut self, id: u32) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.id == id) {
            pending.is_shared = true;
        }
    }

    /// Handles a new session, with the ID of its secret if it has one. Returns whether the session
    /// shows that the previous secret was lost.
    pub(crate) fn handle_session(&mut self, id: Option<u32>) -> bool {
        (self.unconfirmed_responses, self.last_response) = (0, None);
        match id {
            Some(id) => {
                if let Some(pending) = self.pending.take_if(|pending| pending.id == id) {
                    self.current = Some(pending);
                }
                false
            }
            None => {
                let unused = self.pending.take_if(|pending| pending.is_shared).is_some();
                self.current.take().is_some() | unused
            }
        }
    }

    /// Chooses the secret for a response. Returns its ID and the preshared key.
    pub(crate) fn choose_for_response(
        &mut self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
        now: Time,
    ) -> Option<(u32, PresharedKey)> {
        let secret =
            [&self.pending, &self.current].into_iter().flatten().find(|secret| secret.is_shared)?;
        let last = self.last_response.replace(now);
        let unreadable = last.is_some_and(|last| now.since(last) < UNREADABLE_WITHIN);
        if self.unconfirmed_responses >= MAX_UNCONFIRMED_RESPONSES
            || unreadable && self.unconfirmed_responses > 0
        {
            return None;
        }
        self.unconfirmed_responses += 1;
        Some((secret.id, secret.combined(configured, pair)))
    }

    /// Returns the secrets with which a response may have been made, the most likely first.
    pub(crate) fn candidates(
        &self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
    ) -> impl Iterator<Item = (u32, PresharedKey)> {
        let secret = [&self.pending, &self.current].into_iter().flatten();
        secret.map(move |secret| (secret.id, secret.combined(configured, pair)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.pending.is_none()
    }

    /// Whether the secret in use must be replaced.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|current| now.since(current.agreed) >= SECRET_LIFETIME)
    }

    /// Returns the time when the secret with this ID was agreed on.
    pub(crate) fn agreed(&self, id: u32) -> Option<Duration> {
        let secret =
            [&self.pending, &self.current].into_iter().flatten().find(|secret| secret.id == id);
        secret.map(|secret| secret.agreed_wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrivateKey;

    fn now(ms: u64) -> Now {
        let since = Duration::from_millis(ms);
        Now { time: Time::from_nanos(1) + since, wall: since }
    }

    fn secret(id: u32, is_shared: bool) -> StoredSecret {
        let secret = Box::new(Zeroizing::new([id as u8; 32]));
        StoredSecret { is_shared, ..StoredSecret::new(id, secret, now(0)) }
    }

    fn keys() -> [PublicKey; 2] {
        [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]).public_key())
    }

    fn chosen(secrets: &mut Secrets, ms: u64) -> Option<u32> {
        let [one, other] = keys();
        let none = PresharedKey::default();
        secrets.choose_for_response(&none, [&one, &other], now(ms).time).map(|(id, _)| id)
    }

    #[test]
    fn combined_key_is_symmetric_and_depends_on_each_input() {
        let [one, other] = keys();
        let none = PresharedKey::default();
        let some = PresharedKey::from_bytes(&[7; 32]);
        let combined = secret(1, true).combined(&some, [&one, &other]);
        assert_eq!(combined, secret(1, true).combined(&some, [&other, &one]));
        for different in [
            secret(2, true).combined(&some, [&one, &other]),
            secret(1, true).combined(&none, [&one, &other]),
            secret(1, true).combined(&some, [&one, &one]),
            some.clone(),
        ] {
            assert_ne!(combined, different);
        }
    }

    #[test]
    fn response_uses_the_newest_secret_that_the_peer_is_known_to_have() {
        let mut secrets = Secrets::default();
        assert_eq!(chosen(&mut secrets, 0), None);
        secrets.add(secret(1, false));
        assert_eq!(chosen(&mut secrets, 0), None, "the peer may not have it yet");
        secrets.mark_shared(1);
        assert_eq!(chosen(&mut secrets, 0), Some(1));
        assert!(!secrets.handle_session(Some(1)));
        secrets.add(secret(2, false));
        assert_eq!(chosen(&mut secrets, 10_000), Some(1));
        secrets.handle_session(Some(1));
        secrets.mark_shared(2);
        assert_eq!(chosen(&mut secrets, 20_000), Some(2));
        let candidates = |secrets: &Secrets| {
            let [one, other] = keys();
            let none = PresharedKey::default();
            let all = secrets.candidates(&none, [&one, &other]);
            all.map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(candidates(&secrets), [2, 1]);
        secrets.handle_session(Some(2));
        assert_eq!(candidates(&secrets), [2], "the older one is removed");
    }

    #[test]
    fn response_after_an_unreadable_one_omits_the_secret() {
        let mut secrets = Secrets::default();
        secrets.add(secret(1, true));
        assert_eq!(chosen(&mut secrets, 0), Some(1));
        assert_eq!(chosen(&mut secrets, 1_060), None, "an early new handshake");
        assert!(secrets.handle_session(None), "the peer lost the secret");
        assert_eq!(chosen(&mut secrets, 100_000), None);

        secrets.add(secret(2, true));
        let choices = [0, 5_200, 10_400].map(|ms| chosen(&mut secrets, ms));
        assert_eq!(choices, [Some(2), Some(2), None], "one may have been lost, but not all");
        secrets.handle_session(Some(2));
        assert_eq!(chosen(&mut secrets, 20_000), Some(2));
    }
}
