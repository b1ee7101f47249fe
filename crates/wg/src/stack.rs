//! Wipes what a computation with secrets leaves on the stack: copies that the compiler makes of
//! values it moves, and what libraries spill. No destructor reaches these.

use std::hint::black_box;

/// Words that are wiped: 32 KiB, twice what a handshake takes in a debug build. The tests search
/// the memory of a running peer for what would be deeper.
const WORDS: usize = 4096;

/// Does `work`, and wipes the stack that it used. What it returns is not to be a secret: it may be
/// copied on its way.
pub fn wiped<T>(work: impl FnOnce() -> T) -> T {
    let done = apart(work);
    wipe();
    done
}

/// In a frame of its own, which is where [`wipe`]'s is next.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Wipes the stack below the caller's frame, where functions were that it called before.
#[inline(never)]
pub fn wipe() {
    let room = [0u64; WORDS];
    // So that the zeros are written although nobody reads them.
    black_box(&room);
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use super::*;

    /// Bytes that are left, of which a debug build makes three copies. What reads them afterwards
    /// stays in the upper half.
    const FRAME: usize = 8 * 1024;

    /// Leaves a pattern on the stack, and tells where its lower half began.
    fn leave() -> usize {
        let secret = black_box([0xa5_u8; FRAME]);
        black_box(&secret).as_ptr().addr()
    }

    fn lower_half(memory: &File, at: usize) -> Vec<u8> {
        let mut bytes = vec![0; FRAME / 2];
        memory.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes
    }

    #[test]
    fn what_a_computation_leaves_on_the_stack_is_wiped() {
        let memory = File::open("/proc/self/mem").unwrap();
        let left = lower_half(&memory, apart(leave));
        assert!(left.iter().all(|byte| *byte == 0xa5), "the test does not see what is left");
        let left = lower_half(&memory, wiped(leave));
        assert!(left.iter().all(|byte| *byte == 0));
    }
}
