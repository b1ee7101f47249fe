//! Poly1305 (RFC 8439 section 2.5) of eight packets: a lane each of registers of
//! 64-bit lanes, numbers in limbs of 44, 44 and 42 bits, products by IFMA.
//!
//! A step takes four blocks of each packet, one carry: `h = (h + a) r^4 + b r^3 + c
//! r^2 + d r`. The packets end together: in the last step the fourth block is that of
//! the lengths, and a packet that is shorter begins later, after blocks of zero, which
//! leave `h` zero.

#![expect(clippy::needless_range_loop, reason = "a lane is an index")]

use std::{
    arch::x86_64::{
        __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_castsi128_si512,
        _mm512_cmpge_epi64_mask, _mm512_cmplt_epu64_mask, _mm512_madd52hi_epu64,
        _mm512_madd52lo_epu64, _mm512_mask_add_epi64, _mm512_mask_blend_epi64,
        _mm512_mask_broadcast_i32x4, _mm512_maskz_mov_epi64, _mm512_or_si512, _mm512_set1_epi64,
        _mm512_setzero_si512, _mm512_shrdi_epi64, _mm512_slli_epi64, _mm512_srli_epi64,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi64,
    },
    hint::black_box,
};

use zeroize::optimization_barrier;

use super::register::{load_16, load_longs, load_some, store_16, store_longs};
use crate::{TAG_LEN, group::OneTimeKey};

/// Packets at a time.
pub(super) const LANES: usize = 8;

const LOW_44: i64 = (1 << 44) - 1;
const LOW_42: i64 = (1 << 42) - 1;

/// 2^128, which RFC 8439 adds to each block, in the third limb.
const BLOCK_BIT: i64 = 1 << 40;

const NOTHING: [u8; 16] = [0; 16];

/// A number below 2^130 and little more, a lane each of three limbs.
type Limbs = [__m512i; 3];

/// A power of r, and 20 r of its second and third limb: what is beyond the third limb
/// has the weight 2^132, and 2^130 is 5.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Factor {
    limbs: [[i64; LANES]; 3],
    by_20: [[i64; LANES]; 2],
}

/// r^4, r^3, r^2 and r.
struct Powers([Factor; 4]);

impl Drop for Powers {
    fn drop(&mut self) {
        self.0 = Self::ZERO;
        optimization_barrier(self);
    }
}

/// Sums of products, low and high halves of 52 bits.
struct Sums {
    low: Limbs,
    high: Limbs,
}

/// The tags of eight packets.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma,avx512vbmi2")]
pub(super) fn tags(texts: &[&[u8]; LANES], keys: &[OneTimeKey; LANES]) -> [[u8; TAG_LEN]; LANES] {
    let mut powers = Powers(Powers::ZERO);
    let s = powers.prepare(keys);
    let steps = Steps::new(texts);
    let mut h = [_mm512_setzero_si512(); 3];
    for step in 0..steps.ragged {
        h = absorb(&h, &steps.ragged_blocks(step), &powers);
    }
    let [a, b, c, d, e, f, g, i] = steps.whole();
    for (((((((a, b), c), d), e), f), g), i) in
        a.iter().zip(b).zip(c).zip(d).zip(e).zip(f).zip(g).zip(i)
    {
        h = absorb(&h, &whole_blocks([a, b, c, d, e, f, g, i]), &powers);
    }
    h = absorb(&h, &steps.last_blocks(), &powers);
    finish(h, s)
}

/// Where in the texts the steps are.
struct Steps<'a> {
    texts: &'a [&'a [u8]; LANES],
    lens: [i64; LANES],
    /// Where the last step begins, of three blocks of text and one of the lengths.
    last: [i64; LANES],
    /// All of these are the same.
    agree: bool,
    /// Steps before all packets have begun.
    ragged: i64,
    /// Steps before the last one.
    before: i64,
}

impl<'a> Steps<'a> {
    #[inline]
    fn new(texts: &'a [&'a [u8]; LANES]) -> Self {
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
        Self { texts, lens, last, agree: most == least, ragged: before - whole, before }
    }

    /// Four blocks of each packet from where all have begun on, up to the last step.
    #[inline]
    fn whole(&self) -> [&'a [[[u8; 16]; 4]]; LANES] {
        let mut chunks: [&[[[u8; 16]; 4]]; LANES] = [&[]; LANES];
        for lane in 0..LANES {
            let end = self.last[lane].max(0);
            let begin = end - 64 * (self.before - self.ragged);
            let text = &self.texts[lane][begin as usize..end as usize];
            chunks[lane] = text.as_chunks().0.as_chunks().0;
        }
        chunks
    }

    /// Four blocks of each packet, zeros where it has not begun.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi2")]
    fn ragged_blocks(&self, step: i64) -> [Limbs; 4] {
        let mut blocks = [[_mm512_setzero_si512(); 3]; 4];
        for at in 0..4 {
            blocks[at] = self.block(64 * (step - self.before) + 16 * at as i64);
        }
        blocks
    }

    /// The last three blocks of each packet, and the block of the lengths.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2")]
    fn last_blocks(&self) -> [Limbs; 4] {
        let mut padded = [NOTHING; LANES];
        for lane in 0..LANES {
            let partial = self.texts[lane].len().saturating_sub(1) & !15;
            store_16(&mut padded[lane], load_some(&self.texts[lane][partial..]));
        }
        let [a, b, c, d, e, f, g, h] = &padded;
        // No associated data.
        let lens = limbs(_mm512_setzero_si512(), load_longs(&self.lens));
        [
            self.block(0),
            self.block(16),
            with_bit(gather([a, b, c, d, e, f, g, h]), self.begun(32)),
            with_bit(lens, _mm512_set1_epi64(BLOCK_BIT)),
        ]
    }

    /// The block of each packet that is so far from where the last step begins, zeros
    /// where the packet has not begun.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vbmi2")]
    fn block(&self, from: i64) -> Limbs {
        if self.agree && self.last[0] + from < 0 {
            return [_mm512_setzero_si512(); 3];
        }
        let mut parts = [&NOTHING; LANES];
        for lane in 0..LANES {
            let at = self.last[lane] + from;
            if self.agree || at >= 0 {
                let part = self.texts[lane][at as usize..].first_chunk();
                parts[lane] = part.expect("it is within the text");
            }
        }
        with_bit(gather(parts), self.begun(from))
    }

    /// The bit above such a block, for the packets that have it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn begun(&self, from: i64) -> __m512i {
        let begun = _mm512_cmpge_epi64_mask(load_longs(&self.last), _mm512_set1_epi64(-from));
        _mm512_maskz_mov_epi64(begun, _mm512_set1_epi64(BLOCK_BIT))
    }
}

/// Where the last step of a packet begins in its text: before it, if it is short.
fn last_step(len: usize) -> i64 {
    16 * (len.div_ceil(16) as i64 - 3)
}

/// Four blocks of each packet, all of them full.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn whole_blocks(chunks: [&[[u8; 16]; 4]; LANES]) -> [Limbs; 4] {
    let [a, b, c, d, e, f, g, h] = chunks;
    let bit = _mm512_set1_epi64(BLOCK_BIT);
    let mut blocks = [[_mm512_setzero_si512(); 3]; 4];
    for at in 0..4 {
        let parts = [&a[at], &b[at], &c[at], &d[at], &e[at], &f[at], &g[at], &h[at]];
        blocks[at] = with_bit(gather(parts), bit);
    }
    blocks
}

/// One block of each packet.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn gather(blocks: [&[u8; 16]; LANES]) -> Limbs {
    let [low, high] = halves(blocks);
    limbs(low, high)
}

/// The low and the high halves of 16 bytes of each packet. Broadcasts under a mask need
/// no shuffle, of which there are few a cycle.
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

/// Numbers of 128 bits in limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn limbs(low: __m512i, high: __m512i) -> Limbs {
    let mask = _mm512_set1_epi64(LOW_44);
    let middle = _mm512_shrdi_epi64::<44>(low, high);
    [_mm512_and_si512(low, mask), _mm512_and_si512(middle, mask), _mm512_srli_epi64::<24>(high)]
}

/// One step. What needs `h` comes last.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn absorb(h: &Limbs, blocks: &[Limbs; 4], powers: &Powers) -> Limbs {
    // Loaded anew for each step: no copy is left on the stack.
    let [r4, r3, r2, r] = &black_box(powers).0;
    let mut sums = Sums::new();
    sums.add(&blocks[3], r);
    sums.add(&blocks[2], r2);
    sums.add(&blocks[1], r3);
    sums.add(&plus(h, &blocks[0]), r4);
    sums.carry()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn plus(a: &Limbs, b: &Limbs) -> Limbs {
    [_mm512_add_epi64(a[0], b[0]), _mm512_add_epi64(a[1], b[1]), _mm512_add_epi64(a[2], b[2])]
}

impl Powers {
    const ZERO: [Factor; 4] = [Factor { limbs: [[0; LANES]; 3], by_20: [[0; LANES]; 2] }; 4];

    /// Takes r of each key; returns s.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn prepare(&mut self, keys: &[OneTimeKey; LANES]) -> [__m512i; 2] {
        let (mut first, mut second) = ([&NOTHING; LANES], [&NOTHING; LANES]);
        for lane in 0..LANES {
            let (low, high) = keys[lane].split_first_chunk().expect("a key has 32 bytes");
            first[lane] = low;
            second[lane] = high.first_chunk().expect("as above");
        }
        let [low, high] = halves(first);
        let low = _mm512_and_si512(low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff));
        let high = _mm512_and_si512(high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc));
        let [r4, r3, r2, r] = &mut self.0;
        let limbs = limbs(low, high);
        r.set(limbs);
        let limbs_2 = r.times(&limbs);
        r2.set(limbs_2);
        r3.set(r2.times(&limbs));
        r4.set(r2.times(&limbs_2));
        halves(second)
    }
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn set(&mut self, limbs: Limbs) {
        for (place, limb) in self.limbs.iter_mut().zip(limbs) {
            store_longs(place, limb);
        }
        for (place, limb) in self.by_20.iter_mut().zip(&limbs[1..]) {
            let by_4 = _mm512_slli_epi64::<2>(*limb);
            store_longs(place, _mm512_add_epi64(by_4, _mm512_slli_epi64::<2>(by_4)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn times(&self, limbs: &Limbs) -> Limbs {
        let mut sums = Sums::new();
        sums.add(limbs, self);
        sums.carry()
    }
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self { low: [zero; 3], high: [zero; 3] }
    }

    /// Adds the product. The limbs are below 2^46, 20 times a limb of a factor below
    /// 2^49: 12 products leave 8 bits of the sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, a: &Limbs, b: &Factor) {
        let [r0, r1, r2] = &b.limbs;
        let (r0, r1, r2) = (load_longs(r0), load_longs(r1), load_longs(r2));
        let [s1, s2] = &b.by_20;
        let (s1, s2) = (load_longs(s1), load_longs(s2));
        let factors = [[r0, r1, r2], [s2, r0, r1], [s1, s2, r0]];
        for limb in 0..3 {
            for at in 0..3 {
                let factor = factors[limb][at];
                self.low[at] = _mm512_madd52lo_epu64(self.low[at], a[limb], factor);
                self.high[at] = _mm512_madd52hi_epu64(self.high[at], a[limb], factor);
            }
        }
    }

    /// The sum in limbs again, the second and the third a few bits too long.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn carry(self) -> Limbs {
        let (mask_44, mask_42) = (_mm512_set1_epi64(LOW_44), _mm512_set1_epi64(LOW_42));
        let [low, middle, high] = self.low;
        // 2^52 is 2^8 times the weight of the limb above; the highest is 2^10 times 2^130.
        let middle = _mm512_add_epi64(middle, _mm512_slli_epi64::<8>(self.high[0]));
        let high = _mm512_add_epi64(high, _mm512_slli_epi64::<8>(self.high[1]));
        let over = _mm512_slli_epi64::<10>(self.high[2]);
        let over = _mm512_add_epi64(over, _mm512_srli_epi64::<42>(high));
        let by_5 = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
        let h0 = _mm512_add_epi64(_mm512_and_si512(low, mask_44), by_5);
        let h1 = _mm512_and_si512(middle, mask_44);
        let h1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(low));
        let h2 = _mm512_and_si512(high, mask_42);
        let h2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(middle));
        let h1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(h0));
        [_mm512_and_si512(h0, mask_44), h1, h2]
    }
}

/// h modulo 2^130 - 5, plus s modulo 2^128.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish(h: Limbs, s: [__m512i; 2]) -> [[u8; TAG_LEN]; LANES] {
    let h = normalize(normalize(h));
    // h + 5 - 2^130 in its place if that is not negative.
    let five = [_mm512_set1_epi64(5), _mm512_setzero_si512(), _mm512_setzero_si512()];
    let [g0, g1, g2] = propagate(plus(&h, &five));
    let reduce = _mm512_cmpge_epi64_mask(g2, _mm512_set1_epi64(1 << 42));
    let h0 = _mm512_mask_blend_epi64(reduce, h[0], g0);
    let h1 = _mm512_mask_blend_epi64(reduce, h[1], g1);
    // What is beyond 2^128 is shifted out.
    let h2 = _mm512_mask_blend_epi64(reduce, h[2], g2);
    let low = _mm512_or_si512(h0, _mm512_slli_epi64::<44>(h1));
    let high = _mm512_or_si512(_mm512_srli_epi64::<20>(h1), _mm512_slli_epi64::<24>(h2));
    let tag_low = _mm512_add_epi64(low, s[0]);
    let carry = _mm512_cmplt_epu64_mask(tag_low, low);
    let tag_high = _mm512_add_epi64(high, s[1]);
    let one = _mm512_set1_epi64(1);
    let tag_high = _mm512_mask_add_epi64(tag_high, carry, tag_high, one);
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    store_longs(&mut low, tag_low);
    store_longs(&mut high, tag_high);
    let mut tags = [[0; TAG_LEN]; LANES];
    for lane in 0..LANES {
        let tag =
            u128::from(low[lane].cast_unsigned()) | u128::from(high[lane].cast_unsigned()) << 64;
        tags[lane] = tag.to_le_bytes();
    }
    tags
}

/// Carries upward; the third limb keeps what is beyond 2^130.
#[inline]
#[target_feature(enable = "avx512f")]
fn propagate([h0, h1, h2]: Limbs) -> Limbs {
    let mask = _mm512_set1_epi64(LOW_44);
    let h1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(h0));
    let h2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(h1));
    [_mm512_and_si512(h0, mask), _mm512_and_si512(h1, mask), h2]
}

/// Carries upward, and what is beyond 2^130 once around.
#[inline]
#[target_feature(enable = "avx512f")]
fn normalize(h: Limbs) -> Limbs {
    let [h0, h1, h2] = propagate(h);
    let over = _mm512_srli_epi64::<42>(h2);
    let by_5 = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
    [_mm512_add_epi64(h0, by_5), h1, _mm512_and_si512(h2, _mm512_set1_epi64(LOW_42))]
}
