//! TCP options: MSS, window scale, selective acknowledgements, timestamps (RFC 9293 section 3.2,
//! RFC 2018, RFC 7323). Others are ignored.

use arrayvec::ArrayVec;

use super::seq::Seq;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The most blocks in a header.
pub(super) const MAX_BLOCKS: usize = 4;
/// The most blocks in a header with timestamps. No more are sent.
pub(super) const BLOCKS_SENT: usize = 3;
/// The largest shift of a window (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;

/// A range of received bytes: the first, and the one after the last.
pub(super) type Block = (Seq, Seq);

/// The sender's time, and the last time that it received from the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// The options of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The sender's MSS: the largest payload it can receive, without options.
    pub mss: Option<u16>,
    /// Shift of the sender's windows.
    pub window_scale: Option<u8>,
    /// Whether the sender supports selective acknowledgements.
    pub sack_permitted: bool,
    pub sack: ArrayVec<Block, MAX_BLOCKS>,
    pub timestamps: Option<Timestamps>,
}

impl Options {
    /// Reads options, up to the first malformed one.
    pub(crate) fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((kind, rest)) = bytes.split_first() {
            match *kind {
                END => break,
                NOP => bytes = rest,
                kind => {
                    let Some(len) = rest.first().map(|len| usize::from(*len)) else { break };
                    if len < 2 || len > bytes.len() {
                        break;
                    }
                    options.take(kind, &bytes[2..len]);
                    bytes = &bytes[len..];
                }
            }
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, [high, low]) => self.mss = Some(u16::from_be_bytes([*high, *low])),
            (WINDOW_SCALE, [shift]) => self.window_scale = Some((*shift).min(MAX_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, blocks) => {
                for block in blocks.chunks_exact(8).take(MAX_BLOCKS) {
                    self.sack.push((Seq(word(&block[..4])), Seq(word(&block[4..]))));
                }
            }
            (TIMESTAMPS, value) if value.len() == 8 => {
                let timestamps = Timestamps { value: word(&value[..4]), echo: word(&value[4..]) };
                self.timestamps = Some(timestamps);
            }
            _ => {}
        }
    }

    /// Length in a header, in bytes.
    pub(crate) fn len(&self) -> usize {
        let mut len = 0;
        len += if self.mss.is_some() { 4 } else { 0 };
        len += if self.window_scale.is_some() { 4 } else { 0 };
        len += if self.sack_permitted { 4 } else { 0 };
        len += if self.timestamps.is_some() { 12 } else { 0 };
        len += if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() };
        len
    }

    /// Writes the options, padded to whole words. `to` must have the length of [`Options::len`].
    pub(crate) fn write(&self, to: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        if self.sack_permitted {
            put(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            put(&[NOP, NOP, TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            put(&[NOP, NOP, SACK, 2 + 8 * self.sack.len() as u8]);
            for (from, to) in &self.sack {
                put(&from.0.to_be_bytes());
                put(&to.0.to_be_bytes());
            }
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes were taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(options: &Options) -> Options {
        let mut bytes = vec![0; options.len()];
        options.write(&mut bytes);
        assert!(bytes.len() <= 40 && bytes.len().is_multiple_of(4));
        Options::parse(&bytes)
    }

    #[test]
    fn options_round_trip() {
        let timestamps = Some(Timestamps { value: 7, echo: u32::MAX });
        let syn = Options {
            mss: Some(1380),
            window_scale: Some(8),
            sack_permitted: true,
            timestamps,
            ..Options::default()
        };
        assert_eq!(round_trip(&syn), syn);
        let sack = [(Seq(1), Seq(2)), (Seq(u32::MAX), Seq(9)), (Seq(3), Seq(4))];
        let ack = Options { timestamps, sack: sack.into_iter().collect(), ..Options::default() };
        assert_eq!(round_trip(&ack), ack);
    }

    #[test]
    fn an_option_with_a_wrong_length_ends_parsing() {
        assert_eq!(Options::parse(&[MSS]), Options::default());
        assert_eq!(Options::parse(&[MSS, 4, 5]), Options::default());
        assert_eq!(Options::parse(&[NOP, MSS, 0, 1, 2]), Options::default());
        assert_eq!(Options::parse(&[MSS, 3, 1]), Options::default());
        let [kind, len] = [99, 3];
        assert_eq!(Options::parse(&[kind, len, 0, MSS, 4, 5, 0]).mss, Some(0x500));
        assert_eq!(Options::parse(&[WINDOW_SCALE, 3, 200]).window_scale, Some(14));
        assert_eq!(Options::parse(&[END, MSS, 4, 5, 0]).mss, None);
    }
}
