//! The variant for AVX-512 with IFMA: ChaCha20 on 16 or 32 blocks, Poly1305 on eight
//! packets at a time.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod chacha20;
mod poly1305;
mod register;

use std::{array, ptr};

use chacha20::{LANES as STATE, Lanes};

use crate::{
    TAG_LEN,
    group::{LANES, OneTimeKey, PACKETS, Packet, Run, Simd},
    row::Row,
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
            && is_x86_feature_detected!("avx512ifma");
        available.then_some(Self(()))
    }
}

#[derive(Default)]
pub(crate) struct Secrets {
    lanes: [Lanes; 2],
    powers: poly1305::Powers,
}

impl Simd for Avx512 {
    type Secrets = Secrets;

    fn lanes(self, blocks: usize) -> usize {
        if blocks > STATE { 2 * STATE } else { STATE }
    }

    fn keystream(
        self,
        packets: &[Packet<'_>],
        runs: &[Run],
        rows: &mut [Row; LANES],
        secrets: &mut Secrets,
    ) {
        // SAFETY: `self` is the proof.
        unsafe { keystream(packets, runs, rows, &mut secrets.lanes) }
    }

    fn xor(self, packets: &mut [Packet<'_>], runs: &[Run], rows: &[Row; LANES]) {
        // SAFETY: `self` is the proof.
        unsafe { xor(packets, runs, rows) }
    }

    fn tags(
        self,
        packets: &[Packet<'_>],
        keys: &[OneTimeKey; PACKETS],
        secrets: &mut Secrets,
    ) -> [[u8; TAG_LEN]; PACKETS] {
        let mut tags = [[0; TAG_LEN]; PACKETS];
        let halves = keys.as_chunks::<8>().0.iter().zip(tags.as_chunks_mut::<8>().0);
        for (packets, (keys, tags)) in packets.chunks(8).zip(halves) {
            // What has no packet does what the first one does.
            let texts = array::from_fn(|lane| &*packets.get(lane).unwrap_or(&packets[0]).text);
            // SAFETY: `self` is the proof.
            *tags = unsafe { poly1305::tags(&texts, keys, &mut secrets.powers) };
        }
        tags
    }
}

#[target_feature(enable = "avx512f")]
fn keystream(
    packets: &[Packet<'_>],
    runs: &[Run],
    rows: &mut [Row; LANES],
    lanes: &mut [Lanes; 2],
) {
    let one_key = packets.iter().all(|packet| ptr::eq(packet.key, packets[0].key));
    let two = runs.last().is_some_and(|run| run.lane + run.blocks > STATE);
    let [first, second] = lanes;
    first.assign(packets, runs, 0, one_key);
    if two {
        second.assign(packets, runs, STATE, one_key);
    }
    let (halves, _) = rows.as_chunks_mut::<STATE>();
    match halves {
        [first, second] if two => chacha20::keystream_two(lanes, [first, second]),
        [first, ..] => chacha20::keystream(&lanes[0], first),
        [] => {}
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn xor(packets: &mut [Packet<'_>], runs: &[Run], rows: &[Row; LANES]) {
    for run in runs {
        let text = &mut packets[run.packet].text[64 * (run.block - 1)..];
        let len = text.len().min(64 * run.blocks);
        register::xor(&mut text[..len], &rows[run.lane..run.lane + run.blocks]);
    }
}
