//! The peers of a node, read from the frames of its map stream.
//!
//! Several nodes often receive the same bytes. Unpacked frames are cached by a hash of the packed
//! bytes, so that ten thousand nodes in one process cost little more than the reception.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest frame, packed or unpacked, in bytes.
const MAX_FRAME: usize = 64 << 20;
/// Capacity that a stream's buffer retains between frames.
const RETAINED: usize = 16 << 10;
/// Number of cached pieces, and their minimum packed length in bytes.
const CACHED_PIECES: usize = 4096;
const MIN_CACHED: usize = 256;
/// Prefix of addresses that mark a change; the last two bytes are its number (RFC 2544 reserves the
/// network for benchmarks).
pub(super) const MARK: &str = "198.18.";
/// Node ids of a fresh network are smaller.
const MAX_ID: u64 = 1 << 20;

/// Why a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    TooLong,
    NoZstd,
    NoMap,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "a frame is too long",
            Self::NoZstd => "a frame is not zstd",
            Self::NoMap => "a frame is not a map",
        })
    }
}

/// The fields of a map that the generator needs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Map {
    peers: Option<Vec<PeerEntry>>,
    peers_changed: Option<Vec<PeerEntry>>,
    peers_removed: Option<Vec<u64>>,
    packet_filter: Option<IgnoredAny>,
    packet_filters: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct PeerEntry {
    #[serde(rename = "ID")]
    id: u64,
}

/// Summary of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameSummary {
    /// Length of the uncompressed text.
    pub unpacked: usize,
    /// Whether it has packet filter rules.
    pub has_rules: bool,
    /// The changes that it contains.
    pub marks: Arc<[u16]>,
}

/// A zstd frame; a map may have several.
#[derive(Debug)]
struct Piece {
    length: usize,
    marks: Arc<[u16]>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Only peers, each after a comma.
    Peers(Vec<u64>),
    /// A complete map.
    Map(Map),
    /// Any other text.
    Text(String),
}

/// A map stream and the peers in it.
#[derive(Debug, Default)]
pub(super) struct PeerList {
    buffer: Vec<u8>,
    ids: Vec<u64>,
    count: usize,
}

/// Unpacked pieces by hash.
#[derive(Debug, Default)]
pub(super) struct PieceCache {
    hasher: foldhash::quality::RandomState,
    pieces: Mutex<HashMap<(u64, usize), Arc<Piece>>>,
}

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::default();
}

/// One for each thread, because it is larger than everything else of a node.
#[derive(Default)]
struct Unpacker {
    context: Option<zstd::bulk::Decompressor<'static>>,
    text: Vec<u8>,
}

impl PeerList {
    /// Number of peers.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds bytes of the stream.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Reads the next frame if it is complete.
    pub(super) fn poll_frame(
        &mut self,
        memory: &PieceCache,
    ) -> Result<Option<FrameSummary>, FrameError> {
        let Some((length, body)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(FrameError::TooLong);
        }
        let Some(packed) = body.get(..length) else { return Ok(None) };
        let pieces = pieces(packed)?.into_iter().map(|piece| memory.read(piece));
        let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
        self.buffer.drain(..4 + length);
        if self.buffer.is_empty() {
            self.buffer.shrink_to(RETAINED);
        }
        self.apply_pieces(&pieces).map(Some)
    }

    fn apply_pieces(&mut self, pieces: &[Arc<Piece>]) -> Result<FrameSummary, FrameError> {
        let unpacked = pieces.iter().map(|piece| piece.length).sum();
        if let [piece] = pieces {
            let read;
            let map = match &piece.content {
                Content::Map(map) => map,
                Content::Text(text) => {
                    read = read_map(text)?;
                    &read
                }
                Content::Peers(_) => return Err(FrameError::NoMap),
            };
            self.apply(map, &[])?;
            return Ok(FrameSummary {
                unpacked,
                has_rules: map.has_rules(),
                marks: piece.marks.clone(),
            });
        }
        let (mut text, mut peers) = (String::new(), Vec::new());
        for piece in pieces {
            match &piece.content {
                Content::Peers(ids) => peers.extend_from_slice(ids),
                Content::Text(own) => text.push_str(own),
                Content::Map(_) => return Err(FrameError::NoMap),
            }
        }
        let map = read_map(&text)?;
        self.apply(&map, &peers)?;
        let marks = pieces.iter().flat_map(|piece| piece.marks.iter().copied()).collect();
        Ok(FrameSummary { unpacked, has_rules: map.has_rules(), marks })
    }

    /// Applies a map, with further peers of its list of peers.
    fn apply(&mut self, map: &Map, more: &[u64]) -> Result<(), FrameError> {
        let ids = |list: &'_ Option<Vec<PeerEntry>>| -> Vec<u64> {
            list.iter().flatten().map(|peer| peer.id).collect()
        };
        // A non-empty list replaces all peers.
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

    fn insert(&mut self, id: u64) -> Result<(), FrameError> {
        if id >= MAX_ID {
            return Err(FrameError::NoMap);
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

impl PieceCache {
    fn read(&self, packed: &[u8]) -> Result<Arc<Piece>, FrameError> {
        let unpack = || UNPACKER.with_borrow_mut(|unpacker| unpacker.read(packed)).map(Arc::new);
        if packed.len() < MIN_CACHED {
            return unpack();
        }
        let key = (self.hasher.hash_one(packed), packed.len());
        let pieces = || self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces().get(&key) {
            return Ok(Arc::clone(piece));
        }
        let piece = unpack()?;
        let mut pieces = pieces();
        if pieces.len() >= CACHED_PIECES {
            pieces.clear();
        }
        pieces.insert(key, Arc::clone(&piece));
        Ok(piece)
    }
}

/// Splits a map into its zstd frames.
fn pieces(mut packed: &[u8]) -> Result<Vec<&[u8]>, FrameError> {
    let mut pieces = Vec::new();
    while !packed.is_empty() {
        let length = zstd::zstd_safe::find_frame_compressed_size(packed);
        let (piece, rest) = length
            .ok()
            .and_then(|length| packed.split_at_checked(length))
            .ok_or(FrameError::NoZstd)?;
        pieces.push(piece);
        packed = rest;
    }
    Ok(pieces)
}

fn read_map(text: &str) -> Result<Map, FrameError> {
    serde_json::from_str(text).map_err(|_| FrameError::NoMap)
}

impl Unpacker {
    fn read(&mut self, packed: &[u8]) -> Result<Piece, FrameError> {
        let context = match &mut self.context {
            Some(context) => context,
            empty => empty.insert(zstd::bulk::Decompressor::new().map_err(|_| FrameError::NoZstd)?),
        };
        self.text.clear();
        // Not every frame has its uncompressed length.
        self.text.reserve(packed.len() * 8);
        while context.decompress_to_buffer(packed, &mut self.text).is_err() {
            let more = self.text.capacity() * 2;
            if more > 2 * MAX_FRAME {
                return Err(FrameError::NoZstd);
            }
            self.text.clear();
            self.text.reserve(more);
        }
        let piece = Piece::of(str::from_utf8(&self.text).map_err(|_| FrameError::NoMap)?);
        self.text.shrink_to(RETAINED);
        Ok(piece)
    }
}

impl Piece {
    fn of(text: &str) -> Self {
        let peers = text.strip_prefix(',').map(|rest| format!("[{rest}]"));
        let peers = peers.and_then(|list| serde_json::from_str::<Vec<PeerEntry>>(&list).ok());
        let content = match (peers, serde_json::from_str(text)) {
            (Some(peers), _) => Content::Peers(peers.iter().map(|peer| peer.id).collect()),
            (None, Ok(map)) => Content::Map(map),
            (None, Err(_)) => Content::Text(text.to_owned()),
        };
        let marks = memchr::memmem::find_iter(text.as_bytes(), MARK);
        let marks = marks.filter_map(|at| mark(&text[at + MARK.len()..])).collect();
        Self { length: text.len(), marks, content }
    }
}

/// The number in the last two bytes of an address.
fn mark(text: &str) -> Option<u16> {
    let (high, rest) = text.split_once('.')?;
    let (low, _) = rest.split_once(':')?;
    Some(u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]))
}

#[cfg(test)]
mod tests {
    use super::{FrameError, PeerList, PieceCache};

    fn framed(text: &str) -> Vec<u8> {
        let packed = zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        [&(packed.len() as u32).to_le_bytes()[..], &packed].concat()
    }

    fn counts(texts: &[&str]) -> Vec<usize> {
        let stream: Vec<u8> = texts.iter().flat_map(|text| framed(text)).collect();
        let (mut known, mut counts) = (PeerList::default(), Vec::new());
        let memory = PieceCache::default();
        for piece in stream.chunks(7) {
            known.handle_bytes(piece);
            while known.poll_frame(&memory).unwrap().is_some() {
                counts.push(known.count());
            }
        }
        counts
    }

    #[test]
    fn each_peer_is_counted_once_across_changes() {
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
    fn rules_of_either_name_and_texts_of_any_length_are_read() {
        let mut known = PeerList::default();
        let long = format!(r#"{{"x":"{}","PacketFilter":[]}}"#, "y".repeat(1 << 20));
        for text in [&long, r#"{"PacketFilters":{"base":[]}}"#, r#"{"PacketFilter":null}"#] {
            known.handle_bytes(&framed(text));
        }
        let memory = PieceCache::default();
        let summary: Vec<_> = std::iter::from_fn(|| known.poll_frame(&memory).unwrap()).collect();
        assert_eq!(
            summary.iter().map(|one| one.has_rules).collect::<Vec<_>>(),
            [true, true, false]
        );
        assert_eq!(summary[0].unpacked, long.len());
    }

    #[test]
    fn an_invalid_frame_is_an_error() {
        let read = |bytes: &[u8]| {
            let mut known = PeerList::default();
            known.handle_bytes(bytes);
            known.poll_frame(&PieceCache::default()).unwrap_err()
        };
        assert_eq!(read(&[0xff; 4]), FrameError::TooLong);
        assert_eq!(read(&[1, 0, 0, 0, 7]), FrameError::NoZstd);
        assert_eq!(read(&framed("7")), FrameError::NoMap);
        assert_eq!(read(&framed(r#"{"PeersChanged":[{"ID":99999999999}]}"#)), FrameError::NoMap);
    }

    #[test]
    fn a_map_in_several_frames_is_read_as_one_and_pieces_are_cached() {
        let pack = |text: &str| zstd::bulk::compress(text.as_bytes(), 1).unwrap();
        let peer = |id: u64| {
            format!(r#",{{"ID":{id},"Key":"{:032x}"}}"#, id.wrapping_mul(0x9e3779b97f4a7c15))
        };
        let block: String = (10..74).map(peer).collect();
        let texts = [r#"{"Node":{"ID":1},"Peers":[{"ID":2}"#, &block, r#"],"PacketFilters":{}}"#];
        let body: Vec<u8> = texts.iter().flat_map(|text| pack(text)).collect();
        let memory = PieceCache::default();
        for _ in 0..2 {
            let mut known = PeerList::default();
            known.handle_bytes(&(body.len() as u32).to_le_bytes());
            known.handle_bytes(&body);
            let summary = known.poll_frame(&memory).unwrap().unwrap();
            assert_eq!((known.count(), summary.has_rules), (65, true));
            assert_eq!(summary.unpacked, texts.iter().map(|text| text.len()).sum::<usize>());
        }
        assert_eq!(memory.pieces.lock().unwrap().len(), 1);
    }

    #[test]
    fn changes_are_recognised_by_their_address() {
        let mut known = PeerList::default();
        let patch = r#"{"PeersChangedPatch":[{"NodeID":7,"Endpoints":["192.168.0.1:1","198.18.1.2:41641"]}]}"#;
        known.handle_bytes(&framed(patch));
        assert_eq!(*known.poll_frame(&PieceCache::default()).unwrap().unwrap().marks, [258]);
    }
}
