//! Eight X25519 operations at once, one in each lane of 64 bits. The steps do not depend on the
//! keys:
//!
//! ```text
//!   product of any point          ladder::product   Montgomery's ladder, RFC 7748 section 5
//!   product of the base point     base::product     a ladder of its known multiples
//!                                      |
//!                                 Fraction x / z    divided together
//! ```
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod base;
mod field;
mod ladder;

use std::arch::x86_64::{__m512i, __mmask8, _mm512_set1_epi64, _mm512_test_epi64_mask};

use zeroize::{Zeroize, Zeroizing};

use self::field::Field;
use crate::x25519::{Job, Secret, diffie_hellman, public_key};

/// Number of lanes in a register of 512 bits.
const LANES: usize = 8;

/// Smaller batches are faster one by one (`cargo bench -p linerate-crypto --bench x25519`).
const MIN_PRODUCTS: usize = 4;
const MIN_PUBLIC_KEYS: usize = 5;

/// Number of registers of results that are divided at once, which takes 20 KiB of stack.
const ROUNDS: usize = 8;

/// Number of 64-bit words in a key.
const WORDS: usize = 4;

/// A key in each lane: the first words of all keys, the second words, and so on.
type Words = [[u64; LANES]; WORDS];

/// Proof that this processor has the needed features.
#[derive(Clone, Copy)]
pub(super) struct Lanes(());

impl Lanes {
    pub(super) fn new() -> Option<Self> {
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma");
        available.then_some(Self(()))
    }

    pub(super) fn diffie_hellman_each(self, jobs: &[Job<'_>]) -> Vec<Option<Secret>> {
        let mut results = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks(LANES * ROUNDS) {
            let (several, alone) = jobs.split_at(count_in_lanes(jobs.len(), MIN_PRODUCTS));
            // SAFETY: `self` proves that the processor has the features.
            let mut shared = unsafe { compute_shared(several) };
            results.extend((0..several.len()).map(|at| {
                let key = gather(&shared, at);
                key.iter().any(|byte| *byte != 0).then_some(key)
            }));
            shared.zeroize();
            results.extend(alone.iter().map(|job| diffie_hellman(job.private, job.public)));
        }
        results
    }

    pub(super) fn public_key_each(self, privates: &[&[u8; 32]]) -> Vec<[u8; 32]> {
        let mut results = Vec::with_capacity(privates.len());
        for privates in privates.chunks(LANES * ROUNDS) {
            let (several, alone) =
                privates.split_at(count_in_lanes(privates.len(), MIN_PUBLIC_KEYS));
            // SAFETY: `self` proves that the processor has the features.
            let public = unsafe { compute_public(several) };
            results.extend((0..several.len()).map(|at| *gather(&public, at)));
            results.extend(alone.iter().map(|private| public_key(private)));
        }
        results
    }
}

/// Number of jobs out of `count` to compute in lanes, if a remainder smaller than `min_remainder` is
/// faster one by one.
fn count_in_lanes(count: usize, min_remainder: usize) -> usize {
    let rest = count % LANES;
    if rest < min_remainder { count - rest } else { count }
}

/// The first coordinate of a point in each lane, as `x / z`.
#[derive(Clone, Copy)]
struct Fraction {
    x: Field,
    z: Field,
}

#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn compute_shared(jobs: &[Job<'_>]) -> [Words; ROUNDS] {
    compute(jobs, |jobs| {
        let scalars = clamped(jobs.iter().map(|job| job.private));
        ladder::product(&scalars, &scattered(jobs.iter().map(|job| job.public)))
    })
}

#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn compute_public(privates: &[&[u8; 32]]) -> [Words; ROUNDS] {
    compute(privates, |privates| base::product(&clamped(privates.iter().copied())))
}

/// Applies `product` to each [`LANES`] jobs, and divides the results.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn compute<J>(jobs: &[J], product: impl Fn(&[J]) -> Fraction) -> [Words; ROUNDS] {
    let mut results = [Words::default(); ROUNDS];
    if jobs.is_empty() {
        return results;
    }
    let one = Field::small(1);
    let mut fractions = [Fraction { x: one, z: one }; ROUNDS];
    for (fraction, jobs) in fractions.iter_mut().zip(jobs.chunks(LANES)) {
        *fraction = product(jobs);
    }
    let mut over = fractions.map(|fraction| fraction.z);
    Field::invert_each(&mut over);
    for ((result, fraction), over) in results.iter_mut().zip(&fractions).zip(&over) {
        *result = fraction.x.mul(over).store();
    }
    results
}

/// The private keys as scalars. A lane without a key repeats one of the keys.
fn clamped<'a>(privates: impl ExactSizeIterator<Item = &'a [u8; 32]> + Clone) -> Zeroizing<Words> {
    let mut scalars = scattered(privates);
    scalars[0].iter_mut().for_each(|word| *word &= !7);
    scalars[WORDS - 1].iter_mut().for_each(|word| *word = *word & !(1 << 63) | 1 << 62);
    scalars
}

/// A key in each lane. A lane without a key repeats one of the keys.
fn scattered<'a>(keys: impl ExactSizeIterator<Item = &'a [u8; 32]> + Clone) -> Zeroizing<Words> {
    let mut words = Zeroizing::new(Words::default());
    for (lane, key) in keys.cycle().take(LANES).enumerate() {
        for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            word[lane] = u64::from_le_bytes(*bytes);
        }
    }
    words
}

/// Returns the key at index `at`.
fn gather(rounds: &[Words], at: usize) -> Secret {
    let mut key = Zeroizing::new([0; 32]);
    for (word, bytes) in rounds[at / LANES].iter().zip(key.as_chunks_mut().0) {
        *bytes = word[at % LANES].to_le_bytes();
    }
    key
}

/// Returns the lanes in which this bit of the scalar is set.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_set(scalars: &[__m512i; WORDS], bit: usize) -> __mmask8 {
    _mm512_test_epi64_mask(scalars[bit / 64], _mm512_set1_epi64(1 << (bit % 64)))
}
