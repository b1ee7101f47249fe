//! Hashes of the entries of the audit log.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The hash of an entry. The first entry follows the zero hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditHash([u8; 32]);

impl AuditHash {
    /// Returns the hash with these bytes.
    pub(crate) fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base16ct::lower::encode_string(&self.0))
    }
}

impl FromStr for AuditHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hash = [0; 32];
        match base16ct::lower::decode(text, &mut hash) {
            Ok(read) if read.len() == 32 => Ok(Self(hash)),
            _ => Err("not a hash of 64 hexadecimal digits"),
        }
    }
}

impl Serialize for AuditHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
