//! Montgomery's ladder of RFC 7748 section 5.

use std::arch::x86_64::__mmask8;

use super::{Fraction, Words, field, field::Field, is_set};

/// Returns the products of scalars and points with these first coordinates.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
pub(super) fn product(scalars: &Words, points: &Words) -> Fraction {
    let x1 = Field::load(points);
    let scalars = scalars.each_ref().map(|words| field::load(words));
    let (mut x2, mut z2) = (Field::small(1), Field::small(0));
    let (mut x3, mut z3) = (x1, Field::small(1));
    let mut swapped: __mmask8 = 0;
    // Bit 255 of a clamped scalar is 0.
    for bit in (0..255).rev() {
        let set = is_set(&scalars, bit);
        Field::swap(swapped ^ set, &mut x2, &mut x3);
        Field::swap(swapped ^ set, &mut z2, &mut z3);
        swapped = set;
        let (a, b) = (x2.add(&z2), x2.sub(&z2));
        let (c, d) = (x3.add(&z3), x3.sub(&z3));
        let (da, cb) = (d.mul(&a), c.mul(&b));
        x3 = da.add(&cb).square();
        z3 = da.sub(&cb).square().mul(&x1);
        Fraction { x: x2, z: z2 } = double(&a, &b);
    }
    Field::swap(swapped, &mut x2, &mut x3);
    Field::swap(swapped, &mut z2, &mut z3);
    Fraction { x: x2, z: z2 }
}

/// Doubles a point, given the sum and the difference of its coordinates.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
pub(super) fn double(sum: &Field, difference: &Field) -> Fraction {
    let (aa, bb) = (sum.square(), difference.square());
    let e = aa.sub(&bb);
    Fraction { x: aa.mul(&bb), z: e.mul(&e.mul_a24_add(&aa)) }
}
