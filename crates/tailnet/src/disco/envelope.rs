//! Datagrams: messages that are sealed with two disco keys.

use std::collections::HashMap;

pub use crypto::nacl::NONCE_LEN;
use crypto::nacl::{BoxKey, TAG_LEN as TAG};

use super::{DiscoError, MAGIC, Message};
use crate::keys::{DiscoKey, DiscoPublic};

const KEY: usize = 32;
const HEADER: usize = MAGIC.len() + KEY + NONCE_LEN;

/// The number of cached shared keys. To compute one takes 50 us of CPU.
const KEPT: usize = 1024;

/// Returns the claimed sender of a disco datagram. Check that the key is known before the datagram
/// is opened, because that may compute a shared key.
pub fn sender(datagram: &[u8]) -> Option<DiscoPublic> {
    let (magic, rest) = datagram.split_first_chunk()?;
    let (key, rest) = rest.split_first_chunk()?;
    let is_disco = *magic == MAGIC && rest.len() >= NONCE_LEN;
    // Everyone can compute the shared key of an all-zero key.
    is_disco.then_some(DiscoPublic(*key)).filter(|key| !key.is_zero())
}

/// Seals and opens the datagrams of one disco key.
#[derive(Debug)]
pub struct Disco {
    key: DiscoKey,
    public: DiscoPublic,
    shared: SharedKeys,
}

impl Disco {
    /// Uses this key.
    pub fn new(key: DiscoKey) -> Self {
        let public = key.public();
        Self { key, public, shared: SharedKeys::default() }
    }

    /// Returns the public key.
    pub fn public(&self) -> DiscoPublic {
        self.public
    }

    /// Returns the datagram with a message for `to`. The nonce must be random, or never used
    /// before.
    pub fn seal(&mut self, to: DiscoPublic, message: &Message, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(HEADER + TAG + 64);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&self.public.0);
        datagram.extend_from_slice(&nonce);
        // The tag of a NaCl box is at its beginning.
        datagram.extend_from_slice(&[0; TAG]);
        message.write(&mut datagram);
        let shared = self.shared.with(&self.key, to);
        let text = &mut datagram[HEADER + TAG..];
        let tag = shared.seal(&nonce, text);
        datagram[HEADER..][..TAG].copy_from_slice(&tag);
        datagram
    }

    /// Returns the sender and the message of a datagram.
    ///
    /// # Errors
    /// It is not a disco message, or not for this key.
    pub fn open(&mut self, datagram: &[u8]) -> Result<(DiscoPublic, Message), DiscoError> {
        let from = sender(datagram).ok_or(DiscoError::NotDisco)?;
        let sealed = &datagram[MAGIC.len() + KEY..];
        let (nonce, sealed) = sealed.split_first_chunk().ok_or(DiscoError::NotDisco)?;
        let (tag, sealed) = sealed.split_first_chunk().ok_or(DiscoError::Forged)?;
        let mut text = sealed.to_vec();
        if !self.shared.with(&self.key, from).open(nonce, &mut text, tag) {
            return Err(DiscoError::Forged);
        }
        Ok((from, Message::read(&text)?))
    }
}

/// The shared keys, at most [`KEPT`]: the most recently used ones.
#[derive(Default)]
struct SharedKeys {
    /// Boxed, so that the map does not leave copies of keys in memory when it grows.
    keys: HashMap<DiscoPublic, (Box<BoxKey>, u64)>,
    uses: u64,
}

impl SharedKeys {
    fn with(&mut self, own: &DiscoKey, other: DiscoPublic) -> &BoxKey {
        self.uses += 1;
        if self.keys.len() >= KEPT && !self.keys.contains_key(&other) {
            // Removes half of them at once: a search for the oldest with each new key would cost as
            // much as the key.
            let mut uses: Vec<u64> = self.keys.values().map(|(_, used)| *used).collect();
            let (_, &mut median, _) = uses.select_nth_unstable(KEPT / 2);
            self.keys.retain(|_, (_, used)| *used > median);
        }
        let (shared, used) = self
            .keys
            .entry(other)
            .or_insert_with(|| (Box::new(BoxKey::new(own.bytes(), &other.0)), 0));
        *used = self.uses;
        shared
    }
}

impl std::fmt::Debug for SharedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared keys", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use crypto_box::{
        PublicKey, SalsaBox, SecretKey,
        aead::{Aead as _, generic_array::GenericArray},
    };
    use zeroize::Zeroizing;

    use super::*;

    fn disco(byte: u8) -> Disco {
        Disco::new(DiscoKey::new(Box::new(Zeroizing::new([byte; 32]))))
    }

    fn ping(padding: usize) -> Message {
        Message::Ping { tx: [3; 12], node_key: None, padding }
    }

    #[test]
    fn sealed_message_is_opened_by_the_receiver() {
        let (mut a, mut b) = (disco(1), disco(2));
        let datagram = a.seal(b.public(), &ping(100), [7; 24]);
        assert_eq!(datagram.len(), HEADER + TAG + 2 + 12 + 100);
        assert_eq!(sender(&datagram), Some(a.public()));
        assert_eq!(b.open(&datagram), Ok((a.public(), ping(100))));
    }

    #[test]
    fn datagram_is_magic_key_nonce_and_nacl_box() {
        let (mut a, b) = (disco(1), disco(2));
        let datagram = a.seal(b.public(), &ping(0), [7; 24]);
        let reference = SalsaBox::new(&PublicKey::from(a.public().0), &SecretKey::from([2; 32]));
        let text = reference.decrypt(GenericArray::from_slice(&[7; 24]), &datagram[HEADER..]);
        let mut expected = Vec::new();
        ping(0).write(&mut expected);
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn changed_or_truncated_datagram_is_refused() {
        let (mut a, mut b) = (disco(1), disco(2));
        let datagram = a.seal(b.public(), &ping(0), [7; 24]);
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            let error = if at < MAGIC.len() { DiscoError::NotDisco } else { DiscoError::Forged };
            assert_eq!(b.open(&changed), Err(error), "byte {at}");
            assert!(b.open(&datagram[..at]).is_err(), "{at} bytes");
        }
        assert_eq!(disco(3).open(&datagram), Err(DiscoError::Forged));
    }

    #[test]
    fn sender_with_zero_key_is_ignored() {
        let mut datagram = MAGIC.to_vec();
        datagram.extend_from_slice(&[0; KEY + NONCE_LEN + TAG + 2]);
        assert_eq!(sender(&datagram), None);
        assert_eq!(disco(1).open(&datagram), Err(DiscoError::NotDisco));
    }

    #[test]
    fn strangers_cannot_exceed_the_number_of_cached_keys() {
        let (mut a, b) = (disco(1), disco(2));
        a.seal(b.public(), &ping(0), [0; 24]);
        for number in 1..=u32::try_from(KEPT).unwrap() + 10 {
            let mut stranger = [9; 32];
            stranger[..4].copy_from_slice(&number.to_le_bytes());
            a.shared.with(&a.key, DiscoPublic(stranger));
            // A key in use stays.
            a.shared.with(&a.key, b.public());
            assert!(a.shared.keys.len() <= KEPT);
        }
        assert!(a.shared.keys.contains_key(&b.public()));
    }
}
