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
//! long ones. The keys are first. Sealing encrypts all and then authenticates; opening
//! authenticates and then decrypts what is authentic, so a forged packet's plaintext
//! never exists.

use arrayvec::ArrayVec;
use zeroize::optimization_barrier;

use crate::{Key, Open, Seal, TAG_LEN, row::Row};

/// Packets of a group, at most.
pub(crate) const PACKETS: usize = 16;

/// Lanes of a cipher, at most.
pub(crate) const LANES: usize = 32;

/// Bytes of a ChaCha20 block.
pub(crate) const BLOCK: usize = 64;

/// What a variant brings. A value is the proof that the processor can do it.
pub(crate) trait Simd: Copy {
    /// Registers in memory, wiped at the end of a batch.
    type Secrets: Default;

    /// Lanes for so many blocks: as few as will do, or as many as there are.
    fn lanes(self, blocks: usize) -> usize;

    /// ChaCha20: of each lane of the runs, the block, a row each.
    fn keystream(
        self,
        packets: &[Packet<'_>],
        runs: &[Run],
        rows: &mut [Row; LANES],
        secrets: &mut Self::Secrets,
    );

    /// Text and keystream to text.
    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &[Row; LANES]);

    /// Poly1305: the tag of each packet's text.
    fn tags(
        self,
        packets: &[Packet<'_>],
        keys: &[OneTimeKey; PACKETS],
        secrets: &mut Self::Secrets,
    ) -> [[u8; TAG_LEN]; PACKETS];
}

/// Poly1305's r and s.
pub(crate) type OneTimeKey = [u8; 32];

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
    let mut state = State::new();
    for group in batch.chunks_mut(PACKETS) {
        let mut packets: ArrayVec<Packet<'_>, PACKETS> = group
            .iter_mut()
            .map(|seal| {
                let (text, tag) =
                    seal.data.split_last_chunk_mut().expect("the caller left room for the tag");
                Packet { key: seal.key, counter: seal.counter, text, tag }
            })
            .collect();
        state.seal(simd, &mut packets);
    }
}

/// Opens a batch.
pub(crate) fn open<S: Simd>(simd: S, batch: &mut [Open<'_>]) {
    let mut state = State::new();
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
        let results = state.open(simd, &mut packets);
        for (authentic, result) in authentic.into_iter().zip(results) {
            *authentic = result;
        }
    }
}

/// What a batch leaves in memory; wiped with it.
struct State<T: Default> {
    rows: [Row; LANES],
    keys: [OneTimeKey; PACKETS],
    secrets: T,
}

impl<T: Default> Drop for State<T> {
    fn drop(&mut self) {
        self.rows = [Row::default(); LANES];
        self.keys = [OneTimeKey::default(); PACKETS];
        self.secrets = T::default();
        optimization_barrier(self);
    }
}

impl<T: Default> State<T> {
    #[inline]
    fn new() -> Self {
        Self {
            rows: [Row::default(); LANES],
            keys: [OneTimeKey::default(); PACKETS],
            secrets: T::default(),
        }
    }

    fn seal<S: Simd<Secrets = T>>(&mut self, simd: S, packets: &mut [Packet<'_>]) {
        let mut queue = Queue::new(packets);
        let first = self.begin(simd, packets, &mut queue);
        simd.xor(packets, &first, &self.rows);
        self.finish(simd, packets, queue);
        let tags = simd.tags(packets, &self.keys, &mut self.secrets);
        for (packet, tag) in packets.iter_mut().zip(&tags) {
            *packet.tag = *tag;
        }
    }

    fn open<S: Simd<Secrets = T>>(
        &mut self,
        simd: S,
        packets: &mut [Packet<'_>],
    ) -> [bool; PACKETS] {
        let mut queue = Queue::new(packets);
        let mut first = self.begin(simd, packets, &mut queue);
        let tags = simd.tags(packets, &self.keys, &mut self.secrets);
        let mut authentic = [false; PACKETS];
        for (index, (packet, tag)) in packets.iter().zip(&tags).enumerate() {
            authentic[index] = same(tag, packet.tag);
            if !authentic[index] {
                queue.forget(index);
            }
        }
        first.retain(|run| authentic[run.packet]);
        simd.xor(packets, &first, &self.rows);
        self.finish(simd, packets, queue);
        authentic
    }

    /// Takes the one-time keys, and what lanes there are left for data: those runs are
    /// yet to be applied.
    fn begin<S: Simd<Secrets = T>>(
        &mut self,
        simd: S,
        packets: &[Packet<'_>],
        queue: &mut Queue,
    ) -> Runs {
        let keys = packets.len();
        let mut runs: Runs =
            (0..keys).map(|at| Run { packet: at, block: 0, lane: at, blocks: 1 }).collect();
        queue.fill(&mut runs, keys, simd.lanes(keys + queue.blocks));
        simd.keystream(packets, &runs, &mut self.rows, &mut self.secrets);
        for (key, row) in self.keys.iter_mut().zip(&self.rows[..keys]) {
            key.copy_from_slice(&row.0[..32]);
        }
        runs.drain(..keys);
        runs
    }

    fn finish<S: Simd<Secrets = T>>(
        &mut self,
        simd: S,
        packets: &mut [Packet<'_>],
        mut queue: Queue,
    ) {
        while queue.blocks > 0 {
            let mut runs = Runs::new();
            queue.fill(&mut runs, 0, simd.lanes(queue.blocks));
            simd.keystream(packets, &runs, &mut self.rows, &mut self.secrets);
            simd.xor(packets, &runs, &self.rows);
        }
    }
}

/// In constant time.
fn same(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    let difference = u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
    std::hint::black_box(difference) == 0
}

type Runs = ArrayVec<Run, LANES>;

/// The blocks of data that wait for a lane.
struct Queue {
    /// All that wait.
    blocks: usize,
    /// Those that wait of each packet.
    left: [usize; PACKETS],
    /// Where each packet goes on.
    next: [usize; PACKETS],
    /// The first packet that has any.
    packet: usize,
}

impl Queue {
    fn new(packets: &[Packet<'_>]) -> Self {
        let mut left = [0; PACKETS];
        for (left, packet) in left.iter_mut().zip(packets) {
            *left = packet.text.len().div_ceil(BLOCK);
        }
        Self { blocks: left.iter().sum(), left, next: [1; PACKETS], packet: 0 }
    }

    /// Fills lanes up to `end` with what is next.
    fn fill(&mut self, runs: &mut Runs, mut lane: usize, end: usize) {
        while lane < end && self.blocks > 0 {
            let left = &mut self.left[self.packet];
            let blocks = (*left).min(end - lane);
            if blocks > 0 {
                let next = &mut self.next[self.packet];
                runs.push(Run { packet: self.packet, block: *next, lane, blocks });
                *next += blocks;
                *left -= blocks;
                self.blocks -= blocks;
                lane += blocks;
            }
            if *left == 0 {
                self.packet += 1;
            }
        }
    }

    /// Leaves a packet as it is.
    fn forget(&mut self, packet: usize) {
        self.blocks -= self.left[packet];
        self.left[packet] = 0;
    }
}
