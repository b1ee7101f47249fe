//! The Internet checksum (RFC 1071), alone and fused with a copy.
//!
//! A *sum* here is the ones-complement sum of big-endian 16-bit words, folded to
//! 16 bits and not inverted; an odd last byte counts as the high one. Sums of
//! pieces that begin at even offsets add up ([`add`]).
//!
//! `scalar` is the specification. The variant is chosen once, at run time.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

/// The sum of `bytes`.
pub fn sum(bytes: &[u8]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= avx2::WORTH_IT && avx2::available() {
        return avx2::sum(bytes);
    }
    scalar::sum(bytes)
}

/// Copies `from` to `to`, which is as long, and returns its sum.
///
/// # Panics
/// The lengths differ.
pub fn copy_sum(to: &mut [u8], from: &[u8]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= avx2::WORTH_IT && avx2::available() {
        return avx2::copy_sum(to, from);
    }
    to.copy_from_slice(from);
    scalar::sum(from)
}

/// Two sums together.
pub fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Folds to 16 bits.
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 4.1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, pair| {
            add(sum, u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        })
    }

    /// 0 and 0xffff are the same number; which one comes out is nobody's
    /// business.
    fn same(a: u16, b: u16) -> bool {
        a == b || [a, b] == [0, 0xffff] || [a, b] == [0xffff, 0]
    }

    #[test]
    fn the_example_of_rfc_1071_adds_up() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes), 0xddf2);
    }

    #[test]
    fn every_length_and_alignment_agrees_with_rfc_1071() {
        let bytes: Vec<u8> = (0..2100u32).map(|n| (n * 167 + 13) as u8).collect();
        for start in 0..33 {
            for len in (0..300).chain(1400..1460).chain([2000]) {
                let piece = &bytes[start..start + len];
                let expected = naive(piece);
                assert!(same(scalar::sum(piece), expected), "scalar, {len} bytes at {start}");
                assert!(same(sum(piece), expected), "{len} bytes at {start}");
                let mut copy = vec![0; len];
                assert!(same(copy_sum(&mut copy, piece), expected), "{len} bytes at {start}");
                assert_eq!(copy, piece);
            }
        }
    }

    #[test]
    fn no_carry_is_lost_in_64_kib_of_ones() {
        let ones = vec![0xff; 65_535];
        assert!(same(sum(&ones), naive(&ones)));
        assert!(same(scalar::sum(&ones), naive(&ones)));
    }

    proptest! {
        #[test]
        fn any_bytes_agree_with_rfc_1071(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert!(same(sum(&bytes), naive(&bytes)));
            prop_assert!(same(scalar::sum(&bytes), naive(&bytes)));
        }

        #[test]
        fn sums_of_pieces_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..150) {
            let (head, tail) = bytes.split_at((2 * at).min(bytes.len()));
            prop_assert!(same(add(sum(head), sum(tail)), naive(&bytes)));
        }
    }
}
