//! Sequence numbers (RFC 9293 section 3.4). They wrap.

use std::ops::{Add, Sub};

/// A sequence number. Compared numbers must be less than 2^31 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// Whether it is before `other`.
    pub(crate) fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether it is after `other`.
    pub(crate) fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Distance from `earlier`, or zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> u32 {
        if self.before(earlier) { 0 } else { self.0.wrapping_sub(earlier.0) }
    }

    /// The later of two.
    pub(crate) fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two.
    pub(crate) fn min(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_sequence_numbers_wraps() {
        let (before, behind) = (Seq(u32::MAX - 1), Seq(u32::MAX - 1) + 4);
        assert!(before.before(behind) && behind.after(before));
        assert_eq!((behind.since(before), before.since(behind)), (4, 0));
        assert_eq!((before.max(behind), before.min(behind)), (behind, before));
    }
}
