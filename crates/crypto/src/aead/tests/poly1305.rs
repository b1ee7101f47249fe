//! Tests Poly1305 of every variant with keys and texts that a cipher does not produce: the edge
//! cases of carries.

use super::*;
use crate::aead::spec::Number;

/// Computes the tags of texts with these one-time keys.
type Tags = fn(&[Vec<u8>], &[[u8; 32]]) -> Vec<[u8; TAG_LEN]>;

#[cfg(target_arch = "x86_64")]
fn ways() -> Vec<(&'static str, Tags)> {
    use crate::aead::{avx2::Avx2, avx512::Avx512, poly1305};

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
fn simd_tags<S: crate::aead::group::Simd>(
    simd: S,
    texts: &[Vec<u8>],
    keys: &[[u8; 32]],
) -> Vec<[u8; TAG_LEN]> {
    use crate::aead::group::{PACKETS, Packet};

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

/// Values of r: all bits that clamping retains, the lowest, the highest, bits next to limb
/// boundaries, and bits that clamping clears.
fn edge_rs() -> Vec<u128> {
    let clamped: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
    let mut rs = vec![0, 1, 2, 4, 5, clamped, u128::MAX, !clamped, clamped - 1, clamped >> 1];
    for limb_border in [26, 43, 44, 52, 63, 64, 78, 87, 88, 104, 123, 124] {
        rs.extend([1 << limb_border, (1 << limb_border) - 1, clamped << limb_border]);
    }
    rs
}

#[test]
fn edge_keys_and_edge_texts_agree_with_the_specification() {
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

/// With r = 1 the accumulator is the sum of the blocks, so the last block sets it to any value:
/// around 0, 2^128, 2^129 and 2^130 - 5, where the final reduction must be exact.
#[test]
fn sums_next_to_the_modulus_are_reduced_exactly() {
    for blocks in 1..=12 {
        let mut texts = Vec::new();
        let mut keys = Vec::new();
        for near in -8..=8i128 {
            for fill in [0, 0xff, 0x5a] {
                // All blocks except one, the bits at 2^128 of all of them, and the lengths.
                let mut text = vec![fill; 16 * blocks];
                let (others, last) = text.split_last_chunk_mut::<16>().unwrap();
                let others = others.as_chunks().0.iter().map(|block| u128::from_le_bytes(*block));
                let lens = (16 * blocks as u128) << 64;
                let sum = others.fold(lens, u128::wrapping_add);
                // Sets the lowest 128 bits of the sum to the wanted value.
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

/// Texts with a given last product for any r. With a large r, small results arise from products of
/// 2^130 and more. Results just below the modulus arise without a reduction.
#[test]
fn last_products_next_to_the_modulus_are_reduced_exactly() {
    let mut tried = 0;
    for r in edge_rs() {
        let key = one_time_key(r, 0);
        let clamped = r & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        let Some(inverse) = inverse(clamped) else { continue };
        for target in (0..24).chain(24..28).map(Number::from_target) {
            for first in 0..8u128 {
                let Some(text) = text_with_sum(clamped, &inverse, first, &target) else { continue };
                let expected = target.modulo_2_128().to_le_bytes();
                assert_eq!(self::expected(&text, &key), expected, "the text has the wanted tag");
                check(&[text], &[key]);
                tried += 1;
            }
        }
    }
    assert!(tried > 1000, "{tried} texts");
}

impl Number {
    /// Returns small numbers, then those just below the modulus.
    fn from_target(target: u64) -> Self {
        if target < 24 {
            return Self::from_le_bytes(&target.to_le_bytes());
        }
        Self::from_le_bytes(&(target - 24 + 1).to_le_bytes()).minus()
    }

    /// Returns the negative of this number.
    fn minus(&self) -> Self {
        // -1 is 2^130 - 6.
        let mut bytes = [0xff; 17];
        (bytes[0], bytes[16]) = (0xfa, 3);
        self.times(&Self::from_le_bytes(&bytes))
    }
}

/// Computes the inverse by Fermat's theorem: r^(p - 2).
fn inverse(r: u128) -> Option<Number> {
    let r = Number::from_le_bytes(&r.to_le_bytes());
    // p - 2 is 2^130 - 7.
    let mut power = Number::from_le_bytes(&[1]);
    for bit in (0..130).rev() {
        power = power.times(&power);
        if bit != 1 && bit != 2 {
            power = power.times(&r);
        }
    }
    (power.times(&r) == Number::from_le_bytes(&[1])).then_some(power)
}

/// Returns two blocks, with a given first one, for which the accumulator is `target`.
fn text_with_sum(r: u128, inverse: &Number, first: u128, target: &Number) -> Option<Vec<u8>> {
    let block = |block: u128| Number::from_le_bytes(&[&block.to_le_bytes()[..], &[1]].concat());
    let r = Number::from_le_bytes(&r.to_le_bytes());
    // ((first r + second) r + lens) r is the target.
    let before_lens = target.times(inverse).plus(&block(32 << 64).minus());
    let second = before_lens.times(inverse).plus(&block(first).times(&r).minus());
    let second = second.plus(&block(0).minus());
    // One in four is below 2^128.
    let fits = second.0[4] < 1 << 24;
    fits.then(|| [first, second.modulo_2_128()].map(u128::to_le_bytes).concat())
}

#[test]
fn lanes_with_different_keys_and_lengths_agree_with_the_specification() {
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
