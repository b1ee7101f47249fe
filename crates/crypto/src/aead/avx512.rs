//! The variant for AVX-512 with IFMA: ChaCha20 on 16 or 32 blocks, Poly1305 on eight
//! packets at a time.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod chacha20;
mod poly1305;
mod register;
mod rounds;

use std::array;

use chacha20::STATE;

use crate::aead::{
    TAG_LEN,
    group::{Keystream, Load, OneTimeKey, PACKETS, Packet, Rows, Run, Simd},
};

/// Proof that this processor has the needed features.
#[derive(Clone, Copy)]
pub(in crate::aead) struct Avx512(());

impl Avx512 {
    pub(in crate::aead) fn new() -> Option<Self> {
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
    fn cost(self, load: &Load) -> usize {
        let states = (load.packets + load.blocks).div_ceil(STATE);
        let steps = load.longest.map(|blocks| blocks.div_ceil(4));
        let octets: usize =
            steps.iter().filter(|steps| **steps > 0).map(|steps| 75 + 28 * steps).sum();
        145 + 12 * load.packets + 165 * states + 2 * load.blocks + octets
    }

    fn lanes(self, blocks: usize) -> usize {
        if blocks > STATE { 2 * STATE } else { STATE }
    }

    fn keystream(self, packets: &[Packet<'_>], runs: &[Run], rows: &mut Rows) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::keystream(packets, runs, rows) };
    }

    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &Rows) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { register::xor(packets, runs, rows) };
    }

    fn keys(
        self,
        packets: &[Packet<'_>; PACKETS],
        keys: &mut [OneTimeKey; PACKETS],
        first: &mut Keystream,
    ) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { chacha20::one_time_keys(packets, keys, first) };
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
        let texts = texts(packets);
        let both = (keys.as_chunks().0.as_array(), tags.as_chunks_mut().0.as_mut_array());
        let (Some(keys), Some(octets)) = both else { unreachable!("16 is twice 8") };
        let short = packets.iter().all(|packet| packet.text.len() <= poly1305::short::LEN);
        match (packets.len() > poly1305::LANES, short) {
            // SAFETY: `self` proves that the processor has the features.
            (true, true) => unsafe { poly1305::short::tags(&texts, keys, octets) },
            // SAFETY: `self` proves that the processor has the features.
            (true, false) => unsafe { poly1305::tags_two(&texts, keys, octets) },
            (false, true) => {
                let ([texts, _], [keys, _], [octet, _]) = (texts, keys, octets);
                let (texts, keys, octet) =
                    (array::from_ref(&texts), array::from_ref(keys), array::from_mut(octet));
                // SAFETY: `self` proves that the processor has the features.
                unsafe { poly1305::short::tags(texts, keys, octet) }
            }
            // SAFETY: `self` proves that the processor has the features.
            (false, false) => unsafe { poly1305::tags(&texts[0], &keys[0], &mut octets[0]) },
        }
        tags
    }
}

/// The packets' texts. A lane without a packet repeats the last packet.
fn texts<'a>(packets: &'a [Packet<'_>]) -> [[&'a [u8]; poly1305::LANES]; 2] {
    let mut texts = [[&[][..]; poly1305::LANES]; 2];
    let mut packets = packets.iter();
    let mut text = &[][..];
    for place in texts.as_flattened_mut() {
        text = packets.next().map_or(text, |packet| packet.text);
        *place = text;
    }
    texts
}
