//! 64 bytes a step, in four accumulators of 64-bit lanes: no carry is lost below
//! 16 GiB.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_blend_epi32, _mm256_loadu_si256, _mm256_setzero_si256,
    _mm256_srli_epi64, _mm256_storeu_si256,
};

use super::{add, fold, scalar};

/// Below this many bytes the scalar code is as fast.
pub(super) const WORTH_IT: usize = 64;

/// Bytes of one step.
const STEP: usize = 64;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
}

pub(super) fn sum(bytes: &[u8]) -> u16 {
    assert!(available());
    // SAFETY: AVX2 is there, by the assertion.
    unsafe { sum_avx2(bytes) }
}

pub(super) fn copy_sum(to: &mut [u8], from: &[u8]) -> u16 {
    assert!(available());
    assert_eq!(to.len(), from.len());
    // SAFETY: AVX2 is there, by the assertion.
    unsafe { copy_sum_avx2(to, from) }
}

#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> u16 {
    let (steps, tail) = bytes.as_chunks::<STEP>();
    let mut sums = Sums::new();
    for step in steps {
        let (low, high) = load(step);
        sums.add(low, high);
    }
    add(sums.total(), scalar::sum(tail))
}

#[target_feature(enable = "avx2")]
fn copy_sum_avx2(to: &mut [u8], from: &[u8]) -> u16 {
    let (steps, tail) = from.as_chunks::<STEP>();
    let (places, tail_place) = to.as_chunks_mut::<STEP>();
    let mut sums = Sums::new();
    for (step, place) in steps.iter().zip(places) {
        let (low, high) = load(step);
        store(place, low, high);
        sums.add(low, high);
    }
    tail_place.copy_from_slice(tail);
    add(sums.total(), scalar::sum(tail))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(step: &[u8; STEP]) -> (__m256i, __m256i) {
    let at = step.as_ptr().cast::<__m256i>();
    // SAFETY: the array is 64 bytes long; the load needs no alignment.
    let low = unsafe { _mm256_loadu_si256(at) };
    // SAFETY: 32 bytes further there are 32 bytes left of the array.
    let next = unsafe { at.add(1) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_si256(next) };
    (low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(place: &mut [u8; STEP], low: __m256i, high: __m256i) {
    let at = place.as_mut_ptr().cast::<__m256i>();
    // SAFETY: the array is 64 bytes long; the store needs no alignment.
    unsafe { _mm256_storeu_si256(at, low) };
    // SAFETY: 32 bytes further there are 32 bytes left of the array.
    let next = unsafe { at.add(1) };
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(next, high) };
}

/// Sums of the 32-bit halves of 64-bit lanes, in the machine's byte order: a
/// ones-complement sum does not mind, but for a swap at the end (RFC 1071
/// section 2 B).
struct Sums([__m256i; 4]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self([_mm256_setzero_si256(); 4])
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, low: __m256i, high: __m256i) {
        let zero = _mm256_setzero_si256();
        let [a, b, c, d] = &mut self.0;
        *a = _mm256_add_epi64(*a, _mm256_blend_epi32::<0b1010_1010>(low, zero));
        *b = _mm256_add_epi64(*b, _mm256_srli_epi64::<32>(low));
        *c = _mm256_add_epi64(*c, _mm256_blend_epi32::<0b1010_1010>(high, zero));
        *d = _mm256_add_epi64(*d, _mm256_srli_epi64::<32>(high));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(&self) -> u16 {
        let [a, b, c, d] = self.0;
        let sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
        let mut lanes = [0u64; 4];
        // SAFETY: the array is 32 bytes long; the store needs no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        // Each lane is below 2^48, by the length of a packet.
        fold(lanes.iter().sum()).swap_bytes()
    }
}
