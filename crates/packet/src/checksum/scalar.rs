//! The specification: eight bytes a step, carries collected on the way.

use super::fold;

pub(super) fn sum(bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut low = 0u64;
    let mut high = 0u64;
    for word in words {
        let word = u64::from_be_bytes(*word);
        low += word & 0xffff_ffff;
        high += word >> 32;
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let last = u64::from_be_bytes(last);
    fold(low + high + (last & 0xffff_ffff) + (last >> 32))
}
