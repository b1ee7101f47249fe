//! The keys of a tailnet. The text of a key is a prefix and 64 hexadecimal digits (tailscale
//! `types/key`).
//!
//! | key | prefix | use |
//! |---|---|---|
//! | machine | `mkey:` | Noise with the coordinator |
//! | node | `nodekey:` | WireGuard, and the login to relays |
//! | disco | `discokey:` | disco messages, which find paths |

use std::{fmt, str::FromStr};

use crypto::x25519;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseKeyError {
    /// The expected prefix.
    pub prefix: &'static str,
}

impl fmt::Display for ParseKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a key of the form {}<64 hexadecimal digits>", self.prefix)
    }
}

impl std::error::Error for ParseKeyError {}

macro_rules! public_key {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The prefix of the text.
            pub const PREFIX: &str = $prefix;

            /// Returns whether all bytes are zero, which is Go's value for an absent key.
            pub fn is_zero(&self) -> bool {
                self.0 == [0; 32]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, base16ct::lower::encode_string(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseKeyError;

            fn from_str(text: &str) -> Result<Self, ParseKeyError> {
                read_hex(text, $prefix).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                // Go writes an absent key as an empty string.
                if text.is_empty() {
                    return Ok(Self::default());
                }
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

macro_rules! private_key {
    ($(#[$doc:meta])* $name:ident, $public:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Box<Zeroizing<[u8; 32]>>);

        impl $name {
            /// Creates the key from its bytes.
            pub fn new(bytes: Box<Zeroizing<[u8; 32]>>) -> Self {
                Self(bytes)
            }

            /// Returns the bytes.
            pub fn bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The public half.
            pub fn public(&self) -> $public {
                $public(x25519::public_key(&self.0))
            }

            /// Returns the text for the key file.
            pub fn text(&self) -> zeroize::Zeroizing<String> {
                format!("{}{}", $prefix, base16ct::lower::encode_string(&**self.0)).into()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, ".."))
            }
        }

        impl FromStr for $name {
            type Err = ParseKeyError;

            fn from_str(text: &str) -> Result<Self, ParseKeyError> {
                read_hex(text, $prefix).map(|bytes| Self(Box::new(Zeroizing::new(bytes))))
            }
        }
    };
}

public_key!(
    /// The key of a machine, or of a coordinator.
    MachinePublic, "mkey:"
);
public_key!(
    /// The WireGuard key of a node.
    NodePublic, "nodekey:"
);
public_key!(
    /// The key of a node for disco messages.
    DiscoPublic, "discokey:"
);
private_key!(
    /// The private key of [`MachinePublic`].
    MachineKey, MachinePublic, "privkey:"
);
private_key!(
    /// The private key of [`DiscoPublic`].
    DiscoKey, DiscoPublic, "privkey:"
);

fn read_hex(text: &str, prefix: &'static str) -> Result<[u8; 32], ParseKeyError> {
    let mut key = [0; 32];
    let hex =
        text.strip_prefix(prefix).filter(|hex| hex.len() == 64).ok_or(ParseKeyError { prefix })?;
    base16ct::mixed::decode(hex, &mut key).map_err(|_| ParseKeyError { prefix })?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_converted_to_text_and_back() {
        let text = format!("nodekey:{}", "0a".repeat(32));
        let key: NodePublic = text.parse().unwrap();
        assert_eq!(key, NodePublic([10; 32]));
        assert_eq!(key.to_string(), text);
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("{text:?}"));
        assert_eq!(serde_json::from_str::<NodePublic>(&format!("{text:?}")).unwrap(), key);
    }

    #[test]
    fn invalid_key_is_refused_and_empty_text_is_zero() {
        for text in ["nodekey:", "mkey:00", "nodekey:zz", &format!("mkey:{}", "0a".repeat(32))] {
            assert_eq!(
                text.parse::<NodePublic>(),
                Err(ParseKeyError { prefix: "nodekey:" }),
                "{text}"
            );
        }
        assert!(serde_json::from_str::<NodePublic>("\"\"").unwrap().is_zero());
    }
}
