//! No branch and no address depends on a secret: memcheck takes secrets for undefined
//! memory and counts what is decided by them.
//!
//! ```text
//!   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='valgrind -q' \
//!       cargo test -p linerate-aead --lib -- --ignored memcheck
//! ```
//!
//! Valgrind knows no AVX-512, so that this is about AVX2, Poly1305 without SIMD, and the
//! library.
#![expect(unsafe_code, reason = "valgrind's client requests")]

use std::{arch::asm, hint::black_box, ptr};

use super::{batch::*, *};

/// `RUNNING_ON_VALGRIND`, `VALGRIND_COUNT_ERRORS` of `valgrind.h`, and two of `memcheck.h`.
const RUNNING: usize = 0x1001;
const COUNT_ERRORS: usize = 0x1201;
const MAKE_UNDEFINED: usize = 0x4d43_0001;
const MAKE_DEFINED: usize = 0x4d43_0002;

/// What `VALGRIND_DO_CLIENT_REQUEST_EXPR` does: without valgrind, nothing, and 0.
fn request(request: usize, address: usize, len: usize) -> usize {
    let arguments = [request, address, len, 0, 0, 0];
    let mut result = 0;
    // SAFETY: the rotations add up to 128 bits, and the exchange is with itself: nothing
    // changes but under valgrind, which reads the arguments and sets the result.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdi") 0usize => _,
            in("rax") ptr::from_ref(&arguments),
            inout("rdx") result,
        );
    }
    result
}

fn hide(bytes: &[u8]) {
    request(MAKE_UNDEFINED, bytes.as_ptr().addr(), bytes.len());
}

fn show(bytes: &[u8]) {
    request(MAKE_DEFINED, bytes.as_ptr().addr(), bytes.len());
}

/// The same, and memcheck knows it.
pub(crate) fn shown(verdict: bool) -> bool {
    let place = [u8::from(verdict)];
    show(black_box(&place));
    black_box(&place)[0] == 1
}

/// How often `work` decided by what is undefined.
fn decisions(work: impl FnOnce()) -> usize {
    let before = request(COUNT_ERRORS, 0, 0);
    work();
    request(COUNT_ERRORS, 0, 0) - before
}

#[test]
#[ignore = "under valgrind only; see the module"]
fn memcheck_finds_no_decision_by_a_secret() {
    assert!(request(RUNNING, 0, 0) > 0, "this runs under valgrind");
    let secret = black_box([3u8; 32]);
    hide(&secret);
    let branch = decisions(|| {
        if black_box(&secret)[7] == 3 {
            black_box(&secret);
        }
    });
    assert_eq!(branch, 1, "memcheck sees a decision where there is one");
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

/// Opens with keys, texts and tags that are hidden.
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
    // The library decides by its verdicts, which it does not declare to be public.
    let verdicts = if variant == Variant::Library { packets.len() } else { 0 };
    assert_eq!(decisions, verdicts, "{variant}, {} packets", packets.len());
    packets.iter().for_each(|packet| show(packet.data()));
    for (index, (packet, plain)) in packets.iter().zip(plain).enumerate() {
        assert_eq!(authentic[index], Some(index) != forged, "{variant}, packet {index}");
        assert!(!authentic[index] || packet.text() == plain.text(), "{variant}, packet {index}");
    }
}

/// Seals with keys and texts that are hidden.
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

/// Tags are compared without a decision but the last, about the whole of them.
#[test]
#[ignore = "under valgrind only; see the module"]
fn memcheck_finds_one_decision_about_tags() {
    assert!(request(RUNNING, 0, 0) > 0, "this runs under valgrind");
    for differs in 0..=TAG_LEN {
        let (ours, mut theirs) = ([7u8; TAG_LEN], [7u8; TAG_LEN]);
        theirs.iter_mut().skip(differs).take(1).for_each(|byte| *byte ^= 1);
        hide(&ours);
        hide(&theirs);
        let mut equal = [0];
        let decisions = decisions(|| {
            equal[0] = u8::from(crate::group::same(black_box(&ours), black_box(&theirs)));
        });
        assert_eq!(decisions, 0);
        show(&equal);
        assert_eq!(equal[0] == 1, differs == TAG_LEN);
    }
}
