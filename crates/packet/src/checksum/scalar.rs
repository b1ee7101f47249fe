//! The specification: four bytes a step, with the carries collected in the upper bits.

use super::fold;

pub(super) fn sum(bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let last = match *tail {
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        _ => [0; 4],
    };
    fold(words + u64::from(u32::from_be_bytes(last)))
}
