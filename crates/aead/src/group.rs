//! A batch in groups of packets, and a group as blocks for the lanes of a cipher.
//!
//! ```text
//!   packet 0   k 1 2 3 4        block 0 of ChaCha20 is the packet's Poly1305 key,
//!   packet 1   k 1 2            the others are keystream
//!   packet 2   k 1 2 3
//!
//!   lanes      k k k 1 2 3 4 1 2 1 2 3        runs: packet 0 from block 1, ...
//! ```
//!
//! A lane does not mind whose block it has, so short packets fill lanes as well as
//! long ones. The keys are first. Packets of one length go on side by side, a lane each.
//!
//! Sealing encrypts all and then authenticates; opening authenticates and then decrypts
//! what is authentic, so a forged packet's plaintext never exists.

mod queue;

use std::{array, hint::black_box, ops::Range};

use arrayvec::ArrayVec;
use queue::{Queue, Runs};
use zeroize::optimization_barrier;

use crate::{Key, Open, Seal, TAG_LEN};

/// Packets of a group, at most.
pub(crate) const PACKETS: usize = 16;

/// Lanes of a cipher, at most.
pub(crate) const LANES: usize = 32;

/// Bytes of a ChaCha20 block.
pub(crate) const BLOCK: usize = 64;

/// What a variant brings. A value is the proof that the processor can do it.
pub(crate) trait Simd: Copy {
    /// Lanes for so many blocks: as few as will do, or as many as there are.
    fn lanes(self, blocks: usize) -> usize;

    /// ChaCha20: of each lane of the runs, the block, a row each.
    fn keystream(self, packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows);

    /// Text and keystream to text, as far as the text goes.
    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows);

    /// Text and keystream to text, a lane for each packet: of these blocks, which are
    /// full, as many as this way is the faster for. Which is the next one then.
    fn sweep(self, packets: &mut [Packet<'_>; PACKETS], blocks: Range<usize>) -> usize;

    /// Poly1305: the tag of each packet's text.
    fn tags(self, packets: &[Packet<'_>], keys: &[OneTimeKey; PACKETS])
    -> [[u8; TAG_LEN]; PACKETS];
}

/// Poly1305's r and s.
pub(crate) type OneTimeKey = [u8; 32];

/// A block of keystream in each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Rows(pub(crate) [[u8; BLOCK]; LANES]);

/// One packet of a group.
pub(crate) struct Packet<'a> {
    pub(crate) key: &'a Key,
    pub(crate) counter: u64,
    pub(crate) text: &'a mut [u8],
    pub(crate) tag: &'a mut [u8; TAG_LEN],
}

/// Consecutive blocks of one packet in consecutive lanes.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Index in the group.
    pub(crate) packet: usize,
    /// The first block's counter; 0 for the one that is the key.
    pub(crate) block: usize,
    pub(crate) lane: usize,
    pub(crate) blocks: usize,
}

/// Seals a batch.
pub(crate) fn seal<S: Simd>(simd: S, batch: &mut [Seal<'_>]) {
    let mut state = State::wiped(simd);
    for group in batch.chunks_mut(PACKETS) {
        let mut packets: ArrayVec<Packet<'_>, PACKETS> = ArrayVec::new();
        for seal in group {
            let (text, tag) =
                seal.data.split_last_chunk_mut().expect("the caller left room for the tag");
            packets.push(Packet { key: seal.key, counter: seal.counter, text, tag });
        }
        state.seal(&mut packets);
    }
}

/// Opens a batch.
pub(crate) fn open<S: Simd>(simd: S, batch: &mut [Open<'_>]) {
    let mut state = State::wiped(simd);
    for group in batch.chunks_mut(PACKETS) {
        let mut packets: ArrayVec<Packet<'_>, PACKETS> = ArrayVec::new();
        let mut authentic: ArrayVec<&mut bool, PACKETS> = ArrayVec::new();
        for open in group {
            open.authentic = false;
            if let Some((text, tag)) = open.data.split_last_chunk_mut() {
                packets.push(Packet { key: open.key, counter: open.counter, text, tag });
                authentic.push(&mut open.authentic);
            }
        }
        for (authentic, result) in authentic.into_iter().zip(state.open(&mut packets)) {
            *authentic = result;
        }
    }
}

/// What a batch leaves in memory; wiped with it.
struct State<S: Simd> {
    simd: S,
    rows: Rows,
    keys: [OneTimeKey; PACKETS],
}

impl<S: Simd> Drop for State<S> {
    fn drop(&mut self) {
        self.rows = Rows([[0; BLOCK]; LANES]);
        self.keys = [[0; 32]; PACKETS];
        optimization_barrier(self);
    }
}

impl<S: Simd> State<S> {
    #[inline]
    fn wiped(simd: S) -> Self {
        Self { simd, rows: Rows([[0; BLOCK]; LANES]), keys: [[0; 32]; PACKETS] }
    }

    fn seal(&mut self, packets: &mut [Packet<'_>]) {
        let mut queue = Queue::new(packets);
        let mut first = Runs::new();
        self.begin(packets, &mut queue, &mut first);
        self.simd.xor(packets, &first[packets.len()..], &self.rows);
        self.finish(packets, &mut queue, &mut first);
        let tags = self.simd.tags(packets, &self.keys);
        for (packet, tag) in packets.iter_mut().zip(&tags) {
            *packet.tag = *tag;
        }
    }

    fn open(&mut self, packets: &mut [Packet<'_>]) -> [bool; PACKETS] {
        let mut queue = Queue::new(packets);
        let mut first = Runs::new();
        self.begin(packets, &mut queue, &mut first);
        let tags = self.simd.tags(packets, &self.keys);
        let authentic =
            array::from_fn(|at| packets.get(at).is_some_and(|packet| same(&tags[at], packet.tag)));
        for packet in (0..packets.len()).filter(|packet| !authentic[*packet]) {
            queue.forget(packet);
        }
        first.retain(|run| run.block > 0 && authentic[run.packet]);
        self.simd.xor(packets, &first, &self.rows);
        self.finish(packets, &mut queue, &mut first);
        authentic
    }

    /// Takes the one-time keys, by the first of the runs, and what lanes there are left
    /// for data: those runs are yet to be applied.
    fn begin(&mut self, packets: &[Packet<'_>], queue: &mut Queue, runs: &mut Runs) {
        let keys = packets.len();
        runs.extend((0..keys).map(|at| Run { packet: at, block: 0, lane: at, blocks: 1 }));
        queue.fill(runs, keys..self.simd.lanes(keys + queue.blocks()));
        self.simd.keystream(packets, runs, &mut self.rows);
        for (key, row) in self.keys.iter_mut().zip(&self.rows.0[..keys]) {
            key.copy_from_slice(&row[..32]);
        }
    }

    fn finish(&mut self, packets: &mut [Packet<'_>], queue: &mut Queue, runs: &mut Runs) {
        if let (Some(blocks), Some(packets)) = (queue.abreast(packets), packets.as_mut_array()) {
            let next = self.simd.sweep(packets, blocks.clone());
            queue.skip(next - blocks.start);
        }
        while queue.blocks() > 0 {
            runs.clear();
            queue.fill(runs, 0..self.simd.lanes(queue.blocks()));
            self.simd.keystream(packets, runs, &mut self.rows);
            self.simd.xor(packets, runs, &self.rows);
        }
    }
}

/// In constant time.
fn same(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    let difference = u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
    black_box(difference) == 0
}
