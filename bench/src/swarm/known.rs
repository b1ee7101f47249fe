//! What a node was told: its frames, and by them which peers it knows.
//!
//! Several nodes are often told the same. What was unpacked once is known again by a hash of it as it
//! came, so that ten thousand nodes in one process cost no more than it takes to receive what they are
//! told.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest frame, unpacked or packed, in bytes.
const LONGEST: usize = 64 << 20;
/// What the buffer of a stream keeps between frames.
const KEPT: usize = 16 << 10;
/// Pieces that are known again, and from how many bytes on.
const REMEMBERED: usize = 4096;
const WORTH_IT: usize = 256;
/// The beginning of an address that tells which of the changes that are asked about it is, by its last
/// two bytes (RFC 2544 keeps its network for benchmarks).
pub(super) const MARK: &str = "198.18.";
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// How long its text is.
    pub unpacked: usize,
    /// Whether it has rules.
    pub has_rules: bool,
    /// The changes that it tells of.
    pub marks: Arc<[u16]>,
}

/// A frame of zstd, of which a map may have several.
#[derive(Debug)]
struct Piece {
    length: usize,
    marks: Arc<[u16]>,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Peers alone, each behind a comma.
    Peers(Vec<u64>),
    /// All of a map.
    Map(Map),
    /// Any other text.
    Text(String),
}

/// A stream of maps, and the peers that it told of.
#[derive(Debug, Default)]
pub struct Known {
    held: Vec<u8>,
    ids: Vec<u64>,
    count: usize,
}

/// What was unpacked, by its hash.
#[derive(Debug, Default)]
pub struct Memory {
    hasher: foldhash::quality::RandomState,
    pieces: Mutex<HashMap<(u64, usize), Arc<Piece>>>,
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
    pub fn poll_frame(&mut self, memory: &Memory) -> Result<Option<Heard>, BadFrame> {
        let Some((length, body)) = self.held.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(BadFrame::TooLong);
        }
        let Some(packed) = body.get(..length) else { return Ok(None) };
        let pieces = pieces(packed)?.into_iter().map(|piece| memory.read(piece));
        let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
        self.held.drain(..4 + length);
        if self.held.is_empty() {
            self.held.shrink_to(KEPT);
        }
        self.hear(&pieces).map(Some)
    }

    fn hear(&mut self, pieces: &[Arc<Piece>]) -> Result<Heard, BadFrame> {
        let unpacked = pieces.iter().map(|piece| piece.length).sum();
        if let [piece] = pieces {
            let read;
            let map = match &piece.what {
                What::Map(map) => map,
                What::Text(text) => {
                    read = read_map(text)?;
                    &read
                }
                What::Peers(_) => return Err(BadFrame::NoMap),
            };
            self.take(map, &[])?;
            return Ok(Heard { unpacked, has_rules: map.has_rules(), marks: piece.marks.clone() });
        }
        let (mut text, mut peers) = (String::new(), Vec::new());
        for piece in pieces {
            match &piece.what {
                What::Peers(ids) => peers.extend_from_slice(ids),
                What::Text(own) => text.push_str(own),
                What::Map(_) => return Err(BadFrame::NoMap),
            }
        }
        let map = read_map(&text)?;
        self.take(&map, &peers)?;
        let marks = pieces.iter().flat_map(|piece| piece.marks.iter().copied()).collect();
        Ok(Heard { unpacked, has_rules: map.has_rules(), marks })
    }

    /// Takes a map, with more peers of its one list of whole ones.
    fn take(&mut self, map: &Map, more: &[u64]) -> Result<(), BadFrame> {
        let ids = |list: &'_ Option<Vec<Named>>| -> Vec<u64> {
            list.iter().flatten().map(|named| named.id).collect()
        };
        // Peers that are there replace all others, and none replace nobody.
        let peers = ids(&map.peers);
        if !peers.is_empty() {
            (self.ids, self.count) = (Vec::new(), 0);
            return peers.iter().chain(more).try_for_each(|id| self.insert(*id));
        }
        for id in map.peers_removed.iter().flatten() {
            self.remove(*id);
        }
        ids(&map.peers_changed).iter().chain(more).try_for_each(|id| self.insert(*id))
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

impl Map {
    fn has_rules(&self) -> bool {
        self.packet_filter.is_some() || self.packet_filters.is_some()
    }
}

impl Memory {
    fn read(&self, packed: &[u8]) -> Result<Arc<Piece>, BadFrame> {
        let unpack = || UNPACKER.with_borrow_mut(|unpacker| unpacker.read(packed)).map(Arc::new);
        if packed.len() < WORTH_IT {
            return unpack();
        }
        let key = (self.hasher.hash_one(packed), packed.len());
        let pieces = || self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces().get(&key) {
            return Ok(Arc::clone(piece));
        }
        let piece = unpack()?;
        let mut pieces = pieces();
        if pieces.len() >= REMEMBERED {
            pieces.clear();
        }
        pieces.insert(key, Arc::clone(&piece));
        Ok(piece)
    }
}

/// The frames of zstd that a map is of.
fn pieces(mut packed: &[u8]) -> Result<Vec<&[u8]>, BadFrame> {
    let mut pieces = Vec::new();
    while !packed.is_empty() {
        let length = zstd::zstd_safe::find_frame_compressed_size(packed);
        let (piece, rest) = length
            .ok()
            .and_then(|length| packed.split_at_checked(length))
            .ok_or(BadFrame::NoZstd)?;
        pieces.push(piece);
        packed = rest;
    }
    Ok(pieces)
}

fn read_map(text: &str) -> Result<Map, BadFrame> {
    serde_json::from_str(text).map_err(|_| BadFrame::NoMap)
}

impl Unpacker {
    fn read(&mut self, packed: &[u8]) -> Result<Piece, BadFrame> {
        let context = match &mut self.context {
            Some(context) => context,
            empty => empty.insert(zstd::bulk::Decompressor::new().map_err(|_| BadFrame::NoZstd)?),
        };
        self.text.clear();
        // Its text's length is not in every frame.
        self.text.reserve(packed.len() * 8);
        while context.decompress_to_buffer(packed, &mut self.text).is_err() {
            let more = self.text.capacity() * 2;
            if more > 2 * LONGEST {
                return Err(BadFrame::NoZstd);
            }
            self.text.clear();
            self.text.reserve(more);
        }
        let piece = Piece::of(str::from_utf8(&self.text).map_err(|_| BadFrame::NoMap)?);
        self.text.shrink_to(KEPT);
        Ok(piece)
    }
}

impl Piece {
    fn of(text: &str) -> Piece {
        let peers = text.strip_prefix(',').map(|rest| format!("[{rest}]"));
        let peers = peers.and_then(|list| serde_json::from_str::<Vec<Named>>(&list).ok());
        let what = match (peers, serde_json::from_str(text)) {
            (Some(peers), _) => What::Peers(peers.iter().map(|named| named.id).collect()),
            (None, Ok(map)) => What::Map(map),
            (None, Err(_)) => What::Text(text.to_owned()),
        };
        let marks = memchr::memmem::find_iter(text.as_bytes(), MARK);
        let marks = marks.filter_map(|at| mark(&text[at + MARK.len()..])).collect();
        Piece { length: text.len(), marks, what }
    }
}

/// The number that the last two bytes of an address are.
fn mark(text: &str) -> Option<u16> {
    let (high, rest) = text.split_once('.')?;
    let (low, _) = rest.split_once(':')?;
    Some(u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]))
}

#[cfg(test)]
mod tests {
    use super::{BadFrame, Known, Memory};

    fn framed(text: &str) -> Vec<u8> {
        let packed = zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        [&(packed.len() as u32).to_le_bytes()[..], &packed].concat()
    }

    fn counts(texts: &[&str]) -> Vec<usize> {
        let stream: Vec<u8> = texts.iter().flat_map(|text| framed(text)).collect();
        let (mut known, mut counts) = (Known::default(), Vec::new());
        let memory = Memory::default();
        for piece in stream.chunks(7) {
            known.handle_bytes(piece);
            while known.poll_frame(&memory).unwrap().is_some() {
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
        let memory = Memory::default();
        let heard: Vec<_> = std::iter::from_fn(|| known.poll_frame(&memory).unwrap()).collect();
        assert_eq!(heard.iter().map(|one| one.has_rules).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(heard[0].unpacked, long.len());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let read = |bytes: &[u8]| {
            let mut known = Known::default();
            known.handle_bytes(bytes);
            known.poll_frame(&Memory::default()).unwrap_err()
        };
        assert_eq!(read(&[0xff; 4]), BadFrame::TooLong);
        assert_eq!(read(&[1, 0, 0, 0, 7]), BadFrame::NoZstd);
        assert_eq!(read(&framed("7")), BadFrame::NoMap);
        assert_eq!(read(&framed(r#"{"PeersChanged":[{"ID":99999999999}]}"#)), BadFrame::NoMap);
    }

    #[test]
    fn a_map_in_several_frames_is_read_as_one_and_what_was_read_before_is_known_again() {
        let pack = |text: &str| zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        let peer = |id: u64| {
            format!(r#",{{"ID":{id},"Key":"{:032x}"}}"#, id.wrapping_mul(0x9e3779b97f4a7c15))
        };
        let block: String = (10..74).map(peer).collect();
        let texts = [r#"{"Node":{"ID":1},"Peers":[{"ID":2}"#, &block, r#"],"PacketFilters":{}}"#];
        let body: Vec<u8> = texts.iter().flat_map(|text| pack(text)).collect();
        let memory = Memory::default();
        for _ in 0..2 {
            let mut known = Known::default();
            known.handle_bytes(&(body.len() as u32).to_le_bytes());
            known.handle_bytes(&body);
            let heard = known.poll_frame(&memory).unwrap().unwrap();
            assert_eq!((known.count(), heard.has_rules), (65, true));
            assert_eq!(heard.unpacked, texts.iter().map(|text| text.len()).sum::<usize>());
        }
        assert_eq!(memory.pieces.lock().unwrap().len(), 1);
    }

    #[test]
    fn changes_are_known_by_the_address_that_they_tell() {
        let mut known = Known::default();
        let patch = r#"{"PeersChangedPatch":[{"NodeID":7,"Endpoints":["192.168.0.1:1","198.18.1.2:41641"]}]}"#;
        known.handle_bytes(&framed(patch));
        assert_eq!(*known.poll_frame(&Memory::default()).unwrap().unwrap().marks, [258]);
    }
}
