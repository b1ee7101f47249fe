//! One key: as the library holds it, and as words for our own variants.
#![expect(unsafe_code, reason = "wiping a key that its library does not wipe")]

use std::{
    fmt,
    hint::black_box,
    mem::{MaybeUninit, size_of},
    ptr,
    sync::atomic::{Ordering, compiler_fence},
};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use crate::TAG_LEN;

/// Words of the stack, 8 KiB: several times what a key is made in.
const CLEARED: usize = 1024;

/// A ChaCha20-Poly1305 key. Wiped on drop.
pub struct Key(Box<Forms>);

struct Forms {
    library: MaybeUninit<LessSafeKey>,
    words: [u32; 8],
}

impl Key {
    /// The key with these bytes. What makes it leaves copies on the stack, which the caller wipes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        clear_beneath();
        Self::made(bytes)
    }

    /// In a frame of its own, so that all it moves lies in what was cleared.
    #[inline(never)]
    fn made(bytes: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes)
            .expect("ChaCha20-Poly1305 takes every key of 32 bytes");
        let mut forms =
            Box::new(Forms { library: MaybeUninit::new(LessSafeKey::new(key)), words: [0; 8] });
        for (word, bytes) in forms.words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self(forms)
    }

    /// Seals the plaintext in all of `data` but the last [`TAG_LEN`] bytes, which
    /// take the tag.
    pub(crate) fn seal(&self, counter: u64, data: &mut [u8]) {
        let (plaintext, room) =
            data.split_last_chunk_mut::<TAG_LEN>().expect("the caller left room for the tag");
        let tag = self
            .library()
            .seal_in_place_separate_tag(nonce(counter), Aad::empty(), plaintext)
            .expect("a packet is far below the limit of 256 GiB");
        room.copy_from_slice(tag.as_ref());
    }

    /// Opens ciphertext and tag; whether it was authentic.
    pub(crate) fn open(&self, counter: u64, data: &mut [u8]) -> bool {
        self.library().open_in_place(nonce(counter), Aad::empty(), data).is_ok()
    }

    fn library(&self) -> &LessSafeKey {
        // SAFETY: `new` initialised it, and only `drop` takes that back.
        unsafe { self.0.library.assume_init_ref() }
    }

    /// ChaCha20's eight words.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn words(&self) -> &[u32; 8] {
        &self.0.words
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // ring does not wipe its keys.
        let bytes = self.0.library.as_mut_ptr().cast::<MaybeUninit<u8>>();
        for at in 0..size_of::<LessSafeKey>() {
            // SAFETY: `at` is below the size of the allocation.
            let byte = unsafe { bytes.add(at) };
            // SAFETY: the byte is ours, and the key in it is used no more: its
            // type has no drop glue, which the assertion below holds it to.
            unsafe { ptr::write_volatile(byte, MaybeUninit::new(0)) };
        }
        compiler_fence(Ordering::SeqCst);
        self.0.words.zeroize();
    }
}

/// Zeros what is beneath the caller's frame. ring's form has room for the round keys of AES, which
/// ChaCha20 leaves as it is: that room takes along what lay on the stack, such as the secrets of the
/// handshake, and keeps it for as long as there is the key.
#[inline(never)]
fn clear_beneath() {
    let room = [0_u64; CLEARED];
    black_box(&room);
}

const _: () = assert!(!std::mem::needs_drop::<LessSafeKey>());

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn a_key_takes_along_nothing_of_what_lay_on_the_stack() {
        let memory = File::open("/proc/self/mem").unwrap();
        leave();
        let key = Key::new(&[1; 32]);
        let mut bytes = [0; size_of::<Forms>()];
        memory.read_exact_at(&mut bytes, (&raw const *key.0).addr() as u64).unwrap();
        assert!(bytes.windows(32).any(|bytes| bytes == [1; 32]), "the test does not see the key");
        assert!(!bytes.windows(8).any(|bytes| bytes == [0xa5; 8]));
    }

    /// Leaves a pattern on the stack.
    #[inline(never)]
    fn leave() {
        let pattern = black_box([0xa5_u8; 16 * 1024]);
        black_box(&pattern);
    }
}
