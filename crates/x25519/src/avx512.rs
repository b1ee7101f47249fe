//! Eight X25519 at once, one in each lane of 64 bits: Montgomery's ladder of RFC 7748 section 5, with
//! the same steps whatever the keys are.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

mod field;

use std::arch::x86_64::{__m512i, __mmask8, _mm512_set1_epi64, _mm512_test_epi64_mask};

use zeroize::{Zeroize, Zeroizing};

use self::field::Field;
use crate::{Job, Secret, diffie_hellman};

/// In a register of 512 bits.
const LANES: usize = 8;

/// Fewer than these cost less one after the other (`cargo bench -p linerate-x25519`).
const FEWEST: usize = 4;

/// Words of 64 bits in a key.
const WORDS: usize = 4;

/// A key of each lane: the first words, the second ones, and so on.
type Words = [[u64; LANES]; WORDS];

/// The proof that this processor has what is needed.
#[derive(Clone, Copy)]
pub struct Lanes(());

impl Lanes {
    pub fn new() -> Option<Self> {
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma");
        available.then_some(Self(()))
    }

    pub fn diffie_hellman_each(self, jobs: &[Job<'_>]) -> Vec<Option<Secret>> {
        let mut results = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks(LANES) {
            if jobs.len() < FEWEST {
                results.extend(jobs.iter().map(|job| diffie_hellman(job.private, job.public)));
            } else {
                self.compute(jobs, &mut results);
            }
        }
        results
    }

    /// At most [`LANES`]. A lane without a job does what the first one does.
    fn compute(self, jobs: &[Job<'_>], results: &mut Vec<Option<Secret>>) {
        let [mut privates, mut publics] = [Zeroizing::new(Words::default()), Zeroizing::default()];
        for lane in 0..LANES {
            let job = jobs.get(lane).unwrap_or(&jobs[0]);
            let mut private = Zeroizing::new(*job.private);
            private[0] &= 248;
            private[31] = private[31] & 127 | 64;
            scatter(&private, lane, &mut privates);
            scatter(job.public, lane, &mut publics);
        }
        // SAFETY: `self` is the proof.
        let mut shared = unsafe { ladder(&privates, &publics) };
        results.extend((0..jobs.len()).map(|lane| gather(&shared, lane)));
        shared.zeroize();
    }
}

fn scatter(key: &[u8; 32], lane: usize, words: &mut Words) {
    for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
        word[lane] = u64::from_le_bytes(*bytes);
    }
}

/// The key of a lane, or `None` where it is zero.
fn gather(words: &Words, lane: usize) -> Option<Secret> {
    let mut key = Zeroizing::new([0; 32]);
    let mut any = 0;
    for (word, bytes) in words.iter().zip(key.as_chunks_mut().0) {
        any |= word[lane];
        *bytes = word[lane].to_le_bytes();
    }
    (any != 0).then_some(key)
}

/// The products of points with these first coordinates and scalars, as first coordinates.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn ladder(scalars: &Words, points: &Words) -> Words {
    let x1 = Field::load(points);
    let scalars = scalars.each_ref().map(|words| field::load(words));
    let (mut x2, mut z2) = (Field::small(1), Field::small(0));
    let (mut x3, mut z3) = (x1, Field::small(1));
    let mut swapped: __mmask8 = 0;
    // Of a clamped scalar bit 255 is 0.
    for bit in (0..255).rev() {
        let set = is_set(&scalars, bit);
        Field::swap(swapped ^ set, &mut x2, &mut x3);
        Field::swap(swapped ^ set, &mut z2, &mut z3);
        swapped = set;
        let (a, b) = (x2.add(&z2), x2.sub(&z2));
        let (c, d) = (x3.add(&z3), x3.sub(&z3));
        let (aa, bb) = (a.square(), b.square());
        let (da, cb) = (d.mul(&a), c.mul(&b));
        let e = aa.sub(&bb);
        x3 = da.add(&cb).square();
        z3 = da.sub(&cb).square().mul(&x1);
        x2 = aa.mul(&bb);
        z2 = e.mul(&e.mul_a24_add(&aa));
    }
    Field::swap(swapped, &mut x2, &mut x3);
    Field::swap(swapped, &mut z2, &mut z3);
    x2.mul(&z2.invert()).store()
}

/// The lanes whose scalar has this bit.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_set(scalars: &[__m512i; WORDS], bit: usize) -> __mmask8 {
    _mm512_test_epi64_mask(scalars[bit / 64], _mm512_set1_epi64(1 << (bit % 64)))
}
