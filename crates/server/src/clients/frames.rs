//! Frames in streams of maps: a length and zstd. Frames that several clients receive are cached.

use std::{
    cell::RefCell,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use coordinator::{Cache, Frame, FrameKey, Part};

use crate::http::body::Parts;

/// Number of packed frames that are cached for other clients.
const KEPT: usize = 64;
/// Compression level, the fastest of the usual ones.
const LEVEL: i32 = 1;

thread_local! {
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Cache of packed frames that several clients receive.
#[derive(Default)]
pub(super) struct PackedFrames(Mutex<Cache<FrameKey, Parts, KEPT>>);

impl PackedFrames {
    /// Encodes a frame, or takes it from the cache.
    pub(super) fn encode(&self, frame: &Frame) -> Parts {
        let Some(key) = &frame.key else { return encode_frame(frame) };
        let cache = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parts) = cache().get(key) {
            return parts.clone();
        }
        let parts = encode_frame(frame);
        let bytes = key.bytes() + parts.iter().map(Bytes::len).sum::<usize>();
        cache().insert(key.clone(), parts.clone(), bytes);
        parts
    }
}

/// Encodes a frame. Individual text and packed blocks are separate zstd frames, which clients
/// decompress as one.
pub(super) fn encode_frame(frame: &Frame) -> Parts {
    let (mut parts, mut text) = (Parts::new(), String::new());
    for part in frame.parts.iter() {
        match part {
            Part::Text(own) => text.push_str(own),
            Part::Shared(shared) => text.push_str(shared),
            Part::Block(block) => {
                if !text.is_empty() {
                    parts.push(pack(text.as_bytes()).into());
                    text.clear();
                }
                parts.push(block.packed(|text| pack(text.as_bytes()).into()));
            }
        }
    }
    parts.push(pack(text.as_bytes()).into());
    let length = length(parts.iter().map(Bytes::len).sum());
    parts[0] = [&length[..], &parts[0]].concat().into();
    parts
}

/// Encodes a text as a frame.
pub(super) fn framed(text: &[u8]) -> Bytes {
    let packed = pack(text);
    [&length(packed.len())[..], &packed].concat().into()
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a map is shorter than 4 GiB").to_le_bytes()
}

fn pack(text: &[u8]) -> Vec<u8> {
    PACKER.with_borrow_mut(|packer| {
        let new = || zstd::bulk::Compressor::new(LEVEL).expect("the level is one");
        let packer = packer.get_or_insert_with(new);
        packer.compress(text).expect("a buffer in memory grows")
    })
}
