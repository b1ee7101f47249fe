//! Sixteen BLAKE2s at once, one in each lane of 32 bits: the compression function of RFC 7693
//! section 3.2, with the same steps in each lane.
#![expect(unsafe_code, reason = "SIMD intrinsics")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_loadu_si512, _mm512_ror_epi32, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

use zeroize::Zeroizing;

use crate::blake2s::{Job, Secret, derive, hash};

/// Number of lanes in a register of 512 bits.
const LANES: usize = 16;

/// Smaller batches are faster one by one (`cargo bench -p linerate-crypto --bench blake2s`).
const MIN_BATCH: usize = 3;

const BLOCK_LEN: usize = 64;

/// Words in memory: the first words of all lanes, the second words, and so on.
type Words<const N: usize> = [[u32; LANES]; N];
/// A chaining value, or a hash, in each lane.
type State = [__m512i; 8];
/// A block of a message in each lane.
type Block = [__m512i; 16];

/// RFC 7693 section 2.6.
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
/// Parameters for no key and 32 bytes of output (section 2.8).
const PARAMETERS: u32 = 0x0101_0020;

/// Section 2.7.
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// Padding bytes of HMAC (RFC 2104 section 2).
const INNER: u8 = 0x36;
const OUTER: u8 = 0x5c;

/// Proof that this processor has the needed features.
#[derive(Clone, Copy)]
pub(super) struct Lanes(());

impl Lanes {
    pub(super) fn new() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    /// All messages must have the same length.
    pub(super) fn hash_each(self, messages: &[[&[u8]; 2]]) -> Vec<[u8; 32]> {
        let mut hashes = Vec::with_capacity(messages.len());
        for messages in messages.chunks(LANES) {
            if messages.len() < MIN_BATCH {
                hashes.extend(messages.iter().map(|message| hash(message)));
                continue;
            }
            // SAFETY: `self` proves that the processor has the features.
            let words = unsafe { hash_lanes(messages) };
            hashes.extend((0..messages.len()).map(|lane| *gather(&words, lane)));
        }
        hashes
    }

    /// All inputs must have the same length, at most one block.
    pub(super) fn derive_each<const N: usize>(self, jobs: &[Job<'_>]) -> Vec<[Secret; N]> {
        let mut derived = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks(LANES) {
            if jobs.len() < MIN_BATCH {
                derived.extend(jobs.iter().map(|job| derive(*job)));
                continue;
            }
            // SAFETY: `self` proves that the processor has the features.
            let words = unsafe { derive_lanes::<N>(jobs) };
            derived.extend(
                (0..jobs.len()).map(|lane| words.each_ref().map(|words| gather(words, lane))),
            );
        }
        derived
    }
}

#[target_feature(enable = "avx512f")]
fn hash_lanes(messages: &[[&[u8]; 2]]) -> Words<8> {
    let len = messages[0][0].len() + messages[0][1].len();
    let mut state = initial();
    let mut start = 0;
    loop {
        let end = len.min(start + BLOCK_LEN);
        let mut words = Words::<16>::default();
        for (lane, message) in messages.iter().enumerate() {
            scatter(&block(message, start, end), lane, &mut words);
        }
        state = compress(&state, &load(&words), end as u32, end == len);
        if end == len {
            return store(&state);
        }
        start = end;
    }
}

/// Returns a message's bytes from `start` to `end`, padded with zeros.
fn block(message: &[&[u8]; 2], start: usize, end: usize) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    let mut before = 0;
    for part in message {
        let [from, to] = [start, end].map(|at| at.saturating_sub(before).min(part.len()));
        if from < to {
            block[before + from - start..before + to - start].copy_from_slice(&part[from..to]);
        }
        before += part.len();
    }
    block
}

#[target_feature(enable = "avx512f")]
fn derive_lanes<const N: usize>(jobs: &[Job<'_>]) -> [Words<8>; N] {
    let (mut keys, mut inputs) = (Words::<8>::default(), Words::<16>::default());
    for (lane, job) in jobs.iter().enumerate() {
        scatter(job.key, lane, &mut keys);
        let mut input = [0; BLOCK_LEN];
        input[..job.input.len()].copy_from_slice(job.input);
        scatter(&input, lane, &mut inputs);
    }
    let secret = Key::new(&load(&keys)).mac(&load(&inputs), jobs[0].input.len());
    let key = Key::new(&secret);
    let mut block = [_mm512_setzero_si512(); 16];
    let mut derived = [Words::default(); N];
    for (at, words) in derived.iter_mut().enumerate() {
        let previous = if at == 0 { 0 } else { secret.len() };
        block[previous] = _mm512_set1_epi32(at as i32 + 1);
        let output = key.mac(&block, 4 * previous + 1);
        block[..output.len()].copy_from_slice(&output);
        *words = store(&output);
    }
    derived
}

/// An HMAC key of 32 bytes.
struct Key {
    inner: Block,
    outer: State,
}

impl Key {
    #[target_feature(enable = "avx512f")]
    fn new(key: &State) -> Self {
        let outer = compress(&initial(), &padded(key, OUTER), BLOCK_LEN as u32, false);
        Self { inner: padded(key, INNER), outer }
    }

    /// Returns the HMAC of a message of at most one block.
    #[target_feature(enable = "avx512f")]
    fn mac(&self, message: &Block, len: usize) -> State {
        let mut inner = compress(&initial(), &self.inner, BLOCK_LEN as u32, len == 0);
        if len > 0 {
            inner = compress(&inner, message, (BLOCK_LEN + len) as u32, true);
        }
        let mut block = [_mm512_setzero_si512(); 16];
        block[..inner.len()].copy_from_slice(&inner);
        compress(&self.outer, &block, BLOCK_LEN as u32 + 32, true)
    }
}

/// Returns the key padded with zeros, XORed with `pad`.
#[target_feature(enable = "avx512f")]
fn padded(key: &State, pad: u8) -> Block {
    let pad = _mm512_set1_epi32(i32::from_ne_bytes([pad; 4]));
    let mut block = [pad; 16];
    for (word, key) in block.iter_mut().zip(key) {
        *word = _mm512_xor_si512(pad, *key);
    }
    block
}

#[target_feature(enable = "avx512f")]
fn initial() -> State {
    let mut words = IV;
    words[0] ^= PARAMETERS;
    words.map(|word| _mm512_set1_epi32(word as i32))
}

/// `end` is the number of message bytes up to the end of this block, which must be below 2^32.
#[inline]
#[target_feature(enable = "avx512f")]
fn compress(state: &State, block: &Block, end: u32, is_last: bool) -> State {
    let mut iv = IV;
    iv[4] ^= end;
    iv[6] ^= if is_last { u32::MAX } else { 0 };
    let [mut v0, mut v1, mut v2, mut v3, mut v4, mut v5, mut v6, mut v7] = *state;
    let [mut v8, mut v9, mut v10, mut v11, mut v12, mut v13, mut v14, mut v15] =
        iv.map(|word| _mm512_set1_epi32(word as i32));
    for s in &SIGMA {
        let m = |at: usize| block[s[at]];
        mix(&mut v0, &mut v4, &mut v8, &mut v12, m(0), m(1));
        mix(&mut v1, &mut v5, &mut v9, &mut v13, m(2), m(3));
        mix(&mut v2, &mut v6, &mut v10, &mut v14, m(4), m(5));
        mix(&mut v3, &mut v7, &mut v11, &mut v15, m(6), m(7));
        mix(&mut v0, &mut v5, &mut v10, &mut v15, m(8), m(9));
        mix(&mut v1, &mut v6, &mut v11, &mut v12, m(10), m(11));
        mix(&mut v2, &mut v7, &mut v8, &mut v13, m(12), m(13));
        mix(&mut v3, &mut v4, &mut v9, &mut v14, m(14), m(15));
    }
    let (lower, upper) = ([v0, v1, v2, v3, v4, v5, v6, v7], [v8, v9, v10, v11, v12, v13, v14, v15]);
    let mut next = *state;
    for ((next, lower), upper) in next.iter_mut().zip(lower).zip(upper) {
        *next = _mm512_xor_si512(*next, _mm512_xor_si512(lower, upper));
    }
    next
}

/// Section 3.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn mix(a: &mut __m512i, b: &mut __m512i, c: &mut __m512i, d: &mut __m512i, x: __m512i, y: __m512i) {
    *a = _mm512_add_epi32(_mm512_add_epi32(*a, *b), x);
    *d = _mm512_ror_epi32::<16>(_mm512_xor_si512(*d, *a));
    *c = _mm512_add_epi32(*c, *d);
    *b = _mm512_ror_epi32::<12>(_mm512_xor_si512(*b, *c));
    *a = _mm512_add_epi32(_mm512_add_epi32(*a, *b), y);
    *d = _mm512_ror_epi32::<8>(_mm512_xor_si512(*d, *a));
    *c = _mm512_add_epi32(*c, *d);
    *b = _mm512_ror_epi32::<7>(_mm512_xor_si512(*b, *c));
}

fn scatter<const N: usize>(bytes: &[u8], lane: usize, words: &mut Words<N>) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        word[lane] = u32::from_le_bytes(*bytes);
    }
}

fn gather(words: &Words<8>, lane: usize) -> Secret {
    let mut bytes = Zeroizing::new([0; 32]);
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word[lane].to_le_bytes();
    }
    bytes
}

#[target_feature(enable = "avx512f")]
fn load<const N: usize>(words: &Words<N>) -> [__m512i; N] {
    const { assert!(size_of::<[u32; LANES]>() == size_of::<__m512i>()) };
    words.each_ref().map(|words| {
        // SAFETY: the read bytes are the array, by the assertion, and may be unaligned.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    })
}

#[target_feature(enable = "avx512f")]
fn store(state: &State) -> Words<8> {
    let mut words = Words::default();
    for (words, value) in words.iter_mut().zip(state) {
        // SAFETY: the written bytes are the array, by the assertion in `load`, and may be
        // unaligned.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), *value) };
    }
    words
}
