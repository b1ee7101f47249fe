//! Noise_IK_25519_ChaChaPoly_BLAKE2s, both roles (Noise revision 34, section 7.5): the pattern of
//! WireGuard without a preshared key.
//!
//! ```text
//!   initiator                               responder
//!   Initiator::start   ---- initiation ---> accept
//!   Initiator::finish  <--- response ------
//!             both have TransportKeys
//! ```
//!
//! Ephemeral keys are parameters. The caller uses each one once.

use super::{Secret, Symmetric, TAG, TransportKeys};
use crate::{PrivateKey, PublicKey};

const CONSTRUCTION: &[u8] = b"Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// Length of an initiation without payload: ephemeral key, sealed static key, tag.
pub const INITIATION_LEN: usize = 32 + 32 + 2 * TAG;
/// Length of a response: ephemeral key, tag.
pub const RESPONSE_LEN: usize = 32 + TAG;

/// The initiator between initiation and response.
pub struct Initiator {
    symmetric: Symmetric,
    private: PrivateKey,
    ephemeral: PrivateKey,
}

impl Initiator {
    /// Writes an initiation for the responder with the key `remote`. Returns `None` if that key is
    /// of low order.
    pub fn start(
        prologue: &[u8],
        private: &PrivateKey,
        remote: &PublicKey,
        ephemeral: PrivateKey,
    ) -> Option<(Self, [u8; INITIATION_LEN])> {
        let mut symmetric = Symmetric::new(CONSTRUCTION, prologue, remote);
        let mut message = [0; INITIATION_LEN];
        let (public, rest) = message.split_at_mut(32);
        let (static_key, payload) = rest.split_at_mut(32 + TAG);
        public.copy_from_slice(ephemeral.public_key().as_bytes());
        symmetric.mix_hash(public);
        let key = symmetric.mix_key(&ephemeral.diffie_hellman(remote)?);
        symmetric.encrypt(&key, private.public_key().as_bytes(), static_key);
        let key = symmetric.mix_key(&private.diffie_hellman(remote)?);
        symmetric.encrypt(&key, &[], payload);
        Some((Self { symmetric, private: private.clone(), ephemeral }, message))
    }

    /// Reads the response. Returns `None` if the holder of the responder's key did not write it.
    pub fn finish(mut self, response: &[u8; RESPONSE_LEN]) -> Option<TransportKeys> {
        let (public, tag) = split_key(response)?;
        self.symmetric.mix_hash(public.as_bytes());
        self.symmetric.mix_key(&self.ephemeral.diffie_hellman(&public)?);
        let key = self.symmetric.mix_key(&self.private.diffie_hellman(&public)?);
        self.symmetric.decrypt(&key, tag, &mut [])?;
        let [send, recv] = self.symmetric.split();
        Some(TransportKeys { send, recv })
    }
}

/// An accepted initiation.
pub struct Accepted {
    /// The initiator's static key. Its holder wrote the initiation.
    pub remote: PublicKey,
    /// The response.
    pub response: [u8; RESPONSE_LEN],
    /// The keys of the responder.
    pub keys: TransportKeys,
}

/// Reads an initiation and writes the response. Ignores the content of a payload. Returns `None` if
/// the initiation is forged or for another key.
pub fn accept(
    prologue: &[u8],
    private: &PrivateKey,
    initiation: &[u8],
    ephemeral: &PrivateKey,
) -> Option<Accepted> {
    let mut symmetric = Symmetric::new(CONSTRUCTION, prologue, &private.public_key());
    let (their_ephemeral, rest) = split_key(initiation)?;
    let (static_key, payload) = rest.split_at_checked(32 + TAG)?;
    symmetric.mix_hash(their_ephemeral.as_bytes());
    let key = symmetric.mix_key(&private.diffie_hellman(&their_ephemeral)?);
    let mut remote = [0; 32];
    symmetric.decrypt(&key, static_key, &mut remote)?;
    let remote = PublicKey::from(remote);
    let key = symmetric.mix_key(&private.diffie_hellman(&remote)?);
    let mut content = vec![0; payload.len().checked_sub(TAG)?];
    symmetric.decrypt(&key, payload, &mut content)?;

    let mut response = [0; RESPONSE_LEN];
    let (public, tag) = response.split_at_mut(32);
    public.copy_from_slice(ephemeral.public_key().as_bytes());
    symmetric.mix_hash(public);
    symmetric.mix_key(&ephemeral.diffie_hellman(&their_ephemeral)?);
    let key = symmetric.mix_key(&ephemeral.diffie_hellman(&remote)?);
    symmetric.encrypt(&key, &[], tag);
    let [recv, send]: [Secret; 2] = symmetric.split();
    Some(Accepted { remote, response, keys: TransportKeys { send, recv } })
}

fn split_key(message: &[u8]) -> Option<(PublicKey, &[u8])> {
    let (key, rest) = message.split_first_chunk::<32>()?;
    Some((PublicKey::from(*key), rest))
}

#[cfg(test)]
mod tests {
    use snow::{Builder, HandshakeState};

    use super::*;

    const PROLOGUE: &[u8] = b"Tailscale Control Protocol v131";

    fn key(byte: u8) -> PrivateKey {
        PrivateKey::from_bytes(&[byte; 32])
    }

    fn snow(private: u8) -> Builder<'static> {
        let pattern = "Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().unwrap();
        let private: &'static [u8; 32] = Box::leak(Box::new([private; 32]));
        Builder::new(pattern).prologue(PROLOGUE).unwrap().local_private_key(private).unwrap()
    }

    /// Checks that the keys open what `snow` sends, and the reverse.
    fn agree(keys: &TransportKeys, other: HandshakeState) {
        let other = other.into_stateless_transport_mode().unwrap();
        let [send, recv] = [&keys.send, &keys.recv].map(|key| crate::aead::Key::new(key));
        let mut data = *b"text................";
        crate::aead::seal(&mut [crate::aead::Seal { key: &send, counter: 5, data: &mut data }]);
        let mut opened = [0; 4];
        assert_eq!(other.read_message(5, &data, &mut opened), Ok(4));
        assert_eq!(&opened, b"text");
        let mut sealed = [0; 20];
        assert_eq!(other.write_message(7, b"back", &mut sealed), Ok(20));
        let mut open =
            [crate::aead::Open { key: &recv, counter: 7, data: &mut sealed, authentic: false }];
        crate::aead::open(&mut open);
        assert!(open[0].authentic);
        assert_eq!(&sealed[..4], b"back");
    }

    #[test]
    fn initiator_agrees_with_snow() {
        let mut responder = snow(2).build_responder().unwrap();
        let (initiator, initiation) =
            Initiator::start(PROLOGUE, &key(1), &key(2).public_key(), key(3)).unwrap();
        assert_eq!(responder.read_message(&initiation, &mut []), Ok(0));
        assert_eq!(responder.get_remote_static(), Some(&key(1).public_key().as_bytes()[..]));
        let mut response = [0; RESPONSE_LEN];
        assert_eq!(responder.write_message(&[], &mut response), Ok(RESPONSE_LEN));
        agree(&initiator.finish(&response).unwrap(), responder);
    }

    #[test]
    fn responder_agrees_with_snow_with_and_without_payload() {
        for payload in [&b""[..], b"early data"] {
            let remote = key(2).public_key();
            let mut initiator =
                snow(1).remote_public_key(remote.as_bytes()).unwrap().build_initiator().unwrap();
            let mut initiation = vec![0; INITIATION_LEN + payload.len()];
            initiator.write_message(payload, &mut initiation).unwrap();
            let accepted = accept(PROLOGUE, &key(2), &initiation, &key(4)).unwrap();
            assert_eq!(accepted.remote, key(1).public_key());
            assert_eq!(initiator.read_message(&accepted.response, &mut []), Ok(0));
            agree(&accepted.keys, initiator);
        }
    }

    #[test]
    fn changed_messages_and_low_order_keys_are_refused() {
        let start = |remote: &PublicKey| Initiator::start(PROLOGUE, &key(1), remote, key(3));
        let (_, initiation) = start(&key(2).public_key()).unwrap();
        let response = accept(PROLOGUE, &key(2), &initiation, &key(4)).unwrap().response;
        for at in 0..INITIATION_LEN {
            let mut changed = initiation;
            changed[at] ^= 1;
            assert!(accept(PROLOGUE, &key(2), &changed, &key(4)).is_none(), "byte {at}");
            assert!(accept(PROLOGUE, &key(2), &initiation[..at], &key(4)).is_none());
        }
        for at in 0..RESPONSE_LEN {
            let mut changed = response;
            changed[at] ^= 1;
            let (initiator, _) = start(&key(2).public_key()).unwrap();
            assert!(initiator.finish(&changed).is_none(), "byte {at}");
        }
        assert!(accept(b"other", &key(2), &initiation, &key(4)).is_none());
        assert!(accept(PROLOGUE, &key(5), &initiation, &key(4)).is_none());
        assert!(start(&PublicKey::from([0; 32])).is_none());
    }
}
