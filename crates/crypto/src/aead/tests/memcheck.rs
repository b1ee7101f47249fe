//! Checks that no branch and no address in the AVX2 code, in Poly1305 without SIMD and in the
//! library depends on a secret. [`timing`](super::timing) tests AVX-512, which valgrind does not
//! support.

use std::hint::black_box;

use ::memcheck::{decisions, hide, show};

use super::{batch::*, *};

#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_no_branch_on_a_secret() {
    ::memcheck::begin();
    for variant in variants() {
        for lens in [vec![200; 16], vec![64; 20], (0..13).map(|index| 51 * index).collect()] {
            for keys in [1, 2] {
                let plain = batch(lens.clone(), keys);
                let expected = by_the_library(&plain);
                let mut packets = plain.clone();
                assert_eq!(seal_hidden(variant, &mut packets, keys), 0, "{variant}, {lens:?}");
                assert!(packets == expected, "{variant}, {lens:?}");
                for forged in [None, Some(0), Some(lens.len() - 1)] {
                    open_hidden(variant, &plain, &expected, keys, forged);
                }
            }
        }
    }
}

/// Opens with hidden keys, texts and tags.
fn open_hidden(
    variant: Variant,
    plain: &[Packet],
    sealed: &[Packet],
    keys: usize,
    forged: Option<usize>,
) {
    let mut packets = sealed.to_vec();
    if let Some(forged) = forged {
        packets[forged].data_mut()[0] ^= 1;
    }
    let bytes: Vec<[u8; 32]> = (0..keys).map(key).collect();
    bytes.iter().for_each(|bytes| hide(bytes));
    packets.iter().for_each(|packet| hide(packet.data()));
    let mut authentic = Vec::new();
    let decisions = decisions(|| {
        let keys: Vec<Key> = bytes.iter().map(Key::new).collect();
        authentic = open_with(&variant, &keys, &mut packets);
    });
    // The library branches on its verdicts, which it does not declare as public.
    let verdicts = if variant == Variant::Library { packets.len() } else { 0 };
    assert_eq!(decisions, verdicts, "{variant}, {} packets", packets.len());
    packets.iter().for_each(|packet| show(packet.data()));
    for (index, (packet, plain)) in packets.iter().zip(plain).enumerate() {
        assert_eq!(authentic[index], Some(index) != forged, "{variant}, packet {index}");
        assert!(!authentic[index] || packet.text() == plain.text(), "{variant}, packet {index}");
    }
}

/// Seals with hidden keys and texts.
fn seal_hidden(variant: Variant, packets: &mut [Packet], keys: usize) -> usize {
    let bytes: Vec<[u8; 32]> = (0..keys).map(key).collect();
    bytes.iter().for_each(|bytes| hide(bytes));
    packets.iter().for_each(|packet| hide(packet.text()));
    let decisions = decisions(|| {
        let keys: Vec<Key> = bytes.iter().map(Key::new).collect();
        seal_with(&variant, &keys, packets);
    });
    packets.iter().for_each(|packet| show(packet.data()));
    decisions
}

/// The comparison of tags branches only on the final result.
#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_no_branch_in_the_comparison_of_tags() {
    ::memcheck::begin();
    for differs in 0..=TAG_LEN {
        let (ours, mut theirs) = ([7u8; TAG_LEN], [7u8; TAG_LEN]);
        theirs.iter_mut().skip(differs).take(1).for_each(|byte| *byte ^= 1);
        hide(&ours);
        hide(&theirs);
        let mut equal = [0];
        let decisions = decisions(|| {
            equal[0] = u8::from(crate::aead::group::same(black_box(&ours), black_box(&theirs)));
        });
        assert_eq!(decisions, 0);
        show(&equal);
        assert_eq!(equal[0] == 1, differs == TAG_LEN);
    }
}
