//! Messages by which both sides agree on a secret inside a session (docs/decisions/0016).
//!
//! Each message is the plaintext of transport data. As with path MTU probes ([`crate::Probe`]), the
//! first byte matches no version of IP, so a peer without support drops it after authentication.
//! Every message fits every path: a key and a ciphertext are sent in three parts.
//!
//! ```text
//!   | \0PQ-KEM1 | kind | part | 0 | id | body |
//!   0           8      9      10  12   16
//! ```
//!
//! Numbers are little-endian, as everywhere in the protocol.

use std::ops::Range;

use super::kem::{CIPHERTEXT_LEN, KEY_LEN};

const MAGIC: [u8; 8] = *b"\0PQ-KEM1";
const HEADER_LEN: usize = 16;
/// Bytes of a part except the last one. Three of them hold a key. With all headers a part is
/// shorter than the 576 bytes that every host accepts.
const PART_LEN: usize = 400;
/// Number of parts of a key and of a ciphertext.
pub(crate) const PARTS: u8 = 3;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Asks whether the peer supports the exchange, and to start if the peer is the offerer.
    Request = 1,
    /// The answer to a request: the peer supports it.
    Answer = 2,
    /// A part of a public key.
    Key = 3,
    /// A part of a ciphertext.
    Ciphertext = 4,
    /// The ciphertext arrived. Its secret may be used.
    Done = 5,
    /// The answer to `Done`: the secret is in use from now on.
    Ready = 6,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Request, Self::Answer, Self::Key, Self::Ciphertext, Self::Done, Self::Ready];

    /// Total bytes of a key or ciphertext that is sent in parts. 0 for other kinds.
    pub(crate) fn whole_len(self) -> usize {
        match self {
            Self::Key => KEY_LEN,
            Self::Ciphertext => CIPHERTEXT_LEN,
            Self::Request | Self::Answer | Self::Done | Self::Ready => 0,
        }
    }

    /// The range of a part in the whole.
    fn range(self, part: u8) -> Range<usize> {
        let at = |part: usize| (part * PART_LEN).min(self.whole_len());
        at(part.into())..at(usize::from(part) + 1)
    }
}

/// A message of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeMessage {
    pub(crate) kind: Kind,
    pub(crate) part: u8,
    /// Identifies the exchange. 0 before there is one.
    pub(crate) id: u32,
    pub(crate) body: Box<[u8]>,
}

impl ExchangeMessage {
    /// Creates a message without a body.
    pub(crate) fn short(kind: Kind, id: u32) -> Self {
        Self { kind, part: 0, id, body: Box::default() }
    }

    /// Splits a key or a ciphertext into messages.
    pub(crate) fn parts(kind: Kind, id: u32, whole: &[u8]) -> impl Iterator<Item = Self> {
        (0..PARTS).map(move |part| Self { kind, part, id, body: whole[kind.range(part)].into() })
    }

    /// Parses a decrypted plaintext. `None` if it is not a message of the exchange.
    pub fn parse(plaintext: &[u8]) -> Option<Self> {
        let (header, body) = plaintext.split_first_chunk::<HEADER_LEN>()?;
        let (magic, &[kind, part, 0, 0, i0, i1, i2, i3]) = header.split_first_chunk()? else {
            return None;
        };
        let kind = *Kind::ALL.get(usize::from(kind).checked_sub(1)?)?;
        let parts = if kind.whole_len() == 0 { 1 } else { PARTS };
        let fits = part < parts && body.len() == kind.range(part).len();
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        (*magic == MAGIC && fits).then(|| Self { kind, part, id, body: body.into() })
    }

    /// Bytes of the plaintext.
    pub fn plaintext_len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// Writes the plaintext.
    ///
    /// # Panics
    /// If the length of `plaintext` is not [`ExchangeMessage::plaintext_len`].
    pub fn write(&self, plaintext: &mut [u8]) {
        assert_eq!(plaintext.len(), self.plaintext_len());
        plaintext[..8].copy_from_slice(&MAGIC);
        plaintext[8..12].copy_from_slice(&[self.kind as u8, self.part, 0, 0]);
        plaintext[12..HEADER_LEN].copy_from_slice(&self.id.to_le_bytes());
        plaintext[HEADER_LEN..].copy_from_slice(&self.body);
    }
}

/// A key or a ciphertext in reassembly. Its parts may arrive in any order.
pub(crate) struct Reassembly {
    kind: Kind,
    pub id: u32,
    whole: Box<[u8]>,
    received: u8,
}

impl Reassembly {
    pub(crate) fn new(kind: Kind, id: u32) -> Self {
        Self { kind, id, whole: vec![0; kind.whole_len()].into(), received: 0 }
    }

    /// Adds a part. Returns the whole once all parts have arrived.
    pub(crate) fn add(&mut self, message: &ExchangeMessage) -> Option<&[u8]> {
        if (message.kind, message.id) != (self.kind, self.id) {
            return None;
        }
        self.whole[self.kind.range(message.part)].copy_from_slice(&message.body);
        self.received |= 1 << message.part;
        (self.received == (1 << PARTS) - 1).then_some(&self.whole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(message: &ExchangeMessage) -> Vec<u8> {
        let mut plaintext = vec![0xff; message.plaintext_len()];
        message.write(&mut plaintext);
        plaintext
    }

    fn any_message() -> impl Strategy<Value = ExchangeMessage> {
        (prop::sample::select(&Kind::ALL[..]), 0..PARTS, any::<u32>(), any::<u8>()).prop_map(
            |(kind, part, id, fill)| match kind.whole_len() {
                0 => ExchangeMessage::short(kind, id),
                len => {
                    let whole = vec![fill; len];
                    let mut parts = ExchangeMessage::parts(kind, id, &whole);
                    parts.nth(part.into()).expect("a part")
                }
            },
        )
    }

    #[test]
    fn every_part_fits_in_a_576_byte_packet() {
        for kind in [Kind::Key, Kind::Ciphertext] {
            let whole = vec![7; kind.whole_len()];
            for part in ExchangeMessage::parts(kind, 1, &whole) {
                assert!(part.plaintext_len() + 32 + 8 + 60 <= 576, "{}", part.plaintext_len());
            }
        }
    }

    proptest! {
        #[test]
        fn written_messages_parse_and_truncated_or_longer_ones_do_not(
            message in any_message(), cut in any::<prop::sample::Index>()
        ) {
            let mut plaintext = written(&message);
            prop_assert_eq!(ExchangeMessage::parse(&plaintext), Some(message));
            prop_assert_eq!(plaintext[0], crate::PROBE_FIRST_BYTE);
            prop_assert_eq!(crate::Probe::parse(&plaintext), None);
            let cut = cut.index(plaintext.len());
            prop_assert_eq!(ExchangeMessage::parse(&plaintext[..cut]), None);
            plaintext.push(0);
            prop_assert_eq!(ExchangeMessage::parse(&plaintext), None);
        }

        #[test]
        fn messages_parsed_from_random_bytes_are_written_identically(
            mut bytes in prop::collection::vec(any::<u8>(), 0..500), kind in 0u8..9, part in 0u8..5
        ) {
            if bytes.len() >= HEADER_LEN {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&[kind, part, 0, 0]);
            }
            for len in [bytes.len(), HEADER_LEN, HEADER_LEN + 288, HEADER_LEN + 384, HEADER_LEN + 400] {
                if let Some(message) = bytes.get(..len).and_then(ExchangeMessage::parse) {
                    prop_assert_eq!(written(&message), &bytes[..len]);
                }
            }
        }

        #[test]
        fn parts_in_any_order_and_with_duplicates_give_the_whole(
            whole in prop::collection::vec(any::<u8>(), KEY_LEN),
            order in Just([0, 1, 2, 0, 1, 2]).prop_shuffle()
        ) {
            let sent: Vec<_> = ExchangeMessage::parts(Kind::Key, 5, &whole).collect();
            let mut parts = Reassembly::new(Kind::Key, 5);
            let mut come = [false; 3];
            for part in order {
                come[part] = true;
                let taken = parts.add(&sent[part]).map(<[u8]>::to_vec);
                prop_assert_eq!(taken, (come == [true; 3]).then(|| whole.clone()));
            }
            let other = ExchangeMessage::parts(Kind::Key, 6, &whole).next().expect("a part");
            prop_assert!(parts.add(&other).is_none(), "of another exchange");
        }
    }
}
