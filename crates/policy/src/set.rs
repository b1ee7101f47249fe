//! Sets of nodes, by their indexes in `Nodes`.

/// A set of nodes, as a bit set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Vec<u64>);

impl NodeSet {
    /// Returns the set of the first `count` nodes.
    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    /// Adds a node. Returns whether it is new.
    pub fn insert(&mut self, node: usize) -> bool {
        let (word, bit) = (node / 64, 1 << (node % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Removes a node. Returns whether the set contained it.
    pub fn remove(&mut self, node: usize) -> bool {
        let bit = 1 << (node % 64);
        let Some(word) = self.0.get_mut(node / 64) else { return false };
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    /// Returns the set with these [`NodeSet::words`].
    pub fn from_words(words: Vec<u64>) -> Self {
        Self(words)
    }

    /// The bits of 64 nodes in each word. Nodes beyond the last word are not in the set.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Whether the set contains a node.
    pub fn contains(&self, node: usize) -> bool {
        self.0.get(node / 64).is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Adds all nodes of another set.
    pub fn union_with(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    /// The nodes in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, two)| one & two).collect())
    }

    /// Whether a node is in both sets.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, two)| one & two != 0)
    }

    /// The nodes that are not in the other set.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(others).map(|(one, two)| one & !two).collect())
    }

    /// The nodes in exactly one of the sets.
    pub fn symmetric_difference(&self, other: &Self) -> Self {
        let word = |set: &Self, at: usize| set.0.get(at).copied().unwrap_or_default();
        let words = 0..self.0.len().max(other.0.len());
        Self(words.map(|at| word(self, at) ^ word(other, at)).collect())
    }

    /// The nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            let bits =
                rest.take_while(|word| *word != 0).map(|word| word.trailing_zeros() as usize);
            bits.map(move |bit| index * 64 + bit)
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn indices() -> impl Strategy<Value = BTreeSet<usize>> {
        proptest::collection::btree_set(0usize..200, 0..60)
    }

    proptest! {
        #[test]
        fn node_set_equals_a_btree_set_after_random_steps(steps in proptest::collection::vec((any::<bool>(), 0usize..200), 0..100)) {
            let (mut nodes, mut set) = (NodeSet::default(), BTreeSet::new());
            for (is_insert, at) in steps {
                if is_insert {
                    prop_assert_eq!(nodes.insert(at), set.insert(at));
                } else {
                    prop_assert_eq!(nodes.remove(at), set.remove(&at));
                }
            }
            prop_assert!(nodes.iter().eq(set.iter().copied()));
            prop_assert_eq!(nodes.is_empty(), set.is_empty());
        }

        #[test]
        fn operations_on_two_sets_equal_those_of_btree_sets(one in indices(), two in indices()) {
            let set = |of: &BTreeSet<usize>| of.iter().copied().collect::<NodeSet>();
            let list = |of: &NodeSet| of.iter().collect::<BTreeSet<usize>>();
            let (a, b) = (set(&one), set(&two));
            prop_assert_eq!(list(&a.intersection(&b)), &one & &two);
            prop_assert_eq!(list(&a.symmetric_difference(&b)), &one ^ &two);
            prop_assert_eq!(list(&a.difference(&b)), &one - &two);
            prop_assert_eq!(a.intersects(&b), !one.is_disjoint(&two));
        }
    }
}
