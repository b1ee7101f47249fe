//! Splits a batch into groups of packets, and a group into blocks for the lanes of a cipher.
//!
//! ```text
//!   packet 0   k 1 2 3 4        block 0 of ChaCha20 is the packet's Poly1305 key,
//!   packet 1   k 1 2            the others are keystream
//!   packet 2   k 1 2 3
//!
//!   lanes      k k k 1 2 3 4 1 2 1 2 3        runs: packet 0 from block 1, ...
//! ```
//!
//! A lane can process a block of any packet, so short packets fill lanes as well as long ones. The
//! key blocks come first. Packets of equal length are processed side by side, one lane each.
//!
//! Sealing encrypts all packets and then authenticates them. Opening authenticates first and
//! decrypts only authentic packets, so the plaintext of a forged packet never exists.

mod cost;
mod queue;

use std::{array, hint::black_box};

use arrayvec::ArrayVec;
pub(in crate::aead) use cost::Load;
use queue::{Queue, Runs};
use zeroize::optimization_barrier;

use crate::aead::{Key, Open, Seal, Selection, TAG_LEN, library};

/// Maximum number of packets in a group.
pub(in crate::aead) const PACKETS: usize = 16;

/// Maximum number of lanes of a cipher.
pub(in crate::aead) const LANES: usize = 32;

/// Bytes of a ChaCha20 block.
pub(in crate::aead) const BLOCK: usize = 64;

/// The operations of a variant. A value proves that the processor supports it.
pub(in crate::aead) trait Simd: Copy {
    /// Approximate cost of a group, in the unit of [`Load`].
    fn cost(self, load: &Load) -> usize;

    /// Number of lanes for `blocks` blocks: the smallest sufficient number, or the maximum.
    fn lanes(self, blocks: usize) -> usize;

    /// ChaCha20: computes the block of each lane of the runs, one row each.
    fn keystream(self, packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows);

    /// XORs the keystream into the texts, up to the end of each text.
    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows);

    /// ChaCha20 of packets of equal length, one lane each: computes the one-time keys and the
    /// keystream of the first block.
    fn keys(
        self,
        packets: &[Packet<'_>; PACKETS],
        keys: &mut [OneTimeKey; PACKETS],
        first: &mut Keystream,
    );

    /// Encrypts or decrypts packets of equal length, one lane each.
    fn apply_keystream(self, packets: &mut [Packet<'_>; PACKETS], first: &Keystream);

    /// Poly1305: computes the tag of each packet's text.
    fn tags(self, packets: &[Packet<'_>], keys: &[OneTimeKey; PACKETS])
    -> [[u8; TAG_LEN]; PACKETS];
}

/// Poly1305's r and s.
pub(in crate::aead) type OneTimeKey = [u8; 32];

/// One block of keystream in each row. Wiped on drop.
#[repr(C, align(64))]
pub(in crate::aead) struct Rows(pub(in crate::aead) [[u8; BLOCK]; LANES]);

impl Rows {
    pub(in crate::aead) fn new() -> Self {
        Self([[0; BLOCK]; LANES])
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.0 = [[0; BLOCK]; LANES];
        optimization_barrier(self);
    }
}

/// One block of keystream for each packet. Wiped on drop.
#[repr(C, align(64))]
pub(in crate::aead) struct Keystream(pub(in crate::aead) [[u8; BLOCK]; PACKETS]);

impl Keystream {
    pub(in crate::aead) fn new() -> Self {
        Self([[0; BLOCK]; PACKETS])
    }
}

impl Drop for Keystream {
    fn drop(&mut self) {
        self.0 = [[0; BLOCK]; PACKETS];
        optimization_barrier(self);
    }
}

pub(in crate::aead) struct Packet<'a> {
    pub(in crate::aead) key: &'a Key,
    pub(in crate::aead) counter: u64,
    pub(in crate::aead) text: &'a mut [u8],
    pub(in crate::aead) tag: &'a mut [u8; TAG_LEN],
}

/// Consecutive blocks of one packet in consecutive lanes.
#[derive(Clone, Copy)]
pub(in crate::aead) struct Run {
    /// Index in the group.
    pub(in crate::aead) packet: usize,
    /// Counter of the first block. 0 for the key block.
    pub(in crate::aead) block: usize,
    pub(in crate::aead) lane: usize,
    pub(in crate::aead) blocks: usize,
}

pub(in crate::aead) fn seal<S: Simd>(simd: S, batch: &mut [Seal<'_>], selection: Selection) {
    let is_selected = |group: &[Seal<'_>]| {
        selection == Selection::All || is_faster(simd, group.iter().map(|seal| seal.data.len()))
    };
    let mut state = None;
    for group in batch.chunks_mut(PACKETS) {
        if !is_selected(group) {
            library::seal(group);
            continue;
        }
        let mut packets: ArrayVec<Packet<'_>, PACKETS> = ArrayVec::new();
        for seal in group {
            let (text, tag) =
                seal.data.split_last_chunk_mut().expect("the caller left room for the tag");
            packets.push(Packet { key: seal.key, counter: seal.counter, text, tag });
        }
        state.get_or_insert_with(|| State::new(simd)).seal(&mut packets);
    }
}

pub(in crate::aead) fn open<S: Simd>(simd: S, batch: &mut [Open<'_>], selection: Selection) {
    let is_selected = |group: &[Open<'_>]| {
        selection == Selection::All || is_faster(simd, group.iter().map(|open| open.data.len()))
    };
    let mut state = None;
    for group in batch.chunks_mut(PACKETS) {
        if !is_selected(group) {
            library::open(group);
            continue;
        }
        let mut packets: ArrayVec<Packet<'_>, PACKETS> = ArrayVec::new();
        let mut authentic: ArrayVec<&mut bool, PACKETS> = ArrayVec::new();
        for open in group {
            open.authentic = false;
            if let Some((text, tag)) = open.data.split_last_chunk_mut() {
                packets.push(Packet { key: open.key, counter: open.counter, text, tag });
                authentic.push(&mut open.authentic);
            }
        }
        if packets.is_empty() {
            continue;
        }
        let results = state.get_or_insert_with(|| State::new(simd)).open(&mut packets);
        for (authentic, result) in authentic.into_iter().zip(results) {
            *authentic = result;
        }
    }
}

fn is_faster<S: Simd>(simd: S, lens: impl ExactSizeIterator<Item = usize>) -> bool {
    // A single packet is never worth it.
    lens.len() > 1 && {
        let load = Load::new(lens.map(|len| len.saturating_sub(TAG_LEN)));
        load.is_faster(simd.cost(&load))
    }
}

/// Secrets of a batch in memory. Wiped on drop.
struct State<S: Simd> {
    simd: S,
    keys: [OneTimeKey; PACKETS],
}

impl<S: Simd> Drop for State<S> {
    fn drop(&mut self) {
        self.keys = [[0; 32]; PACKETS];
        optimization_barrier(&self.keys);
    }
}

impl<S: Simd> State<S> {
    #[inline]
    fn new(simd: S) -> Self {
        Self { simd, keys: [[0; 32]; PACKETS] }
    }

    fn seal(&mut self, packets: &mut [Packet<'_>]) {
        if let Some(packets) = equal_lengths(packets) {
            let mut first = Keystream::new();
            self.simd.keys(packets, &mut self.keys, &mut first);
            self.simd.apply_keystream(packets, &first);
        } else {
            let (mut queue, mut runs, mut rows) = (Queue::new(packets), Runs::new(), Rows::new());
            self.begin(packets, &mut queue, &mut runs, &mut rows);
            self.simd.xor(packets, &runs[packets.len()..], &rows);
            self.finish(packets, &mut queue, &mut runs, &mut rows);
        }
        let tags = self.simd.tags(packets, &self.keys);
        for (packet, tag) in packets.iter_mut().zip(&tags) {
            *packet.tag = *tag;
        }
    }

    fn open(&mut self, packets: &mut [Packet<'_>]) -> [bool; PACKETS] {
        if let Some(packets) = equal_lengths(packets) {
            let mut first = Keystream::new();
            self.simd.keys(packets, &mut self.keys, &mut first);
            let authentic = self.check(packets);
            if authentic == [true; PACKETS] {
                self.simd.apply_keystream(packets, &first);
            } else {
                let mut queue = Queue::new(packets);
                queue.retain(&authentic);
                self.finish(packets, &mut queue, &mut Runs::new(), &mut Rows::new());
            }
            return authentic;
        }
        let (mut queue, mut runs, mut rows) = (Queue::new(packets), Runs::new(), Rows::new());
        self.begin(packets, &mut queue, &mut runs, &mut rows);
        let authentic = self.check(packets);
        queue.retain(&authentic);
        runs.retain(|run| run.block > 0 && authentic[run.packet]);
        self.simd.xor(packets, &runs, &rows);
        self.finish(packets, &mut queue, &mut runs, &mut rows);
        authentic
    }

    fn check(&self, packets: &[Packet<'_>]) -> [bool; PACKETS] {
        let tags = self.simd.tags(packets, &self.keys);
        array::from_fn(|at| {
            packets.get(at).is_some_and(|packet| public(same(&tags[at], packet.tag)))
        })
    }

    /// Computes the one-time keys in the first lanes, and keystream for data in the remaining
    /// lanes. The caller applies the runs of that keystream.
    fn begin(
        &mut self,
        packets: &[Packet<'_>],
        queue: &mut Queue,
        runs: &mut Runs,
        rows: &mut Rows,
    ) {
        let keys = packets.len();
        runs.extend((0..keys).map(|at| Run { packet: at, block: 0, lane: at, blocks: 1 }));
        queue.fill(runs, keys..self.simd.lanes(keys + queue.blocks()));
        self.simd.keystream(packets, runs, rows);
        for (key, row) in self.keys.iter_mut().zip(&rows.0[..keys]) {
            key.copy_from_slice(&row[..32]);
        }
    }

    fn finish(
        &self,
        packets: &mut [Packet<'_>],
        queue: &mut Queue,
        runs: &mut Runs,
        rows: &mut Rows,
    ) {
        while queue.blocks() > 0 {
            runs.clear();
            queue.fill(runs, 0..self.simd.lanes(queue.blocks()));
            self.simd.keystream(packets, runs, rows);
            self.simd.xor(packets, runs, rows);
        }
    }
}

/// Returns the packets if they are a full group of equal length, which is processed with one lane
/// for each packet.
fn equal_lengths<'a, 'b>(packets: &'a mut [Packet<'b>]) -> Option<&'a mut [Packet<'b>; PACKETS]> {
    let packets = packets.as_mut_array()?;
    let len = packets[0].text.len();
    packets.iter().all(|packet| packet.text.len() == len).then_some(packets)
}

/// Declares a verdict as public: it is not a secret, which memcheck cannot know.
fn public(verdict: bool) -> bool {
    #[cfg(test)]
    let verdict = memcheck::shown(verdict);
    verdict
}

/// Compares in constant time.
pub(in crate::aead) fn same(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    let difference = u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
    black_box(difference) == 0
}
