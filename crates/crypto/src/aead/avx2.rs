//! The variant for AVX2: ChaCha20 on eight blocks at a time, Poly1305 without SIMD.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod chacha20;

use chacha20::STATE;

use crate::aead::{
    TAG_LEN,
    group::{Keystream, LANES, Load, OneTimeKey, PACKETS, Packet, Rows, Run, Simd},
    poly1305,
};

/// Proof that this processor has the needed features.
#[derive(Clone, Copy)]
pub(in crate::aead) struct Avx2(());

impl Avx2 {
    pub(in crate::aead) fn new() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Simd for Avx2 {
    fn cost(self, load: &Load) -> usize {
        let states = (load.packets + load.blocks).div_ceil(STATE);
        190 + 17 * load.packets + 160 * states + 9 * load.small_blocks / 2
    }

    fn lanes(self, blocks: usize) -> usize {
        LANES.min(blocks.next_multiple_of(STATE))
    }

    fn keystream(self, packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::keystream(packets, runs, rows) };
    }

    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::xor(packets, runs, rows) };
    }

    fn keys(
        self,
        packets: &[Packet<'_>; PACKETS],
        keys: &mut [OneTimeKey; PACKETS],
        first: &mut Keystream,
    ) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::keys(packets, keys, first) };
    }

    fn apply_keystream(self, packets: &mut [Packet<'_>; PACKETS], first: &Keystream) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::apply_keystream(packets, first) };
    }

    fn tags(
        self,
        packets: &[Packet<'_>],
        keys: &[OneTimeKey; PACKETS],
    ) -> [[u8; TAG_LEN]; PACKETS] {
        let mut tags = [[0; TAG_LEN]; PACKETS];
        for ((packet, key), tag) in packets.iter().zip(keys).zip(&mut tags) {
            *tag = poly1305::tag(key, packet.text);
        }
        tags
    }
}
