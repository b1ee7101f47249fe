//! Sets of nodes, by their places in `Nodes`.

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Vec<u64>);

impl NodeSet {
    /// The first `count` nodes.
    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    /// Puts one in.
    pub fn insert(&mut self, node: usize) {
        let word = node / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (node % 64);
    }

    /// Takes one out.
    pub fn remove(&mut self, node: usize) {
        if let Some(word) = self.0.get_mut(node / 64) {
            *word &= !(1 << (node % 64));
        }
    }

    /// Whether one is in it.
    pub fn contains(&self, node: usize) -> bool {
        self.0.get(node / 64).is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Puts in all of another.
    pub fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    /// Those in both.
    pub fn both(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, two)| one & two).collect())
    }

    /// Those in one of both alone.
    pub fn either(&self, other: &Self) -> Self {
        let word = |set: &Self, at: usize| set.0.get(at).copied().unwrap_or_default();
        let words = 0..self.0.len().max(other.0.len());
        Self(words.map(|at| word(self, at) ^ word(other, at)).collect())
    }

    /// Those in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(place, &word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| place * 64 + bit)
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}
