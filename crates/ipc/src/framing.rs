//! The encoding of messages, and their parts.

use serde::{Serialize, de::DeserializeOwned};

/// The longest part with its flags: less than half of the default buffer of a Unix socket.
pub const PART: usize = 64 << 10;
/// The longest message, in bytes: many times the peers of the largest network.
pub const LONGEST: usize = 64 << 20;

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// The reason why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpcError {
    /// A part is empty, too long, or does not belong to a message.
    BadPart,
    /// The message exceeds the limit.
    TooLong,
    /// The message cannot be decoded.
    BadMessage,
}

impl std::fmt::Display for IpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BadPart => "a part without a message",
            Self::TooLong => "a message that is too long",
            Self::BadMessage => "a message that cannot be decoded",
        })
    }
}

impl std::error::Error for IpcError {}

/// Passes the parts of a message to `part`, in order.
///
/// # Errors
/// The error of `part`.
pub fn write<M: Serialize, E>(
    message: &M,
    mut part: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let text = postcard::to_stdvec(message).expect("memory is all that it takes");
    let pieces = text.chunks(PART - 1);
    let last = pieces.len().saturating_sub(1);
    let mut buffer = Vec::with_capacity(PART.min(text.len() + 1));
    for (number, piece) in pieces.enumerate() {
        buffer.clear();
        let is = |end, flag| if number == end { flag } else { 0 };
        buffer.push(is(0, FIRST) | is(last, LAST));
        buffer.extend_from_slice(piece);
        part(&buffer)?;
    }
    Ok(())
}

/// Reassembles messages from their parts.
#[derive(Debug, Default)]
pub struct Reader {
    text: Vec<u8>,
    /// Whether the first part was received.
    began: bool,
}

impl Reader {
    /// Adds a part. Returns the message that it completes.
    ///
    /// # Errors
    /// The part does not belong to a message, or the message cannot be decoded. The reader
    /// continues with the next first part.
    pub fn handle_part<M: DeserializeOwned>(&mut self, part: &[u8]) -> Result<Option<M>, IpcError> {
        let (&flags, piece) = part.split_first().ok_or(IpcError::BadPart)?;
        if flags & !(FIRST | LAST) != 0 || part.len() > PART {
            return Err(IpcError::BadPart);
        }
        if flags & FIRST != 0 {
            self.text.clear();
            self.began = true;
        }
        if !self.began {
            return Err(IpcError::BadPart);
        }
        if flags == FIRST | LAST {
            self.began = false;
            return read(piece).map(Some);
        }
        if self.text.len() + piece.len() > LONGEST {
            *self = Self::default();
            return Err(IpcError::TooLong);
        }
        self.text.extend_from_slice(piece);
        if flags & LAST == 0 {
            return Ok(None);
        }
        self.began = false;
        read(&std::mem::take(&mut self.text)).map(Some)
    }
}

fn read<M: DeserializeOwned>(text: &[u8]) -> Result<M, IpcError> {
    match postcard::take_from_bytes(text) {
        Ok((message, [])) => Ok(message),
        _ => Err(IpcError::BadMessage),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use tailnet::keys::NodePublic;

    use super::*;
    use crate::data_plane_messages::{Relayed, ToAgent, ToDataPlane};

    pub(crate) fn parts(message: &impl Serialize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let Ok(()) = write(message, |part| {
            parts.push(part.to_vec());
            Ok::<_, std::convert::Infallible>(())
        });
        parts
    }

    fn relayed(len: usize) -> ToDataPlane {
        let from = NodePublic([7; 32]);
        ToDataPlane::Relayed(vec![Relayed { region: 1, from, bytes: vec![9; len], segment: 9 }])
    }

    #[test]
    fn long_message_is_split_and_reassembled() {
        for len in [0, 1, PART - 60, PART, 3 * PART] {
            let (sent, mut reader) = (relayed(len), Reader::default());
            let parts = parts(&sent);
            assert!(parts.iter().all(|part| part.len() <= PART));
            let (last, first) = parts.split_last().unwrap();
            for part in first {
                assert_eq!(reader.handle_part::<ToDataPlane>(part), Ok(None));
            }
            assert_eq!(reader.handle_part(last), Ok(Some(sent)));
        }
    }

    #[test]
    fn incomplete_message_of_a_previous_agent_is_discarded() {
        let mut reader = Reader::default();
        let half = parts(&relayed(3 * PART));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[0]), Ok(None));
        let hello = parts(&ToDataPlane::Hello);
        assert_eq!(reader.handle_part(&hello[0]), Ok(Some(ToDataPlane::Hello)));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[1]), Err(IpcError::BadPart));
    }

    #[test]
    fn too_long_message_releases_its_memory() {
        let mut reader = Reader::default();
        let mut part = vec![0; PART];
        part[0] = FIRST;
        assert_eq!(reader.handle_part::<ToDataPlane>(&part), Ok(None));
        part[0] = 0;
        let refused =
            (0..LONGEST / PART + 2).find_map(|_| reader.handle_part::<ToDataPlane>(&part).err());
        assert_eq!(refused, Some(IpcError::TooLong));
        assert_eq!(reader.text.capacity(), 0);
    }

    proptest! {
        #[test]
        fn garbage_causes_no_panic(
            garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..8),
        ) {
            let mut reader = Reader::default();
            for part in garbage {
                let _ = reader.handle_part::<ToDataPlane>(&part);
                let _ = reader.handle_part::<ToAgent>(&part);
            }
        }
    }
}
