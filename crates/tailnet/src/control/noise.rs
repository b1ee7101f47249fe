//! The handshake: Noise IK with the capability version in the prologue (tailscale
//! `control/controlbase/handshake.go`).
//!
//! ```text
//!   member                                     coordinator
//!     | version, 01, length 96, e, s, tag            |
//!     |--------------------------------------------->|
//!     |                  02, length 48, e, tag       |
//!     |<---------------------------------------------|
//!     |                  or 03, length, a text       |
//! ```

mod response;

use std::{fmt, sync::Arc};

use snow::{
    Builder, HandshakeState,
    params::{CipherChoice, DHChoice, HashChoice, NoiseParams},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::Zeroizing;

pub use self::response::{LONGEST_INITIATION, Response, refusal};
use super::record::{Opener, Sealer};
use crate::keys::{MachineKey, MachinePublic};

/// The length of the first message, with its header.
pub const INITIATION: usize = 101;
/// The length of a reply's header: the type, and the length of the rest.
pub const REPLY_HEADER: usize = 3;
/// The length of a reply without its header.
pub const REPLY: usize = 48;
/// The longest text of a refusal that is read, in bytes. It is not authenticated.
pub const LONGEST_REFUSAL: usize = 1024;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
const TYPE_INITIATION: u8 = 1;
const TYPE_REPLY: u8 = 2;
const TYPE_REFUSAL: u8 = 3;

/// The reason why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The coordinator's key is not valid.
    BadKey,
    /// The type and length of a message that are not valid.
    BadReply(u8, usize),
    /// The message was not created with the key of the other end, or not for our key.
    NotAuthentic,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadKey => f.write_str("the coordinator's key is not usable"),
            Self::BadReply(kind, len) => {
                write!(f, "the handshake message has type {kind} and length {len}")
            }
            Self::NotAuthentic => {
                f.write_str("the handshake message does not match the coordinator's key")
            }
        }
    }
}

impl std::error::Error for HandshakeError {}

/// The kind of a reply, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// [`REPLY`] bytes for [`Initiation::finish`] follow.
    Accepted,
    /// A text of this length follows. It is not authenticated.
    Refused(usize),
}

impl Reply {
    /// Reads the header.
    ///
    /// # Errors
    /// It is not the header of a reply.
    pub fn read(header: [u8; REPLY_HEADER]) -> Result<Self, HandshakeError> {
        let [kind, high, low] = header;
        match (kind, usize::from(u16::from_be_bytes([high, low]))) {
            (TYPE_REPLY, REPLY) => Ok(Self::Accepted),
            (TYPE_REFUSAL, len) => Ok(Self::Refused(len.min(LONGEST_REFUSAL))),
            (kind, len) => Err(HandshakeError::BadReply(kind, len)),
        }
    }
}

/// A handshake after the first message was written.
pub struct Initiation(Box<HandshakeState>);

impl Initiation {
    /// Writes the first message. `ephemeral` is 32 fresh random bytes.
    ///
    /// # Errors
    /// The coordinator's key is not valid.
    pub fn new(
        machine: &MachineKey,
        coordinator: &MachinePublic,
        version: u16,
        ephemeral: Zeroizing<[u8; 32]>,
    ) -> Result<(Self, [u8; INITIATION]), HandshakeError> {
        if coordinator.is_zero() {
            return Err(HandshakeError::BadKey);
        }
        let pattern: NoiseParams = PATTERN.parse().expect("a pattern that snow knows");
        let prologue = prologue(version);
        let mut state = Builder::with_resolver(pattern, Box::new(Given(ephemeral)))
            .prologue(prologue.as_bytes())
            .and_then(|builder| builder.local_private_key(machine.bytes()))
            .and_then(|builder| builder.remote_public_key(&coordinator.0))
            .and_then(Builder::build_initiator)
            .map_err(|_| HandshakeError::BadKey)?;
        let mut message = [0; INITIATION];
        let (header, noise) = message.split_at_mut(5);
        header[..2].copy_from_slice(&version.to_be_bytes());
        header[2] = TYPE_INITIATION;
        header[3..].copy_from_slice(&96u16.to_be_bytes());
        state.write_message(&[], noise).map_err(|_| HandshakeError::BadKey)?;
        Ok((Self(Box::new(state)), message))
    }

    /// Reads the reply without its header.
    ///
    /// # Errors
    /// The reply is not authentic.
    pub fn finish(mut self, reply: &[u8; REPLY]) -> Result<(Sealer, Opener), HandshakeError> {
        let mut none = [0; REPLY];
        match self.0.read_message(reply, &mut none) {
            Ok(0) => {}
            _ => return Err(HandshakeError::NotAuthentic),
        }
        let keys =
            self.0.into_stateless_transport_mode().map_err(|_| HandshakeError::NotAuthentic)?;
        let keys = Arc::new(keys);
        Ok((Sealer::new(Arc::clone(&keys)), Opener::new(keys)))
    }
}

/// Returns the prologue, which both ends mix into the handshake.
pub fn prologue(version: u16) -> String {
    format!("Tailscale Control Protocol v{version}")
}

/// The default primitives with the given random bytes.
struct Given(Zeroizing<[u8; 32]>);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Returns its bytes once, because each end has one ephemeral key.
struct Once(Option<Zeroizing<[u8; 32]>>);

impl Random for Once {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if to.len() == bytes.len() => {
                to.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
