//! ChaCha20-Poly1305 (RFC 8439) over a batch of packets, in place.
//!
//! Each packet of a batch has its own key, counter, length and result. The nonce is WireGuard's: 32
//! zero bits, then the counter in little-endian (paper section 5.4.6). There is no associated data,
//! and nothing is allocated. On first use, the best implementation that this processor supports is
//! chosen ([`Variant`]).
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod group;
mod key;
mod library;
#[cfg(target_arch = "x86_64")]
mod poly1305;
pub mod spec;
mod variant;

pub use key::Key;
pub use variant::{ForceError, Variant, force, variant};

/// Whether packets are encrypted and authenticated. `false` only in a build with `--cfg
/// linerate_without_crypto`, which measures the cost of everything else (`make ceiling`). Such a
/// build encrypts nothing and accepts every packet.
pub const IS_SECURE: bool = !cfg!(linerate_without_crypto);

/// Bytes of the authentication tag after the ciphertext.
pub const TAG_LEN: usize = 16;

/// A packet to seal.
#[derive(Debug)]
pub struct Seal<'a> {
    /// The key. Packets of one batch may have different keys.
    pub key: &'a Key,
    /// The nonce. Must not be used twice with one key.
    pub counter: u64,
    /// The plaintext, followed by [`TAG_LEN`] bytes of room for the tag.
    pub data: &'a mut [u8],
}

/// A packet to open.
#[derive(Debug)]
pub struct Open<'a> {
    /// The key. Packets of one batch may have different keys.
    pub key: &'a Key,
    /// The nonce with which the packet was sealed.
    pub counter: u64,
    /// The ciphertext and its tag. On success it contains the plaintext and the tag's room; on
    /// failure unspecified bytes, but no plaintext.
    pub data: &'a mut [u8],
    /// The result: whether the tag is valid.
    pub authentic: bool,
}

/// Groups of a batch that a variant processes. The library processes the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selection {
    All,
    /// Those that the variant processes faster than the library.
    Faster,
}

/// Seals every packet in place.
///
/// # Panics
/// If a packet's data is shorter than a tag.
pub fn seal(batch: &mut [Seal<'_>]) {
    match batch {
        _ if !IS_SECURE => {}
        [packet] => packet.key.seal(packet.counter, packet.data),
        _ => variant().seal_selected(batch, Selection::Faster),
    }
}

/// Opens every packet in place, and sets whether each is authentic. A forged packet does not affect
/// the others.
pub fn open(batch: &mut [Open<'_>]) {
    match batch {
        _ if !IS_SECURE => batch.iter_mut().for_each(|packet| packet.authentic = true),
        [packet] => packet.authentic = packet.key.open(packet.counter, packet.data),
        _ => variant().open_selected(batch, Selection::Faster),
    }
}

#[cfg(test)]
mod tests;
