//! ChaCha20 (RFC 8439 section 2.3), eight blocks at a time. A register contains one word of eight
//! blocks. After the rounds the result is transposed.

use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_or_si256, _mm256_permute2x128_si256,
        _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32,
        _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
        _mm256_unpacklo_epi64, _mm256_xor_si256,
    },
    hint::black_box,
    slice,
};

use zeroize::optimization_barrier;

use crate::aead::group::{BLOCK, Keystream, LANES, OneTimeKey, PACKETS, Packet, Rows, Run};

/// Blocks of one state.
pub(super) const STATE: usize = 8;

/// "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The initial states, word by word, one lane for each block. Wiped on drop.
struct Lanes([[u32; LANES]; 16]);

impl Lanes {
    #[inline]
    fn new(packets: &[Packet<'_>], runs: &[Run]) -> Self {
        let mut lanes = Self([[0; LANES]; 16]);
        for run in runs {
            for at in 0..run.blocks {
                lanes.assign(run.lane + at, &packets[run.packet], run.block + at);
            }
        }
        lanes
    }

    /// Assigns one lane to each packet.
    #[inline]
    fn one_per_packet(packets: &[Packet<'_>; PACKETS]) -> Self {
        let mut lanes = Self([[0; LANES]; 16]);
        for (lane, packet) in packets.iter().enumerate() {
            lanes.assign(lane, packet, 0);
        }
        lanes
    }

    #[inline]
    fn assign(&mut self, lane: usize, packet: &Packet<'_>, block: usize) {
        let words = &mut self.0;
        for (word, constant) in words.iter_mut().zip(CONSTANTS) {
            word[lane] = constant;
        }
        for (word, value) in words[4..].iter_mut().zip(packet.key.words()) {
            word[lane] = *value;
        }
        words[12][lane] = block as u32;
        // The nonce: 32 zero bits, then the packet counter's halves.
        words[14][lane] = packet.counter as u32;
        words[15][lane] = (packet.counter >> 32) as u32;
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn state(&self, state: usize) -> [__m256i; 16] {
        let mut words = [_mm256_setzero_si256(); 16];
        for (word, lanes) in words.iter_mut().zip(&self.0) {
            *word = load_words(lanes[STATE * state..].first_chunk().expect("there are four"));
        }
        words
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0 = [[0; LANES]; 16];
        optimization_barrier(self);
    }
}

/// Shuffle masks that rotate words by 16 and by 8 bits.
static ROTATE_16: [u8; 32] = rotation(2);
static ROTATE_8: [u8; 32] = rotation(1);

const fn rotation(by: usize) -> [u8; 32] {
    let mut places = [0; 32];
    let mut at = 0;
    while at < 32 {
        places[at] = (at & 12 | (at + 4 - by) & 3) as u8;
        at += 1;
    }
    places
}

macro_rules! rotate {
    (16, $x:expr, $by_16:ident, $by_8:ident) => {
        _mm256_shuffle_epi8($x, $by_16)
    };
    (8, $x:expr, $by_16:ident, $by_8:ident) => {
        _mm256_shuffle_epi8($x, $by_8)
    };
    ($by:literal, $x:expr, $by_16:ident, $by_8:ident) => {
        _mm256_or_si256(_mm256_slli_epi32::<$by>($x), _mm256_srli_epi32::<{ 32 - $by }>($x))
    };
}

// Two quarter rounds side by side. With four, the 16 registers do not suffice, and the spills cost
// more than the parallelism gains.
macro_rules! quarter_rounds {
    ($x:ident $by_16:ident $by_8:ident; $($a:literal $b:literal $c:literal $d:literal),+) => {
        quarter_rounds!(@ $x $by_16 $by_8 16; $($a $b $d),+);
        quarter_rounds!(@ $x $by_16 $by_8 12; $($c $d $b),+);
        quarter_rounds!(@ $x $by_16 $by_8 8; $($a $b $d),+);
        quarter_rounds!(@ $x $by_16 $by_8 7; $($c $d $b),+);
    };
    (@ $x:ident $by_16:ident $by_8:ident $by:tt; $($a:literal $b:literal $d:literal),+) => {
        $($x[$a] = _mm256_add_epi32($x[$a], $x[$b]);)+
        $($x[$d] = _mm256_xor_si256($x[$d], $x[$a]);)+
        $($x[$d] = rotate!($by, $x[$d], $by_16, $by_8);)+
    };
}

/// Computes the keystream of the states that contain runs.
#[target_feature(enable = "avx2")]
pub(super) fn keystream(packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows) {
    let lanes = Lanes::new(packets, runs);
    let end = runs.last().map_or(0, |run| run.lane + run.blocks);
    for (state, rows) in rows.0.as_chunks_mut().0.iter_mut().enumerate() {
        if STATE * state < end {
            blocks(lanes.state(state), rows);
        }
    }
}

/// Computes the one-time key of each packet, and its keystream for the first block.
#[target_feature(enable = "avx2")]
pub(super) fn keys(
    packets: &[Packet<'_>; PACKETS],
    keys: &mut [OneTimeKey; PACKETS],
    first: &mut Keystream,
) {
    let mut lanes = Lanes::one_per_packet(packets);
    block_per_packet(&lanes, first);
    for (key, row) in keys.iter_mut().zip(&first.0) {
        key.copy_from_slice(&row[..32]);
    }
    if !packets[0].text.is_empty() {
        lanes.0[12].fill(1);
        block_per_packet(&lanes, first);
    }
}

/// Encrypts or decrypts all blocks of packets of equal length.
#[target_feature(enable = "avx2")]
pub(super) fn apply_keystream(packets: &mut [Packet<'_>; PACKETS], first: &Keystream) {
    xor_block_per_packet(packets, 1, first);
    let len = packets[0].text.len();
    if len > BLOCK {
        let (mut lanes, mut rows) = (Lanes::one_per_packet(packets), Keystream::new());
        for block in 2..=len.div_ceil(BLOCK) {
            lanes.0[12].fill(block as u32);
            block_per_packet(&lanes, &mut rows);
            xor_block_per_packet(packets, block, &rows);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor_block_per_packet(packets: &mut [Packet<'_>; PACKETS], block: usize, rows: &Keystream) {
    for (packet, row) in packets.iter_mut().zip(&rows.0) {
        xor_blocks(&mut packet.text[BLOCK * (block - 1)..], slice::from_ref(row));
    }
}

#[target_feature(enable = "avx2")]
fn block_per_packet(lanes: &Lanes, rows: &mut Keystream) {
    for (state, rows) in rows.0.as_chunks_mut().0.iter_mut().enumerate() {
        blocks(lanes.state(state), rows);
    }
}

#[target_feature(enable = "avx2")]
fn blocks(before: [__m256i; 16], rows: &mut [[u8; BLOCK]; STATE]) {
    // Hides the masks from the compiler, which would otherwise replace one instruction by two.
    let (by_16, by_8) = (load(black_box(&ROTATE_16)), load(black_box(&ROTATE_8)));
    let mut x = before;
    for _ in 0..10 {
        quarter_rounds!(x by_16 by_8; 0 4 8 12, 1 5 9 13);
        quarter_rounds!(x by_16 by_8; 2 6 10 14, 3 7 11 15);
        quarter_rounds!(x by_16 by_8; 0 5 10 15, 1 6 11 12);
        quarter_rounds!(x by_16 by_8; 2 7 8 13, 3 4 9 14);
    }
    for word in 0..16 {
        x[word] = _mm256_add_epi32(x[word], before[word]);
    }
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
    let first = transpose([a, b, c, d, e, f, g, h]);
    let second = transpose([i, j, k, l, m, n, o, p]);
    for (row, (first, second)) in rows.iter_mut().zip(first.into_iter().zip(second)) {
        let (halves, _) = row.as_chunks_mut();
        store(&mut halves[0], first);
        store(&mut halves[1], second);
    }
}

/// Transposes eight words of eight blocks to eight blocks of eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = x;
    let [a, b, c, d] = quarters(a, b, c, d);
    let [e, f, g, h] = quarters(e, f, g, h);
    [
        _mm256_permute2x128_si256::<0x20>(a, e),
        _mm256_permute2x128_si256::<0x20>(b, f),
        _mm256_permute2x128_si256::<0x20>(c, g),
        _mm256_permute2x128_si256::<0x20>(d, h),
        _mm256_permute2x128_si256::<0x31>(a, e),
        _mm256_permute2x128_si256::<0x31>(b, f),
        _mm256_permute2x128_si256::<0x31>(c, g),
        _mm256_permute2x128_si256::<0x31>(d, h),
    ]
}

/// Transposes four words of eight blocks to four registers with four words of two blocks each:
/// blocks 0 and 4 in the first register, 1 and 5 in the second.
#[inline]
#[target_feature(enable = "avx2")]
fn quarters(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// XORs the keystream into the texts, up to the end of each text.
#[target_feature(enable = "avx2")]
pub(super) fn xor(packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows) {
    for run in runs {
        let text = &mut packets[run.packet].text[BLOCK * (run.block - 1)..];
        xor_blocks(text, &rows.0[run.lane..run.lane + run.blocks]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn xor_blocks(text: &mut [u8], rows: &[[u8; BLOCK]]) {
    let len = text.len().min(BLOCK * rows.len());
    let rows = rows.as_flattened();
    let (chunks, tail) = text[..len].as_chunks_mut();
    for (chunk, row) in chunks.iter_mut().zip(rows.as_chunks().0) {
        store(chunk, _mm256_xor_si256(load(chunk), load(row)));
    }
    for (byte, row) in tail.iter_mut().zip(&rows[len - len % 32..]) {
        *byte ^= row;
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(chunk: &[u8; 32]) -> __m256i {
    // SAFETY: the array is 32 bytes, and the load may be unaligned.
    unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(chunk: &mut [u8; 32], value: __m256i) {
    // SAFETY: the array is 32 bytes, and the store may be unaligned.
    unsafe { _mm256_storeu_si256(chunk.as_mut_ptr().cast(), value) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(words: &[u32; 8]) -> __m256i {
    // SAFETY: the array is 32 bytes, and the load may be unaligned.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}
