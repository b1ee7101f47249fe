//! Floor 0: the cryptography of linerate. It knows no peers, packets or clocks.
//!
//! ```text
//!   aead      ChaCha20-Poly1305 over a batch of packets      the data of a tunnel
//!   x25519    Diffie-Hellman, up to eight at once    ┐
//!   blake2s   hashes and HKDF, up to sixteen at once ├─ noise   handshakes of WireGuard and ts2021
//!   key       the keys of a user                     ┘
//!   nacl      NaCl's crypto_box                              disco, DERP
//!   tls       the key exchanges of TLS connections (feature `tls`)
//!   stack     wipes secrets that a computation leaves on the stack
//! ```
#![deny(unsafe_code)]

pub mod aead;
pub mod blake2s;
mod implementation;
mod key;
pub mod nacl;
pub mod noise;
pub mod stack;
#[cfg(feature = "tls")]
pub mod tls;
pub mod x25519;

pub use implementation::Crypto;
pub use key::{KEY_LEN, KeyError, PresharedKey, PrivateKey, PublicKey};
