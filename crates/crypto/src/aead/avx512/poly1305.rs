//! Poly1305 (RFC 8439 section 2.5) of eight packets, one in each 64-bit lane. Numbers have limbs of
//! 44, 44 and 42 bits, and products use IFMA.
//!
//! A step processes four blocks of each packet and carries once: `h = (h + a) r^4 + b r^3 + c r^2 +
//! d r`.

#![expect(clippy::needless_range_loop, reason = "a lane is an index")]

pub(super) mod short;
mod steps;

use std::{
    arch::x86_64::{
        __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpge_epi64_mask,
        _mm512_cmplt_epu64_mask, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64,
        _mm512_mask_add_epi64, _mm512_mask_blend_epi64, _mm512_or_si512, _mm512_set1_epi64,
        _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    },
    hint::black_box,
};

use steps::Steps;
use zeroize::optimization_barrier;

use super::register::{load_longs, store_longs};
use crate::aead::{TAG_LEN, group::OneTimeKey};

/// Number of packets processed at a time.
pub(super) const LANES: usize = 8;

const LOW_44: i64 = (1 << 44) - 1;
const LOW_42: i64 = (1 << 42) - 1;

/// A number below about 2^130 in each lane, in three limbs.
type Limbs = [__m512i; 3];

/// [`Limbs`] in memory.
type Stored = [[i64; LANES]; 3];

/// Computes the tags of eight packets.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma,avx512vbmi2")]
pub(super) fn tags(
    texts: &[&[u8]; LANES],
    keys: &[OneTimeKey; LANES],
    tags: &mut [[u8; TAG_LEN]; LANES],
) {
    let mut octet = Octet::new(keys);
    let steps = Steps::new(texts);
    octet.absorb_ragged(&steps);
    octet.absorb_whole(&steps);
    octet.absorb_last(&steps);
    write_tags(loaded(&octet.h), &octet.s, tags);
}

/// Computes the tags of two times eight packets, stage by stage, because each stage has long
/// latencies.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma,avx512vbmi2")]
pub(super) fn tags_two(
    texts: &[[&[u8]; LANES]; 2],
    keys: &[[OneTimeKey; LANES]; 2],
    tags: &mut [[[u8; TAG_LEN]; LANES]; 2],
) {
    let (mut first, mut second) = (Octet::new(&keys[0]), Octet::new(&keys[1]));
    let (first_steps, second_steps) = (Steps::new(&texts[0]), Steps::new(&texts[1]));
    first.absorb_ragged(&first_steps);
    second.absorb_ragged(&second_steps);
    first.absorb_whole(&first_steps);
    second.absorb_whole(&second_steps);
    first.absorb_last(&first_steps);
    second.absorb_last(&second_steps);
    write_tags(loaded(&first.h), &first.s, &mut tags[0]);
    write_tags(loaded(&second.h), &second.s, &mut tags[1]);
}

/// Accumulators and keys of eight packets. Wiped on drop.
#[repr(C, align(64))]
struct Octet {
    h: Stored,
    /// r^4, r^3, r^2 and r.
    powers: [Factor; 4],
    s: [[i64; LANES]; 2],
}

/// A power of r, and 20 times its second and third limb: a product beyond the third limb has the
/// weight 2^132, which is 20, because 2^130 is 5.
#[derive(Clone, Copy)]
struct Factor {
    limbs: Stored,
    by_20: [[i64; LANES]; 2],
}

/// Sums of products, in low and high halves of 52 bits.
struct Sums {
    low: Limbs,
    high: Limbs,
}

impl Octet {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn new(keys: &[OneTimeKey; LANES]) -> Self {
        let (r, s) = key_limbs(keys);
        let factor = Factor::new(r);
        let r2 = factor.times(&r);
        let factor_2 = Factor::new(r2);
        let factor_3 = Factor::new(factor_2.times(&r));
        let factor_4 = Factor::new(factor_2.times(&r2));
        Self { h: [[0; LANES]; 3], powers: [factor_4, factor_3, factor_2, factor], s }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn absorb_ragged(&mut self, steps: &Steps<'_>) {
        for step in 0..steps.ragged {
            let mut sums = Sums::new();
            for at in 0..4 {
                if let Some(mut block) = steps.ragged_block(step, at) {
                    if at == 0 {
                        block = plus(&loaded(&self.h), &block);
                    }
                    sums.add(&block, &self.powers[at]);
                }
            }
            self.h = stored(sums.carry());
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn absorb_whole(&mut self, steps: &Steps<'_>) {
        let [a, b, c, d, e, f, g, h] = steps.whole();
        let rest = b.iter().zip(c).zip(d).zip(e).zip(f).zip(g).zip(h);
        let mut sum = loaded(&self.h);
        for (a, ((((((b, c), d), e), f), g), h)) in a.iter().zip(rest) {
            sum = self.absorb(&sum, &steps::whole_blocks([a, b, c, d, e, f, g, h]));
        }
        self.h = stored(sum);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,avx512vbmi2")]
    fn absorb_last(&mut self, steps: &Steps<'_>) {
        let blocks = [steps.block(0), steps.block(16), steps.last_of_text(), steps.lengths()];
        self.h = stored(self.absorb(&loaded(&self.h), &blocks));
    }

    /// One step. The product that depends on `h` comes last.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn absorb(&self, h: &Limbs, blocks: &[Limbs; 4]) -> Limbs {
        // Loaded in each step, so that no copy remains on the stack.
        let [r4, r3, r2, r] = &black_box(self).powers;
        let mut sums = Sums::new();
        sums.add(&blocks[3], r);
        sums.add(&blocks[2], r2);
        sums.add(&blocks[1], r3);
        sums.add(&plus(h, &blocks[0]), r4);
        sums.carry()
    }
}

impl Drop for Octet {
    fn drop(&mut self) {
        self.h = [[0; LANES]; 3];
        self.powers = [Factor::ZERO; 4];
        self.s = [[0; LANES]; 2];
        optimization_barrier(self);
    }
}

impl Factor {
    const ZERO: Self = Self { limbs: [[0; LANES]; 3], by_20: [[0; LANES]; 2] };

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(limbs: Limbs) -> Self {
        let mut by_20 = [[0; LANES]; 2];
        for (place, limb) in by_20.iter_mut().zip(&limbs[1..]) {
            let by_4 = _mm512_slli_epi64::<2>(*limb);
            store_longs(place, _mm512_add_epi64(by_4, _mm512_slli_epi64::<2>(by_4)));
        }
        Self { limbs: stored(limbs), by_20 }
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

    /// Adds the product. The limbs are below 2^46, and 20 times a limb of a factor is below 2^49:
    /// 12 products leave 8 bits of the sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, a: &Limbs, b: &Factor) {
        let [r0, r1, r2] = loaded(&b.limbs);
        let (s1, s2) = (load_longs(&b.by_20[0]), load_longs(&b.by_20[1]));
        let factors = [[r0, r1, r2], [s2, r0, r1], [s1, s2, r0]];
        for limb in 0..3 {
            for at in 0..3 {
                let factor = factors[limb][at];
                self.low[at] = _mm512_madd52lo_epu64(self.low[at], a[limb], factor);
                self.high[at] = _mm512_madd52hi_epu64(self.high[at], a[limb], factor);
            }
        }
    }

    /// Carries the sum into limbs. The second and third limb may exceed their size by a few bits.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn carry(self) -> Limbs {
        let (mask_44, mask_42) = (_mm512_set1_epi64(LOW_44), _mm512_set1_epi64(LOW_42));
        let [low, middle, high] = self.low;
        // 2^52 is 2^8 times the weight of the next limb. For the highest limb it is 2^10 times
        // 2^130.
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

/// Returns r of each key, and s in two words.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn key_limbs(keys: &[OneTimeKey; LANES]) -> (Limbs, [[i64; LANES]; 2]) {
    let [low, high, s_low, s_high] = steps::key_words(keys);
    let low = _mm512_and_si512(low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff));
    let high = _mm512_and_si512(high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc));
    let mut s = [[0; LANES]; 2];
    store_longs(&mut s[0], s_low);
    store_longs(&mut s[1], s_high);
    (steps::limbs(low, high), s)
}

/// Writes h modulo 2^130 - 5, plus s, modulo 2^128.
#[inline]
#[target_feature(enable = "avx512f")]
fn write_tags(h: Limbs, s: &[[i64; LANES]; 2], tags: &mut [[u8; TAG_LEN]; LANES]) {
    let h = normalize(normalize(h));
    // Replaces h by h + 5 - 2^130 unless that is negative.
    let five = [_mm512_set1_epi64(5), _mm512_setzero_si512(), _mm512_setzero_si512()];
    let g = propagate(plus(&h, &five));
    let reduce = _mm512_cmpge_epi64_mask(g[2], _mm512_set1_epi64(1 << 42));
    let h0 = _mm512_mask_blend_epi64(reduce, h[0], g[0]);
    let h1 = _mm512_mask_blend_epi64(reduce, h[1], g[1]);
    // Bits at and above 2^128 are shifted out.
    let h2 = _mm512_mask_blend_epi64(reduce, h[2], g[2]);
    let low = _mm512_or_si512(h0, _mm512_slli_epi64::<44>(h1));
    let high = _mm512_or_si512(_mm512_srli_epi64::<20>(h1), _mm512_slli_epi64::<24>(h2));
    let tag_low = _mm512_add_epi64(low, load_longs(&s[0]));
    let carry = _mm512_cmplt_epu64_mask(tag_low, low);
    let tag_high = _mm512_add_epi64(high, load_longs(&s[1]));
    let one = _mm512_set1_epi64(1);
    let tag_high = _mm512_mask_add_epi64(tag_high, carry, tag_high, one);
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    store_longs(&mut low, tag_low);
    store_longs(&mut high, tag_high);
    for lane in 0..LANES {
        let (first, second) = tags[lane].split_at_mut(8);
        first.copy_from_slice(&low[lane].to_le_bytes());
        second.copy_from_slice(&high[lane].to_le_bytes());
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn plus(a: &Limbs, b: &Limbs) -> Limbs {
    [_mm512_add_epi64(a[0], b[0]), _mm512_add_epi64(a[1], b[1]), _mm512_add_epi64(a[2], b[2])]
}

/// Carries upward. The third limb retains bits at and above 2^130.
#[inline]
#[target_feature(enable = "avx512f")]
fn propagate([h0, h1, h2]: Limbs) -> Limbs {
    let mask = _mm512_set1_epi64(LOW_44);
    let h1 = _mm512_add_epi64(h1, _mm512_srli_epi64::<44>(h0));
    let h2 = _mm512_add_epi64(h2, _mm512_srli_epi64::<44>(h1));
    [_mm512_and_si512(h0, mask), _mm512_and_si512(h1, mask), h2]
}

/// Carries upward, and wraps bits at and above 2^130 around once.
#[inline]
#[target_feature(enable = "avx512f")]
fn normalize(h: Limbs) -> Limbs {
    let [h0, h1, h2] = propagate(h);
    let over = _mm512_srli_epi64::<42>(h2);
    let by_5 = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
    [_mm512_add_epi64(h0, by_5), h1, _mm512_and_si512(h2, _mm512_set1_epi64(LOW_42))]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn loaded(stored: &Stored) -> Limbs {
    let [a, b, c] = stored;
    [load_longs(a), load_longs(b), load_longs(c)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn stored([a, b, c]: Limbs) -> Stored {
    let mut stored = [[0; LANES]; 3];
    store_longs(&mut stored[0], a);
    store_longs(&mut stored[1], b);
    store_longs(&mut stored[2], c);
    stored
}
