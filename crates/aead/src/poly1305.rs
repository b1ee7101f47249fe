//! Poly1305 (RFC 8439 section 2.5) of one packet, without SIMD: limbs of 64 bits, the
//! third of which holds what is at and above 2^128, a few bits.

use zeroize::optimization_barrier;

use crate::{TAG_LEN, group::OneTimeKey};

/// Bytes of a block.
const BLOCK: usize = 16;

/// The sum so far, and the packet's key. Wiped.
struct Poly1305 {
    h: [u64; 3],
    /// r in two limbs, and 5/4 of the second: a product with it has the weight 2^128, and
    /// 2^130 is 5. r is clamped, so that is a whole number.
    r: [u64; 3],
    s: u128,
}

/// The tag of a text.
pub(crate) fn tag(key: &OneTimeKey, text: &[u8]) -> [u8; TAG_LEN] {
    let mut poly = Poly1305::new(key);
    let (blocks, partial) = text.as_chunks();
    for block in blocks {
        poly.absorb(u128::from_le_bytes(*block));
    }
    if !partial.is_empty() {
        let mut block = [0; BLOCK];
        block[..partial.len()].copy_from_slice(partial);
        poly.absorb(u128::from_le_bytes(block));
    }
    // No associated data.
    poly.absorb((text.len() as u128) << 64);
    poly.tag()
}

impl Poly1305 {
    #[inline]
    fn new(key: &OneTimeKey) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [r0, r1, s0, s1] = words;
        let (r0, r1) = (r0 & 0x0fff_fffc_0fff_ffff, r1 & 0x0fff_fffc_0fff_fffc);
        let s = u128::from(s0) | u128::from(s1) << 64;
        Self { h: [0; 3], r: [r0, r1, r1 + (r1 >> 2)], s }
    }

    /// `h = (h + block + 2^128) r`. h stays below 2^131, and each sum below below 2^128.
    #[inline]
    fn absorb(&mut self, block: u128) {
        let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let ([h0, h1, h2], [r0, r1, s1]) = (self.h, self.r);
        let low = u128::from(h0) + u128::from(block as u64);
        let high = u128::from(h1) + (block >> 64) + (low >> 64);
        let top = h2 + 1 + (high >> 64) as u64;
        let (low, high) = (low as u64, high as u64);
        let d0 = wide(low, r0) + wide(high, s1);
        let d1 = wide(low, r1) + wide(high, r0) + u128::from(top * s1) + (d0 >> 64);
        let d2 = top * r0 + (d1 >> 64) as u64;
        // What is beyond 2^130 comes back as 5.
        let h0 = u128::from(d0 as u64) + u128::from((d2 >> 2) * 5);
        let h1 = u128::from(d1 as u64) + (h0 >> 64);
        self.h = [h0 as u64, h1 as u64, (d2 & 3) + (h1 >> 64) as u64];
    }

    /// h modulo 2^130 - 5, plus s modulo 2^128.
    #[inline]
    fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.h;
        // Below 2^130 after this, with what was beyond added once more.
        let h = u128::from(h0) | u128::from(h1) << 64;
        let (h, carry) = h.overflowing_add(u128::from((h2 >> 2) * 5));
        let h2 = (h2 & 3) + u64::from(carry);
        // h + 5 - 2^130 in its place if that is not negative.
        let (reduced, carry) = h.overflowing_add(5);
        let mask = u128::from((h2 + u64::from(carry)) >> 2).wrapping_neg();
        let h = (reduced & mask) | (h & !mask);
        h.wrapping_add(self.s).to_le_bytes()
    }
}

impl Drop for Poly1305 {
    fn drop(&mut self) {
        (self.h, self.r, self.s) = ([0; 3], [0; 3], 0);
        optimization_barrier(self);
    }
}
