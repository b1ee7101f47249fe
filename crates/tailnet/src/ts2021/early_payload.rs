//! The early payload: JSON that a coordinator may send before HTTP/2 (tailscale
//! `control/ts2021/conn.go`).
//!
//! It has a header of nine bytes, which starts with a magic number of five bytes that no HTTP/2
//! frame starts with. Its only field is a challenge to the node key, which no client answers.

use std::fmt;

/// The magic number of the payload.
const MARK: [u8; 5] = *b"\xff\xff\xffTS";
/// The length of the magic number and of the length field. The header of an HTTP/2 frame has the
/// same length.
const HEADER: usize = 9;
/// The longest payload, in bytes. One key is expected.
pub const LONGEST: usize = 64 << 10;

/// The length of a payload that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyPayloadError(pub u32);

impl fmt::Display for EarlyPayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an early payload of {} bytes", self.0)
    }
}

impl std::error::Error for EarlyPayloadError {}

/// Removes the payload from the beginning of a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct EarlyPayload {
    buffer: Vec<u8>,
    is_over: bool,
}

impl EarlyPayload {
    /// Returns whether the rest of the stream is HTTP/2.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Processes the next bytes of the stream. Returns the bytes of HTTP/2, and the payload once it
    /// is complete.
    ///
    /// # Errors
    /// The payload is too long.
    pub fn handle_plain(
        &mut self,
        plain: Vec<u8>,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), EarlyPayloadError> {
        if self.is_over {
            return Ok((plain, None));
        }
        self.buffer.extend_from_slice(&plain);
        let compared = self.buffer.len().min(MARK.len());
        if self.buffer[..compared] != MARK[..compared] {
            self.is_over = true;
            return Ok((std::mem::take(&mut self.buffer), None));
        }
        let Some(length) = self.buffer.get(MARK.len()..HEADER) else {
            return Ok((Vec::new(), None));
        };
        let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
        let end = match usize::try_from(length) {
            Ok(length) if length <= LONGEST => HEADER + length,
            _ => {
                self.buffer = Vec::new();
                return Err(EarlyPayloadError(length));
            }
        };
        if self.buffer.len() < end {
            return Ok((Vec::new(), None));
        }
        self.is_over = true;
        let mut payload = std::mem::take(&mut self.buffer);
        let rest = payload.split_off(end);
        payload.drain(..HEADER);
        Ok((rest, Some(payload)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marked(payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        [&MARK[..], &length.to_be_bytes(), payload].concat()
    }

    fn read(
        stream: &[u8],
        pieces: &[usize],
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), EarlyPayloadError> {
        let (mut early, mut rest, mut payload) = (EarlyPayload::default(), Vec::new(), None);
        let (mut stream, mut sizes) = (stream, pieces.iter().cycle());
        while !stream.is_empty() {
            let (piece, later) =
                stream.split_at((*sizes.next().unwrap_or(&1)).clamp(1, stream.len()));
            let (more, found) = early.handle_plain(piece.to_vec())?;
            rest.extend(more);
            payload = payload.or(found);
            stream = later;
        }
        Ok((rest, payload))
    }

    #[test]
    fn too_long_payload_is_refused_before_it_is_stored() {
        let mut early = EarlyPayload::default();
        let stream = [&MARK[..], &[0xff; 4]].concat();
        assert_eq!(early.handle_plain(stream), Err(EarlyPayloadError(u32::MAX)));
        assert_eq!(early.buffer.capacity(), 0);
    }

    proptest! {
        #[test]
        fn payload_is_removed_from_a_stream_in_any_pieces(
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            rest in proptest::collection::vec(any::<u8>(), 0..300),
            pieces in proptest::collection::vec(1usize..40, 1..20),
        ) {
            let stream = [marked(&payload), rest.clone()].concat();
            prop_assert_eq!(read(&stream, &pieces), Ok((rest, Some(payload))));
        }

        #[test]
        fn stream_without_payload_is_unchanged(
            rest in proptest::collection::vec(any::<u8>(), 5..300),
            pieces in proptest::collection::vec(1usize..40, 1..20),
        ) {
            prop_assume!(!rest.starts_with(&MARK));
            prop_assert_eq!(read(&rest, &pieces), Ok((rest.clone(), None)));
        }
    }
}
