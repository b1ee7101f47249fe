//! The replay filter: a sliding window of counters seen (RFC 6479).

use crate::constants::{REJECT_AFTER_MESSAGES, REPLAY_WINDOW};

const WORD_BITS: u64 = u64::BITS as u64;
/// One word more than the window, so that words can be cleared whole while the
/// window slides.
const WORDS: usize = (REPLAY_WINDOW / WORD_BITS) as usize + 1;

/// Remembers which counters came. Only authenticated ones may be asked about.
#[derive(Debug)]
pub struct ReplayFilter {
    /// One above the highest counter accepted; 0 before the first.
    next: u64,
    words: Box<[u64; WORDS]>,
}

impl Default for ReplayFilter {
    fn default() -> Self {
        Self { next: 0, words: Box::new([0; WORDS]) }
    }
}

impl ReplayFilter {
    /// Whether `counter` is new; it is remembered. One that came before, that is
    /// behind the window or past the limit is refused.
    pub fn accept(&mut self, counter: u64) -> bool {
        if counter >= REJECT_AFTER_MESSAGES || counter.saturating_add(REPLAY_WINDOW) < self.next {
            return false;
        }
        if counter >= self.next {
            self.slide(counter);
        }
        let bit = 1 << (counter % WORD_BITS);
        let word = &mut self.words[Self::word(counter)];
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Clears the words that the window enters when `counter` becomes its
    /// highest.
    fn slide(&mut self, counter: u64) {
        if self.next == 0 {
            self.next = counter + 1;
            return;
        }
        let highest = self.next - 1;
        let entered = (counter / WORD_BITS - highest / WORD_BITS).min(WORDS as u64);
        for step in 1..=entered {
            self.words[Self::word(highest + step * WORD_BITS)] = 0;
        }
        self.next = counter + 1;
    }

    fn word(counter: u64) -> usize {
        (counter / WORD_BITS % WORDS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_windows_edges_are_exact() {
        let mut filter = ReplayFilter::default();
        let top = 100_000;
        assert!(filter.accept(top));
        assert!(filter.accept(top - REPLAY_WINDOW + 1), "the last inside");
        assert!(!filter.accept(top - REPLAY_WINDOW), "the first outside");
        assert!(!filter.accept(top - REPLAY_WINDOW + 1), "a replay at the edge");
        assert!(!filter.accept(top));
    }

    #[test]
    fn no_counter_at_the_limit_is_accepted() {
        let mut filter = ReplayFilter::default();
        assert!(filter.accept(REJECT_AFTER_MESSAGES - 1));
        assert!(!filter.accept(REJECT_AFTER_MESSAGES));
        assert!(!filter.accept(u64::MAX));
    }

    #[test]
    fn a_jump_over_many_windows_forgets_what_was_before() {
        let mut filter = ReplayFilter::default();
        for counter in 0..REPLAY_WINDOW {
            assert!(filter.accept(counter));
        }
        assert!(filter.accept(10 * REPLAY_WINDOW));
        for counter in 9 * REPLAY_WINDOW + 1..10 * REPLAY_WINDOW {
            assert!(filter.accept(counter), "{counter}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set_of_all_counters(
            steps in proptest::collection::vec((-9000i64..9000, 1u64..4), 1..600)
        ) {
            let mut filter = ReplayFilter::default();
            let mut seen = HashSet::new();
            let mut highest: Option<u64> = None;
            let mut at = 20_000u64;
            for (step, scale) in steps {
                at = at.saturating_add_signed(step * scale as i64 / 3);
                let inside = highest.is_none_or(|h| at + REPLAY_WINDOW > h);
                let expected = inside && seen.insert(at);
                prop_assert_eq!(filter.accept(at), expected, "counter {}", at);
                highest = Some(highest.map_or(at, |h| if expected { h.max(at) } else { h }));
            }
        }
    }
}
