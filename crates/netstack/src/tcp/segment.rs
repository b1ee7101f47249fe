//! TCP segments: header and received payload.

pub(crate) use packet::wire::tcp::flags;
use packet::{
    Span,
    wire::{get_u16, get_u32, put_u16, put_u32, tcp},
};

use super::{options::Options, seq::Seq};

/// Mask of the bits that identify a connection request: only SYN is set.
pub(crate) const HANDSHAKE: u8 = flags::SYN | flags::ACK | flags::RST | flags::FIN;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub source: u16,
    pub destination: u16,
    /// Sequence number of the first byte, or of SYN.
    pub seq: Seq,
    /// The next byte that the sender expects.
    pub ack: Seq,
    pub flags: u8,
    /// The unscaled value in the header.
    pub window: u16,
    pub options: Options,
}

impl Header {
    /// Reads the header at the beginning of `bytes`. Returns it with its length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; tcp::HEADER_LEN] = bytes.first_chunk()?;
        let len = tcp::header_len(fixed);
        let options = Options::parse(bytes.get(tcp::OPTIONS..len)?);
        let header = Self {
            source: get_u16(fixed, tcp::SOURCE_PORT),
            destination: get_u16(fixed, tcp::DESTINATION_PORT),
            seq: Seq(tcp::sequence(fixed)),
            ack: Seq(get_u32(fixed, tcp::ACK)),
            flags: fixed[tcp::FLAGS],
            window: get_u16(fixed, tcp::WINDOW),
            options,
        };
        Some((header, len))
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        tcp::HEADER_LEN + self.options.len()
    }

    /// Writes the header to the beginning of `to`, with a zero checksum.
    pub(crate) fn write(&self, to: &mut [u8]) {
        let len = self.len();
        put_u16(to, tcp::SOURCE_PORT, self.source);
        put_u16(to, tcp::DESTINATION_PORT, self.destination);
        put_u32(to, tcp::SEQUENCE, self.seq.0);
        put_u32(to, tcp::ACK, self.ack.0);
        to[tcp::DATA_OFFSET] = (len as u8 / 4) << 4;
        to[tcp::FLAGS] = self.flags;
        put_u16(to, tcp::WINDOW, self.window);
        to[tcp::CHECKSUM].fill(0);
        to[tcp::URGENT].fill(0);
        self.options.write(&mut to[tcp::OPTIONS..len]);
    }

    /// Whether one of these control bits is set.
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// A received segment, or several coalesced ones.
#[derive(Clone, Debug)]
pub(crate) struct Segment<'a> {
    /// The header of the first segment.
    pub header: Header,
    /// The payload of all segments.
    pub payload: Payload<'a>,
}

impl Segment<'_> {
    /// Number of sequence numbers that it occupies.
    pub(crate) fn len(&self) -> u32 {
        let controls =
            u32::from(self.header.has(flags::SYN)) + u32::from(self.header.has(flags::FIN));
        self.payload.len() as u32 + controls
    }

    /// The sequence number after it.
    pub(crate) fn end(&self) -> Seq {
        self.header.seq + self.len()
    }
}

/// Received bytes, in one piece or several.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    Whole(&'a [u8]),
    Pieces {
        /// The buffer.
        buf: &'a [u8],
        /// The pieces, in order.
        spans: &'a [Span],
        /// Length of all pieces, in bytes.
        len: usize,
    },
}

impl<'a> Payload<'a> {
    pub(crate) fn pieces(buf: &'a [u8], spans: &'a [Span]) -> Self {
        Self::Pieces { buf, spans, len: spans.iter().map(|span| span.len).sum() }
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Pieces { len, .. } => *len,
        }
    }

    /// Passes the bytes of `range` to `sink`, piece by piece, each with its offset in the range.
    pub(crate) fn each(&self, range: std::ops::Range<usize>, mut sink: impl FnMut(usize, &[u8])) {
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
    fn a_range_of_pieces_equals_the_range_of_the_whole() {
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
    fn headers_round_trip_and_truncated_ones_are_refused() {
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
