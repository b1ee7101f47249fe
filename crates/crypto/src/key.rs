//! The three kinds of keys that a user handles, with their base64 form (configuration files) and
//! hexadecimal form (UAPI). Both are encoded and decoded in constant time.

use std::{fmt, sync::Arc};

use base64ct::{Base64, Encoding};
use rand_core::CryptoRng;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::x25519::{self, Job};

/// Bytes of every key.
pub const KEY_LEN: usize = 32;

/// Error for a text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key: a key is 32 bytes, in base64 (44 characters) or hexadecimal (64)")
    }
}

impl std::error::Error for KeyError {}

fn decode_base64(text: &str, bytes: &mut [u8; KEY_LEN]) -> Result<(), KeyError> {
    let decoded = Base64::decode(text, bytes).map_err(|_| KeyError)?;
    if decoded.len() == KEY_LEN { Ok(()) } else { Err(KeyError) }
}

fn decode_hex(text: &str, bytes: &mut [u8; KEY_LEN]) -> Result<(), KeyError> {
    let decoded = base16ct::mixed::decode(text, bytes).map_err(|_| KeyError)?;
    if decoded.len() == KEY_LEN { Ok(()) } else { Err(KeyError) }
}

/// Secret bytes at a fixed address. Moving a handle does not copy them, and dropping the last
/// handle wipes them.
type Secret = Arc<Zeroizing<[u8; KEY_LEN]>>;

/// Creates a secret. `fill` writes its bytes in place.
fn secret(
    fill: impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), KeyError>,
) -> Result<Secret, KeyError> {
    let mut secret = Secret::new(Zeroizing::new([0; KEY_LEN]));
    fill(Arc::get_mut(&mut secret).expect("no other handle was made of it"))?;
    Ok(secret)
}

fn random(rng: &mut impl CryptoRng) -> impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), KeyError> {
    |secret| {
        rng.fill_bytes(secret);
        Ok(())
    }
}

fn copy_of(bytes: &[u8; KEY_LEN]) -> impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), KeyError> {
    |secret| {
        secret.copy_from_slice(bytes);
        Ok(())
    }
}

/// A Curve25519 public key, which identifies a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// The bytes, as in messages.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_LEN];
        decode_base64(text, &mut bytes).map(|()| Self(bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_LEN];
        decode_hex(text, &mut bytes).map(|()| Self(bytes))
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

/// The form in which `wg` logs a peer: the first characters suffice to distinguish peers.
impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_base64();
        write!(f, "peer({}…{})", &text[..4], &text[39..43])
    }
}

/// A Curve25519 private key, which is never printed. It is a handle: clones share one copy of the
/// bytes, which never moves and is wiped with the last handle.
#[derive(Clone)]
pub struct PrivateKey(Secret);

impl PrivateKey {
    /// Generates a key from `rng`.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        Self::filled(random(rng)).expect("random bytes are a key")
    }

    /// Creates the key with these bytes, clamped as in RFC 7748 section 5, so that the displayed
    /// key is the key in use.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Self {
        Self::filled(copy_of(bytes)).expect("32 bytes are a key")
    }

    fn filled(
        fill: impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), KeyError>,
    ) -> Result<Self, KeyError> {
        secret(|bytes| {
            fill(bytes)?;
            bytes[0] &= 248;
            bytes[31] = bytes[31] & 127 | 64;
            Ok(())
        })
        .map(Self)
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        Self::filled(|bytes| decode_base64(text, bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        Self::filled(|bytes| decode_hex(text, bytes))
    }

    /// The base64 form, wiped on drop.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(self.0.as_slice()))
    }

    /// The hexadecimal form, wiped on drop.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(base16ct::lower::encode_string(self.0.as_slice()))
    }

    /// The public key of this private key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(x25519::public_key(&self.0))
    }

    /// Returns the Diffie-Hellman result, or `None` if the other side's point is of low order,
    /// because then anyone knows the result.
    pub fn diffie_hellman(&self, public: &PublicKey) -> Option<x25519::Secret> {
        x25519::diffie_hellman(&self.0, &public.0)
    }

    /// [`PrivateKey::diffie_hellman`] of several pairs, which is cheaper than one by one.
    pub fn diffie_hellman_each<'a>(
        pairs: impl Iterator<Item = (&'a Self, &'a PublicKey)>,
    ) -> Vec<Option<x25519::Secret>> {
        let jobs: Vec<_> =
            pairs.map(|(private, public)| Job { private: &private.0, public: &public.0 }).collect();
        x25519::diffie_hellman_each(&jobs)
    }

    /// [`PrivateKey::public_key`] of several keys, which is cheaper than one by one.
    pub fn public_key_each<'a>(keys: impl Iterator<Item = &'a Self>) -> Vec<PublicKey> {
        let keys: Vec<&[u8; 32]> = keys.map(|key| &**key.0).collect();
        x25519::public_key_each(&keys).into_iter().map(PublicKey::from).collect()
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

/// A symmetric key mixed into the handshake, which is never printed. All zero means that there is
/// no preshared key. It is a handle like [`PrivateKey`].
#[derive(Clone, Default)]
pub struct PresharedKey(Option<Secret>);

impl PresharedKey {
    /// Generates a key from `rng`.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        Self::filled(random(rng)).expect("random bytes are a key")
    }

    /// Creates the key with these bytes.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Self {
        Self::filled(copy_of(bytes)).expect("32 bytes are a key")
    }

    fn filled(
        fill: impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), KeyError>,
    ) -> Result<Self, KeyError> {
        let secret = secret(fill)?;
        let is_zero: bool = secret.as_slice().ct_eq(&[0; KEY_LEN]).into();
        Ok(Self((!is_zero).then_some(secret)))
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        self.0.as_ref().map_or(&[0; KEY_LEN], |secret| secret)
    }

    /// Whether the key is all zero, the value for "no preshared key".
    pub fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    /// Reads base64.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        Self::filled(|bytes| decode_base64(text, bytes))
    }

    /// Reads hexadecimal.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        Self::filled(|bytes| decode_hex(text, bytes))
    }

    /// The base64 form, wiped on drop.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(self.as_bytes()))
    }

    /// The hexadecimal form, wiped on drop.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(base16ct::lower::encode_string(self.as_bytes()))
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
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
    fn private_key_is_printed_clamped_like_wg() {
        let key = PrivateKey::from_bytes(&[0xff; 32]);
        assert!(key.to_hex().starts_with("f8ff"));
        assert!(key.to_hex().ends_with("ff7f"));
        assert_eq!(PrivateKey::from_base64(&key.to_base64()).unwrap(), key);
    }

    #[test]
    fn texts_of_wrong_length_or_alphabet_are_rejected() {
        for text in ["", "AAAA", &"A".repeat(44), &"a".repeat(63), &"g".repeat(64)] {
            assert_eq!(PublicKey::from_base64(text), Err(KeyError), "{text}");
            assert_eq!(PublicKey::from_hex(text), Err(KeyError), "{text}");
        }
    }

    /// The bytes remain until the last handle is dropped, and are then wiped. Safe code cannot read
    /// freed memory, so `tests/netns/tests/e2e/secrets.rs` verifies the wiping.
    #[test]
    fn handles_share_one_copy_of_the_bytes() {
        let key = PrivateKey::from_bytes(&[1; 32]);
        assert!(Arc::ptr_eq(&key.0, &key.clone().0));
        let psk = PresharedKey::from_bytes(&[1; 32]);
        assert!(Arc::ptr_eq(psk.0.as_ref().unwrap(), psk.clone().0.as_ref().unwrap()));
    }

    #[test]
    fn all_zero_preshared_key_equals_the_default() {
        let none = PresharedKey::from_hex(&"0".repeat(64)).unwrap();
        assert!(none.is_zero());
        assert_eq!(none, PresharedKey::default());
        assert_eq!(*none.to_hex(), "0".repeat(64));
        assert!(!PresharedKey::from_bytes(&[1; 32]).is_zero());
    }

    #[test]
    fn debug_output_hides_secrets() {
        let text = format!(
            "{:?} {:?}",
            PrivateKey::from_bytes(&[1; 32]),
            PresharedKey::from_bytes(&[1; 32])
        );
        assert_eq!(text, "PrivateKey(hidden) PresharedKey(hidden)");
    }

    #[test]
    #[ignore = "by make memcheck, under valgrind"]
    fn memcheck_finds_no_branch_on_a_key_that_is_encoded_or_compared() {
        memcheck::begin();
        let bytes = [0x5a; KEY_LEN];
        let expected = PrivateKey::from_bytes(&bytes);
        memcheck::hide(&bytes);
        let key = PrivateKey::from_bytes(&bytes);
        let (mut base64, mut hex, mut is_same) = (String::new(), String::new(), [false]);
        let decisions = memcheck::decisions(|| {
            base64.push_str(&key.to_base64());
            hex.push_str(&key.to_hex());
            is_same[0] = key == expected;
        });
        assert_eq!(decisions, 0);
        [&base64, &hex].into_iter().for_each(|text| memcheck::show(text.as_bytes()));
        assert_eq!((&*base64, &*hex), (&**expected.to_base64(), &**expected.to_hex()));
        assert!(memcheck::shown(is_same[0]));
    }

    /// The branches are on whether all characters belong to the alphabet and, for base64, whether
    /// the last character has bits beyond the key.
    #[test]
    #[ignore = "by make memcheck, under valgrind"]
    fn memcheck_finds_only_validity_branches_when_a_key_is_decoded() {
        memcheck::begin();
        let expected = PrivateKey::from_bytes(&[0x5a; KEY_LEN]);
        let (base64, hex) = (expected.to_base64(), expected.to_hex());
        // The last characters of the text are padding.
        memcheck::hide(&base64.as_bytes()[..42]);
        memcheck::hide(hex.as_bytes());
        let mut keys = Vec::new();
        let mut read = |read: &dyn Fn() -> PrivateKey| memcheck::decisions(|| keys.push(read()));
        assert_eq!(read(&|| PrivateKey::from_base64(&base64).unwrap()), 2);
        assert_eq!(read(&|| PrivateKey::from_hex(&hex).unwrap()), 1);
        assert!(keys.iter().all(|key| memcheck::shown(*key == expected)));
    }
}
