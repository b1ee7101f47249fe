//! Wipes secrets that a computation leaves on the stack: copies of moved values, and values that
//! libraries spill. No destructor wipes these.

use std::hint::black_box;

/// Wipes `WORDS` words of the stack below the caller's frame, which earlier callees used.
#[inline(never)]
pub fn wipe<const WORDS: usize>() {
    let room = [0_u64; WORDS];
    // Prevents the compiler from removing zeros that no code reads.
    black_box(&room);
}
