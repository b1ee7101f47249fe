//! What a computation with secrets leaves on the stack: copies that the compiler makes of values it
//! moves, and what libraries spill. No destructor reaches these.

use std::hint::black_box;

/// Wipes so many words of the stack below the caller's frame, where functions were that it called
/// before.
#[inline(never)]
pub fn wipe<const WORDS: usize>() {
    let room = [0_u64; WORDS];
    // Keeps the compiler from leaving out zeros that no code reads.
    black_box(&room);
}
