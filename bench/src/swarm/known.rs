//! What a node was told: its frames, and by them which peers it knows.

use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest frame, unpacked or packed, in bytes.
const LONGEST: usize = 64 << 20;
/// What the buffer of a stream keeps between frames.
const KEPT: usize = 16 << 10;
/// Numbers of nodes from this on are not those of a fresh network.
const MOST: u64 = 1 << 20;

/// Why a stream cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    TooLong,
    NoZstd,
    NoMap,
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadFrame::TooLong => "a frame is too long",
            BadFrame::NoZstd => "a frame is not zstd",
            BadFrame::NoMap => "a frame is no map",
        })
    }
}

/// Of a map, what the generator counts by.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Map {
    peers: Option<Vec<Named>>,
    peers_changed: Option<Vec<Named>>,
    peers_removed: Option<Vec<u64>>,
    packet_filter: Option<IgnoredAny>,
    packet_filters: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Named {
    #[serde(rename = "ID")]
    id: u64,
}

/// What a frame said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// How long its text is.
    pub unpacked: usize,
    /// Whether it has rules.
    pub has_rules: bool,
}

/// A stream of maps, and the peers that it told of.
#[derive(Debug, Default)]
pub struct Known {
    held: Vec<u8>,
    ids: Vec<u64>,
    count: usize,
}

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::default();
}

/// One for each thread: it is larger than all else that a node has.
#[derive(Default)]
struct Unpacker {
    context: Option<zstd::bulk::Decompressor<'static>>,
    text: Vec<u8>,
}

impl Known {
    /// How many peers.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Takes the next bytes of the stream.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Hears the next frame, if it is whole.
    pub fn poll_frame(&mut self) -> Result<Option<Heard>, BadFrame> {
        let Some((length, body)) = self.held.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(BadFrame::TooLong);
        }
        let Some(packed) = body.get(..length) else { return Ok(None) };
        let (map, unpacked) = UNPACKER.with_borrow_mut(|unpacker| unpacker.read(packed))?;
        let has_rules = map.packet_filter.is_some() || map.packet_filters.is_some();
        self.held.drain(..4 + length);
        if self.held.is_empty() {
            self.held.shrink_to(KEPT);
        }
        self.hear(map)?;
        Ok(Some(Heard { unpacked, has_rules }))
    }

    fn hear(&mut self, map: Map) -> Result<(), BadFrame> {
        // Peers that are there replace all others, and none replace nobody.
        if let Some(peers) = map.peers.filter(|peers| !peers.is_empty()) {
            (self.ids, self.count) = (Vec::new(), 0);
            peers.iter().try_for_each(|peer| self.insert(peer.id))?;
            return Ok(());
        }
        for id in map.peers_removed.into_iter().flatten() {
            self.remove(id);
        }
        map.peers_changed.into_iter().flatten().try_for_each(|peer| self.insert(peer.id))
    }

    fn insert(&mut self, id: u64) -> Result<(), BadFrame> {
        if id >= MOST {
            return Err(BadFrame::NoMap);
        }
        let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
        if word >= self.ids.len() {
            self.ids.resize(word + 1, 0);
        }
        self.count += usize::from(self.ids[word] & bit == 0);
        self.ids[word] |= bit;
        Ok(())
    }

    fn remove(&mut self, id: u64) {
        let Some(word) = self.ids.get_mut((id / 64) as usize) else { return };
        let bit = 1 << (id % 64);
        self.count -= usize::from(*word & bit != 0);
        *word &= !bit;
    }
}

impl Unpacker {
    fn read(&mut self, packed: &[u8]) -> Result<(Map, usize), BadFrame> {
        let context = match &mut self.context {
            Some(context) => context,
            empty => empty.insert(zstd::bulk::Decompressor::new().map_err(|_| BadFrame::NoZstd)?),
        };
        self.text.clear();
        // Its text's length is not in every frame, nor in all of several together.
        self.text.reserve(packed.len() * 8);
        while context.decompress_to_buffer(packed, &mut self.text).is_err() {
            let more = self.text.capacity() * 2;
            if more > 2 * LONGEST {
                return Err(BadFrame::NoZstd);
            }
            self.text.clear();
            self.text.reserve(more);
        }
        let map = serde_json::from_slice(&self.text).map_err(|_| BadFrame::NoMap)?;
        Ok((map, self.text.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::{BadFrame, Known};

    fn framed(text: &str) -> Vec<u8> {
        let packed = zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        [&(packed.len() as u32).to_le_bytes()[..], &packed].concat()
    }

    fn counts(texts: &[&str]) -> Vec<usize> {
        let stream: Vec<u8> = texts.iter().flat_map(|text| framed(text)).collect();
        let (mut known, mut counts) = (Known::default(), Vec::new());
        for piece in stream.chunks(7) {
            known.handle_bytes(piece);
            while known.poll_frame().unwrap().is_some() {
                counts.push(known.count());
            }
        }
        counts
    }

    #[test]
    fn peers_are_counted_once_through_what_changes() {
        let texts = [
            r#"{"KeepAlive":true}"#,
            r#"{"Node":{"ID":1},"Peers":[{"ID":2},{"ID":70,"Name":"x"}]}"#,
            r#"{"PeersChanged":[{"ID":2},{"ID":3}]}"#,
            r#"{"PeersRemoved":[70,71],"PeersChanged":null}"#,
            r#"{"Peers":[]}"#,
            r#"{"Peers":[{"ID":9}]}"#,
        ];
        assert_eq!(counts(&texts), [0, 2, 3, 2, 2, 1]);
    }

    #[test]
    fn rules_are_seen_by_either_name_and_a_text_of_any_length_is_read() {
        let mut known = Known::default();
        let long = format!(r#"{{"x":"{}","PacketFilter":[]}}"#, "y".repeat(1 << 20));
        for text in [&long, r#"{"PacketFilters":{"base":[]}}"#, r#"{"PacketFilter":null}"#] {
            known.handle_bytes(&framed(text));
        }
        let heard: Vec<_> = std::iter::from_fn(|| known.poll_frame().unwrap()).collect();
        assert_eq!(heard.iter().map(|one| one.has_rules).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(heard[0].unpacked, long.len());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let read = |bytes: &[u8]| {
            let mut known = Known::default();
            known.handle_bytes(bytes);
            known.poll_frame().unwrap_err()
        };
        assert_eq!(read(&[0xff; 4]), BadFrame::TooLong);
        assert_eq!(read(&[1, 0, 0, 0, 7]), BadFrame::NoZstd);
        assert_eq!(read(&framed("7")), BadFrame::NoMap);
        assert_eq!(read(&framed(r#"{"PeersChanged":[{"ID":99999999999}]}"#)), BadFrame::NoMap);
    }
}
