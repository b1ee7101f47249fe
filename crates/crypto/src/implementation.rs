//! Choice of the cryptographic code.

use crate::{
    aead::{self, ForceError},
    blake2s, x25519,
};

/// The implementation used for handshakes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crypto {
    /// The fastest available on this processor, including our own code.
    #[default]
    Fastest,
    /// Only libraries: ring, x25519-dalek and blake2.
    Library,
}

impl Crypto {
    pub const ALL: [Self; 2] = [Self::Fastest, Self::Library];

    /// Returns the value with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|crypto| crypto.name().eq_ignore_ascii_case(name))
    }

    /// The name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Library => "library",
        }
    }

    /// Applies the choice to this process. Call it before the first handshake.
    ///
    /// # Errors
    /// Another implementation is already in use for packets.
    pub fn apply(self) -> Result<(), ForceError> {
        if self == Self::Library {
            aead::force(aead::Variant::Library)?;
            x25519::use_library();
            blake2s::use_library();
        }
        Ok(())
    }
}
