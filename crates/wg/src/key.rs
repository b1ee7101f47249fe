//! The three kinds of key a user handles, with their base64 form (configuration
//! files) and hexadecimal form (UAPI). Both are coded in constant time.

use std::fmt;

use base64ct::{Base64, Encoding};
use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use x25519_dalek::StaticSecret;
use zeroize::{Zeroize, Zeroizing};

use crate::x25519;

/// Bytes of every key.
pub const KEY_LEN: usize = 32;

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key: a key is 32 bytes, in base64 (44 characters) or hexadecimal (64)")
    }
}

impl std::error::Error for KeyError {}

fn from_base64(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    let decoded = Base64::decode(text, bytes.as_mut()).map_err(|_| KeyError)?;
    if decoded.len() == KEY_LEN { Ok(bytes) } else { Err(KeyError) }
}

fn from_hex(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    let decoded = base16ct::mixed::decode(text, bytes.as_mut()).map_err(|_| KeyError)?;
    if decoded.len() == KEY_LEN { Ok(bytes) } else { Err(KeyError) }
}

/// A Curve25519 public key: the name of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// The bytes as they stand in messages.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(|bytes| Self(*bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        from_hex(text).map(|bytes| Self(*bytes))
    }

    /// The base64 form.
    pub fn to_base64(&self) -> String {
        Base64::encode_string(&self.0)
    }

    /// The hexadecimal form.
    pub fn to_hex(&self) -> String {
        base16ct::lower::encode_string(&self.0)
    }
}

impl From<[u8; KEY_LEN]> for PublicKey {
    fn from(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }
}

/// As `wg` logs a peer: the first characters are enough to tell peers apart.
impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_base64();
        write!(f, "peer({}…{})", &text[..4], &text[39..43])
    }
}

/// A Curve25519 private key. Zeroized on drop, never printed.
#[derive(Clone)]
pub struct PrivateKey(StaticSecret);

impl PrivateKey {
    /// A new key out of `rng`.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        rng.fill_bytes(bytes.as_mut());
        Self::from_bytes(&bytes)
    }

    /// The key with these bytes, clamped as RFC 7748 section 5 has it, so that
    /// what is shown is what is used.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Self {
        let mut clamped = Zeroizing::new(*bytes);
        clamped[0] &= 248;
        clamped[31] = clamped[31] & 127 | 64;
        Self(StaticSecret::from(*clamped))
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(|bytes| Self::from_bytes(&bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        from_hex(text).map(|bytes| Self::from_bytes(&bytes))
    }

    /// The base64 form, which wipes itself.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(self.0.as_bytes()))
    }

    /// The hexadecimal form, which wipes itself.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(base16ct::lower::encode_string(self.0.as_bytes()))
    }

    /// The public key that belongs to it.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(x25519::public_key(&self.0))
    }

    /// The Diffie-Hellman result, or `None` where the other side's point is of
    /// low order and the result would be known to everybody.
    pub(crate) fn diffie_hellman(&self, public: &PublicKey) -> Option<Zeroizing<[u8; KEY_LEN]>> {
        x25519::diffie_hellman(&self.0, &public.0)
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

/// A symmetric key mixed into the handshake. All zero means none. Zeroized on
/// drop, never printed.
#[derive(Clone, Default, Zeroize)]
#[zeroize(drop)]
pub struct PresharedKey([u8; KEY_LEN]);

impl PresharedKey {
    /// A new key out of `rng`.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut key = Self::default();
        rng.fill_bytes(&mut key.0);
        key
    }

    /// The bytes, for the handshake.
    pub(crate) fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Whether it is all zero: no preshared key.
    pub fn is_none(&self) -> bool {
        self.0.ct_eq(&[0; KEY_LEN]).into()
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        from_base64(text).map(|bytes| Self(*bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is no key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        from_hex(text).map(|bytes| Self(*bytes))
    }

    /// The base64 form, which wipes itself.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(&self.0))
    }

    /// The hexadecimal form, which wipes itself.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(base16ct::lower::encode_string(&self.0))
    }
}

impl From<[u8; KEY_LEN]> for PresharedKey {
    fn from(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_shown_clamped_as_wg_shows_it() {
        let key = PrivateKey::from_bytes(&[0xff; 32]);
        assert!(key.to_hex().starts_with("f8ff"));
        assert!(key.to_hex().ends_with("ff7f"));
        assert_eq!(PrivateKey::from_base64(&key.to_base64()).unwrap(), key);
    }

    #[test]
    fn texts_of_a_wrong_length_or_alphabet_are_no_keys() {
        for text in ["", "AAAA", &"A".repeat(44), &"a".repeat(63), &"g".repeat(64)] {
            assert_eq!(PublicKey::from_base64(text), Err(KeyError), "{text}");
            assert_eq!(PublicKey::from_hex(text), Err(KeyError), "{text}");
        }
    }

    /// Project Wycheproof's vectors. A result of zero is refused, and nothing else
    /// is: not a point on the twist, not a key with a second encoding.
    #[test]
    fn diffie_hellman_agrees_with_wycheproof() {
        use wycheproof::xdh::{TestFlag, TestName, TestSet};

        let set = TestSet::load(TestName::X25519).unwrap();
        let (mut computed, mut refused) = (0, 0);
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let private = PrivateKey::from_bytes(test.private_key[..].try_into().unwrap());
            let public = PublicKey(test.public_key[..].try_into().unwrap());
            let zero = test.shared_secret.iter().all(|byte| *byte == 0);
            assert_eq!(zero, test.flags.contains(&TestFlag::ZeroSharedSecret), "{}", test.tc_id);
            assert!(!test.result.must_fail(), "{}", test.tc_id);
            let shared = private.diffie_hellman(&public);
            let portable = x25519::portable::diffie_hellman(&private.0, &public.0);
            assert_eq!(shared, portable, "{}", test.tc_id);
            match shared {
                Some(shared) => {
                    assert_eq!(
                        shared[..],
                        test.shared_secret[..],
                        "{}: {}",
                        test.tc_id,
                        test.comment
                    );
                    assert!(!zero, "{}: {}", test.tc_id, test.comment);
                    computed += 1;
                }
                None => {
                    assert!(zero, "{}: {}", test.tc_id, test.comment);
                    refused += 1;
                }
            }
        }
        assert_eq!((computed, refused), (487, 31));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let text =
            format!("{:?} {:?}", PrivateKey::from_bytes(&[1; 32]), PresharedKey::from([1; 32]));
        assert_eq!(text, "PrivateKey(hidden) PresharedKey(hidden)");
    }
}
