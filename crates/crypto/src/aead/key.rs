//! A key, in the library's form and as words for our own variants.
#![expect(unsafe_code, reason = "wiping a key that its library does not wipe")]

use std::{
    fmt,
    mem::{MaybeUninit, size_of},
    ptr,
    sync::{
        OnceLock,
        atomic::{Ordering, compiler_fence},
    },
};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::{aead::TAG_LEN, stack};

/// Words of the stack to wipe, 8 KiB: several times the stack use of making a key.
const WIPED: usize = 1024;

/// A ChaCha20-Poly1305 key. Wiped on drop.
pub struct Key(Box<Forms>);

struct Forms {
    words: Zeroizing<[u32; 8]>,
    /// Created on first use. It takes half a kilobyte, mostly room for AES keys, and few of
    /// thousands of idle sessions use it.
    library: OnceLock<Library>,
}

impl Key {
    /// Creates the key with these bytes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        let mut forms = Box::new(Forms { words: Zeroizing::default(), library: OnceLock::new() });
        for (word, bytes) in forms.words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self(forms)
    }

    /// Seals the plaintext in `data` and writes the tag to the last [`TAG_LEN`] bytes.
    pub(in crate::aead) fn seal(&self, counter: u64, data: &mut [u8]) {
        let (plaintext, room) =
            data.split_last_chunk_mut::<TAG_LEN>().expect("the caller left room for the tag");
        let tag = self
            .library()
            .seal_in_place_separate_tag(nonce(counter), Aad::empty(), plaintext)
            .expect("a packet is far below the limit of 256 GiB");
        room.copy_from_slice(tag.as_ref());
    }

    /// Opens ciphertext and tag. Returns whether it was authentic.
    pub(in crate::aead) fn open(&self, counter: u64, data: &mut [u8]) -> bool {
        self.library().open_in_place(nonce(counter), Aad::empty(), data).is_ok()
    }

    fn library(&self) -> &LessSafeKey {
        self.0.library.get_or_init(|| Library::new(&self.0.words)).key()
    }

    /// The eight key words of ChaCha20.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::aead) fn words(&self) -> &[u32; 8] {
        &self.0.words
    }
}

/// The key in the library's form. Wiped on drop.
struct Library(Box<MaybeUninit<LessSafeKey>>);

impl Library {
    /// Creates the key without leaving a copy on the stack, and without copying old stack contents
    /// into the key: ring's type has room for the round keys of AES, which ChaCha20 leaves
    /// uninitialized. Handshake secrets there would remain for the lifetime of the key.
    fn new(words: &[u32; 8]) -> Self {
        stack::wipe_words::<WIPED>();
        let made = Self::made(words);
        stack::wipe_words::<WIPED>();
        made
    }

    /// Runs in its own frame, so that all its moves are within the wiped stack.
    #[inline(never)]
    fn made(words: &[u32; 8]) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*bytes)
            .expect("ChaCha20-Poly1305 takes every key of 32 bytes");
        Self(Box::new(MaybeUninit::new(LessSafeKey::new(key))))
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: `made` initialised it, and only `drop` ends that.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // ring does not wipe its keys.
        let bytes = self.0.as_mut_ptr().cast::<MaybeUninit<u8>>();
        for at in 0..size_of::<LessSafeKey>() {
            // SAFETY: `at` is below the size of the allocation.
            let byte = unsafe { bytes.add(at) };
            // SAFETY: the byte is ours, and this is the last use of the key: its type has no drop
            // glue, as asserted below.
            unsafe { ptr::write_volatile(byte, MaybeUninit::new(0)) };
        }
        compiler_fence(Ordering::SeqCst);
    }
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
    use std::{fs::File, hint::black_box, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn new_key_contains_no_old_stack_contents() {
        let memory = File::open("/proc/self/mem").unwrap();
        leave();
        let key = Key::new(&[1; 32]);
        let mut bytes = [0; size_of::<LessSafeKey>()];
        memory.read_exact_at(&mut bytes, ptr::from_ref(key.library()).addr() as u64).unwrap();
        assert!(bytes.windows(32).any(|bytes| bytes == [1; 32]), "the test does not find the key");
        assert!(!bytes.windows(8).any(|bytes| bytes == [0xa5; 8]));
    }

    /// Leaves a pattern on the stack.
    #[inline(never)]
    fn leave() {
        let pattern = black_box([0xa5_u8; 16 * 1024]);
        black_box(&pattern);
    }
}
