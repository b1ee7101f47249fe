//! Poly1305 (RFC 8439 section 2.5) of one packet, without SIMD. Limbs have 64 bits; the third limb
//! contains the few bits at and above 2^128.

use zeroize::optimization_barrier;

use crate::aead::{TAG_LEN, group::OneTimeKey};

/// Bytes of a block.
const BLOCK: usize = 16;

/// The accumulator and the packet's key. Wiped on drop.
struct Poly1305 {
    h: [u64; 3],
    /// r in two limbs, and 5/4 of the second limb. A product of two second limbs has the weight
    /// 2^128, which is 5/4 modulo p, because 2^130 is 5. r is clamped, so 5/4 of it is an integer.
    r: [u64; 3],
    s: u128,
}

/// Computes the tag of a text.
pub(in crate::aead) fn tag(key: &OneTimeKey, text: &[u8]) -> [u8; TAG_LEN] {
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
        Self { h: [0; 3], r: [r0, r1, r1.wrapping_add(r1 >> 2)], s }
    }

    /// `h = (h + block + 2^128) r`. h remains below 2^131, and no sum overflows. This is not
    /// checked at run time, because the check would branch on a secret.
    #[inline]
    fn absorb(&mut self, block: u128) {
        let ([h0, h1, h2], [r0, r1, s1]) = (self.h, self.r);
        let (low, carry) = halves(wide(h0).wrapping_add(wide(block as u64)));
        let (high, carry) = halves(wide(h1).wrapping_add(block >> 64).wrapping_add(wide(carry)));
        let top = h2.wrapping_add(carry).wrapping_add(1);
        let d0 = product(low, r0).wrapping_add(product(high, s1));
        let (d0, carry) = halves(d0);
        let d1 = product(low, r1).wrapping_add(product(high, r0));
        let (d1, carry) =
            halves(d1.wrapping_add(wide(top.wrapping_mul(s1))).wrapping_add(wide(carry)));
        let d2 = top.wrapping_mul(r0).wrapping_add(carry);
        // Bits at and above 2^130 wrap around with a factor of 5.
        let (h0, carry) = halves(wide(d0).wrapping_add(wide((d2 >> 2).wrapping_mul(5))));
        let (h1, carry) = halves(wide(d1).wrapping_add(wide(carry)));
        self.h = [h0, h1, (d2 & 3).wrapping_add(carry)];
    }

    /// Returns h modulo 2^130 - 5, plus s, modulo 2^128.
    #[inline]
    fn tag(&self) -> [u8; TAG_LEN] {
        let [h0, h1, h2] = self.h;
        let h = wide(h0) | wide(h1) << 64;
        // h is below 2^130 after this.
        let (h, carry) = h.overflowing_add(wide((h2 >> 2).wrapping_mul(5)));
        let h2 = (h2 & 3).wrapping_add(carry.into());
        // Replaces h by h + 5 - 2^130 unless that is negative.
        let (reduced, carry) = h.overflowing_add(5);
        let mask = wide(h2.wrapping_add(carry.into()) >> 2).wrapping_neg();
        let h = (reduced & mask) | (h & !mask);
        h.wrapping_add(self.s).to_le_bytes()
    }
}

fn wide(limb: u64) -> u128 {
    limb.into()
}

fn product(a: u64, b: u64) -> u128 {
    wide(a).wrapping_mul(wide(b))
}

/// Splits into the lower and the upper 64 bits.
fn halves(wide: u128) -> (u64, u64) {
    (wide as u64, (wide >> 64) as u64)
}

impl Drop for Poly1305 {
    fn drop(&mut self) {
        (self.h, self.r, self.s) = ([0; 3], [0; 3], 0);
        optimization_barrier(self);
    }
}
