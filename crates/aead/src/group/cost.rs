//! Whether a group is worth a variant, by what it takes there and with the library.
//!
//! The costs are nanoseconds of a Zen 4 at 3.7 GHz, fitted to what `cargo bench -p
//! linerate-aead` prints; its last column is what comes of them. Only their ratios
//! matter, so they need not fit another processor as well.

use super::{BLOCK, PACKETS};

/// What there is to do for a group.
pub(crate) struct Load {
    pub(crate) packets: usize,
    /// Blocks of ChaCha20, without those of the keys.
    pub(crate) blocks: usize,
    /// Blocks of Poly1305: of all packets, and of the longest of each eight.
    pub(crate) small_blocks: usize,
    pub(crate) longest: [usize; 2],
}

impl Load {
    /// Of texts of these lengths, 16 at most.
    pub(crate) fn new(mut lens: impl ExactSizeIterator<Item = usize>) -> Self {
        let mut load = Self { packets: lens.len(), blocks: 0, small_blocks: 0, longest: [0; 2] };
        let first = load.add(lens.by_ref().take(PACKETS / 2));
        let second = load.add(lens);
        load.longest = [first, second];
        load
    }

    /// Adds eight packets, and returns the small blocks of the longest.
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

    /// What the library takes.
    fn library(&self) -> usize {
        145 * self.packets + 24 * self.blocks
    }

    /// Whether a variant that takes so long is the better choice, by 5 % at least.
    pub(crate) fn is_worth(&self, cost: usize) -> bool {
        20 * self.library() > 21 * cost
    }
}
