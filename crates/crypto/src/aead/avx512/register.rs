//! Loads and stores of registers.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_maskz_loadu_epi8, _mm_storeu_si128,
    _mm256_storeu_si256, _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use crate::aead::group::{BLOCK, Packet, Rows, Run};

// Each of these is one instruction. None requires alignment.
macro_rules! loads {
    ($($name:ident $chunk:ty: $register:ty = $load:ident,)+) => {
        $(
            #[inline]
            #[target_feature(enable = "avx512f")]
            pub(super) fn $name(chunk: &$chunk) -> $register {
                const { assert!(size_of::<$chunk>() == size_of::<$register>()) };
                // SAFETY: the read bytes are the array, by the assertion.
                unsafe { $load(chunk.as_ptr().cast()) }
            }
        )+
    };
}
macro_rules! stores {
    ($($name:ident $chunk:ty: $register:ty = $store:ident,)+) => {
        $(
            #[inline]
            #[target_feature(enable = "avx512f")]
            pub(super) fn $name(chunk: &mut $chunk, value: $register) {
                const { assert!(size_of::<$chunk>() == size_of::<$register>()) };
                // SAFETY: the written bytes are the array, by the assertion.
                unsafe { $store(chunk.as_mut_ptr().cast(), value) };
            }
        )+
    };
}

loads! {
    load [u8; 64]: __m512i = _mm512_loadu_si512,
    load_words [u32; 16]: __m512i = _mm512_loadu_si512,
    load_longs [i64; 8]: __m512i = _mm512_loadu_si512,
    load_16 [u8; 16]: __m128i = _mm_loadu_si128,
}

stores! {
    store [u8; 64]: __m512i = _mm512_storeu_si512,
    store_words [u32; 16]: __m512i = _mm512_storeu_si512,
    store_longs [i64; 8]: __m512i = _mm512_storeu_si512,
    store_32 [u8; 32]: __m256i = _mm256_storeu_si256,
    store_16 [u8; 16]: __m128i = _mm_storeu_si128,
}

/// Loads at most 16 bytes, followed by zeros.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl")]
pub(super) fn load_some(bytes: &[u8]) -> __m128i {
    let mask = if bytes.len() < 16 { (1 << bytes.len()) - 1 } else { 0xffff };
    // SAFETY: the mask selects only bytes of the slice.
    unsafe { _mm_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn xor_chunk(chunk: &mut [u8; 64], value: __m512i) {
    store(chunk, _mm512_xor_si512(load(chunk), value));
}

/// XORs the keystream into the texts, up to the end of each text.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn xor(packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows) {
    for run in runs {
        let text = &mut packets[run.packet].text[BLOCK * (run.block - 1)..];
        let rows = &rows.0[run.lane..run.lane + run.blocks];
        let (chunks, tail) = text.as_chunks_mut();
        for (chunk, row) in chunks.iter_mut().zip(rows) {
            xor_chunk(chunk, load(row));
        }
        if let Some(row) = rows.get(chunks.len()) {
            xor_some(tail, load(row));
        }
    }
}

/// XORs fewer than 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn xor_some(bytes: &mut [u8], value: __m512i) {
    assert!(bytes.len() < 64);
    let mask = (1 << bytes.len()) - 1;
    // SAFETY: the mask selects only bytes of the slice, by the assertion.
    let part = unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) };
    let part = _mm512_xor_si512(part, value);
    // SAFETY: the mask selects only bytes of the slice, by the assertion.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, part) };
}
