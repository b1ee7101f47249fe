//! Decides whether a variant processes a group faster than the library, by an estimate of both
//! costs.
//!
//! The costs are nanoseconds of a Zen 4 at 3.7 GHz, fitted to the output of `cargo bench -p
//! linerate-aead`. Its last column shows the result. Only the ratios matter, so they need not fit
//! other processors as well.

use super::{BLOCK, PACKETS};

/// The work of a group.
pub(in crate::aead) struct Load {
    pub(in crate::aead) packets: usize,
    /// ChaCha20 blocks, without the key blocks.
    pub(in crate::aead) blocks: usize,
    /// Poly1305 blocks: of all packets, and of the longest packet of each eight.
    pub(in crate::aead) small_blocks: usize,
    pub(in crate::aead) longest: [usize; 2],
}

impl Load {
    /// Computes the load of texts with these lengths, at most 16.
    pub(in crate::aead) fn new(mut lens: impl ExactSizeIterator<Item = usize>) -> Self {
        let mut load = Self { packets: lens.len(), blocks: 0, small_blocks: 0, longest: [0; 2] };
        let first = load.add(lens.by_ref().take(PACKETS / 2));
        let second = load.add(lens);
        load.longest = [first, second];
        load
    }

    /// Adds eight packets. Returns the Poly1305 blocks of the longest one.
    #[inline]
    fn add(&mut self, lens: impl Iterator<Item = usize>) -> usize {
        let (mut blocks, mut small_blocks, mut longest) = (0, 0, 0);
        for len in lens {
            let small = len.div_ceil(16) + 1;
            longest = small.max(longest);
            small_blocks += small;
            blocks += len.div_ceil(BLOCK);
        }
        self.blocks += blocks;
        self.small_blocks += small_blocks;
        longest
    }

    /// Cost of the library.
    fn library(&self) -> usize {
        145 * self.packets + 24 * self.blocks
    }

    /// Whether a variant with this cost is better by at least 5 %.
    pub(in crate::aead) fn is_faster(&self, cost: usize) -> bool {
        20 * self.library() > 21 * cost
    }
}
