//! Records: the messages after the handshake (tailscale `control/controlbase/conn.go`).
//!
//! A record has the type 4, the length of the rest in 16 bits, and a sealed text. The nonces are
//! big-endian, unlike those of Noise.

use std::fmt;

use crypto::{
    aead::{Key, Open, Seal, Variant},
    noise::Secret,
};

/// The longest record, with its header, in bytes.
pub const RECORD: usize = 4096;
/// The longest text in a record, in bytes.
pub const PLAIN: usize = RECORD - HEADER - TAG;

const HEADER: usize = 3;
const TAG: usize = 16;
const TYPE_RECORD: u8 = 4;

/// The reason why the records ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// A message of this type instead of a record.
    NotARecord(u8),
    /// A length that is not valid for a record.
    BadLength(usize),
    /// A record that the other end did not seal, or that is out of order.
    NotAuthentic,
    /// A previous record was bad, or all nonces are used.
    Closed,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecord(kind) => write!(f, "a message of type {kind} instead of a record"),
            Self::BadLength(len) => write!(f, "a record of {len} bytes"),
            Self::NotAuthentic => f.write_str("a record that the coordinator did not seal"),
            Self::Closed => f.write_str("the encrypted connection is closed"),
        }
    }
}

impl std::error::Error for RecordError {}

/// Seals text into records.
pub struct Sealer {
    key: Key,
    next: u64,
}

impl Sealer {
    /// Starts with the first record.
    pub fn new(key: &Secret) -> Self {
        Self { key: Key::new(key), next: 0 }
    }

    /// Appends a record with the beginning of `plain` to `out`. Returns the number of bytes that it
    /// contains.
    ///
    /// # Errors
    /// All nonces are used.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, RecordError> {
        let taken = plain.len().min(PLAIN);
        let sealed = taken + TAG;
        out.push(TYPE_RECORD);
        let length = u16::try_from(sealed).expect("a record's length fits");
        out.extend_from_slice(&length.to_be_bytes());
        let begin = out.len();
        out.resize(begin + sealed, 0);
        let counter = counter(&mut self.next)?;
        let data = &mut out[begin..];
        data[..taken].copy_from_slice(&plain[..taken]);
        Variant::Library.seal(&mut [Seal { key: &self.key, counter, data }]);
        Ok(taken)
    }
}

/// Opens records that arrive in any pieces.
pub struct Opener {
    key: Key,
    next: u64,
    /// The beginning of an incomplete record.
    partial: Vec<u8>,
    failed: bool,
}

impl Opener {
    /// Starts with the first record.
    pub fn new(key: &Secret) -> Self {
        Self { key: Key::new(key), next: 0, partial: Vec::new(), failed: false }
    }

    /// Processes bytes, and appends the text of all completed records to `plain`. It stores less
    /// than one record.
    ///
    /// # Errors
    /// A record is bad. The rest of the stream cannot be read. `plain` contains the text of the
    /// records before it.
    pub fn handle_bytes(
        &mut self,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        if self.failed {
            return Err(RecordError::Closed);
        }
        let outcome = self.open_all(&mut bytes, plain);
        self.failed = outcome.is_err();
        outcome
    }

    /// Returns whether an incomplete record is stored.
    pub fn is_within_record(&self) -> bool {
        !self.partial.is_empty()
    }

    fn open_all(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> Result<(), RecordError> {
        loop {
            if self.partial.is_empty() {
                match whole(bytes)? {
                    Some(length) => {
                        let (record, rest) = bytes.split_at(length);
                        open(&self.key, &mut self.next, record, plain)?;
                        *bytes = rest;
                        continue;
                    }
                    None => {
                        self.partial.extend_from_slice(bytes);
                        return Ok(());
                    }
                }
            }
            let missing = wanted(&self.partial)? - self.partial.len();
            let taken = missing.min(bytes.len());
            self.partial.extend_from_slice(&bytes[..taken]);
            *bytes = &bytes[taken..];
            if whole(&self.partial)?.is_some() {
                open(&self.key, &mut self.next, &self.partial, plain)?;
                self.partial.clear();
            } else if bytes.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Returns the number of bytes that are needed: first the header, then the record.
fn wanted(bytes: &[u8]) -> Result<usize, RecordError> {
    let &[kind, high, low, ..] = bytes else { return Ok(HEADER) };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind != TYPE_RECORD {
        return Err(RecordError::NotARecord(kind));
    }
    if !(TAG..=RECORD - HEADER).contains(&length) {
        return Err(RecordError::BadLength(length));
    }
    Ok(HEADER + length)
}

/// Returns the length of the first record if it is complete.
fn whole(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let length = wanted(bytes)?;
    Ok((length > HEADER && bytes.len() >= length).then_some(length))
}

fn open(key: &Key, next: &mut u64, record: &[u8], plain: &mut Vec<u8>) -> Result<(), RecordError> {
    let begin = plain.len();
    let counter = counter(next)?;
    plain.extend_from_slice(&record[HEADER..]);
    let data = &mut plain[begin..];
    let mut open = [Open { key, counter, data, authentic: false }];
    Variant::Library.open(&mut open);
    let [Open { authentic, .. }] = open;
    plain.truncate(if authentic { plain.len() - TAG } else { begin });
    if authentic { Ok(()) } else { Err(RecordError::NotAuthentic) }
}

/// Returns the next counter for the AEAD, which writes it little-endian into the nonce.
fn counter(next: &mut u64) -> Result<u64, RecordError> {
    let counter = *next;
    *next = counter.checked_add(1).ok_or(RecordError::Closed)?;
    Ok(counter.swap_bytes())
}

#[cfg(test)]
pub(super) mod tests;
