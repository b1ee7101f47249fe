//! Pre-auth keys and API keys as texts, and what is kept of them.
//!
//! A key is `lrkey-auth-` or `lrkey-api-`, twelve letters that name it, a hyphen, and 64 hexadecimal digits of
//! randomness. Of those the hash is kept: 256 random bits need no slow one.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a pre-auth key begins with.
const MARK: &str = "lrkey-auth-";
/// What an API key begins with.
const API_MARK: &str = "lrkey-api-";
/// The length of the part that names a key.
const PREFIX: usize = 12;
/// The length of the secret part.
const SECRET: usize = 64;

/// SHA-256 of a secret. Comparing takes the same time wherever two differ.
#[derive(Clone, Copy, Debug)]
pub struct Hash([u8; 32]);

impl Hash {
    /// That of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Hash {}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base16ct::lower::encode_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut hash = [0; 32];
        match base16ct::mixed::decode(&text, &mut hash) {
            Ok(read) if read.len() == 32 => Ok(Self(hash)),
            _ => Err(de::Error::custom("not a hash of 64 hexadecimal digits")),
        }
    }
}

/// A key's two parts, as the text has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// What names it.
    pub prefix: &'a str,
    /// What proves it.
    pub secret: &'a str,
}

/// Reads a pre-auth key.
pub fn read(text: &str) -> Option<Parts<'_>> {
    read_marked(MARK, text)
}

/// Reads an API key.
pub fn read_api(text: &str) -> Option<Parts<'_>> {
    read_marked(API_MARK, text)
}

fn read_marked<'a>(mark: &str, text: &'a str) -> Option<Parts<'a>> {
    let rest = text.strip_prefix(mark)?;
    let (prefix, secret) = rest.split_once('-')?;
    let is_key = prefix.len() == PREFIX
        && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && secret.len() == SECRET
        && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_key.then_some(Parts { prefix, secret })
}

/// Writes the pre-auth key that these random bytes are: the first six name it.
pub fn write(random: &[u8; 38]) -> String {
    write_marked(MARK, random)
}

/// Writes an API key.
pub fn write_api(random: &[u8; 38]) -> String {
    write_marked(API_MARK, random)
}

fn write_marked(mark: &str, random: &[u8; 38]) -> String {
    let (prefix, secret) = random.split_at(PREFIX / 2);
    let hex = base16ct::lower::encode_string;
    format!("{mark}{}-{}", hex(prefix), hex(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let random = std::array::from_fn(|at| at as u8);
        let text = write(&random);
        let parts = read(&text).unwrap();
        assert_eq!((parts.prefix.len(), parts.secret.len()), (12, 64));
        assert!(Hash::of(parts.secret) != Hash::of(parts.prefix));
        let kept = serde_json::to_string(&Hash::of(parts.secret)).unwrap();
        assert!(!kept.contains(parts.secret));
        assert_eq!(serde_json::from_str::<Hash>(&kept).unwrap(), Hash::of(parts.secret));
    }

    #[test]
    fn what_is_no_key_is_not_read() {
        let text = write(&[1; 38]);
        for wrong in ["", "lrkey-auth-", &text[..text.len() - 1], &text[1..], &format!("{text}0")] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!(read_api(&text).is_none() && read(&write_api(&[1; 38])).is_none());
        assert!(serde_json::from_str::<Hash>("\"00\"").is_err());
    }
}
