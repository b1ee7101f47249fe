//! Sets of nodes by their places.

/// A set of small numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Puts one in; whether it was not there.
    pub fn insert(&mut self, at: u32) -> bool {
        let (word, bit) = place(at);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Whether it is there.
    pub fn contains(&self, at: u32) -> bool {
        let (word, bit) = place(at);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Takes one out; whether it was there.
    pub fn remove(&mut self, at: u32) -> bool {
        let (word, bit) = place(at);
        let Some(word) = self.0.get_mut(word) else { return false };
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}

fn place(at: u32) -> (usize, u64) {
    (at as usize / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0u32..200), 0..100)) {
            let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
            for (is_insert, at) in steps {
                if is_insert {
                    prop_assert_eq!(bits.insert(at), set.insert(at));
                } else {
                    prop_assert_eq!(bits.remove(at), set.remove(&at));
                }
            }
            for at in 0..200 {
                prop_assert_eq!(bits.remove(at), set.contains(&at));
            }
        }
    }
}
