//! The field of 2^255 - 19, with an element in each of eight lanes: five limbs of 51 bits.
//!
//! IFMA multiplies 52 bits by 52 bits and adds the lower or the upper 52 bits of the product, so
//! limbs must be below 2^52 to be multiplied. [`carry`] leaves limbs below 2^51 + 2^15, and every
//! stored element went through it. A sum or difference of two elements is carried before it is
//! multiplied. The upper halves of products have the weight 2^52, which is twice the next limb's
//! 2^51, so they count double.

use std::arch::x86_64::{
    __m512i, __mmask8, _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512,
    _mm512_madd52hi_epu64, _mm512_madd52lo_epu64, _mm512_mask_blend_epi64, _mm512_or_si512,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_sub_epi64, _mm512_testn_epi64_mask,
};

use super::{LANES, Words};

const LIMBS: usize = 5;
/// Number of positions of a product's halves: sums of two limbs' positions.
const PLACES: usize = 2 * LIMBS - 1;
const BITS: u32 = 51;
const MASK: i64 = (1 << BITS) - 1;

/// (486662 - 2) / 4, of RFC 7748 section 5.
const A24: i64 = 121_665;

/// Twice the prime. Each limb exceeds the limb that is subtracted from it.
const TWICE_PRIME: [i64; LIMBS] = [2 * (MASK - 18), 2 * MASK, 2 * MASK, 2 * MASK, 2 * MASK];

/// An element of one lane.
pub(super) type Limbs = [u64; LIMBS];

/// An element in each lane.
#[derive(Clone, Copy)]
pub(super) struct Field([__m512i; LIMBS]);

/// Sums of the products of these limbs, by position. Products before a semicolon count twice. A
/// limb after it is squared.
macro_rules! products {
    ($([$($sum:tt)*],)+) => {
        ([$(half!(_mm512_madd52lo_epu64, $($sum)*)),+], [$(half!(_mm512_madd52hi_epu64, $($sum)*)),+])
    };
}
macro_rules! half {
    ($half:ident, $($a:ident $b:ident),* ; $($square:ident)?) => {{
        let twice = half!($half, $($a $b),*);
        let sum = _mm512_add_epi64(twice, twice);
        $(let sum = $half(sum, $square, $square);)?
        sum
    }};
    ($half:ident, $($a:ident $b:ident),*) => {{
        let sum = _mm512_setzero_si512();
        $(let sum = $half(sum, $a, $b);)*
        sum
    }};
}

/// Loads eight words into a register.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn load(words: &[u64; LANES]) -> __m512i {
    const { assert!(size_of::<[u64; LANES]>() == size_of::<__m512i>()) };
    // SAFETY: the read bytes are the array, by the assertion, and may be unaligned.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store(words: &mut [u64; LANES], value: __m512i) {
    const { assert!(size_of::<[u64; LANES]>() == size_of::<__m512i>()) };
    // SAFETY: the written bytes are the array, by the assertion, and may be unaligned.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), value) };
}

impl Field {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn small(value: i64) -> Self {
        let mut limbs = [_mm512_setzero_si512(); LIMBS];
        limbs[0] = _mm512_set1_epi64(value);
        Self(limbs)
    }

    /// The same element in each lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn splat(limbs: &Limbs) -> Self {
        Self(limbs.map(|limb| _mm512_set1_epi64(limb as i64)))
    }

    /// Returns the element of the first lane.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn first(&self) -> Limbs {
        self.0.map(|limb| {
            let mut lanes = [0; LANES];
            store(&mut lanes, limb);
            lanes[0]
        })
    }

    /// Loads 255 bits. The highest of the 256 bits is ignored (RFC 7748 section 5).
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn load(words: &Words) -> Self {
        let [w0, w1, w2, w3] = words.each_ref().map(|words| load(words));
        let mask = _mm512_set1_epi64(MASK);
        let limbs = [
            w0,
            _mm512_or_si512(_mm512_srli_epi64::<51>(w0), _mm512_slli_epi64::<13>(w1)),
            _mm512_or_si512(_mm512_srli_epi64::<38>(w1), _mm512_slli_epi64::<26>(w2)),
            _mm512_or_si512(_mm512_srli_epi64::<25>(w2), _mm512_slli_epi64::<39>(w3)),
            _mm512_srli_epi64::<12>(w3),
        ];
        Self(limbs.map(|limb| _mm512_and_si512(limb, mask)))
    }

    /// Reduces to the number below the prime, in limbs of 51 bits.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn reduced(self) -> [__m512i; LIMBS] {
        let nothing = _mm512_setzero_si512();
        // The value is below 2^255 + 2^220, so it wraps at most once, and is then below 2^255.
        let (mut limbs, over) = propagate_carries(self.0, nothing);
        limbs[0] = _mm512_add_epi64(limbs[0], times_19(over));
        let (limbs, _) = propagate_carries(limbs, nothing);
        // If the value is at or above the prime, adding 19 reaches 2^255. Bits at and above 2^255
        // are dropped.
        let (_, reaches) = propagate_carries(limbs, _mm512_set1_epi64(19));
        propagate_carries(limbs, times_19(reaches)).0
    }

    /// Returns the lanes in which the element is 0.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn is_zero(self) -> __mmask8 {
        let any = self
            .reduced()
            .into_iter()
            .fold(_mm512_setzero_si512(), |any, limb| _mm512_or_si512(any, limb));
        _mm512_testn_epi64_mask(any, any)
    }

    /// Stores the number below the prime.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn store(self) -> Words {
        let [l0, l1, l2, l3, l4] = self.reduced();
        let mut words = Words::default();
        let values = [
            _mm512_or_si512(l0, _mm512_slli_epi64::<51>(l1)),
            _mm512_or_si512(_mm512_srli_epi64::<13>(l1), _mm512_slli_epi64::<38>(l2)),
            _mm512_or_si512(_mm512_srli_epi64::<26>(l2), _mm512_slli_epi64::<25>(l3)),
            _mm512_or_si512(_mm512_srli_epi64::<39>(l3), _mm512_slli_epi64::<12>(l4)),
        ];
        for (word, value) in words.iter_mut().zip(values) {
            store(word, value);
        }
        words
    }

    /// Swaps the elements in these lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn swap(lanes: __mmask8, one: &mut Self, other: &mut Self) {
        for (one, other) in one.0.iter_mut().zip(&mut other.0) {
            let both = (*one, *other);
            *one = _mm512_mask_blend_epi64(lanes, both.0, both.1);
            *other = _mm512_mask_blend_epi64(lanes, both.1, both.0);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn add(&self, other: &Self) -> Self {
        let mut sums = self.0;
        for (sum, other) in sums.iter_mut().zip(other.0) {
            *sum = _mm512_add_epi64(*sum, other);
        }
        Self(carry(sums))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn sub(&self, other: &Self) -> Self {
        let mut limbs = self.0;
        for ((limb, other), twice) in limbs.iter_mut().zip(other.0).zip(TWICE_PRIME) {
            let more = _mm512_add_epi64(*limb, _mm512_set1_epi64(twice));
            *limb = _mm512_sub_epi64(more, other);
        }
        Self(carry(limbs))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn mul(&self, other: &Self) -> Self {
        let ([a0, a1, a2, a3, a4], [b0, b1, b2, b3, b4]) = (self.0, other.0);
        let products = products!(
            [a0 b0],
            [a0 b1, a1 b0],
            [a0 b2, a1 b1, a2 b0],
            [a0 b3, a1 b2, a2 b1, a3 b0],
            [a0 b4, a1 b3, a2 b2, a3 b1, a4 b0],
            [a1 b4, a2 b3, a3 b2, a4 b1],
            [a2 b4, a3 b3, a4 b2],
            [a3 b4, a4 b3],
            [a4 b4],
        );
        Self(reduce(products))
    }

    /// Squares. The product of two different limbs is computed once and counts twice.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn square(&self) -> Self {
        let [a0, a1, a2, a3, a4] = self.0;
        let products = products!(
            [; a0],
            [a0 a1;],
            [a0 a2; a1],
            [a0 a3, a1 a2;],
            [a0 a4, a1 a3; a2],
            [a1 a4, a2 a3;],
            [a2 a4; a3],
            [a3 a4;],
            [; a4],
        );
        Self(reduce(products))
    }

    /// Returns [`A24`] times this element plus another one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn mul_a24_add(&self, other: &Self) -> Self {
        let (zero, a24) = (_mm512_setzero_si512(), _mm512_set1_epi64(A24));
        let mut sums = other.0;
        for (i, limb) in self.0.into_iter().enumerate() {
            sums[i] = _mm512_madd52lo_epu64(sums[i], limb, a24);
            let upper = _mm512_madd52hi_epu64(zero, limb, a24);
            let twice = _mm512_add_epi64(upper, upper);
            match sums.get_mut(i + 1) {
                Some(next) => *next = _mm512_add_epi64(*next, twice),
                None => sums[0] = _mm512_add_epi64(sums[0], times_19(twice)),
            }
        }
        Self(carry(sums))
    }

    /// Returns the power of 2^255 - 21, the prime less two: the inverse, or 0 for 0.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn invert(&self) -> Self {
        let p2 = self.square();
        let p9 = p2.squares(2).mul(self);
        let p11 = p9.mul(&p2);
        // From here on, powers of 2^n - 1.
        let e5 = p11.square().mul(&p9);
        let e10 = e5.squares(5).mul(&e5);
        let e20 = e10.squares(10).mul(&e10);
        let e40 = e20.squares(20).mul(&e20);
        let e50 = e40.squares(10).mul(&e10);
        let e100 = e50.squares(50).mul(&e50);
        let e200 = e100.squares(100).mul(&e100);
        let e250 = e200.squares(50).mul(&e50);
        e250.squares(5).mul(&p11)
    }

    /// Inverts each element, or leaves 0 for 0. Costs three products for each and one power
    /// (Montgomery's trick).
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn invert_each<const N: usize>(elements: &mut [Self; N]) {
        let (zero, one) = (Self::small(0), Self::small(1));
        let mut product = one;
        // The product of the preceding elements for each element, and the lanes in which the
        // element is 0, which are skipped.
        let mut before = [(one, 0); N];
        for (element, before) in elements.iter_mut().zip(&mut before) {
            let zeros = element.is_zero();
            element.replace(zeros, &one);
            *before = (product, zeros);
            product = product.mul(element);
        }
        let mut over = product.invert();
        for (element, (product, zeros)) in elements.iter_mut().zip(&before).rev() {
            let inverse = over.mul(product);
            over = over.mul(element);
            *element = inverse;
            element.replace(*zeros, &zero);
        }
    }

    /// Replaces the element in these lanes by the other one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn replace(&mut self, lanes: __mmask8, other: &Self) {
        for (limb, other) in self.0.iter_mut().zip(other.0) {
            *limb = _mm512_mask_blend_epi64(lanes, *limb, other);
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn squares(&self, times: u32) -> Self {
        let mut power = *self;
        for _ in 0..times {
            power = power.square();
        }
        power
    }
}

/// The lower and the upper halves of products, summed by position.
type Products = ([__m512i; PLACES], [__m512i; PLACES]);

/// Reduces a product to limbs. They are below 2^61 before the carry, because each position has at
/// most five products.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn reduce((lower, upper): Products) -> [__m512i; LIMBS] {
    let [l0, l1, l2, l3, l4, l5, l6, l7, l8] = lower;
    let [u0, u1, u2, u3, u4, u5, u6, u7, u8] = upper;
    carry([
        _mm512_add_epi64(l0, times_19(twice_and(u4, l5))),
        _mm512_add_epi64(twice_and(u0, l1), times_19(twice_and(u5, l6))),
        _mm512_add_epi64(twice_and(u1, l2), times_19(twice_and(u6, l7))),
        _mm512_add_epi64(twice_and(u2, l3), times_19(twice_and(u7, l8))),
        _mm512_add_epi64(twice_and(u3, l4), times_19(_mm512_add_epi64(u8, u8))),
    ])
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn twice_and(twice: __m512i, once: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_add_epi64(twice, twice), once)
}

/// Adds `more` to the lowest limb and carries from limb to limb. Returns the limbs and the bits at
/// and above 2^255.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn propagate_carries(limbs: [__m512i; LIMBS], more: __m512i) -> ([__m512i; LIMBS], __m512i) {
    let (mut limbs, mut over) = (limbs, more);
    for limb in &mut limbs {
        let sum = _mm512_add_epi64(*limb, over);
        over = _mm512_srli_epi64::<BITS>(sum);
        *limb = _mm512_and_si512(sum, _mm512_set1_epi64(MASK));
    }
    (limbs, over)
}

/// Carries each limb's excess to the next one, all at the same time. Limbs below 2^61 become limbs
/// below 2^51 + 2^15.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn carry(limbs: [__m512i; LIMBS]) -> [__m512i; LIMBS] {
    let mask = _mm512_set1_epi64(MASK);
    let mut over = times_19(_mm512_srli_epi64::<BITS>(limbs[LIMBS - 1]));
    let mut carried = limbs;
    for limb in &mut carried {
        let sum = _mm512_add_epi64(_mm512_and_si512(*limb, mask), over);
        (*limb, over) = (sum, _mm512_srli_epi64::<BITS>(*limb));
    }
    carried
}

/// Multiplies by 19, the value of 2^255.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn times_19(value: __m512i) -> __m512i {
    let times_18 = _mm512_add_epi64(_mm512_slli_epi64::<4>(value), _mm512_slli_epi64::<1>(value));
    _mm512_add_epi64(times_18, value)
}
