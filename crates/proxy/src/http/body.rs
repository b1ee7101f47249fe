//! Finds the end of a body (RFC 9112, sections 6 and 7.1).

use std::{io, ops::ControlFlow};

use super::{HEAD_MAX, Refusal, fields::Fields};

/// How long a body with a known end is (RFC 9112, section 6.3).
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// This number of bytes; may be zero.
    Bytes(u64),
    /// Chunks, up to the last one.
    Chunks(Chunks),
}

impl Body {
    /// The body of a request.
    pub(super) fn of_request(fields: Fields<'_>, minor: u8) -> Result<Self, Refusal> {
        if fields.has("Transfer-Encoding") {
            // Both fields at once allow request smuggling. HTTP/1.0 does not define codings
            // (RFC 9112, section 6.1).
            if minor == 0 || fields.has("Content-Length") {
                return Err(Refusal::BadRequest);
            }
            let mut codings = fields.words("Transfer-Encoding");
            let chunked = codings.next().is_some_and(|one| one.eq_ignore_ascii_case("chunked"));
            let is_alone = codings.next().is_none();
            let chunks = Self::Chunks(Chunks::default());
            return if chunked && is_alone { Ok(chunks) } else { Err(Refusal::NotImplemented) };
        }
        let length = content_length(fields).map_err(|Conflict| Refusal::BadRequest)?;
        Ok(Self::Bytes(length.unwrap_or(0)))
    }

    /// Whether the body is known to be empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::Bytes(0)
    }

    /// Returns the number of these bytes that belong to the body, and whether the body ends there.
    ///
    /// # Errors
    /// The bytes are not valid chunks.
    pub fn handle_input(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok((taken, *left == 0))
            }
            Self::Chunks(chunks) => chunks.handle_input(bytes, |_| {}),
        }
    }
}

/// The result of [`Chunks::decode`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Bytes that belong to the body.
    pub taken: usize,
    /// Bytes of contents, which are at the beginning now.
    pub contents: usize,
    /// Whether the body ends there.
    pub is_over: bool,
}

/// The lengths contradict each other, or one cannot be read.
pub(super) struct Conflict;

/// The length in the fields, if there is one. Equal lengths count once (RFC 9112, section 6.3).
pub(super) fn content_length(fields: Fields<'_>) -> Result<Option<u64>, Conflict> {
    if !fields.has("Content-Length") {
        return Ok(None);
    }
    let mut lengths = fields.words("Content-Length").map(config::value::decimal);
    let first = lengths.next().flatten().ok_or(Conflict)?;
    if lengths.all(|other| other == Some(first)) { Ok(Some(first)) } else { Err(Conflict) }
}

/// A parser that finds the end of a chunked body (RFC 9112, section 7.1). Lines must end with CRLF:
/// input that other parsers may read differently is refused.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    state: ChunkState,
    /// Bytes of the extensions of this chunk, or of the trailer, that were read.
    overhead: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// In the size: its value and the number of its digits that were read.
    Size(u64, u8),
    /// After the size, up to the end of the line.
    Extension(u64),
    /// At the line feed after a size.
    SizeEnd(u64),
    /// In the data: the number of bytes that remain.
    Data(u64),
    /// At the carriage return after the data.
    DataEnd,
    /// At the line feed after that.
    DataLine,
    /// In a line of the trailer; true if the line is not empty.
    Trailer(bool),
    /// At the line feed of such a line.
    TrailerEnd(bool),
}

impl Default for ChunkState {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

impl Chunks {
    /// Removes the coding in place: moves the contents to the beginning of `bytes`.
    ///
    /// # Errors
    /// The bytes are not valid chunks.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> io::Result<Decoded> {
        let mut data = Vec::new();
        let (taken, is_over) = self.handle_input(bytes, |range| data.push(range))?;
        let mut contents = 0;
        for range in data {
            let len = range.len();
            bytes.copy_within(range, contents);
            contents += len;
        }
        Ok(Decoded { taken, contents, is_over })
    }

    /// Like [`Body::handle_input`]. Calls `data` with each range of contents.
    fn handle_input(
        &mut self,
        bytes: &[u8],
        mut data: impl FnMut(std::ops::Range<usize>),
    ) -> io::Result<(usize, bool)> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if let ChunkState::Data(left) = self.state {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                data(at..at + taken);
                at += taken;
                let left = left - taken as u64;
                self.state = if left == 0 { ChunkState::DataEnd } else { ChunkState::Data(left) };
                continue;
            }
            at += 1;
            if matches!(self.state, ChunkState::Extension(_) | ChunkState::Trailer(_)) {
                self.overhead += 1;
            }
            if self.overhead > HEAD_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.step(byte)? {
                ControlFlow::Continue(state) => {
                    if matches!(self.state, ChunkState::SizeEnd(_)) {
                        self.overhead = 0;
                    }
                    self.state = state;
                }
                ControlFlow::Break(()) => return Ok((at, true)),
            }
        }
        Ok((at, false))
    }

    fn step(&self, byte: u8) -> io::Result<ControlFlow<(), ChunkState>> {
        use ChunkState::{Data, DataEnd, DataLine, Extension, Size, SizeEnd, Trailer, TrailerEnd};
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(ControlFlow::Continue(match (self.state, byte) {
            (Size(size, digits), byte) if byte.is_ascii_hexdigit() && digits < 16 => {
                let digit = (byte as char).to_digit(16).ok_or_else(bad)?;
                Size(size << 4 | u64::from(digit), digits + 1)
            }
            (Size(size, 1..) | Extension(size), b'\r') => SizeEnd(size),
            (Size(size, 1..), b';' | b' ' | b'\t') => Extension(size),
            (SizeEnd(0), b'\n') => Trailer(false),
            (SizeEnd(size), b'\n') => Data(size),
            (DataEnd, b'\r') => DataLine,
            (DataLine, b'\n') => Size(0, 0),
            (Trailer(has_any), b'\r') => TrailerEnd(has_any),
            (TrailerEnd(true), b'\n') => Trailer(false),
            (TrailerEnd(false), b'\n') => return Ok(ControlFlow::Break(())),
            (Extension(_) | Trailer(_), b'\n' | b'\0') => return Err(bad()),
            (Extension(size), _) => Extension(size),
            (Trailer(_), _) => Trailer(true),
            _ => return Err(bad()),
        }))
    }
}
