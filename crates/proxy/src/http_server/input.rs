//! Bytes that were read and are not processed yet.

use std::ops::Deref;

use tokio::io::ReadBuf;

use crate::http::HEAD_MAX;

/// A buffer that holds no memory while it is empty.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// The offset of the first unprocessed byte.
    at: usize,
    /// How many of them [`Self::may_hold_head`] has seen.
    seen: usize,
}

impl Input {
    /// Removes bytes from the beginning.
    pub(super) fn consume(&mut self, len: usize) {
        self.at += len;
        self.seen = 0;
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Moves as many bytes to `buffer` as it has room for.
    pub(super) fn put(&mut self, buffer: &mut ReadBuf<'_>) {
        let len = self.len().min(buffer.remaining());
        buffer.put_slice(&self[..len]);
        self.consume(len);
    }

    /// The vector to append bytes to.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.at);
        self.at = 0;
        &mut self.bytes
    }

    /// Removes empty lines before a head (RFC 9112, section 2.2). Returns whether a head may have
    /// ended since the last call: only the first bytes, and those with a line feed, are worth
    /// parsing, because the parser begins at the first byte each time.
    pub(super) fn may_hold_head(&mut self) -> bool {
        loop {
            let empty = match **self {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                _ => break,
            };
            self.consume(empty);
        }
        let new = &self[self.seen..];
        let may =
            !new.is_empty() && (self.seen == 0 || new.contains(&b'\n') || self.len() >= HEAD_MAX);
        self.seen = self.len();
        may
    }
}

impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

impl From<Vec<u8>> for Input {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_holds_no_memory() {
        let mut input = Input::from(vec![7; 1000]);
        input.consume(400);
        input.tail().extend_from_slice(&[8; 400]);
        assert_eq!(*input, [[7; 200], [7; 200], [7; 200], [8; 200], [8; 200]].concat());
        input.consume(1000);
        assert_eq!((input.len(), input.bytes.capacity()), (0, 0));
    }

    #[test]
    fn head_is_parsed_at_its_first_bytes_and_after_line_feeds() {
        let mut input = Input::default();
        assert!(!input.may_hold_head());
        for (piece, may) in [
            ("\r", true),
            ("\n\r\n", false),
            ("G", true),
            ("ET", false),
            ("", false),
            (" /\r\n", true),
            ("X: ", false),
            ("1\n", true),
        ] {
            input.tail().extend_from_slice(piece.as_bytes());
            assert_eq!(input.may_hold_head(), may, "{piece:?}");
            assert!(!input.may_hold_head());
        }
        assert_eq!(*input, *b"GET /\r\nX: 1\n");
        input.consume(7);
        assert!(input.may_hold_head(), "another head");
        input.tail().resize(HEAD_MAX, b'x');
        assert!(input.may_hold_head(), "it is too long");
    }
}
