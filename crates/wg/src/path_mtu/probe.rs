//! A question whether a datagram of some length arrives, and its answer: how a path's
//! MTU is found (docs/decisions/0006).
//!
//! Both are the plaintext of transport data. Their first byte is that of no version of
//! IP, so a peer that knows nothing of them drops them, once they are authentic, as what
//! is no IP packet.
//!
//! ```text
//!   | \0PATHMTU | kind | 0 | len | token | zeros up to len, in a question |
//!   0           8      9   10    12      16
//! ```
//!
//! Numbers are little-endian, as everywhere in the protocol.

/// Bytes of an answer, and the fewest of a question.
pub const PROBE_LEN: usize = 16;
/// The first byte of either: no version of IP.
pub const PROBE_FIRST_BYTE: u8 = MAGIC[0];

const MAGIC: [u8; 8] = *b"\0PATHMTU";

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbeKind {
    /// Did this arrive?
    Question = 1,
    /// It did.
    Answer = 2,
}

/// A question or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which of the two.
    pub kind: ProbeKind,
    /// Tells questions apart; an answer has its question's.
    pub token: u32,
    /// Bytes of the question as plaintext.
    pub len: u16,
}

impl Probe {
    /// Reads an opened plaintext; `None` where it is neither.
    pub fn parse(plaintext: &[u8]) -> Option<Self> {
        let (magic, rest) = plaintext.split_first_chunk()?;
        let (&[kind, _, len @ .., t0, t1, t2, t3], _) = rest.split_first_chunk::<8>()?;
        let kind = match kind {
            1 => ProbeKind::Question,
            2 => ProbeKind::Answer,
            _ => return None,
        };
        let len = u16::from_le_bytes(len);
        let whole = kind == ProbeKind::Answer || usize::from(len) == plaintext.len();
        let probe = Self { kind, token: u32::from_le_bytes([t0, t1, t2, t3]), len };
        (*magic == MAGIC && whole).then_some(probe)
    }

    /// Bytes of its plaintext.
    pub fn plaintext_len(&self) -> usize {
        match self.kind {
            ProbeKind::Question => self.len.into(),
            ProbeKind::Answer => PROBE_LEN,
        }
    }

    /// Writes its plaintext.
    ///
    /// # Panics
    /// `plaintext` is not as long as [`Probe::plaintext_len`] says.
    pub fn write(&self, plaintext: &mut [u8]) {
        assert_eq!(plaintext.len(), self.plaintext_len());
        plaintext[..8].copy_from_slice(&MAGIC);
        plaintext[8..10].copy_from_slice(&[self.kind as u8, 0]);
        plaintext[10..12].copy_from_slice(&self.len.to_le_bytes());
        plaintext[12..PROBE_LEN].copy_from_slice(&self.token.to_le_bytes());
        plaintext[PROBE_LEN..].fill(0);
    }

    /// The answer to a question.
    pub(crate) fn answer(self) -> Self {
        Self { kind: ProbeKind::Answer, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_or_changed_is_not() {
        for (kind, len) in [(ProbeKind::Question, 1420), (ProbeKind::Answer, 1420)] {
            let probe = Probe { kind, token: 0x1234_5678, len };
            let mut plaintext = vec![0xff; probe.plaintext_len()];
            probe.write(&mut plaintext);
            assert_eq!(Probe::parse(&plaintext), Some(probe));
            assert_ne!(plaintext[0] >> 4, 4);
            assert_ne!(plaintext[0] >> 4, 6);
            for at in 0..9 {
                let mut changed = plaintext.clone();
                changed[at] ^= 0x40;
                assert_eq!(Probe::parse(&changed), None, "byte {at}");
            }
            assert_eq!(Probe::parse(&plaintext[..PROBE_LEN - 1]), None);
        }
        let question = Probe { kind: ProbeKind::Question, token: 1, len: 100 };
        let mut plaintext = [0; 100];
        question.write(&mut plaintext);
        assert_eq!(Probe::parse(&plaintext[..99]), None, "not all of the question came");
    }
}
