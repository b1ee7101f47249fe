//! ChaCha20 (RFC 8439 section 2.3), 16 or 32 blocks at a time. A register contains one word of 16
//! blocks. After the rounds the result is transposed to one block of keystream in each register.
//!
//! Two states side by side use all 32 registers. The rounds need no further register.

use std::{
    arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_castsi512_si256, _mm512_rol_epi32, _mm512_set1_epi32,
        _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_unpackhi_epi32,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
    },
    ptr,
};

use zeroize::optimization_barrier;

use super::{
    register::{load, load_words, store, store_32, store_words, xor_chunk, xor_some},
    rounds::{columns, diagonals, line, rounds, rounds_but_one},
};
use crate::aead::{
    Key,
    group::{BLOCK, Keystream, OneTimeKey, PACKETS, Packet, Rows, Run},
};

/// Blocks of one state.
pub(super) const STATE: usize = 16;

/// "expand 32-byte k".
const CONSTANTS: [i32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The values that differ between the lanes of two states.
struct Lanes<'a> {
    /// The key of all lanes, or its words by lane.
    one_key: &'a Key,
    keys: Option<&'a Keys>,
    /// The block counter.
    block: Words,
    /// The nonce: 32 zero bits, then the packet counter's halves.
    low: Words,
    high: Words,
}

/// A word of each lane, with room to write 16 of them from any lane on.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Words([u32; 3 * STATE]);

const NO_WORDS: Words = Words([0; 3 * STATE]);

impl Words {
    /// Sets this lane and the next 15.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn set(&mut self, lane: usize, words: __m512i) {
        store_words(self.0[lane..].first_chunk_mut().expect("there is room"), words);
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(&self, state: usize) -> __m512i {
        load_words(self.0[STATE * state..].first_chunk().expect("there are two states"))
    }
}

impl<'a> Lanes<'a> {
    #[inline]
    fn new(one_key: &'a Key, keys: Option<&'a Keys>) -> Self {
        Self { one_key, keys, block: NO_WORDS, low: NO_WORDS, high: NO_WORDS }
    }

    /// Assigns lanes to runs. A later run overwrites the lanes that an earlier one set beyond its
    /// end.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn assign(&mut self, packets: &[Packet<'_>], runs: &[Run]) {
        let iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for run in runs {
            let Packet { counter, .. } = packets[run.packet];
            for behind in (0..run.blocks).step_by(STATE) {
                let lane = run.lane + behind;
                let from = _mm512_set1_epi32((run.block + behind) as i32);
                self.block.set(lane, _mm512_add_epi32(iota, from));
                self.low.set(lane, _mm512_set1_epi32(counter as i32));
                self.high.set(lane, _mm512_set1_epi32((counter >> 32) as i32));
            }
        }
    }

    /// Assigns one lane to each packet.
    #[inline]
    fn one_per_packet(&mut self, packets: &[Packet<'_>; PACKETS]) {
        for (lane, packet) in packets.iter().enumerate() {
            self.low.0[lane] = packet.counter as u32;
            self.high.0[lane] = (packet.counter >> 32) as u32;
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn state(&self, state: usize) -> [__m512i; 16] {
        let [c0, c1, c2, c3] = CONSTANTS;
        let [a, b, c, d, e, f, g, h] = self.key(state);
        [
            _mm512_set1_epi32(c0),
            _mm512_set1_epi32(c1),
            _mm512_set1_epi32(c2),
            _mm512_set1_epi32(c3),
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            self.block.of(state),
            _mm512_setzero_si512(),
            self.low.of(state),
            self.high.of(state),
        ]
    }

    /// The first state, with the same block counter in all lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn at(&self, block: usize) -> [__m512i; 16] {
        let mut state = self.state(0);
        state[12] = _mm512_set1_epi32(block as i32);
        state
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn key(&self, state: usize) -> [__m512i; 8] {
        let mut words = [_mm512_setzero_si512(); 8];
        if let Some(keys) = self.keys {
            for (word, values) in words.iter_mut().zip(&keys.0) {
                *word = values.of(state);
            }
        } else {
            for (word, value) in words.iter_mut().zip(self.one_key.words()) {
                *word = _mm512_set1_epi32(*value as i32);
            }
        }
        words
    }
}

/// The state after the first column round, except the column that depends on the block counter: of
/// that, only the first sum is computed. Wiped on drop.
#[repr(C, align(64))]
struct Start([[u32; STATE]; 16]);

impl Start {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(lanes: &Lanes<'_>) -> Self {
        let mut start = Self([[0; STATE]; 16]);
        let mut x = lanes.at(0);
        x[0] = _mm512_add_epi32(x[0], x[4]);
        line!(16; x 1 5 13, x 2 6 14, x 3 7 15);
        line!(12; x 9 13 5, x 10 14 6, x 11 15 7);
        line!(8; x 1 5 13, x 2 6 14, x 3 7 15);
        line!(7; x 9 13 5, x 10 14 6, x 11 15 7);
        for (words, x) in start.0.iter_mut().zip(x) {
            store_words(words, x);
        }
        start
    }

    /// The state of a block after the first column round.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn at(&self, block: usize) -> [__m512i; 16] {
        let mut x = [_mm512_setzero_si512(); 16];
        for (x, words) in x.iter_mut().zip(&self.0) {
            *x = load_words(words);
        }
        x[12] = _mm512_xor_si512(_mm512_set1_epi32(block as i32), x[0]);
        x[12] = _mm512_rol_epi32::<16>(x[12]);
        line!(12; x 8 12 4);
        line!(8; x 0 4 12);
        line!(7; x 8 12 4);
        x
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        self.0 = [[0; STATE]; 16];
        optimization_barrier(self);
    }
}

/// The words of different keys, by lane. Wiped on drop.
struct Keys([Words; 8]);

impl Keys {
    fn new(packets: &[Packet<'_>], runs: &[Run]) -> Self {
        let mut keys = Self([NO_WORDS; 8]);
        for run in runs {
            for (words, word) in keys.0.iter_mut().zip(packets[run.packet].key.words()) {
                words.0[run.lane..run.lane + run.blocks].fill(*word);
            }
        }
        keys
    }

    fn one_per_packet(packets: &[Packet<'_>; PACKETS]) -> Self {
        let mut runs = [Run { packet: 0, block: 0, lane: 0, blocks: 1 }; PACKETS];
        for (lane, run) in runs.iter_mut().enumerate() {
            (run.packet, run.lane) = (lane, lane);
        }
        Self::new(packets, &runs)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.0 = [NO_WORDS; 8];
        optimization_barrier(self);
    }
}

fn one_key(packets: &[Packet<'_>]) -> bool {
    packets.iter().all(|packet| ptr::eq(packet.key, packets[0].key))
}

/// Computes the keystream of 16 lanes, or of 32 if there are runs in the upper ones.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn keystream(packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows) {
    if one_key(packets) {
        keystream_with(packets, runs, rows, None);
    } else {
        keystream_with(packets, runs, rows, Some(&Keys::new(packets, runs)));
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn keystream_with(packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows, keys: Option<&Keys>) {
    let mut lanes = Lanes::new(packets[0].key, keys);
    lanes.assign(packets, runs);
    let (states, _) = rows.0.as_chunks_mut();
    match (states, runs.last()) {
        ([first, second], Some(run)) if run.lane + run.blocks > STATE => {
            let (mut x, mut y) = (lanes.state(0), lanes.state(1));
            rounds!(x, y);
            store_blocks(first, sum(x, lanes.state(0)));
            store_blocks(second, sum(y, lanes.state(1)));
        }
        ([first, ..], _) => {
            let mut x = lanes.state(0);
            rounds!(x);
            store_blocks(first, sum(x, lanes.state(0)));
        }
        _ => {}
    }
}

/// Computes the one-time key of each packet, and its keystream for the first block.
#[target_feature(enable = "avx512f")]
pub(super) fn one_time_keys(
    packets: &[Packet<'_>; PACKETS],
    keys: &mut [OneTimeKey; PACKETS],
    first: &mut Keystream,
) {
    let each = (!one_key(packets)).then(|| Keys::one_per_packet(packets));
    let mut lanes = Lanes::new(packets[0].key, each.as_ref());
    lanes.one_per_packet(packets);
    let mut x = lanes.at(0);
    if packets[0].text.is_empty() {
        rounds!(x);
    } else {
        let mut y = lanes.at(1);
        rounds!(x, y);
        store_blocks(&mut first.0, sum(y, lanes.at(1)));
    }
    let blocks = transpose(sum(x, lanes.at(0)));
    for lane in 0..STATE {
        store_32(&mut keys[lane], _mm512_castsi512_si256(blocks[lane]));
    }
}

/// XORs a full block of each packet. A macro, because a function would pass the registers in
/// memory.
macro_rules! xor_block {
    ($packets:expr, $block:expr, $x:expr) => {{
        let blocks = transpose($x);
        for lane in 0..STATE {
            let chunk = $packets[lane].text[BLOCK * ($block - 1)..].first_chunk_mut();
            xor_chunk(chunk.expect("the block is full"), blocks[lane]);
        }
    }};
}

/// Encrypts or decrypts all blocks of packets of equal length.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn apply_keystream(packets: &mut [Packet<'_>; PACKETS], first: &Keystream) {
    let len = packets[0].text.len();
    for (packet, block) in packets.iter_mut().zip(&first.0) {
        match packet.text.first_chunk_mut() {
            Some(chunk) => xor_chunk(chunk, load(block)),
            None => xor_some(packet.text, load(block)),
        }
    }
    if len <= BLOCK {
        return;
    }
    let each = (!one_key(packets)).then(|| Keys::one_per_packet(packets));
    let mut lanes = Lanes::new(packets[0].key, each.as_ref());
    lanes.one_per_packet(packets);
    let start = Start::new(&lanes);
    let (full, all) = (len / BLOCK, len.div_ceil(BLOCK));
    let mut block = 2;
    while block < all {
        let (mut x, mut y) = (start.at(block), start.at(block + 1));
        rounds_but_one!(x, y);
        xor_block!(packets, block, sum(x, lanes.at(block)));
        let y = sum(y, lanes.at(block + 1));
        if block < full {
            xor_block!(packets, block + 1, y);
        } else {
            xor_last(packets, y);
        }
        block += 2;
    }
    if block == all {
        let mut x = start.at(block);
        rounds_but_one!(x);
        let x = sum(x, lanes.at(block));
        if block == full {
            xor_block!(packets, block, x);
        } else {
            xor_last(packets, x);
        }
    }
}

/// XORs the bytes after the last full block of each packet.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor_last(packets: &mut [Packet<'_>; PACKETS], x: [__m512i; 16]) {
    let blocks = transpose(x);
    for lane in 0..STATE {
        xor_some(packets[lane].text.as_chunks_mut::<BLOCK>().1, blocks[lane]);
    }
}

/// Adds the initial state.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum(mut a: [__m512i; 16], b: [__m512i; 16]) -> [__m512i; 16] {
    for word in 0..16 {
        a[word] = _mm512_add_epi32(a[word], b[word]);
    }
    a
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_blocks(rows: &mut [[u8; BLOCK]; STATE], x: [__m512i; 16]) {
    let blocks = transpose(x);
    for lane in 0..STATE {
        store(&mut rows[lane], blocks[lane]);
    }
}

/// Transposes words to blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(x: [__m512i; 16]) -> [__m512i; 16] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = x;
    let [a0, a1, a2, a3] = quarters(a0, a1, a2, a3);
    let [b0, b1, b2, b3] = quarters(b0, b1, b2, b3);
    let [c0, c1, c2, c3] = quarters(c0, c1, c2, c3);
    let [d0, d1, d2, d3] = quarters(d0, d1, d2, d3);
    let [r0, r4, r8, r12] = rows(a0, b0, c0, d0);
    let [r1, r5, r9, r13] = rows(a1, b1, c1, d1);
    let [r2, r6, r10, r14] = rows(a2, b2, c2, d2);
    let [r3, r7, r11, r15] = rows(a3, b3, c3, d3);
    [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15]
}

/// Transposes four words of 16 blocks to four registers with the same quarter of four blocks each:
/// blocks 0, 4, 8 and 12 in the first register, 1, 5, 9 and 13 in the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Combines four quarters of four blocks to four blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn rows(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    let ab_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
    let ab_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
    let cd_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d);
    let cd_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d);
    [
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high),
    ]
}
