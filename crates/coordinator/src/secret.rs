//! Texts and hashes of pre-auth keys and API keys.
//!
//! A key is `lrkey-auth-` or `lrkey-api-`, a prefix of twelve letters, a hyphen, and a secret of 64 random hexadecimal
//! digits. Only a hash of the secret is stored. 256 random bits do not need a slow hash.
//!
//! Keys of headscale are accepted: `hskey-auth-` or `hskey-api-`, twelve letters, a hyphen and 64 letters, with a bcrypt
//! hash. Versions before 0.28 made pre-auth keys of 48 hexadecimal digits, and API keys of seven letters, a full stop
//! and a secret.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The beginning of a pre-auth key.
const MARK: &str = "lrkey-auth-";
/// The beginning of an API key.
const API_MARK: &str = "lrkey-api-";
/// The beginnings of headscale's keys.
const HEADSCALES: &str = "hskey-auth-";
const HEADSCALES_API: &str = "hskey-api-";
/// The length of a key's prefix.
const PREFIX: usize = 12;
/// The length of a key's secret.
const SECRET: usize = 64;
/// The length of a pre-auth key of headscale before 0.28.
const OLD: usize = 48;
/// The length of the prefix of an API key of headscale before 0.28, and the maximum length of its secret.
const OLD_API_PREFIX: usize = 7;
const OLD_API_SECRET: usize = 128;
/// The beginning of a bcrypt hash.
const BCRYPT: &str = "$2";
/// The length of a bcrypt hash (OpenBSD `bcrypt.c`).
const BCRYPT_LEN: usize = 60;

/// The stored hash of a secret. Comparison takes constant time.
#[derive(Clone, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256([u8; 32]),
    /// A bcrypt hash from headscale. It is not equal to any other hash: `slow_hash.rs` verifies its secret, because that
    /// takes long.
    Bcrypt(String),
}

impl Hash {
    /// Hashes a secret.
    pub fn of(secret: &str) -> Self {
        Self::Sha256(Sha256::digest(secret.as_bytes()).into())
    }

    /// Parses a bcrypt hash.
    pub fn of_bcrypt(text: &str) -> Option<Self> {
        let is_hash = text.len() == BCRYPT_LEN && text.starts_with(BCRYPT) && text.is_ascii();
        is_hash.then(|| Self::Bcrypt(text.to_owned()))
    }
}

impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sha256(own), Self::Sha256(other)) => own.ct_eq(other).into(),
            _ => false,
        }
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Sha256(hash) => serializer.serialize_str(&base16ct::lower::encode_string(hash)),
            Self::Bcrypt(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut hash = [0; 32];
        match base16ct::mixed::decode(&text, &mut hash) {
            Ok(read) if read.len() == 32 => Ok(Self::Sha256(hash)),
            _ => Self::of_bcrypt(&text).ok_or_else(|| {
                de::Error::custom("not a hash of 64 hexadecimal digits or of bcrypt")
            }),
        }
    }
}

/// The two parts of a key's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The public part, which identifies the key.
    pub prefix: &'a str,
    /// The secret part.
    pub secret: &'a str,
}

/// Parses a pre-auth key.
pub fn read(text: &str) -> Option<Parts<'_>> {
    if let Some(parts) = read_marked(MARK, HEADSCALES, text) {
        return Some(parts);
    }
    let is_old = text.len() == OLD && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_old.then(|| {
        let (prefix, secret) = text.split_at(PREFIX);
        Parts { prefix, secret }
    })
}

/// Parses an API key.
pub fn read_api(text: &str) -> Option<Parts<'_>> {
    if let Some(parts) = read_marked(API_MARK, HEADSCALES_API, text) {
        return Some(parts);
    }
    let (prefix, secret) = text.split_once('.')?;
    let is_old = prefix.len() == OLD_API_PREFIX && secret.len() <= OLD_API_SECRET;
    is_old.then_some(Parts { prefix, secret })
}

fn read_marked<'a>(own: &str, headscales: &str, text: &'a str) -> Option<Parts<'a>> {
    if let Some(rest) = text.strip_prefix(headscales) {
        return split(rest);
    }
    let parts = split(text.strip_prefix(own)?)?;
    let is_key = parts.prefix.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && parts.secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_key.then_some(parts)
}

/// Splits the text after the beginning. In headscale's keys, both parts may contain hyphens.
fn split(rest: &str) -> Option<Parts<'_>> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if rest.len() != PREFIX + 1 + SECRET || !rest.bytes().all(is_letter) {
        return None;
    }
    let (prefix, rest) = rest.split_at(PREFIX);
    Some(Parts { prefix, secret: rest.strip_prefix('-')? })
}

/// A pre-auth key with its secret masked.
pub fn masked(prefix: &str) -> String {
    format!("{}{prefix}-***", mark(prefix, MARK, HEADSCALES))
}

/// An API key with its secret masked.
pub fn masked_api(prefix: &str) -> String {
    match prefix.len() {
        OLD_API_PREFIX => format!("{prefix}***"),
        _ => format!("{}{prefix}-***", mark(prefix, API_MARK, HEADSCALES_API)),
    }
}

/// Chooses the beginning by the prefix. Our prefixes are hexadecimal, and one in ten million of headscale's is too.
fn mark(prefix: &str, own: &'static str, headscales: &'static str) -> &'static str {
    let is_own = prefix.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_own { own } else { headscales }
}

/// The prefix of a pre-auth key. The text is the whole key, the masked key, or the prefix itself.
pub fn prefix_of(text: &str) -> &str {
    let rest = text.strip_prefix(MARK).or_else(|| text.strip_prefix(HEADSCALES)).unwrap_or(text);
    rest.get(..PREFIX).unwrap_or(rest)
}

/// The prefix of an API key, in the same forms.
pub fn prefix_of_api(text: &str) -> &str {
    let rest = text.strip_prefix(API_MARK).or_else(|| text.strip_prefix(HEADSCALES_API));
    match rest {
        Some(rest) => rest.get(..PREFIX).unwrap_or(rest),
        None => text.split('.').next().unwrap_or(text).trim_end_matches("***"),
    }
}

/// Formats random bytes as a pre-auth key. The first six bytes are its prefix.
pub fn write(random: &[u8; 38]) -> String {
    write_marked(MARK, random)
}

/// Formats random bytes as an API key.
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
    fn a_written_key_is_parsed() {
        let random = std::array::from_fn(|at| at as u8);
        let text = write(&random);
        let parts = read(&text).unwrap();
        assert_eq!((parts.prefix.len(), parts.secret.len()), (12, 64));
        assert!(Hash::of(parts.secret) != Hash::of(parts.prefix));
        let stored = serde_json::to_string(&Hash::of(parts.secret)).unwrap();
        assert!(!stored.contains(parts.secret));
        assert_eq!(serde_json::from_str::<Hash>(&stored).unwrap(), Hash::of(parts.secret));
    }

    #[test]
    fn invalid_keys_are_not_parsed() {
        let text = write(&[1; 38]);
        for wrong in ["", "lrkey-auth-", &text[..text.len() - 1], &text[1..], &format!("{text}0")] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!(read_api(&text).is_none() && read(&write_api(&[1; 38])).is_none());
        assert!(serde_json::from_str::<Hash>("\"00\"").is_err());
    }

    #[test]
    fn the_prefix_of_a_masked_key_equals_that_of_the_key() {
        let own = write_api(&[7; 38]);
        let headscales = format!("hskey-api-ab-_efghij12-{}", "-_Zz".repeat(16));
        for text in [own.as_str(), &headscales, "abcdefg.secret"] {
            let prefix = read_api(text).unwrap().prefix;
            let masked = masked_api(prefix);
            assert!(text.starts_with(masked.trim_end_matches('*')), "{masked}");
            for named in [text, &masked, prefix] {
                assert_eq!(prefix_of_api(named), prefix, "{named}");
            }
        }
        let text = write(&[7; 38]);
        let prefix = read(&text).unwrap().prefix;
        assert_eq!(masked(prefix), "lrkey-auth-070707070707-***");
        assert_eq!(masked("ab-_efghij12"), "hskey-auth-ab-_efghij12-***");
        for named in [&text, &masked(prefix), prefix] {
            assert_eq!(prefix_of(named), prefix, "{named}");
        }
    }

    #[test]
    fn keys_and_bcrypt_hashes_of_headscale_are_parsed() {
        let text = format!("hskey-auth-ab-_efghij12-{}", "-_Zz".repeat(16));
        let parts = read(&text).unwrap();
        assert_eq!((parts.prefix, parts.secret.len()), ("ab-_efghij12", 64));
        assert_eq!(read(&"0f".repeat(24)).unwrap().prefix, "0f0f0f0f0f0f");
        let old = read_api("abcdefg.secret").unwrap();
        assert_eq!((old.prefix, old.secret), ("abcdefg", "secret"));
        assert_eq!(read_api(&text.replace("auth", "api")).unwrap().prefix, "ab-_efghij12");
        for wrong in [&text[..text.len() - 1], &text.replace("12-", "123"), &"0f".repeat(23)] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let hash = format!("$2a$10${}", "a".repeat(53));
        let stored = serde_json::to_string(&Hash::of_bcrypt(&hash).unwrap()).unwrap();
        assert_eq!(stored, format!("\"{hash}\""));
        let read: Hash = serde_json::from_str(&stored).unwrap();
        assert!(matches!(&read, Hash::Bcrypt(text) if *text == hash));
        assert!(read != Hash::of(&hash) && Hash::of_bcrypt(&hash[1..]).is_none());
    }
}
