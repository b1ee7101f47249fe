//! Registers from memory and to it.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm_maskz_loadu_epi8, _mm_storeu_si128, _mm512_load_si512,
    _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_store_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use crate::row::Row;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(row: &Row) -> __m512i {
    // SAFETY: a row is 64 bytes, and aligned.
    unsafe { _mm512_load_si512(row.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(row: &mut Row, value: __m512i) {
    // SAFETY: a row is 64 bytes, and aligned.
    unsafe { _mm512_store_si512(row.0.as_mut_ptr().cast(), value) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_chunk(chunk: &[u8; 64]) -> __m512i {
    // SAFETY: the array is 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_chunk(chunk: &mut [u8; 64], value: __m512i) {
    // SAFETY: the array is 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(chunk.as_mut_ptr().cast(), value) };
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_16(chunk: &[u8; 16]) -> __m128i {
    // SAFETY: the array is 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_16(chunk: &mut [u8; 16], value: __m128i) {
    // SAFETY: the array is 16 bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(chunk.as_mut_ptr().cast(), value) };
}

/// At most 16 bytes, and zeros behind them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl")]
pub(super) fn load_some(bytes: &[u8]) -> __m128i {
    let mask = if bytes.len() < 16 { (1 << bytes.len()) - 1 } else { 0xffff };
    // SAFETY: the mask names only bytes that there are.
    unsafe { _mm_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

/// Eight numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_words(words: &[u64; 8]) -> __m512i {
    // SAFETY: the array is 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn words(value: __m512i) -> [u64; 8] {
    let mut words = [0; 8];
    // SAFETY: the array is 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), value) };
    words
}

/// Text and keystream to text, as far as the text goes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn xor(text: &mut [u8], rows: &[Row]) {
    let (chunks, tail) = text.as_chunks_mut::<64>();
    let mut rows = rows.iter();
    for (chunk, row) in chunks.iter_mut().zip(&mut rows) {
        store_chunk(chunk, _mm512_xor_si512(load_chunk(chunk), load(row)));
    }
    if let (false, Some(row)) = (tail.is_empty(), rows.next()) {
        let mask = (1 << tail.len()) - 1;
        // SAFETY: the mask names only bytes of `tail`.
        let part = unsafe { _mm512_maskz_loadu_epi8(mask, tail.as_ptr().cast()) };
        let part = _mm512_xor_si512(part, load(row));
        // SAFETY: the mask names only bytes of `tail`.
        unsafe { _mm512_mask_storeu_epi8(tail.as_mut_ptr().cast(), mask, part) };
    }
}
