//! The blocks of eight packets, by step.
//!
//! ```text
//!   packet 0    . . a b   c d e f   g h i l       l: the block of the lengths
//!   packet 1    . a b c   d e f g   h i j l       j: may be partial
//!   packet 2    . . . .   . . . a   b c d l       .: not begun
//!               ragged    whole     last          (here all steps except the last are ragged)
//! ```
//!
//! All packets end in the same step. Before a packet begins, its blocks are zero and lack the bit
//! at 2^128, so that its sum remains zero.

use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_castsi128_si512, _mm512_cmpge_epi64_mask,
    _mm512_mask_broadcast_i32x4, _mm512_maskz_mov_epi64, _mm512_or_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_shrdi_epi64, _mm512_srli_epi64, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi64,
};

use super::{
    super::register::{load_16, load_longs, load_some, store_16},
    LANES, LOW_44, Limbs,
};
use crate::aead::group::OneTimeKey;

/// 2^128, which RFC 8439 adds to each block, in the third limb.
const BLOCK_BIT: i64 = 1 << 40;

const NOTHING: [u8; 16] = [0; 16];

/// Positions of the steps in the texts.
pub(super) struct Steps<'a> {
    texts: &'a [&'a [u8]; LANES],
    lens: [i64; LANES],
    /// Offset of the last step in each text. The step has three blocks of text and one of the
    /// lengths.
    last: [i64; LANES],
    /// The maximum of `last`.
    longest: i64,
    /// Number of steps before all packets have begun.
    pub(super) ragged: i64,
    /// Number of steps before the last one.
    before: i64,
}

impl<'a> Steps<'a> {
    #[inline]
    pub(super) fn new(texts: &'a [&'a [u8]; LANES]) -> Self {
        let (mut most, mut least) = (texts[0].len(), texts[0].len());
        for text in &texts[1..] {
            (most, least) = (most.max(text.len()), least.min(text.len()));
        }
        let (mut lens, mut last) = ([most as i64; LANES], [last_step(most); LANES]);
        if most != least {
            for lane in 0..LANES {
                lens[lane] = texts[lane].len() as i64;
                last[lane] = last_step(texts[lane].len());
            }
        }
        let before = (last_step(most) + 63).div_euclid(64);
        let whole = last_step(least).max(0) / 64;
        Self { texts, lens, last, longest: last_step(most), ragged: before - whole, before }
    }

    /// Returns the blocks of each packet, four for each step, from the first step in which all
    /// packets have begun up to the last step.
    #[inline]
    pub(super) fn whole(&self) -> [&'a [[[u8; 16]; 4]]; LANES] {
        let mut chunks: [&[[[u8; 16]; 4]]; LANES] = [&[]; LANES];
        for lane in 0..LANES {
            let end = self.last[lane].max(0);
            let begin = end - 64 * (self.before - self.ragged);
            let text = &self.texts[lane][begin as usize..end as usize];
            chunks[lane] = text.as_chunks().0.as_chunks().0;
        }
        chunks
    }

    /// Returns a block of a ragged step, with zeros for packets that have not begun. `None` before
    /// the first packet begins.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi2")]
    pub(super) fn ragged_block(&self, step: i64, at: usize) -> Option<Limbs> {
        let from = 64 * (step - self.before) + 16 * at as i64;
        if from + self.longest < 0 { None } else { Some(self.block(from)) }
    }

    /// Returns the last block of each packet's text, padded with zeros.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2")]
    pub(super) fn last_of_text(&self) -> Limbs {
        let mut padded = [NOTHING; LANES];
        for lane in 0..LANES {
            let partial = self.texts[lane].len().saturating_sub(1) & !15;
            store_16(&mut padded[lane], load_some(&self.texts[lane][partial..]));
        }
        let [a, b, c, d, e, f, g, h] = &padded;
        with_bit(gather([a, b, c, d, e, f, g, h]), self.block_bits(32))
    }

    /// Returns the block of the lengths. The associated data is empty.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi2")]
    pub(super) fn lengths(&self) -> Limbs {
        let lens = limbs(_mm512_setzero_si512(), load_longs(&self.lens));
        with_bit(lens, _mm512_set1_epi64(BLOCK_BIT))
    }

    /// Returns the block of each packet at this offset from its last step, with zeros for packets
    /// that have not begun.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi2")]
    pub(super) fn block(&self, from: i64) -> Limbs {
        let mut parts = [&NOTHING; LANES];
        for lane in 0..LANES {
            let at = self.last[lane] + from;
            if at >= 0 {
                let part = self.texts[lane][at as usize..].first_chunk();
                parts[lane] = part.expect("it is within the text");
            }
        }
        with_bit(gather(parts), self.block_bits(from))
    }

    /// Returns the bit at 2^128 of the block at `from`, in the lanes of packets that have begun.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn block_bits(&self, from: i64) -> __m512i {
        let begun = _mm512_cmpge_epi64_mask(load_longs(&self.last), _mm512_set1_epi64(-from));
        _mm512_maskz_mov_epi64(begun, _mm512_set1_epi64(BLOCK_BIT))
    }
}

/// Returns the offset of the last step in a text. Negative if the text is short.
fn last_step(len: usize) -> i64 {
    16 * (len.div_ceil(16) as i64 - 3)
}

/// Gathers four full blocks of each packet.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
pub(super) fn whole_blocks(chunks: [&[[u8; 16]; 4]; LANES]) -> [Limbs; 4] {
    let [a, b, c, d, e, f, g, h] = chunks;
    let bit = _mm512_set1_epi64(BLOCK_BIT);
    let mut blocks = [[_mm512_setzero_si512(); 3]; 4];
    for at in 0..4 {
        let parts = [&a[at], &b[at], &c[at], &d[at], &e[at], &f[at], &g[at], &h[at]];
        blocks[at] = with_bit(gather(parts), bit);
    }
    blocks
}

/// Gathers one block of each packet.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn gather(blocks: [&[u8; 16]; LANES]) -> Limbs {
    let [low, high] = halves(blocks);
    limbs(low, high)
}

/// Returns r and s of each key, in two words each.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn key_words(keys: &[OneTimeKey; LANES]) -> [__m512i; 4] {
    let (mut r, mut s) = ([&NOTHING; LANES], [&NOTHING; LANES]);
    for lane in 0..LANES {
        let (first, second) = keys[lane].split_first_chunk().expect("a key has 32 bytes");
        r[lane] = first;
        s[lane] = second.first_chunk().expect("a key has 32 bytes");
    }
    let ([r_low, r_high], [s_low, s_high]) = (halves(r), halves(s));
    [r_low, r_high, s_low, s_high]
}

/// Returns the low and the high halves of 16 bytes of each packet. Masked broadcasts avoid
/// shuffles, which have a low throughput.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(blocks: [&[u8; 16]; LANES]) -> [__m512i; 2] {
    let [a, b, c, d, e, f, g, h] = blocks;
    let even = _mm512_castsi128_si512(load_16(a));
    let even = _mm512_mask_broadcast_i32x4(even, 0x00f0, load_16(c));
    let even = _mm512_mask_broadcast_i32x4(even, 0x0f00, load_16(e));
    let even = _mm512_mask_broadcast_i32x4(even, 0xf000, load_16(g));
    let odd = _mm512_castsi128_si512(load_16(b));
    let odd = _mm512_mask_broadcast_i32x4(odd, 0x00f0, load_16(d));
    let odd = _mm512_mask_broadcast_i32x4(odd, 0x0f00, load_16(f));
    let odd = _mm512_mask_broadcast_i32x4(odd, 0xf000, load_16(h));
    [_mm512_unpacklo_epi64(even, odd), _mm512_unpackhi_epi64(even, odd)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn with_bit([low, middle, high]: Limbs, bit: __m512i) -> Limbs {
    [low, middle, _mm512_or_si512(high, bit)]
}

/// Splits numbers of 128 bits into limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
pub(super) fn limbs(low: __m512i, high: __m512i) -> Limbs {
    let mask = _mm512_set1_epi64(LOW_44);
    let middle = _mm512_shrdi_epi64::<44>(low, high);
    [_mm512_and_si512(low, mask), _mm512_and_si512(middle, mask), _mm512_srli_epi64::<24>(high)]
}
