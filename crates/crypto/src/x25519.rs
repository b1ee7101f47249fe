//! X25519 (RFC 7748), which is most of the cost of a handshake.
//!
//! ```text
//!   one at a time    graviola's assembly if the processor supports it, otherwise x25519-dalek
//!   several at once  eight lanes of AVX-512 IFMA (avx512) if the processor supports it
//! ```
//!
//! All of them have the same results. All leave secrets on the stack, which the caller must wipe
//! (`wg`'s `stack`). The lanes also leave secrets in registers until these are overwritten.

#[cfg(target_arch = "x86_64")]
mod assembly;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod portable;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use zeroize::Zeroizing;

/// A shared secret, or a private key.
pub type Secret = Zeroizing<[u8; 32]>;

static LIBRARY_ONLY: AtomicBool = AtomicBool::new(false);

/// Makes this process compute all further results with x25519-dalek only.
pub fn use_library() {
    LIBRARY_ONLY.store(true, Relaxed);
}

/// The inputs of a Diffie-Hellman operation.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Our private key.
    pub private: &'a [u8; 32],
    /// The public key of the other party.
    pub public: &'a [u8; 32],
}

/// Returns the public key of a private key.
pub fn public_key(private: &[u8; 32]) -> [u8; 32] {
    #[cfg(target_arch = "x86_64")]
    if has_assembly() {
        return assembly::public_key(private);
    }
    portable::public_key(private)
}

/// Returns the shared secret. `None` if it is zero, which happens only for public keys of low
/// order.
pub fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Secret> {
    #[cfg(target_arch = "x86_64")]
    if has_assembly() {
        return assembly::diffie_hellman(private, public);
    }
    portable::diffie_hellman(private, public)
}

/// Returns the results of [`diffie_hellman`] for all jobs, in order.
pub fn diffie_hellman_each(jobs: &[Job<'_>]) -> Vec<Option<Secret>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.diffie_hellman_each(jobs);
    }
    jobs.iter().map(|job| diffie_hellman(job.private, job.public)).collect()
}

/// Returns the public keys of these private keys, in order.
pub fn public_key_each(privates: &[&[u8; 32]]) -> Vec<[u8; 32]> {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.public_key_each(privates);
    }
    privates.iter().map(|private| public_key(private)).collect()
}

/// Returns the lanes if this processor supports them and they are not disabled.
#[cfg(target_arch = "x86_64")]
fn lanes() -> Option<avx512::Lanes> {
    avx512::Lanes::new().filter(|_| !LIBRARY_ONLY.load(Relaxed))
}

#[cfg(target_arch = "x86_64")]
fn has_assembly() -> bool {
    assembly::is_supported() && !LIBRARY_ONLY.load(Relaxed)
}

#[cfg(test)]
mod tests;
