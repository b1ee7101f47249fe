//! BLAKE2s (RFC 7693) with 32 bytes of output, and HKDF (RFC 5869) with its HMAC (RFC 2104), as
//! used by Noise.
//!
//! ```text
//!   one at a time    the crate blake2
//!   several at once  sixteen lanes of AVX-512 (avx512) if the processor supports it
//! ```
//!
//! Both have the same results. Both leave secrets on the stack, which the caller must wipe (`wg`'s
//! `stack`).

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blake2::{Blake2s256, Digest};
use hmac::{KeyInit, Mac, SimpleHmac};
use zeroize::Zeroizing;

/// A key, or a derived output.
pub type Secret = Zeroizing<[u8; 32]>;

/// Maximum number of input bytes of [`derive_each`].
pub const MAX_INPUT_LEN: usize = 64;

static LIBRARY_ONLY: AtomicBool = AtomicBool::new(false);

/// Makes this process compute all further results with the crate blake2 only.
pub fn use_library() {
    LIBRARY_ONLY.store(true, Relaxed);
}

/// The inputs of a derivation.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// HKDF's salt.
    pub key: &'a [u8; 32],
    /// HKDF's input keying material.
    pub input: &'a [u8],
}

/// Returns the hash of the concatenated parts.
pub fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Blake2s256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// Returns [`hash`] of each message, in order.
///
/// # Panics
/// If the messages differ in length.
pub fn hash_each(messages: &[[&[u8]; 2]]) -> Vec<[u8; 32]> {
    let len = |message: &[&[u8]; 2]| message[0].len() + message[1].len();
    assert!(messages.windows(2).all(|two| len(&two[0]) == len(&two[1])), "of different lengths");
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.hash_each(messages);
    }
    messages.iter().map(|message| hash(message)).collect()
}

/// Derives `N` outputs of 32 bytes, without HKDF's `info` (WireGuard's paper 5.4, `Kdf_n`).
pub fn derive<const N: usize>(job: Job<'_>) -> [Secret; N] {
    let secret = hmac(job.key, &[job.input]);
    let mut previous = Secret::default();
    std::array::from_fn(|at| {
        let counter = [at as u8 + 1];
        let parts: &[&[u8]] = if at == 0 { &[&counter] } else { &[previous.as_ref(), &counter] };
        let output = hmac(&secret, parts);
        previous = output.clone();
        output
    })
}

/// Returns [`derive`] of each job, in order.
///
/// # Panics
/// If the inputs differ in length or are longer than [`MAX_INPUT_LEN`].
pub fn derive_each<const N: usize>(jobs: &[Job<'_>]) -> Vec<[Secret; N]> {
    let fits = |job: &Job<'_>| job.input.len() == jobs[0].input.len();
    assert!(jobs.iter().all(fits), "of different lengths");
    assert!(jobs.iter().all(|job| job.input.len() <= MAX_INPUT_LEN), "too long");
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.derive_each(jobs);
    }
    jobs.iter().map(|job| derive(*job)).collect()
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Secret {
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key)
        .expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().into())
}

/// Returns the lanes if this processor supports them and they are not disabled.
#[cfg(target_arch = "x86_64")]
fn lanes() -> Option<avx512::Lanes> {
    avx512::Lanes::new().filter(|_| !LIBRARY_ONLY.load(Relaxed))
}

#[cfg(test)]
mod tests;
