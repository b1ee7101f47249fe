//! X25519 (RFC 7748), which is most of what a handshake costs.
//!
//! ```text
//!   one at a time    graviola's assembly, where the processor has what it needs; else dalek's
//!   several at once  eight lanes of AVX-512 IFMA (avx512), where the processor has that
//! ```
//!
//! Which of these computes a result is never seen in it. All leave secrets on the stack, which the
//! caller wipes (`wg`'s `stack`), and the lanes in registers until these are used again.

#[cfg(target_arch = "x86_64")]
mod assembly;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod portable;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use zeroize::Zeroizing;

/// What two parties share, or a private key.
pub type Secret = Zeroizing<[u8; 32]>;

static LIBRARY_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on x25519-dalek alone computes all results in this process.
pub fn use_library() {
    LIBRARY_ONLY.store(true, Relaxed);
}

/// A Diffie-Hellman to be computed.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// A private key of ours.
    pub private: &'a [u8; 32],
    /// A public key of the other party.
    pub public: &'a [u8; 32],
}

/// The public key of a private one.
pub fn public_key(private: &[u8; 32]) -> [u8; 32] {
    #[cfg(target_arch = "x86_64")]
    if has_assembly() {
        return assembly::public_key(private);
    }
    portable::public_key(private)
}

/// What both parties share, or `None` where it is zero, as it is for public keys of low order only.
pub fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Secret> {
    #[cfg(target_arch = "x86_64")]
    if has_assembly() {
        return assembly::diffie_hellman(private, public);
    }
    portable::diffie_hellman(private, public)
}

/// The results of [`diffie_hellman`] for all of these, in their order.
pub fn diffie_hellman_each(jobs: &[Job<'_>]) -> Vec<Option<Secret>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.diffie_hellman_each(jobs);
    }
    jobs.iter().map(|job| diffie_hellman(job.private, job.public)).collect()
}

/// The public keys of these private ones, in their order.
pub fn public_key_each(privates: &[&[u8; 32]]) -> Vec<[u8; 32]> {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = lanes() {
        return lanes.public_key_each(privates);
    }
    privates.iter().map(|private| public_key(private)).collect()
}

/// What computes several at once, if this processor can and it is not switched off.
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
