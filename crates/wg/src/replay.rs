//! The replay filter: a sliding window of received counters (RFC 6479).

use crate::constants::{REJECT_AFTER_MESSAGES, REPLAY_WINDOW};

const WORD_BITS: u64 = u64::BITS as u64;
/// One word more than the window, so that the window can slide by whole words.
const WORDS: usize = (REPLAY_WINDOW / WORD_BITS) as usize + 1;

/// Records the received counters. Only counters of authentic messages may be passed to it.
#[derive(Debug, Default)]
pub struct ReplayFilter {
    /// The highest accepted counter plus one. 0 before the first.
    next: u64,
    /// The first word. The only one until a counter exceeds it.
    first: u64,
    /// The other words, 1 KiB. Many sessions carry only a keepalive or two and never allocate them.
    words: Option<Box<[u64; WORDS]>>,
}

impl ReplayFilter {
    /// Whether `counter` is new. Records it. A repeated counter, one behind the window and one past
    /// the limit are refused.
    pub fn accept(&mut self, counter: u64) -> bool {
        if counter >= REJECT_AFTER_MESSAGES || counter.saturating_add(REPLAY_WINDOW) < self.next {
            return false;
        }
        let bit = 1 << (counter % WORD_BITS);
        let word = match &mut self.words {
            None if counter < WORD_BITS => {
                self.next = self.next.max(counter + 1);
                &mut self.first
            }
            words => {
                let words = words.get_or_insert_with(|| Self::begin(self.first));
                if counter >= self.next {
                    Self::slide(words, self.next, counter);
                    self.next = counter + 1;
                }
                &mut words[Self::word(counter)]
            }
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn begin(first: u64) -> Box<[u64; WORDS]> {
        let mut words = Box::new([0; WORDS]);
        words[0] = first;
        words
    }

    /// Clears the words that enter the window when `counter` becomes the highest.
    fn slide(words: &mut [u64; WORDS], next: u64, counter: u64) {
        let Some(highest) = next.checked_sub(1) else { return };
        let entered = (counter / WORD_BITS - highest / WORD_BITS).min(WORDS as u64);
        for step in 1..=entered {
            words[Self::word(highest + step * WORD_BITS)] = 0;
        }
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
    fn window_edges_are_exact() {
        let mut filter = ReplayFilter::default();
        let top = 100_000;
        assert!(filter.accept(top));
        assert!(filter.accept(top - REPLAY_WINDOW + 1), "the last inside");
        assert!(!filter.accept(top - REPLAY_WINDOW), "the first outside");
        assert!(!filter.accept(top - REPLAY_WINDOW + 1), "a replay at the edge");
        assert!(!filter.accept(top));
    }

    #[test]
    fn counter_at_the_limit_is_refused() {
        let mut filter = ReplayFilter::default();
        assert!(filter.accept(REJECT_AFTER_MESSAGES - 1));
        assert!(!filter.accept(REJECT_AFTER_MESSAGES));
        assert!(!filter.accept(u64::MAX));
    }

    #[test]
    fn jump_over_many_windows_clears_old_counters() {
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
        fn filter_agrees_with_a_set_of_all_counters(
            mut at in prop_oneof![Just(0_u64), Just(20_000)],
            part in prop_oneof![Just(3), Just(1_000)],
            steps in proptest::collection::vec((-9000i64..9000, 1u64..4), 1..600)
        ) {
            let mut filter = ReplayFilter::default();
            let mut seen = HashSet::new();
            let mut highest: Option<u64> = None;
            for (step, scale) in steps {
                at = at.saturating_add_signed(step * scale as i64 / part);
                let inside = highest.is_none_or(|h| at + REPLAY_WINDOW > h);
                let expected = inside && seen.insert(at);
                prop_assert_eq!(filter.accept(at), expected, "counter {}", at);
                highest = Some(highest.map_or(at, |h| if expected { h.max(at) } else { h }));
            }
        }
    }
}
