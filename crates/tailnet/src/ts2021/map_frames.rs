//! The frames of the map stream: a length of 32 bits, little-endian, and that many bytes of zstd.
//! Each frame is compressed separately.

use std::{fmt, io::Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The longest frame in bytes, compressed or not: the map of 50,000 peers.
pub const LONGEST: usize = 64 << 20;
/// The capacity that the buffer retains between frames. Most incremental maps are shorter.
const KEPT: usize = 16 << 10;
/// The magic number of zstd (RFC 8878, section 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The reason why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The announced length exceeds the limit. The rest of the stream cannot be read.
    TooLong(u32),
    /// The decompressed frame exceeds the limit. The next frame can be read.
    Bomb,
    /// The frame is not valid zstd. The next frame can be read.
    BadZstd(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => write!(f, "a frame of {length} bytes"),
            Self::Bomb => write!(f, "a frame that unpacks to more than {} MiB", LONGEST >> 20),
            Self::BadZstd(why) => write!(f, "a frame that is not zstd: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Splits a stream into frames.
///
/// Call order: `handle_bytes` with each piece, then `poll_frame` until it returns `None`.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were returned.
    done: usize,
}

impl FrameReader {
    /// Adds the next bytes of the stream.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.drop_done();
        self.buffer.extend_from_slice(bytes);
    }

    /// Frees the memory of the frames that were returned.
    fn drop_done(&mut self) {
        if self.done > 0 {
            self.buffer.drain(..self.done);
            self.done = 0;
            self.buffer.shrink_to(KEPT);
        }
    }

    /// Returns the next frame, decompressed.
    ///
    /// # Errors
    /// The frame cannot be read. After [`FrameError::TooLong`] no other frame can be read.
    pub fn poll_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some((length, body)) = self.buffer[self.done..].split_first_chunk::<4>() else {
            return Ok(None);
        };
        let said = u32::from_le_bytes(*length);
        let length = usize::try_from(said).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(FrameError::TooLong(said));
        }
        let Some(packed) = body.get(..length) else {
            let missing = length - body.len();
            grow(&mut self.buffer, missing);
            return Ok(None);
        };
        let frame = unpack(packed);
        self.done += 4 + length;
        // A long frame is not stored twice while it is read.
        if length > KEPT {
            self.drop_done();
        }
        frame.map(Some)
    }
}

/// Reserves memory for the next piece. It doubles the buffer, up to `most` more bytes.
fn grow(buffer: &mut Vec<u8>, most: usize) {
    if buffer.capacity() - buffer.len() < KEPT.min(most) {
        buffer.reserve_exact(most.min(buffer.len().max(KEPT)));
    }
}

/// Decompresses one zstd frame or several in a row (RFC 8878, section 3). Uncompressed JSON is
/// returned unchanged: some coordinators do not compress.
fn unpack(mut packed: &[u8]) -> Result<Vec<u8>, FrameError> {
    if packed.first() == Some(&b'{') {
        return Ok(packed.to_vec());
    }
    let mut text = Vec::new();
    loop {
        packed = unpack_first(packed, &mut text)?;
        if packed.is_empty() {
            return Ok(text);
        }
    }
}

/// Decompresses the first zstd frame, appends it to `text`, and returns the rest of the input.
fn unpack_first<'a>(packed: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], FrameError> {
    if !packed.starts_with(&ZSTD) {
        return Err(FrameError::BadZstd("its first bytes are others".into()));
    }
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(LONGEST as u64);
    let bad = |error: &dyn fmt::Display| FrameError::BadZstd(error.to_string());
    let mut decoder =
        StreamingDecoder::new_with_decoder(packed, decoder).map_err(|error| bad(&error))?;
    let mut piece = [0; KEPT];
    loop {
        let count = decoder.read(&mut piece).map_err(|error| bad(&error))?;
        if count == 0 {
            return Ok(decoder.into_inner());
        }
        if text.len() + count > LONGEST {
            return Err(FrameError::Bomb);
        }
        grow(text, LONGEST - text.len());
        text.extend_from_slice(&piece[..count]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn framed(text: &[u8]) -> Vec<u8> {
        raw(&compress_to_vec(text, CompressionLevel::Fastest))
    }

    fn raw(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
    }

    /// Returns zstd blocks that repeat one byte: 128 KiB for four bytes of input.
    fn bomb(blocks: usize) -> Vec<u8> {
        let mut packed = [&ZSTD[..], &[0x00, 0x50]].concat();
        for number in 1..=blocks {
            let last = u32::from(number == blocks);
            let header = last | 1 << 1 | (128 << 10) << 3;
            packed.extend_from_slice(&header.to_le_bytes()[..3]);
            packed.push(b'x');
        }
        raw(&packed)
    }

    #[test]
    fn decompression_bomb_is_refused_and_the_next_frame_is_read() {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&bomb(LONGEST / (128 << 10) + 1));
        reader.handle_bytes(&framed(b"{}"));
        assert_eq!(reader.poll_frame(), Err(FrameError::Bomb));
        assert_eq!(reader.poll_frame(), Ok(Some(b"{}".to_vec())));
    }

    #[test]
    fn frame_of_several_zstd_frames_is_concatenated() {
        let parts: Vec<u8> = ["{\"a\":", "[1,", "2]}"]
            .iter()
            .flat_map(|part| compress_to_vec(part.as_bytes(), CompressionLevel::Fastest))
            .collect();
        let mut reader = FrameReader::default();
        reader.handle_bytes(&raw(&parts));
        assert_eq!(reader.poll_frame(), Ok(Some(b"{\"a\":[1,2]}".to_vec())));
        reader.handle_bytes(&raw(&[&parts[..], b"x"].concat()));
        assert!(matches!(reader.poll_frame(), Err(FrameError::BadZstd(_))));
        let two = [&bomb(LONGEST / (128 << 10))[4..], &bomb(1)[4..]].concat();
        reader.handle_bytes(&raw(&two));
        assert_eq!(reader.poll_frame(), Err(FrameError::Bomb));
    }

    #[test]
    fn frame_of_the_maximum_length_is_read() {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&bomb(LONGEST / (128 << 10)));
        let frame = reader.poll_frame().unwrap().unwrap();
        assert_eq!(frame.len(), LONGEST);
    }

    #[test]
    fn too_long_length_ends_the_stream() {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&[0xff; 4]);
        let error = reader.poll_frame().unwrap_err();
        assert_eq!(error, FrameError::TooLong(u32::MAX));
    }

    #[test]
    fn uncompressed_frame_is_returned_and_garbage_is_an_error() {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&raw(b"{\"KeepAlive\":true}"));
        reader.handle_bytes(&raw(b"\x28\xb5\x2f\xfd\xff\xff"));
        reader.handle_bytes(&raw(b"garbage"));
        reader.handle_bytes(&framed(b"{}"));
        assert_eq!(reader.poll_frame(), Ok(Some(b"{\"KeepAlive\":true}".to_vec())));
        for _ in 0..2 {
            let error = reader.poll_frame().unwrap_err();
            assert!(matches!(error, FrameError::BadZstd(_)), "{error}");
        }
        assert_eq!(reader.poll_frame(), Ok(Some(b"{}".to_vec())));
        assert_eq!(reader.poll_frame(), Ok(None));
    }

    #[test]
    fn memory_of_a_large_frame_is_released() {
        let mut reader = FrameReader::default();
        reader.handle_bytes(&raw(&[b'{'; 1 << 20]));
        assert!(reader.poll_frame().unwrap().is_some());
        reader.handle_bytes(&[1]);
        assert!(reader.buffer.capacity() <= 2 * KEPT);
    }

    proptest! {
        #[test]
        fn frames_are_read_from_a_stream_in_any_pieces(
            texts in proptest::collection::vec("\\{[ -~]{0,400}", 1..6),
            pieces in proptest::collection::vec(1usize..200, 1..20),
        ) {
            let stream: Vec<u8> = texts.iter().flat_map(|text| framed(text.as_bytes())).collect();
            let (mut reader, mut read, mut rest) = (FrameReader::default(), Vec::new(), &stream[..]);
            for size in pieces.iter().cycle() {
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                reader.handle_bytes(piece);
                while let Some(frame) = reader.poll_frame().unwrap() {
                    read.push(String::from_utf8(frame).unwrap());
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(read, texts);
        }

        #[test]
        fn garbage_causes_no_panic(
            garbage in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut reader = FrameReader::default();
            reader.handle_bytes(&raw(&[&ZSTD[..], &garbage].concat()));
            let _ = reader.poll_frame();
        }
    }
}
