//! The secrets of a pair, and by which of them handshakes are answered and read.
//!
//! An initiation depends on no preshared key, so the responder chooses: the newest secret that it
//! knows the peer to have. The initiator reads the response by each that it has, and last by none.
//! A peer that lost its secrets cannot read the response. It begins another handshake soon, and that
//! is answered without a secret; one that does not do so is given in after two.

use std::time::Duration;

use blake2s::{Job, derive};
use zeroize::Zeroizing;

use super::{
    constants::{RENEW_AFTER, UNREADABLE_WITHIN},
    kem::Shared,
};
use crate::{
    PresharedKey, PublicKey,
    time::{Now, Time},
};

const LABEL: &[u8; 24] = b"linerate post-quantum v1";

/// After so many responses by a secret that no session followed, one goes without.
const UNREAD_MOST: u32 = 2;

#[derive(Default)]
pub(super) struct Secrets {
    current: Option<Held>,
    /// Agreed on, and no session was made with it yet.
    fresh: Option<Held>,
    /// Responses by a secret since the last session.
    unread: u32,
    last_response: Option<Time>,
}

/// A secret that both sides have, or will have.
pub(super) struct Held {
    pub id: u32,
    secret: Shared,
    /// Whether the peer is known to have it.
    is_shared: bool,
    agreed: Time,
    /// The same since the Unix epoch.
    agreed_wall: Duration,
}

impl Held {
    pub fn new(id: u32, secret: Shared, now: Now) -> Self {
        Self { id, secret, is_shared: false, agreed: now.time, agreed_wall: now.wall }
    }

    /// The preshared key of a handshake: the configured one and the secret in one, of which an
    /// attacker needs both, and which is bound to this pair.
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
    pub fn add(&mut self, held: Held) {
        self.fresh = Some(held);
    }

    /// The peer has it too.
    pub fn shared(&mut self, id: u32) {
        if let Some(fresh) = self.fresh.as_mut().filter(|fresh| fresh.id == id) {
            fresh.is_shared = true;
        }
    }

    /// A session was made, by the secret with this number or without; whether a former one is lost
    /// by it.
    pub fn handle_session(&mut self, id: Option<u32>) -> bool {
        (self.unread, self.last_response) = (0, None);
        match id {
            Some(id) => {
                if let Some(fresh) = self.fresh.take_if(|fresh| fresh.id == id) {
                    self.current = Some(fresh);
                }
                false
            }
            None => {
                let unused = self.fresh.take_if(|fresh| fresh.is_shared).is_some();
                self.current.take().is_some() | unused
            }
        }
    }

    /// By what a response is made: the number of the secret, and the preshared key.
    pub fn for_response(
        &mut self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
        now: Time,
    ) -> Option<(u32, PresharedKey)> {
        let held =
            [&self.fresh, &self.current].into_iter().flatten().find(|held| held.is_shared)?;
        let last = self.last_response.replace(now);
        let unreadable = last.is_some_and(|last| now.since(last) < UNREADABLE_WITHIN);
        if self.unread >= UNREAD_MOST || unreadable && self.unread > 0 {
            return None;
        }
        self.unread += 1;
        Some((held.id, held.combined(configured, pair)))
    }

    /// By what a response may have been made, the likeliest first.
    pub fn candidates(
        &self,
        configured: &PresharedKey,
        pair: [&PublicKey; 2],
    ) -> impl Iterator<Item = (u32, PresharedKey)> {
        let held = [&self.fresh, &self.current].into_iter().flatten();
        held.map(move |held| (held.id, held.combined(configured, pair)))
    }

    pub fn is_none(&self) -> bool {
        self.current.is_none() && self.fresh.is_none()
    }

    /// Whether the secret that is in use is to be replaced.
    pub fn is_old(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|current| now.since(current.agreed) >= RENEW_AFTER)
    }

    /// When the secret with this number was agreed on.
    pub fn agreed(&self, id: u32) -> Option<Duration> {
        let held = [&self.fresh, &self.current].into_iter().flatten().find(|held| held.id == id);
        held.map(|held| held.agreed_wall)
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

    fn held(id: u32, is_shared: bool) -> Held {
        let secret = Box::new(Zeroizing::new([id as u8; 32]));
        Held { is_shared, ..Held::new(id, secret, now(0)) }
    }

    fn keys() -> [PublicKey; 2] {
        [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]).public_key())
    }

    fn chosen(secrets: &mut Secrets, ms: u64) -> Option<u32> {
        let [one, other] = keys();
        let none = PresharedKey::default();
        secrets.for_response(&none, [&one, &other], now(ms).time).map(|(id, _)| id)
    }

    #[test]
    fn both_sides_combine_alike_and_each_part_of_it_matters() {
        let [one, other] = keys();
        let none = PresharedKey::default();
        let some = PresharedKey::from_bytes(&[7; 32]);
        let combined = held(1, true).combined(&some, [&one, &other]);
        assert_eq!(combined, held(1, true).combined(&some, [&other, &one]));
        for different in [
            held(2, true).combined(&some, [&one, &other]),
            held(1, true).combined(&none, [&one, &other]),
            held(1, true).combined(&some, [&one, &one]),
            some.clone(),
        ] {
            assert_ne!(combined, different);
        }
    }

    #[test]
    fn a_response_is_by_the_newest_secret_that_the_peer_is_known_to_have() {
        let mut secrets = Secrets::default();
        assert_eq!(chosen(&mut secrets, 0), None);
        secrets.add(held(1, false));
        assert_eq!(chosen(&mut secrets, 0), None, "the peer may not have it yet");
        secrets.shared(1);
        assert_eq!(chosen(&mut secrets, 0), Some(1));
        assert!(!secrets.handle_session(Some(1)));
        secrets.add(held(2, false));
        assert_eq!(chosen(&mut secrets, 10_000), Some(1));
        secrets.handle_session(Some(1));
        secrets.shared(2);
        assert_eq!(chosen(&mut secrets, 20_000), Some(2));
        let candidates = |secrets: &Secrets| {
            let [one, other] = keys();
            let none = PresharedKey::default();
            let all = secrets.candidates(&none, [&one, &other]);
            all.map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(candidates(&secrets), [2, 1]);
        secrets.handle_session(Some(2));
        assert_eq!(candidates(&secrets), [2], "an older one is of no use any more");
    }

    #[test]
    fn a_peer_that_cannot_read_a_response_has_the_next_one_without_a_secret() {
        let mut secrets = Secrets::default();
        secrets.add(held(1, true));
        assert_eq!(chosen(&mut secrets, 0), Some(1));
        assert_eq!(chosen(&mut secrets, 1_060), None, "it began anew soon");
        assert!(secrets.handle_session(None), "it has none");
        assert_eq!(chosen(&mut secrets, 100_000), None);

        secrets.add(held(2, true));
        let choices = [0, 5_200, 10_400].map(|ms| chosen(&mut secrets, ms));
        assert_eq!(choices, [Some(2), Some(2), None], "one may have been lost, but not all");
        secrets.handle_session(Some(2));
        assert_eq!(chosen(&mut secrets, 20_000), Some(2));
    }
}
