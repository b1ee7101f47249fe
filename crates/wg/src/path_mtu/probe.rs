//! The probe of a datagram length, and its reply. They find a path's MTU (docs/decisions/0006).
//!
//! Both are the plaintext of transport data. Their first byte matches no version of IP, so a peer
//! without support drops them, after authentication, as invalid IP packets.
//!
//! ```text
//!   | \0PATHMTU | kind | 0 | len | token | zeros up to len, in a request |
//!   0           8      9   10    12      16
//! ```
//!
//! Numbers are little-endian, as everywhere in the protocol.

/// Bytes of a reply, and minimum length of a request.
pub const PROBE_LEN: usize = 16;
/// The first byte of both, which matches no version of IP.
pub const PROBE_FIRST_BYTE: u8 = MAGIC[0];

const MAGIC: [u8; 8] = *b"\0PATHMTU";

/// The kind of a probe message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbeKind {
    /// A request for a reply if it arrives.
    Request = 1,
    /// The reply: the request arrived.
    Reply = 2,
}

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Request or reply.
    pub kind: ProbeKind,
    /// Identifies a request. A reply repeats it.
    pub token: u32,
    /// Bytes of the request's plaintext.
    pub len: u16,
}

impl Probe {
    /// Parses a decrypted plaintext. `None` if it is not a probe message.
    pub fn parse(plaintext: &[u8]) -> Option<Self> {
        let (magic, rest) = plaintext.split_first_chunk()?;
        let (&[kind, _, len @ .., t0, t1, t2, t3], _) = rest.split_first_chunk::<8>()?;
        let kind = match kind {
            1 => ProbeKind::Request,
            2 => ProbeKind::Reply,
            _ => return None,
        };
        let len = u16::from_le_bytes(len);
        let whole = kind == ProbeKind::Reply || usize::from(len) == plaintext.len();
        let probe = Self { kind, token: u32::from_le_bytes([t0, t1, t2, t3]), len };
        (*magic == MAGIC && whole).then_some(probe)
    }

    /// Bytes of the plaintext.
    pub fn plaintext_len(&self) -> usize {
        match self.kind {
            ProbeKind::Request => self.len.into(),
            ProbeKind::Reply => PROBE_LEN,
        }
    }

    /// Writes the plaintext.
    ///
    /// # Panics
    /// If the length of `plaintext` is not [`Probe::plaintext_len`].
    pub fn write(&self, plaintext: &mut [u8]) {
        assert_eq!(plaintext.len(), self.plaintext_len());
        plaintext[..8].copy_from_slice(&MAGIC);
        plaintext[8..10].copy_from_slice(&[self.kind as u8, 0]);
        plaintext[10..12].copy_from_slice(&self.len.to_le_bytes());
        plaintext[12..PROBE_LEN].copy_from_slice(&self.token.to_le_bytes());
        plaintext[PROBE_LEN..].fill(0);
    }

    /// Returns the reply to a request.
    pub(crate) fn reply(self) -> Self {
        Self { kind: ProbeKind::Reply, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_probes_parse_and_truncated_or_changed_ones_do_not() {
        for (kind, len) in [(ProbeKind::Request, 1420), (ProbeKind::Reply, 1420)] {
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
        let request = Probe { kind: ProbeKind::Request, token: 1, len: 100 };
        let mut plaintext = [0; 100];
        request.write(&mut plaintext);
        assert_eq!(Probe::parse(&plaintext[..99]), None, "a truncated request");
    }
}
