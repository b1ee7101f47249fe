//! Processes 64 bytes a step. Subtracting 2^15 turns a 16-bit word into a signed word. `vpmaddwd`
//! adds pairs of signed words to 32-bit lanes: three operations for 32 bytes. The subtracted amount
//! is added at the end.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi16,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
    },
    ops::RangeInclusive,
};

use super::{add, fold, scalar};

/// Lengths in bytes for which this variant is used. Below the range the scalar code is as fast.
/// Above it the 32-bit sum of all lanes would overflow.
pub(super) const LENGTHS: RangeInclusive<usize> = 64..=1 << 16;

/// Bytes of one step.
const STEP: usize = 64;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
}

pub(super) fn sum(bytes: &[u8]) -> u16 {
    assert!(available() && LENGTHS.contains(&bytes.len()));
    // SAFETY: the assertion guarantees AVX2.
    unsafe { sum_avx2(bytes) }
}

pub(super) fn copy_sum(to: &mut [u8], from: &[u8]) -> u16 {
    assert!(available() && LENGTHS.contains(&from.len()));
    assert_eq!(to.len(), from.len());
    // SAFETY: the assertion guarantees AVX2.
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
    add(sums.total(steps.len()), scalar::sum(tail))
}

#[target_feature(enable = "avx2")]
fn copy_sum_avx2(to: &mut [u8], from: &[u8]) -> u16 {
    let (steps, tail) = from.as_chunks::<STEP>();
    let mut sums = Sums::new();
    for (step, chunk) in steps.iter().zip(to.as_chunks_mut::<STEP>().0) {
        let (low, high) = load(step);
        store(chunk, low, high);
        sums.add(low, high);
    }
    // The last 64 bytes are copied again, overlapping the last step. This saves a call
    // for the tail.
    let last = from.last_chunk::<STEP>().expect("LENGTHS starts at one step");
    *to.last_chunk_mut().expect("both have the same length") = *last;
    add(sums.total(steps.len()), scalar::sum(tail))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(step: &[u8; STEP]) -> (__m256i, __m256i) {
    let at = step.as_ptr().cast::<__m256i>();
    // SAFETY: the array is 64 bytes long; the load may be unaligned.
    let low = unsafe { _mm256_loadu_si256(at) };
    // SAFETY: 32 bytes of the array follow this offset.
    let next = unsafe { at.add(1) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_si256(next) };
    (low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(chunk: &mut [u8; STEP], low: __m256i, high: __m256i) {
    let at = chunk.as_mut_ptr().cast::<__m256i>();
    // SAFETY: the array is 64 bytes long; the store may be unaligned.
    unsafe { _mm256_storeu_si256(at, low) };
    // SAFETY: 32 bytes of the array follow this offset.
    let next = unsafe { at.add(1) };
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(next, high) };
}

/// Sums of words minus 2^15, in the machine's byte order. A ones-complement sum does not depend on
/// the byte order, except for a swap at the end (RFC 1071 section 2 B).
struct Sums([__m256i; 2]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self([_mm256_setzero_si256(); 2])
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, low: __m256i, high: __m256i) {
        let one = _mm256_set1_epi16(1);
        let less = _mm256_set1_epi16(i16::MIN);
        let [a, b] = &mut self.0;
        *a = _mm256_add_epi32(*a, _mm256_madd_epi16(_mm256_xor_si256(low, less), one));
        *b = _mm256_add_epi32(*b, _mm256_madd_epi16(_mm256_xor_si256(high, less), one));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(&self, steps: usize) -> u16 {
        let [a, b] = self.0;
        let sum = _mm256_add_epi32(a, b);
        let mut lanes = [0i32; 8];
        // SAFETY: the array is 32 bytes long; the store may be unaligned.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        // At most 2^15 words, each from -2^15 to below 2^15: the absolute value is at most 2^30.
        let sum = i64::from(lanes.iter().sum::<i32>());
        let lacking = (steps * STEP / 2) << 15;
        fold((sum + lacking as i64) as u64).swap_bytes()
    }
}
