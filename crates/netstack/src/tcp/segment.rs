//! A segment: its header, and its payload where it was received.

use packet::Span;

use super::{options::Options, seq::Seq};

/// Bytes of a header without options.
pub const HEADER: usize = 20;

/// The control bits (RFC 9293 section 3.1).
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement counts.
    pub const ACK: u8 = 0x10;
}

/// The bits that tell a request for a connection: SYN alone.
pub const HANDSHAKE: u8 = flags::SYN | flags::ACK | flags::RST | flags::FIN;

/// A TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// Of the first byte, or of SYN.
    pub seq: Seq,
    /// The next byte that the sender expects.
    pub ack: Seq,
    /// See [`flags`].
    pub flags: u8,
    /// As it stands there, not shifted.
    pub window: u16,
    /// The options.
    pub options: Options,
}

impl Header {
    /// Reads the header that `bytes` begin with; and its length.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; HEADER] = bytes.first_chunk()?;
        let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let long =
            |at: usize| u32::from_be_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        let len = usize::from(fixed[12] >> 4) * 4;
        let options = Options::parse(bytes.get(HEADER..len)?);
        let header = Self {
            source: short(0),
            destination: short(2),
            seq: Seq(long(4)),
            ack: Seq(long(8)),
            flags: fixed[13],
            window: short(14),
            options,
        };
        Some((header, len))
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        HEADER + self.options.len()
    }

    /// Writes it to the beginning of `to`, with a checksum of zero.
    pub fn write(&self, to: &mut [u8]) {
        let len = self.len();
        to[0..2].copy_from_slice(&self.source.to_be_bytes());
        to[2..4].copy_from_slice(&self.destination.to_be_bytes());
        to[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        to[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        to[12] = (len as u8 / 4) << 4;
        to[13] = self.flags;
        to[14..16].copy_from_slice(&self.window.to_be_bytes());
        to[16..20].fill(0);
        self.options.write(&mut to[HEADER..len]);
    }

    /// Whether one of these control bits is set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// A received segment, or many that were coalesced.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The header, of the first.
    pub header: Header,
    /// The payload of all.
    pub payload: Payload<'a>,
}

impl Segment<'_> {
    /// How many sequence numbers it takes.
    pub fn len(&self) -> u32 {
        let controls =
            u32::from(self.header.has(flags::SYN)) + u32::from(self.header.has(flags::FIN));
        self.payload.len() as u32 + controls
    }

    /// The sequence number behind it.
    pub fn end(&self) -> Seq {
        self.header.seq + self.len()
    }
}

/// Bytes where they were received, maybe in pieces.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In one piece.
    Whole(&'a [u8]),
    /// Pieces of a buffer.
    Pieces {
        /// What they are of.
        buf: &'a [u8],
        /// The pieces, in order.
        spans: &'a [Span],
        /// Of all together, in bytes.
        len: usize,
    },
}

impl<'a> Payload<'a> {
    /// Pieces of a buffer.
    pub fn pieces(buf: &'a [u8], spans: &'a [Span]) -> Self {
        Self::Pieces { buf, spans, len: spans.iter().map(|span| span.len).sum() }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Pieces { len, .. } => *len,
        }
    }

    /// Gives the bytes of `range` to `sink`, each piece with its place among them.
    pub fn each(&self, range: std::ops::Range<usize>, mut sink: impl FnMut(usize, &[u8])) {
        match *self {
            Self::Whole(bytes) => sink(0, &bytes[range]),
            Self::Pieces { buf, spans, .. } => {
                let mut at = 0;
                for span in spans {
                    let from = range.start.clamp(at, at + span.len) - at;
                    let to = range.end.clamp(at, at + span.len) - at;
                    if from < to {
                        let piece = &buf[span.start + from..span.start + to];
                        sink(at + from - range.start, piece);
                    }
                    at += span.len;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_pieces_is_what_it_is_of_the_whole() {
        let buf = b"..abc..defg.h";
        let spans = [(2, 3), (7, 4), (12, 1)].map(|(start, len)| Span { start, len });
        let pieces = Payload::pieces(buf, &spans);
        let whole = b"abcdefgh";
        assert_eq!(pieces.len(), whole.len());
        for from in 0..=whole.len() {
            for to in from..=whole.len() {
                let mut read = vec![0; to - from];
                pieces.each(from..to, |at, piece| {
                    read[at..at + piece.len()].copy_from_slice(piece);
                });
                assert_eq!(read, whole[from..to]);
            }
        }
    }

    #[test]
    fn headers_come_back_as_they_were_written_and_short_ones_are_none() {
        let header = Header {
            source: 1,
            destination: 0xfffe,
            seq: Seq(u32::MAX),
            ack: Seq(3),
            flags: flags::ACK | flags::FIN,
            window: 77,
            options: Options { mss: Some(9), ..Options::default() },
        };
        let mut bytes = vec![0xff; header.len()];
        header.write(&mut bytes);
        assert_eq!(Header::parse(&bytes), Some((header, 24)));
        for len in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..len]), None, "{len} bytes");
        }
        bytes[12] = 4 << 4;
        assert_eq!(Header::parse(&bytes), None, "shorter than a header");
    }
}
