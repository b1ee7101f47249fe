//! Cookies and the two MACs of a handshake message (paper 5.3, 5.4.4, 5.4.7). A device under load
//! demands that a sender proves its address before a handshake is computed.

use std::net::IpAddr;

use blake2::{Blake2s256, Blake2sMac, Digest, digest::consts::U16};
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305};
use hmac::Mac;
use packet::Remote;
use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{
    PublicKey,
    constants::{COOKIE_LATENCY, COOKIE_LIFETIME},
    message::{CookieReply, Handshake, MAC_LEN},
    time::Time,
};

/// Bytes of a cookie.
pub(crate) const COOKIE_LEN: usize = 16;

type Tag = [u8; MAC_LEN];

/// The proof in the MACs of a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacState {
    /// No proof: mac1 is invalid.
    Invalid,
    /// The sender knows our public key: mac1 is valid.
    Mac1,
    /// The sender also receives at its source address: both MACs are valid.
    Mac2,
}

/// The side that demands cookies. It checks MACs and makes cookie replies.
pub(crate) struct CookieChecker {
    mac1_key: [u8; 32],
    cookie_key: [u8; 32],
    secret: Zeroizing<[u8; 32]>,
    secret_made: Option<Time>,
}

impl CookieChecker {
    /// Creates a checker for the device with this key.
    pub(crate) fn new(device: &PublicKey) -> Self {
        Self {
            mac1_key: labelled(b"mac1----", device),
            cookie_key: labelled(b"cookie--", device),
            secret: Zeroizing::new([0; 32]),
            secret_made: None,
        }
    }

    /// Checks the MACs of `message` from `source`.
    pub(crate) fn check(&self, message: &[u8], source: impl Into<Remote>, now: Time) -> MacState {
        let Some((covered, mac1, mac2)) = split_macs(message) else {
            return MacState::Invalid;
        };
        if !bool::from(mac(&self.mac1_key, &[covered]).ct_eq(mac1)) {
            return MacState::Invalid;
        }
        if self.secret_made.is_none_or(|made| now.since(made) >= COOKIE_LIFETIME) {
            return MacState::Mac1;
        }
        let expected = mac(&self.cookie(source.into()), &[covered, mac1]);
        if bool::from(expected.ct_eq(mac2)) { MacState::Mac2 } else { MacState::Mac1 }
    }

    /// Makes the reply to `message`, sent with the index `receiver`.
    pub(crate) fn reply(
        &mut self,
        message: &[u8],
        receiver: u32,
        source: impl Into<Remote>,
        now: Time,
        rng: &mut impl CryptoRng,
    ) -> Option<Handshake> {
        let (_, mac1, _) = split_macs(message)?;
        if self.secret_made.is_none_or(|made| now.since(made) >= COOKIE_LIFETIME) {
            rng.fill_bytes(self.secret.as_mut());
            self.secret_made = Some(now);
        }
        let mut nonce = [0; 24];
        rng.fill_bytes(&mut nonce);
        let mut sealed = [0; COOKIE_LEN + crypto::aead::TAG_LEN];
        let (text, tag) = sealed.split_at_mut(COOKIE_LEN);
        text.copy_from_slice(&self.cookie(source.into()));
        let computed = XChaCha20Poly1305::new(&self.cookie_key.into())
            .encrypt_inout_detached(&nonce.into(), mac1, text.into())
            .expect("a cookie is far below the limit of 256 GiB");
        tag.copy_from_slice(&computed);
        Some(CookieReply { receiver, nonce: &nonce, cookie: &sealed }.encode())
    }

    /// Returns the cookie of a source: of its address and port, or of its relay ID.
    fn cookie(&self, source: Remote) -> [u8; COOKIE_LEN] {
        let source = match source {
            Remote::Direct(address) => address,
            Remote::Relayed(id) => {
                return mac(self.secret.as_ref(), &[b"relayed-", &id.index().to_be_bytes()]);
            }
        };
        let port = source.port().to_be_bytes();
        match source.ip() {
            IpAddr::V4(ip) => mac(self.secret.as_ref(), &[&ip.octets(), &port]),
            IpAddr::V6(ip) => mac(self.secret.as_ref(), &[&ip.octets(), &port]),
        }
    }
}

/// The side that must send cookies. It writes the MACs of messages to one peer. The keys derived
/// from the peer's public key are recomputed for each message: that is a hash of 40 bytes, small
/// compared with an X25519 operation, and saves 64 bytes a peer.
#[derive(Default)]
pub(crate) struct CookieJar {
    cookie: Option<(Zeroizing<[u8; COOKIE_LEN]>, Time)>,
    /// The mac1 of the last sent message, which a valid reply authenticates.
    last_mac1: Option<Tag>,
}

impl CookieJar {
    /// Writes both MACs into a message to `peer`.
    pub(crate) fn stamp(&mut self, peer: &PublicKey, message: &mut Handshake, now: Time) {
        let bytes = message.as_bytes_mut();
        let mac1_at = bytes.len() - 2 * MAC_LEN;
        let mac2_at = bytes.len() - MAC_LEN;
        let mac1 = mac(&labelled(b"mac1----", peer), &[&bytes[..mac1_at]]);
        bytes[mac1_at..mac2_at].copy_from_slice(&mac1);
        if let Some((cookie, received)) = &self.cookie
            && now.since(*received) < COOKIE_LIFETIME - COOKIE_LATENCY
        {
            let mac2 = mac(cookie.as_ref(), &[&bytes[..mac2_at]]);
            bytes[mac2_at..].copy_from_slice(&mac2);
        }
        self.last_mac1 = Some(mac1);
    }

    /// Handles a cookie reply. Returns whether it answers the last sent message. Each message
    /// accepts one reply.
    pub(crate) fn handle_reply(
        &mut self,
        peer: &PublicKey,
        reply: &CookieReply<'_>,
        now: Time,
    ) -> bool {
        let Some(mac1) = self.last_mac1 else { return false };
        let (text, tag) = reply.cookie.split_at(COOKIE_LEN);
        let mut cookie = Zeroizing::new([0; COOKIE_LEN]);
        cookie.copy_from_slice(text);
        let tag = tag.try_into().expect("a sealed cookie ends in a tag");
        let authentic = XChaCha20Poly1305::new(&labelled(b"cookie--", peer).into())
            .decrypt_inout_detached(reply.nonce.into(), &mac1, cookie.as_mut_slice().into(), tag)
            .is_ok();
        if authentic {
            self.cookie = Some((cookie, now));
            self.last_mac1 = None;
        }
        authentic
    }
}

/// Splits a message into the part that mac1 covers, mac1 and mac2.
fn split_macs(message: &[u8]) -> Option<(&[u8], &Tag, &Tag)> {
    let (rest, mac2) = message.split_last_chunk()?;
    let (covered, mac1) = rest.split_last_chunk()?;
    Some((covered, mac1, mac2))
}

fn labelled(label: &[u8; 8], key: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(label).chain_update(key.as_bytes()).finalize().into()
}

/// Keyed BLAKE2s with an output of 16 bytes.
fn mac(key: &[u8], parts: &[&[u8]]) -> Tag {
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(key)
        .expect("keyed BLAKE2s takes a key of up to 32 bytes");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Duration};

    use packet::RelayId;
    use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

    use super::*;
    use crate::message::Response;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(1) + Duration::from_secs(seconds)
    }

    fn message() -> Handshake {
        Response { sender: 7, receiver: 8, ephemeral: &[9; 32], encrypted_nothing: &[1; 16] }
            .encode()
    }

    const DEVICE: [u8; 32] = [5; 32];

    struct Pair {
        checker: CookieChecker,
        jar: CookieJar,
        rng: ChaCha20Rng,
    }

    impl Pair {
        fn new() -> Self {
            Self {
                checker: CookieChecker::new(&DEVICE.into()),
                jar: CookieJar::default(),
                rng: ChaCha20Rng::seed_from_u64(1),
            }
        }

        fn reply(&mut self, message: &Handshake, source: SocketAddr, now: Time) -> Handshake {
            self.checker.reply(message.as_bytes(), 7, source, now, &mut self.rng).unwrap()
        }

        fn handle(&mut self, reply: &CookieReply<'_>) -> bool {
            self.jar.handle_reply(&DEVICE.into(), reply, at(0))
        }

        fn stamped(&mut self, now: Time) -> Handshake {
            let mut message = message();
            self.jar.stamp(&DEVICE.into(), &mut message, now);
            message
        }
    }

    #[test]
    fn cookie_is_valid_for_one_address_and_port_until_it_expires() {
        let mut pair = Pair::new();
        let source: SocketAddr = "192.0.2.1:1000".parse().unwrap();
        let first = pair.stamped(at(0));
        assert_eq!(pair.checker.check(first.as_bytes(), source, at(0)), MacState::Mac1);

        let reply = pair.reply(&first, source, at(0));
        let reply = CookieReply::parse(reply.as_bytes()).unwrap();
        assert!(pair.handle(&reply));
        assert!(!pair.handle(&reply), "one message, one reply");

        let second = pair.stamped(at(1));
        let check = |pair: &Pair, source: &str, now| {
            pair.checker.check(second.as_bytes(), source.parse::<SocketAddr>().unwrap(), now)
        };
        assert_eq!(check(&pair, "192.0.2.1:1000", at(1)), MacState::Mac2);
        assert_eq!(check(&pair, "192.0.2.1:1001", at(1)), MacState::Mac1);
        assert_eq!(check(&pair, "192.0.2.2:1000", at(1)), MacState::Mac1);
        assert_eq!(check(&pair, "192.0.2.1:1000", at(120)), MacState::Mac1);
        let late = pair.stamped(at(115));
        assert_eq!(late.as_bytes()[76..], [0; 16], "a cookie about to expire is not used");
    }

    #[test]
    fn cookie_is_valid_for_one_address_of_an_ipv6_network() {
        let mut pair = Pair::new();
        let source = |text: &str| text.parse::<SocketAddr>().unwrap();
        let first = pair.stamped(at(0));
        let reply = pair.reply(&first, source("[2001:db8::1]:1000"), at(0));
        assert!(pair.handle(&CookieReply::parse(reply.as_bytes()).unwrap()));
        let second = pair.stamped(at(1));
        for (from, state) in
            [("[2001:db8::1]:1000", MacState::Mac2), ("[2001:db8::2]:1000", MacState::Mac1)]
        {
            assert_eq!(pair.checker.check(second.as_bytes(), source(from), at(1)), state, "{from}");
        }
    }

    #[test]
    fn cookie_of_a_relayed_source_is_invalid_for_another_one() {
        let mut pair = Pair::new();
        let [source, other] = [3, 4].map(|index| Remote::Relayed(RelayId::new(index)));
        let first = pair.stamped(at(0));
        let reply = pair.checker.reply(first.as_bytes(), 7, source, at(0), &mut pair.rng).unwrap();
        assert!(pair.handle(&CookieReply::parse(reply.as_bytes()).unwrap()));
        let second = pair.stamped(at(1));
        assert_eq!(pair.checker.check(second.as_bytes(), source, at(1)), MacState::Mac2);
        assert_eq!(pair.checker.check(second.as_bytes(), other, at(1)), MacState::Mac1);
    }

    #[test]
    fn changed_message_is_invalid() {
        let mut pair = Pair::new();
        let source: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        let mut message = pair.stamped(at(0));
        assert_eq!(pair.checker.check(message.as_bytes(), source, at(0)), MacState::Mac1);
        message.as_bytes_mut()[20] ^= 1;
        assert_eq!(pair.checker.check(message.as_bytes(), source, at(0)), MacState::Invalid);
        assert_eq!(pair.checker.check(&[0; 31], source, at(0)), MacState::Invalid);
    }

    #[test]
    fn reply_to_another_message_is_refused() {
        let mut pair = Pair::new();
        let source = "192.0.2.1:1000".parse().unwrap();
        let mut other = message();
        other.as_bytes_mut()[80] = 1;
        let reply = pair.reply(&other, source, at(0));
        pair.stamped(at(0));
        assert!(!pair.handle(&CookieReply::parse(reply.as_bytes()).unwrap()));
    }
}
