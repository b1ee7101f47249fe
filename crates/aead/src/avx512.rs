//! The variant for AVX-512 with IFMA: ChaCha20 on 16 or 32 blocks, Poly1305 on eight
//! packets at a time.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod chacha20;
mod poly1305;
mod register;

use std::ops::Range;

use chacha20::STATE;

use crate::{
    TAG_LEN,
    group::{OneTimeKey, PACKETS, Packet, Rows, Run, Simd},
};

/// The proof that this processor has what is needed.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn new() -> Option<Self> {
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512vbmi2");
        available.then_some(Self(()))
    }
}

impl Simd for Avx512 {
    fn lanes(self, blocks: usize) -> usize {
        if blocks > STATE { 2 * STATE } else { STATE }
    }

    fn keystream(self, packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows) {
        // SAFETY: `self` is the proof.
        unsafe { chacha20::keystream(packets, runs, rows) };
    }

    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows) {
        // SAFETY: `self` is the proof.
        unsafe { register::xor(packets, runs, rows) };
    }

    fn sweep(self, packets: &mut [Packet<'_>; PACKETS], blocks: Range<usize>) -> usize {
        // SAFETY: `self` is the proof.
        unsafe { chacha20::sweep(packets, blocks) }
    }

    fn tags(
        self,
        packets: &[Packet<'_>],
        keys: &[OneTimeKey; PACKETS],
    ) -> [[u8; TAG_LEN]; PACKETS] {
        let mut tags = [[0; TAG_LEN]; PACKETS];
        let (halves, _) = tags.as_chunks_mut::<{ poly1305::LANES }>();
        let (key_halves, _) = keys.as_chunks::<{ poly1305::LANES }>();
        for ((packets, keys), tags) in packets.chunks(poly1305::LANES).zip(key_halves).zip(halves) {
            // A lane that has no packet does what the first one does.
            let mut texts = [&*packets[0].text; poly1305::LANES];
            for (text, packet) in texts.iter_mut().zip(packets) {
                *text = packet.text;
            }
            // SAFETY: `self` is the proof.
            *tags = unsafe { poly1305::tags(&texts, keys) };
        }
        tags
    }
}
