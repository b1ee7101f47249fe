//! Processes 64 bytes a step: `uadalp` adds pairs of 16-bit words to 32-bit lanes. Every aarch64
//! has NEON.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

use std::{
    arch::aarch64::{
        uint16x8_t, uint32x4_t, vaddlvq_u32, vdupq_n_u32, vld1q_u16, vpadalq_u16, vst1q_u16,
    },
    arch::is_aarch64_feature_detected,
    ops::RangeInclusive,
};

use super::{add, fold, scalar};

/// Lengths in bytes for which this variant is used: from one step up to the longest length in the
/// tests, far below the length at which a lane overflows.
pub(super) const LENGTHS: RangeInclusive<usize> = STEP..=1 << 16;

/// Bytes of one step.
const STEP: usize = 64;

pub(super) fn available() -> bool {
    is_aarch64_feature_detected!("neon")
}

pub(super) fn sum(bytes: &[u8]) -> u16 {
    assert!(available() && LENGTHS.contains(&bytes.len()));
    // SAFETY: the assertion guarantees NEON.
    unsafe { sum_neon(bytes) }
}

pub(super) fn copy_sum(to: &mut [u8], from: &[u8]) -> u16 {
    assert!(available() && LENGTHS.contains(&from.len()));
    assert_eq!(to.len(), from.len());
    // SAFETY: the assertion guarantees NEON.
    unsafe { copy_sum_neon(to, from) }
}

#[target_feature(enable = "neon")]
fn sum_neon(bytes: &[u8]) -> u16 {
    let (steps, tail) = bytes.as_chunks::<STEP>();
    let mut sums = [vdupq_n_u32(0); 4];
    for step in steps {
        for (sum, piece) in sums.iter_mut().zip(step.as_chunks().0) {
            *sum = vpadalq_u16(*sum, load(piece));
        }
    }
    add(total(sums), scalar::sum(tail))
}

#[target_feature(enable = "neon")]
fn copy_sum_neon(to: &mut [u8], from: &[u8]) -> u16 {
    let (steps, tail) = from.as_chunks::<STEP>();
    let (chunks, last) = to.as_chunks_mut::<STEP>();
    let mut sums = [vdupq_n_u32(0); 4];
    for (step, chunk) in steps.iter().zip(chunks) {
        let pieces = step.as_chunks().0.iter().zip(chunk.as_chunks_mut().0);
        for (sum, (piece, chunk)) in sums.iter_mut().zip(pieces) {
            let words = load(piece);
            store(chunk, words);
            *sum = vpadalq_u16(*sum, words);
        }
    }
    last.copy_from_slice(tail);
    add(total(sums), scalar::sum(tail))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(piece: &[u8; 16]) -> uint16x8_t {
    // SAFETY: the array is 16 bytes long; the load may be unaligned.
    unsafe { vld1q_u16(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(chunk: &mut [u8; 16], words: uint16x8_t) {
    // SAFETY: the array is 16 bytes long; the store may be unaligned.
    unsafe { vst1q_u16(chunk.as_mut_ptr().cast(), words) }
}

/// Adds lanes of words in the machine's byte order. A ones-complement sum does not depend on the
/// byte order, except for a swap at the end (RFC 1071 section 2 B).
#[inline]
#[target_feature(enable = "neon")]
fn total(sums: [uint32x4_t; 4]) -> u16 {
    u16::from_be(fold(sums.into_iter().map(|lanes| vaddlvq_u32(lanes)).sum()))
}
