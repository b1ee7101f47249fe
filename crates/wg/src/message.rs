//! The four messages on the wire (paper 5.4), parsed into types that borrow the datagram.

use crate::{cookie::COOKIE_LEN, tai64n::TAI64N_LEN};

/// Bytes of a MAC.
pub const MAC_LEN: usize = 16;
const TAG: usize = crypto::aead::TAG_LEN;
const KEY: usize = 32;

/// Bytes of a handshake initiation.
pub const INITIATION_LEN: usize = 4 + 4 + KEY + (KEY + TAG) + (TAI64N_LEN + TAG) + 2 * MAC_LEN;
/// Bytes of a handshake response.
pub const RESPONSE_LEN: usize = 4 + 4 + 4 + KEY + TAG + 2 * MAC_LEN;
/// Bytes of a cookie reply.
pub const COOKIE_REPLY_LEN: usize = 4 + 4 + 24 + COOKIE_LEN + TAG;
/// Bytes before the ciphertext of transport data.
pub const DATA_HEADER_LEN: usize = 16;
/// Bytes that transport data adds to its plaintext.
pub const DATA_OVERHEAD: usize = DATA_HEADER_LEN + TAG;
/// Bytes of the longest message other than transport data.
pub const MAX_HANDSHAKE_LEN: usize = INITIATION_LEN;

/// The type of a message. On the wire it is a little-endian number in the first four bytes. Its
/// upper three bytes are reserved zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshake initiation, of the right length.
    Initiation,
    /// Handshake response, of the right length.
    Response,
    /// Cookie reply, of the right length.
    CookieReply,
    /// Transport data, at least header and tag.
    Data,
}

impl Kind {
    /// Returns the kind of a datagram, or `None` if it is not a WireGuard message.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        let number = u32::from_le_bytes(*datagram.first_chunk()?);
        let (kind, fits) = match number {
            1 => (Self::Initiation, datagram.len() == INITIATION_LEN),
            2 => (Self::Response, datagram.len() == RESPONSE_LEN),
            3 => (Self::CookieReply, datagram.len() == COOKIE_REPLY_LEN),
            4 => (Self::Data, datagram.len() >= DATA_OVERHEAD),
            _ => return None,
        };
        fits.then_some(kind)
    }

    const fn number(self) -> [u8; 4] {
        match self {
            Self::Initiation => [1, 0, 0, 0],
            Self::Response => [2, 0, 0, 0],
            Self::CookieReply => [3, 0, 0, 0],
            Self::Data => [4, 0, 0, 0],
        }
    }
}

/// Splits the next field off the front of a message.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (field, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(field)
}

/// Handshake initiation (paper 5.4.2), without its MACs.
#[derive(Clone, Copy, Debug)]
pub struct Initiation<'a> {
    /// The initiator's index for this handshake.
    pub sender: u32,
    /// Ephemeral public key, in the clear.
    pub ephemeral: &'a [u8; KEY],
    /// The initiator's static public key, sealed.
    pub static_key: &'a [u8; KEY + TAG],
    /// The timestamp, sealed.
    pub timestamp: &'a [u8; TAI64N_LEN + TAG],
}

impl<'a> Initiation<'a> {
    /// Parses a datagram. `None` if it is not an initiation.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        if Kind::of(datagram)? != Kind::Initiation {
            return None;
        }
        let mut rest = &datagram[4..];
        Some(Self {
            sender: u32::from_le_bytes(*take(&mut rest)?),
            ephemeral: take(&mut rest)?,
            static_key: take(&mut rest)?,
            timestamp: take(&mut rest)?,
        })
    }

    /// Encodes the message, with zeros in place of the MACs.
    pub fn encode(&self) -> Handshake {
        Handshake::of(Kind::Initiation, INITIATION_LEN)
            .put(&self.sender.to_le_bytes())
            .put(self.ephemeral)
            .put(self.static_key)
            .put(self.timestamp)
    }
}

/// Handshake response (paper 5.4.3), without its MACs.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The responder's index for this session.
    pub sender: u32,
    /// The initiator's index, from its initiation.
    pub receiver: u32,
    /// Ephemeral public key, in the clear.
    pub ephemeral: &'a [u8; KEY],
    /// An empty plaintext, sealed.
    pub encrypted_nothing: &'a [u8; TAG],
}

impl<'a> Response<'a> {
    /// Parses a datagram. `None` if it is not a response.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        if Kind::of(datagram)? != Kind::Response {
            return None;
        }
        let mut rest = &datagram[4..];
        Some(Self {
            sender: u32::from_le_bytes(*take(&mut rest)?),
            receiver: u32::from_le_bytes(*take(&mut rest)?),
            ephemeral: take(&mut rest)?,
            encrypted_nothing: take(&mut rest)?,
        })
    }

    /// Encodes the message, with zeros in place of the MACs.
    pub fn encode(&self) -> Handshake {
        Handshake::of(Kind::Response, RESPONSE_LEN)
            .put(&self.sender.to_le_bytes())
            .put(&self.receiver.to_le_bytes())
            .put(self.ephemeral)
            .put(self.encrypted_nothing)
    }
}

/// Cookie reply (paper 5.4.7).
#[derive(Clone, Copy, Debug)]
pub struct CookieReply<'a> {
    /// The sender's index in the message that it answers.
    pub receiver: u32,
    /// The nonce of the sealed cookie.
    pub nonce: &'a [u8; 24],
    /// The cookie, sealed.
    pub cookie: &'a [u8; COOKIE_LEN + TAG],
}

impl<'a> CookieReply<'a> {
    /// Parses a datagram. `None` if it is not a cookie reply.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        if Kind::of(datagram)? != Kind::CookieReply {
            return None;
        }
        let mut rest = &datagram[4..];
        Some(Self {
            receiver: u32::from_le_bytes(*take(&mut rest)?),
            nonce: take(&mut rest)?,
            cookie: take(&mut rest)?,
        })
    }

    /// Encodes the message.
    pub fn encode(&self) -> Handshake {
        Handshake::of(Kind::CookieReply, COOKIE_REPLY_LEN)
            .put(&self.receiver.to_le_bytes())
            .put(self.nonce)
            .put(self.cookie)
    }
}

/// The header of transport data (paper 5.4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The receiver's index for the session.
    pub receiver: u32,
    /// The nonce.
    pub counter: u64,
}

impl DataHeader {
    /// Parses the header of a datagram of [`Kind::Data`].
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let mut rest = datagram.get(4..)?;
        Some(Self {
            receiver: u32::from_le_bytes(*take(&mut rest)?),
            counter: u64::from_le_bytes(*take(&mut rest)?),
        })
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; DATA_HEADER_LEN] {
        let mut bytes = [0; DATA_HEADER_LEN];
        bytes[..4].copy_from_slice(&Kind::Data.number());
        bytes[4..8].copy_from_slice(&self.receiver.to_le_bytes());
        bytes[8..].copy_from_slice(&self.counter.to_le_bytes());
        bytes
    }
}

/// The bytes of a message other than transport data.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    bytes: [u8; MAX_HANDSHAKE_LEN],
    filled: usize,
    len: usize,
}

impl Handshake {
    fn of(kind: Kind, len: usize) -> Self {
        Self { bytes: [0; MAX_HANDSHAKE_LEN], filled: 0, len }.put(&kind.number())
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.filled..self.filled + field.len()].copy_from_slice(field);
        self.filled += field.len();
        self
    }

    /// Copies a received datagram. `None` if it is longer than a handshake message can be.
    pub fn copy_of(datagram: &[u8]) -> Option<Self> {
        let len = datagram.len();
        let mut message = Self { bytes: [0; MAX_HANDSHAKE_LEN], filled: len, len };
        message.bytes.get_mut(..len)?.copy_from_slice(datagram);
        Some(message)
    }

    /// The bytes of the message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_lengths_match_the_paper() {
        assert_eq!((INITIATION_LEN, RESPONSE_LEN, COOKIE_REPLY_LEN), (148, 92, 64));
    }

    #[test]
    fn datagram_with_wrong_length_or_reserved_bit_is_rejected() {
        for (number, len) in [(1u32, 148), (2, 92), (3, 64), (4, 32)] {
            let mut datagram = vec![0; len];
            datagram[..4].copy_from_slice(&number.to_le_bytes());
            assert!(Kind::of(&datagram).is_some());
            assert!(Kind::of(&datagram[..len - 1]).is_none());
            assert_eq!(Kind::of(&[&datagram[..], &[0]].concat()).is_some(), number == 4);
            datagram[3] = 1;
            assert!(Kind::of(&datagram).is_none());
        }
        assert!(Kind::of(&[1, 0, 0]).is_none());
        assert!(Kind::of(&[]).is_none());
    }
}
