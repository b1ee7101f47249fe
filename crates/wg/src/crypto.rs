//! Which code computes.

/// The code of handshakes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crypto {
    /// The fastest for this processor, ours among it.
    #[default]
    Fastest,
    /// Libraries alone: ring, x25519-dalek and blake2.
    Library,
}

impl Crypto {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Fastest, Self::Library];

    /// The one with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|crypto| crypto.name().eq_ignore_ascii_case(name))
    }

    /// The word for it in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Library => "library",
        }
    }

    /// This process computes so from now on. Call it before the first handshake.
    ///
    /// # Errors
    /// Packets are encrypted by other code already.
    pub fn apply(self) -> Result<(), aead::ForceError> {
        if self == Self::Library {
            aead::force(aead::Variant::Library)?;
            x25519::use_library();
            blake2s::use_library();
        }
        Ok(())
    }
}
