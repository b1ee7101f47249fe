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

mod responder;

use std::fmt;

use crypto::{
    PrivateKey, PublicKey,
    noise::{TransportKeys, ik},
    stack,
};
use zeroize::Zeroizing;

pub use self::responder::{LONGEST_INITIATION, Response, refusal};
use super::record::{Opener, Sealer};
use crate::keys::{MachineKey, MachinePublic};

/// The length of the first message, with its header.
pub const INITIATION: usize = HEADER + ik::INITIATION_LEN;
/// The length of a reply's header: the type, and the length of the rest.
pub const REPLY_HEADER: usize = 3;
/// The length of a reply without its header.
pub const REPLY: usize = ik::RESPONSE_LEN;
/// The longest text of a refusal that is read, in bytes. It is not authenticated.
pub const LONGEST_REFUSAL: usize = 1024;

/// The length of the first message's header.
const HEADER: usize = 5;
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
pub struct Initiation(ik::Initiator);

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
        let mut message = [0; INITIATION];
        let (header, noise) = message.split_at_mut(HEADER);
        header[..2].copy_from_slice(&version.to_be_bytes());
        header[2] = TYPE_INITIATION;
        header[3..].copy_from_slice(&(ik::INITIATION_LEN as u16).to_be_bytes());
        let started = ik::Initiator::start(
            prologue(version).as_bytes(),
            &PrivateKey::from_bytes(machine.bytes()),
            &PublicKey::from(coordinator.0),
            PrivateKey::from_bytes(&ephemeral),
        );
        let (initiator, written) = started.ok_or(HandshakeError::BadKey)?;
        stack::wipe();
        noise.copy_from_slice(&written);
        Ok((Self(initiator), message))
    }

    /// Reads the reply without its header.
    ///
    /// # Errors
    /// The reply is not authentic.
    pub fn finish(self, reply: &[u8; REPLY]) -> Result<(Sealer, Opener), HandshakeError> {
        let keys = self.0.finish(reply).ok_or(HandshakeError::NotAuthentic)?;
        let ends = record_ends(&keys);
        stack::wipe();
        Ok(ends)
    }
}

fn record_ends(keys: &TransportKeys) -> (Sealer, Opener) {
    (Sealer::new(&keys.send), Opener::new(&keys.recv))
}

/// Returns the prologue, which both ends mix into the handshake.
pub fn prologue(version: u16) -> String {
    format!("Tailscale Control Protocol v{version}")
}

#[cfg(test)]
pub(super) mod tests;
