//! NaCl's `crypto_box`: X25519, HSalsa20 and XSalsa20-Poly1305 (<https://nacl.cr.yp.to/box.html>).
//! Tailscale uses it for disco messages and for the handshake with a DERP server.

use poly1305::{Poly1305, universal_hash::KeyInit as _};
use salsa20::{
    XSalsa20,
    cipher::{KeyIvInit as _, StreamCipher as _, consts::U10},
    hsalsa,
};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::x25519::{Secret, diffie_hellman};

/// Length of a nonce.
pub const NONCE_LEN: usize = 24;
/// Length of the tag, which precedes the ciphertext in a box.
pub const TAG_LEN: usize = 16;

/// The shared key of two parties.
pub struct BoxKey(Secret);

impl BoxKey {
    /// The key of the holder of `private` and the holder of `public`. As in NaCl, a public key of low
    /// order is accepted, but protects nothing.
    pub fn new(private: &[u8; 32], public: &[u8; 32]) -> Self {
        let shared = diffie_hellman(private, public).unwrap_or_default();
        Self(Zeroizing::new(hsalsa::<U10>((&*shared).into(), &[0; 16].into()).into()))
    }

    /// Encrypts `text` in place and returns its tag. A nonce must be used once.
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], text: &mut [u8]) -> [u8; TAG_LEN] {
        let (mut cipher, authenticator) = self.begin(nonce);
        cipher.apply_keystream(text);
        authenticator.compute_unpadded(text).into()
    }

    /// Decrypts `text` in place. Returns whether the tag is right; if not, `text` does not change.
    #[must_use]
    pub fn open(&self, nonce: &[u8; NONCE_LEN], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        let (mut cipher, authenticator) = self.begin(nonce);
        let expected: [u8; TAG_LEN] = authenticator.compute_unpadded(text).into();
        let is_authentic = bool::from(expected.ct_eq(tag));
        if is_authentic {
            cipher.apply_keystream(text);
        }
        is_authentic
    }

    /// The cipher after its first 32 bytes, and the authenticator with these as its key.
    fn begin(&self, nonce: &[u8; NONCE_LEN]) -> (XSalsa20, Poly1305) {
        let mut cipher = XSalsa20::new((&*self.0).into(), nonce.into());
        let mut key = Zeroizing::new([0; 32]);
        cipher.apply_keystream(&mut *key);
        let authenticator = Poly1305::new((&*key).into());
        (cipher, authenticator)
    }
}

#[cfg(test)]
mod tests {
    use crypto_box::{
        PublicKey, SalsaBox, SecretKey,
        aead::{Aead as _, generic_array::GenericArray},
    };
    use proptest::prelude::*;

    use super::*;
    use crate::x25519::public_key;

    proptest! {
        #[test]
        fn boxes_equal_those_of_crypto_box(
            ours: [u8; 32],
            theirs: [u8; 32],
            nonce: [u8; NONCE_LEN],
            text in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let other = SalsaBox::new(&PublicKey::from(public_key(&theirs)), &SecretKey::from(ours));
            let expected = other.encrypt(GenericArray::from_slice(&nonce), &text[..]).unwrap();
            let mut sealed = text.clone();
            let tag = BoxKey::new(&ours, &public_key(&theirs)).seal(&nonce, &mut sealed);
            prop_assert_eq!([&tag[..], &sealed[..]].concat(), expected);
            let key = BoxKey::new(&theirs, &public_key(&ours));
            prop_assert!(key.open(&nonce, &mut sealed, &tag));
            prop_assert_eq!(sealed, text);
        }
    }

    #[test]
    fn changed_boxes_are_refused_and_left_encrypted() {
        let key = BoxKey::new(&[1; 32], &public_key(&[2; 32]));
        let mut sealed = *b"a text of two words";
        let tag = key.seal(&[3; NONCE_LEN], &mut sealed);
        for at in 0..sealed.len() {
            let mut changed = sealed;
            changed[at] ^= 1;
            let before = changed;
            assert!(!key.open(&[3; NONCE_LEN], &mut changed, &tag), "byte {at}");
            assert_eq!(changed, before);
        }
        for at in 0..TAG_LEN {
            let mut changed = tag;
            changed[at] ^= 1;
            assert!(!key.open(&[3; NONCE_LEN], &mut sealed, &changed), "byte {at} of the tag");
        }
        assert!(!key.open(&[4; NONCE_LEN], &mut sealed, &tag));
    }
}
