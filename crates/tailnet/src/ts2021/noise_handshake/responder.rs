//! The coordinator's end of the handshake.

use crypto::{PrivateKey, noise::ik, stack};
use zeroize::Zeroizing;

use super::{
    HandshakeError, INITIATION, REPLY, REPLY_HEADER, TYPE_INITIATION, TYPE_REFUSAL, TYPE_REPLY,
    prologue, record_ends,
};
use crate::{
    keys::{MachineKey, MachinePublic},
    ts2021::record::{Opener, Sealer},
};

/// The longest accepted first message. Later versions may send a payload in it.
pub const LONGEST_INITIATION: usize = 4096;

/// The result of a handshake at the coordinator's end.
pub struct Response {
    /// The message to send. The member's records follow it.
    pub reply: [u8; REPLY_HEADER + REPLY],
    /// The machine key of the member. Its owner wrote the first message.
    pub machine: MachinePublic,
    /// The announced capability version of the member.
    pub version: u16,
    /// Seals the records to the member.
    pub sealer: Sealer,
    /// Opens the records of the member.
    pub opener: Opener,
}

impl Response {
    /// Answers a first message. `ephemeral` is 32 fresh random bytes.
    ///
    /// # Errors
    /// The message is not valid, or was written for another key.
    pub fn new(
        key: &MachineKey,
        message: &[u8],
        ephemeral: Zeroizing<[u8; 32]>,
    ) -> Result<Self, HandshakeError> {
        let (version, noise) = read(message)?;
        let accepted = ik::accept(
            prologue(version).as_bytes(),
            &PrivateKey::from_bytes(key.bytes()),
            noise,
            &PrivateKey::from_bytes(&ephemeral),
        );
        let accepted = accepted.ok_or(HandshakeError::NotAuthentic)?;
        let (sealer, opener) = record_ends(&accepted.keys);
        stack::wipe();
        let mut reply = [0; REPLY_HEADER + REPLY];
        reply[0] = TYPE_REPLY;
        reply[1..REPLY_HEADER].copy_from_slice(&(REPLY as u16).to_be_bytes());
        reply[REPLY_HEADER..].copy_from_slice(&accepted.response);
        let machine = MachinePublic(*accepted.remote.as_bytes());
        Ok(Self { reply, machine, version, sealer, opener })
    }
}

/// Returns the announced version and the Noise part of a first message.
fn read(message: &[u8]) -> Result<(u16, &[u8]), HandshakeError> {
    let bad = |kind| HandshakeError::BadReply(kind, message.len());
    let Some((&[v0, v1, kind, high, low], noise)) = message.split_first_chunk() else {
        return Err(bad(0));
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let is_whole = length == noise.len() && message.len() >= INITIATION;
    if kind != TYPE_INITIATION || !is_whole || message.len() > LONGEST_INITIATION {
        return Err(bad(kind));
    }
    Ok((u16::from_be_bytes([v0, v1]), noise))
}

/// Writes a refusal with a text for the user.
pub fn refusal(text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(super::LONGEST_REFUSAL)];
    let mut message = vec![TYPE_REFUSAL];
    message.extend_from_slice(&(text.len() as u16).to_be_bytes());
    message.extend_from_slice(text);
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ts2021::{
        noise_handshake::{
            Initiation,
            tests::{coordinator, member},
        },
        record::tests::exchange,
    };

    fn ephemeral(fill: u8) -> Zeroizing<[u8; 32]> {
        Zeroizing::new([fill; 32])
    }

    #[test]
    fn handshake_reveals_the_machine_key_and_both_ends_can_decrypt() {
        let (key, public) = coordinator();
        let (initiation, message) = Initiation::new(&member(), &public, 131, ephemeral(3)).unwrap();
        let mut response = Response::new(&key, &message, ephemeral(4)).unwrap();
        assert_eq!((response.version, response.machine), (131, member().public()));
        let (_, reply) = response.reply.split_first_chunk::<REPLY_HEADER>().unwrap();
        let (mut sealer, mut opener) = initiation.finish(reply.try_into().unwrap()).unwrap();
        for text in [&b"one"[..], b"two"] {
            assert_eq!(exchange(&mut sealer, &mut response.opener, text), text);
            assert_eq!(exchange(&mut response.sealer, &mut opener, text), text);
        }
    }

    #[test]
    fn changed_or_foreign_initiation_is_refused() {
        let (key, public) = coordinator();
        let (_, message) = Initiation::new(&member(), &public, 131, ephemeral(3)).unwrap();
        for at in 0..message.len() {
            let mut changed = message;
            changed[at] ^= 1;
            assert!(Response::new(&key, &changed, ephemeral(4)).is_err(), "byte {at}");
            assert!(Response::new(&key, &message[..at], ephemeral(4)).is_err());
        }
        assert!(Response::new(&member(), &message, ephemeral(4)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (key, _) = coordinator();
            prop_assert!(Response::new(&key, &bytes, ephemeral(4)).is_err());
        }
    }
}
