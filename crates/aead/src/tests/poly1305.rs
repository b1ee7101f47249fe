//! Poly1305 of every variant with keys and texts that a cipher does not make: the edges
//! of its carries.

use super::*;

/// The tags of texts with these one-time keys, by every way there is.
type Tags = fn(&[Vec<u8>], &[[u8; 32]]) -> Vec<[u8; TAG_LEN]>;

#[cfg(target_arch = "x86_64")]
fn ways() -> Vec<(&'static str, Tags)> {
    use crate::{avx2::Avx2, avx512::Avx512, poly1305};

    fn plain(texts: &[Vec<u8>], keys: &[[u8; 32]]) -> Vec<[u8; TAG_LEN]> {
        texts.iter().zip(keys).map(|(text, key)| poly1305::tag(key, text)).collect()
    }
    let mut ways: Vec<(&str, Tags)> = vec![("without SIMD", plain)];
    if Avx2::new().is_some() {
        ways.push(("avx2", |texts, keys| simd_tags(Avx2::new().unwrap(), texts, keys)));
    }
    if Avx512::new().is_some() {
        ways.push(("avx512", |texts, keys| simd_tags(Avx512::new().unwrap(), texts, keys)));
    }
    ways
}

#[cfg(target_arch = "x86_64")]
fn simd_tags<S: crate::group::Simd>(
    simd: S,
    texts: &[Vec<u8>],
    keys: &[[u8; 32]],
) -> Vec<[u8; TAG_LEN]> {
    use crate::group::{PACKETS, Packet};

    let key = Key::new(&[0; 32]);
    let (mut texts, mut room) = (texts.to_vec(), vec![[0; TAG_LEN]; texts.len()]);
    let packets: Vec<Packet<'_>> = texts
        .iter_mut()
        .zip(&mut room)
        .map(|(text, tag)| Packet { key: &key, counter: 0, text, tag })
        .collect();
    let mut all_keys = [[0; 32]; PACKETS];
    all_keys[..keys.len()].copy_from_slice(keys);
    simd.tags(&packets, &all_keys)[..texts.len()].to_vec()
}

#[cfg(not(target_arch = "x86_64"))]
fn ways() -> Vec<(&'static str, Tags)> {
    Vec::new()
}

fn expected(text: &[u8], key: &[u8; 32]) -> [u8; TAG_LEN] {
    let mut message = text.to_vec();
    message.resize(text.len().next_multiple_of(16), 0);
    message.extend([0; 8]);
    message.extend((text.len() as u64).to_le_bytes());
    spec::poly1305(key, &message)
}

fn check(texts: &[Vec<u8>], keys: &[[u8; 32]]) {
    let expected: Vec<_> = texts.iter().zip(keys).map(|(text, key)| expected(text, key)).collect();
    for (name, tags) in ways() {
        for (at, tag) in tags(texts, keys).iter().enumerate() {
            let len = texts[at].len();
            assert_eq!(*tag, expected[at], "{name}: {len} bytes, key {:x?}", keys[at]);
        }
    }
}

fn one_time_key(r: u128, s: u128) -> [u8; 32] {
    [r.to_le_bytes(), s.to_le_bytes()].concat().try_into().unwrap()
}

/// r with all bits that clamping leaves, with the lowest, the highest, those beside the
/// limbs' borders, and those that clamping is to take away.
fn edge_rs() -> Vec<u128> {
    let clamped: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
    let mut rs = vec![0, 1, 2, 4, 5, clamped, u128::MAX, !clamped, clamped - 1, clamped >> 1];
    for limb_border in [26, 43, 44, 52, 63, 64, 78, 87, 88, 104, 123, 124] {
        rs.extend([1 << limb_border, (1 << limb_border) - 1, clamped << limb_border]);
    }
    rs
}

#[test]
fn edge_keys_and_edge_texts() {
    let edge_texts = |len: usize| {
        let mut alternating = vec![0; len];
        alternating.chunks_mut(16).step_by(2).for_each(|block| block.fill(0xff));
        [vec![0xff; len], vec![0; len], alternating, vec![0x80; len], batch::text(len, len)]
    };
    for r in edge_rs() {
        for s in [0, 1, u128::MAX, u128::MAX - 1, 1 << 64, (1 << 64) - 1] {
            for len in [0, 1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 112, 128, 500, 1420] {
                check(&edge_texts(len), &[one_time_key(r, s); 5]);
            }
        }
    }
}

/// With r = 1 the sum is that of the blocks, so that the last block of text puts it where
/// it is wanted: around 0, 2^128, 2^129 and 2^130 - 5, which is where the last reduction
/// has to be right to the bit.
#[test]
fn sums_next_to_the_modulus() {
    for blocks in 1..=12 {
        let mut texts = Vec::new();
        let mut keys = Vec::new();
        for near in -8..=8i128 {
            for fill in [0, 0xff, 0x5a] {
                // All blocks but one, the bits above all of them, and the lengths.
                let mut text = vec![fill; 16 * blocks];
                let (others, last) = text.split_last_chunk_mut::<16>().unwrap();
                let others = others.as_chunks().0.iter().map(|block| u128::from_le_bytes(*block));
                let lens = (16 * blocks as u128) << 64;
                let sum = others.fold(lens, u128::wrapping_add);
                // What makes the sum's lowest 128 bits what is wanted.
                *last = (near as u128).wrapping_sub(sum).to_le_bytes();
                texts.push(text);
                keys.push(one_time_key(1, 0));
            }
        }
        for (texts, keys) in texts.chunks(16).zip(keys.chunks(16)) {
            check(texts, keys);
        }
    }
}

/// The sum before the last reduction takes every value from 2^130 - 12 to 2^130 + 7.
#[test]
fn every_value_around_the_modulus() {
    // One block of text and the one of the lengths: x + 2^128 + 16 2^64 + 2^128 with r = 1.
    // Two more blocks of text, of ones, bring the sum to 2^130 and little less.
    let lens = 48u128 << 64;
    for target in -12..=7i128 {
        // Four times 2^128 is 2^130. The three texts' blocks are to add up to target - lens.
        let third = (target as u128).wrapping_sub(lens);
        for (first, second) in [(0, 0), (u128::MAX, 1), (1 << 127, 1 << 127)] {
            let blocks = [first, second, third].map(u128::to_le_bytes);
            check(&[blocks.concat()], &[one_time_key(1, 0)]);
        }
    }
}

#[test]
fn lanes_with_different_keys_and_lengths() {
    for rotate in 0..16 {
        let mut rs = edge_rs().into_iter().cycle().skip(rotate);
        let lens = [1420, 0, 64, 16, 1, 500, 64, 63, 1424, 15, 128, 17, 48, 49, 0, 1000];
        for packets in 1..=16 {
            let texts: Vec<Vec<u8>> =
                (0..packets).map(|at| batch::text(at, lens[(at + rotate) % 16])).collect();
            let keys: Vec<[u8; 32]> =
                (0..packets).map(|_| one_time_key(rs.next().unwrap(), u128::MAX)).collect();
            check(&texts, &keys);
        }
    }
}
