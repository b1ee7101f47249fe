//! Tags of texts of at most 64 bytes: four blocks and the block of the lengths. With two blocks a
//! step they need only the square of r. Computing powers is most of the cost.
//!
//! ```text
//!   . a     b c     d l     l: the block of the lengths; d: may be partial
//! ```

use std::hint::black_box;

use zeroize::optimization_barrier;

use super::{Factor, LANES, Limbs, Sums, key_limbs, plus, steps::Steps, write_tags};
use crate::aead::{TAG_LEN, group::OneTimeKey};

/// Maximum number of bytes of a text.
pub(in crate::aead::avx512) const LEN: usize = 64;

/// r^2, r and s. Wiped on drop.
#[repr(C, align(64))]
struct Powers {
    r2: Factor,
    r: Factor,
    s: [[i64; LANES]; 2],
}

/// Computes the tags of `OCTETS` times eight packets, stage by stage.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma,avx512vbmi2")]
pub(in crate::aead::avx512) fn tags<const OCTETS: usize>(
    texts: &[[&[u8]; LANES]; OCTETS],
    keys: &[[OneTimeKey; LANES]; OCTETS],
    tags: &mut [[[u8; TAG_LEN]; LANES]; OCTETS],
) {
    let powers = keys.each_ref().map(|keys| Powers::new(keys));
    let steps = texts.each_ref().map(Steps::new);
    for octet in 0..OCTETS {
        let (powers, steps) = (&powers[octet], &steps[octet]);
        let first = powers.r.times(&steps.block(-16));
        let second = powers.step(&plus(&first, &steps.block(0)), &steps.block(16));
        let sum = powers.step(&plus(&second, &steps.last_of_text()), &steps.lengths());
        write_tags(sum, &powers.s, &mut tags[octet]);
    }
}

impl Powers {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn new(keys: &[OneTimeKey; LANES]) -> Self {
        let (r, s) = key_limbs(keys);
        let factor = Factor::new(r);
        Self { r2: Factor::new(factor.times(&r)), r: factor, s }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn step(&self, a: &Limbs, b: &Limbs) -> Limbs {
        // Loaded in each step, so that no copy remains on the stack.
        let Self { r2, r, .. } = black_box(self);
        let mut sums = Sums::new();
        sums.add(b, r);
        sums.add(a, r2);
        sums.carry()
    }
}

impl Drop for Powers {
    fn drop(&mut self) {
        (self.r2, self.r, self.s) = (Factor::ZERO, Factor::ZERO, [[0; LANES]; 2]);
        optimization_barrier(self);
    }
}
