//! One key: as the library holds it, and as words for our own variants.
#![expect(unsafe_code, reason = "wiping a key that its library does not wipe")]

use std::{
    fmt,
    mem::{MaybeUninit, size_of},
    ptr,
    sync::atomic::{Ordering, compiler_fence},
};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use crate::TAG_LEN;

/// A ChaCha20-Poly1305 key. Wiped on drop.
pub struct Key(Box<Forms>);

struct Forms {
    library: MaybeUninit<LessSafeKey>,
    words: [u32; 8],
}

impl Key {
    /// The key with these bytes. ring makes its form on the stack and moves it here; the caller
    /// wipes what that leaves.
    pub fn new(bytes: &[u8; 32]) -> Self {
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
