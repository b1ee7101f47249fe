//! Wipes what a computation with secrets leaves on the stack: copies that the compiler makes of
//! values it moves, and what libraries spill. No destructor reaches these.

/// Words that are wiped: 64 KiB. Sixty-four handshakes at once are 38 KiB deep in a debug build. The
/// tests measure that, and search the memory of a running peer for what would be deeper.
pub(crate) const HANDSHAKE: usize = 8192;
/// Words that are wiped behind a step of the exchange against quantum computers: 128 KiB. ML-KEM
/// makes its keys on the stack: 106 KiB deep in a debug build of the tests, 43 KiB in a release.
pub(crate) const EXCHANGE: usize = 16 * 1024;

/// Does `work`, and wipes the stack that it used. What it returns is not to be a secret: it may be
/// copied on its way.
pub fn run_and_wipe<T>(work: impl FnOnce() -> T) -> T {
    run_and_wipe_words::<HANDSHAKE, T>(work)
}

/// The same for work that uses up to so many words.
pub(crate) fn run_and_wipe_words<const WORDS: usize, T>(work: impl FnOnce() -> T) -> T {
    let done = apart(work);
    aead::stack::wipe::<WORDS>();
    done
}

/// In a frame of its own, which is where that of [`aead::stack::wipe`] is next.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Wipes the stack below the caller's frame, where functions were that it called before.
#[inline(always)]
pub fn wipe() {
    aead::stack::wipe::<HANDSHAKE>();
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{fs::File, hint::black_box, os::unix::fs::FileExt};

    use super::*;

    /// A word of paint.
    const PAINT: u64 = 0x9b8a_796f_5e4d_3c2b;
    /// Words that are painted.
    const PAINTED: usize = 40 * 1024;

    /// What `work` leaves of paint below it, in words from the deepest on, and what it wrote there.
    pub(crate) fn left<T>(work: impl FnOnce() -> T) -> Vec<u64> {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0; 8 * PAINTED];
        let at = paint();
        work();
        memory.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// How many words deep `work` wrote.
    pub(crate) fn depth<T>(work: impl FnOnce() -> T) -> usize {
        let left = left(|| apart(work));
        PAINTED - left.iter().position(|word| *word != PAINT).unwrap_or(PAINTED)
    }

    /// Paints the stack below the caller's frame, and tells from which address on.
    #[inline(never)]
    fn paint() -> usize {
        let room = [PAINT; PAINTED];
        black_box(&room).as_ptr().addr()
    }

    /// Bytes that are left, of which a debug build makes three copies.
    const FRAME: usize = 8 * 1024;

    /// Leaves a pattern on the stack.
    fn leave() {
        let secret = black_box([0xa5_u8; FRAME]);
        black_box(&secret);
    }

    #[test]
    fn what_a_computation_leaves_on_the_stack_is_wiped() {
        // Two words in a row: an optimized build has one in a register, which functions save.
        let word = u64::from_ne_bytes([0xa5; 8]);
        let has_any = |left: &[u64]| left.windows(2).any(|words| words == [word; 2]);
        assert!(has_any(&left(|| apart(leave))), "the test does not see what is left");
        assert!(!has_any(&left(|| run_and_wipe(leave))));
    }

    #[test]
    fn how_deep_a_computation_writes_is_measured() {
        let deep = depth(leave);
        assert!((FRAME / 8..3 * FRAME / 8 + 512).contains(&deep), "{deep} words");
    }
}
