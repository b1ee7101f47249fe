//! Products of the base point, by a ladder over its multiples by powers of two, which are
//! precomputed. This costs half of a ladder (Oliveira, López, Hisil, Faz-Hernández,
//! Rodríguez-Henríquez, "How to (pre-)compute a ladder", SAC 2017, section 3).
//!
//! A clamped scalar is `8 k`. From the lowest bit of `k` on, with `P` the base point's multiple for
//! that bit, one of two points changes in each step:
//!
//! ```text
//!   sum           S + the product of the bits before    + P if the bit is set
//!   difference    P - sum, for the next P               + P if the bit is clear
//! ```
//!
//! The other point is the difference of the changed point and `P`, so first coordinates suffice.
//! `S` has order 4. So neither point is ever at infinity or of order 2, and multiplying the sum by
//! eight removes `S`.

use std::{arch::x86_64::__mmask8, sync::OnceLock};

use super::{
    Fraction, Words,
    field::{self, Field, Limbs},
    is_set, ladder,
};

/// Bits of a clamped scalar that may be set, from the third on.
const BITS: std::ops::Range<usize> = 3..255;

/// First coordinates of the base point (RFC 7748 section 4.1) and of `S`.
const BASE: i64 = 9;
const ORDER_4: i64 = 1;
/// First coordinate of their difference, from the lowest word on.
const DIFFERENCE: [u64; 4] =
    [0x7e94_e1fe_c82f_aabd, 0xbbf0_95ae_14b2_edf8, 0xadc7_a0b9_235d_48e2, 0x1eae_cdee_e27c_ab34];

/// Number of ratios divided at once. Small, because their stack must be wiped.
const AT_ONCE: usize = 4;
const _: () = assert!((BITS.end - BITS.start).is_multiple_of(AT_ONCE));

/// The ratio `(u + 1) / (u - 1)` for the first coordinate `u` of each multiple.
type Ratios = [Limbs; BITS.end - BITS.start];

/// Returns the products of the base point and these clamped scalars.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
pub(super) fn product(scalars: &Words) -> Fraction {
    static RATIOS: OnceLock<Box<Ratios>> = OnceLock::new();
    let ratios = RATIOS.get_or_init(|| ratios());
    let scalars = scalars.each_ref().map(|words| field::load(words));
    let (mut x1, mut z1) = (Field::small(ORDER_4), Field::small(1));
    let (mut x2, mut z2) = (Field::load(&DIFFERENCE.map(|word| [word; _])), Field::small(1));
    // In lanes with this bit set, the first of the two points is the difference.
    let mut swapped: __mmask8 = 0;
    for (bit, ratio) in BITS.zip(ratios.iter()) {
        let clear = !is_set(&scalars, bit);
        Field::swap(swapped ^ clear, &mut x1, &mut x2);
        Field::swap(swapped ^ clear, &mut z1, &mut z2);
        swapped = clear;
        let sum = x1.add(&z1);
        let scaled = x1.sub(&z1).mul(&Field::splat(ratio));
        x1 = sum.add(&scaled).square().mul(&z2);
        z1 = sum.sub(&scaled).square().mul(&x2);
    }
    Field::swap(swapped, &mut x1, &mut x2);
    Field::swap(swapped, &mut z1, &mut z2);
    (0..BITS.start).fold(Fraction { x: x1, z: z1 }, |Fraction { x, z }, _| {
        ladder::double(&x.add(&z), &x.sub(&z))
    })
}

/// Computes the ratios. None of this is secret.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn ratios() -> Box<Ratios> {
    let mut ratios = Box::new([Limbs::default(); _]);
    let mut multiple = Fraction { x: Field::small(BASE), z: Field::small(1) };
    for ratios in ratios.as_chunks_mut::<AT_ONCE>().0 {
        let pairs = [(); AT_ONCE].map(|()| {
            let (sum, difference) = (multiple.x.add(&multiple.z), multiple.x.sub(&multiple.z));
            multiple = ladder::double(&sum, &difference);
            (sum, difference)
        });
        let mut over = pairs.map(|(_, difference)| difference);
        Field::invert_each(&mut over);
        for (ratio, ((sum, _), over)) in ratios.iter_mut().zip(pairs.iter().zip(&over)) {
            *ratio = sum.mul(over).first();
        }
    }
    ratios
}
