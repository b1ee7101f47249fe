//! Wipes secrets that a computation leaves on the stack: copies of moved values, and values that
//! libraries spill. No destructor wipes these.

use std::hint::black_box;

/// Words wiped after handshakes: 64 KiB. In a debug build, 64 handshakes at once use 38 KiB. Tests
/// measure that, and search the memory of a running peer for deeper copies.
pub const HANDSHAKE: usize = 8192;
/// Words wiped after a step of the post-quantum exchange: 128 KiB. ML-KEM makes its keys on the
/// stack, which takes 106 KiB in a debug build of the tests and 43 KiB in a release build.
pub const EXCHANGE: usize = 16 * 1024;

/// Runs `work`, and wipes the stack that it used. The returned value must not be a secret, because
/// it may be copied on return.
pub fn run_and_wipe<T>(work: impl FnOnce() -> T) -> T {
    run_and_wipe_words::<HANDSHAKE, T>(work)
}

/// Like [`run_and_wipe`], for work that uses up to `WORDS` words of stack.
pub fn run_and_wipe_words<const WORDS: usize, T>(work: impl FnOnce() -> T) -> T {
    let done = call_out_of_line(work);
    wipe_words::<WORDS>();
    done
}

/// Runs `work` in its own frame. The next frame, of [`crypto::aead::stack::wipe`], then covers the same
/// memory.
#[inline(never)]
fn call_out_of_line<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Wipes the stack below the caller's frame, which earlier callees used.
#[inline(always)]
pub fn wipe() {
    wipe_words::<HANDSHAKE>();
}

/// Wipes `WORDS` words of the stack below the caller's frame, which earlier callees used.
#[inline(never)]
pub fn wipe_words<const WORDS: usize>() {
    let room = [0_u64; WORDS];
    // Prevents the compiler from removing zeros that no code reads.
    black_box(&room);
}

/// Measures the stack that a computation used.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "for tests")]
pub mod measure {
    use std::{fs::File, hint::black_box, os::unix::fs::FileExt};

    use super::call_out_of_line;

    /// The pattern that fills the stack before a measurement.
    const PAINT: u64 = 0x9b8a_796f_5e4d_3c2b;
    /// Number of words filled with [`PAINT`].
    const PAINTED: usize = 40 * 1024;

    /// Returns the words below the frame after `work`, from the deepest on.
    pub fn left<T>(work: impl FnOnce() -> T) -> Vec<u64> {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0; 8 * PAINTED];
        let at = paint();
        work();
        memory.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// Returns the depth in words to which `work` wrote.
    pub fn depth<T>(work: impl FnOnce() -> T) -> usize {
        let left = left(|| call_out_of_line(work));
        PAINTED - left.iter().position(|word| *word != PAINT).unwrap_or(PAINTED)
    }

    /// Fills the stack below the caller's frame with [`PAINT`]. Returns its lowest address.
    #[inline(never)]
    fn paint() -> usize {
        let room = [PAINT; PAINTED];
        black_box(&room).as_ptr().addr()
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::{
        measure::{depth, left},
        *,
    };

    /// Size of the pattern that [`leave`] writes. A debug build makes three copies.
    const FRAME: usize = 8 * 1024;

    /// Leaves a pattern on the stack.
    fn leave() {
        let secret = black_box([0xa5_u8; FRAME]);
        black_box(&secret);
    }

    #[test]
    fn run_and_wipe_clears_the_stack_of_a_function() {
        // Two adjacent words: in an optimized build, one word can be in a register that functions
        // save.
        let word = u64::from_ne_bytes([0xa5; 8]);
        let has_any = |left: &[u64]| left.windows(2).any(|words| words == [word; 2]);
        assert!(has_any(&left(|| call_out_of_line(leave))), "the test does not find the pattern");
        assert!(!has_any(&left(|| run_and_wipe(leave))));
    }

    #[test]
    fn depth_measures_the_stack_that_a_function_used() {
        let deep = depth(leave);
        assert!((FRAME / 8..3 * FRAME / 8 + 512).contains(&deep), "{deep} words");
    }
}
