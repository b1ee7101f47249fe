//! Looks up the rules that contain a number: an address, a port or a protocol.

use std::{collections::HashMap, ops::Range};

/// The number range, split at each point where the set of rules changes. Each interval has a set of
/// rules, as bits. Equal sets are stored once.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    /// First number of each interval. The first interval starts at 0.
    starts: Vec<u128>,
    /// Index of each interval's set.
    sets: Vec<u32>,
    /// All sets, of `words` words each.
    bits: Vec<u64>,
    words: usize,
}

/// An inclusive range of numbers of one rule.
pub(super) struct RuleRange {
    pub first: u128,
    pub last: u128,
    pub rule: usize,
}

impl Intervals {
    /// Creates the intervals. Each rule owns a range of bits in sets of `words` words.
    pub(super) fn new(
        ranges: impl IntoIterator<Item = RuleRange>,
        rules: &[Range<usize>],
        words: usize,
    ) -> Self {
        // The numbers at which a rule starts (`true`) or ends (`false`).
        let mut edges: Vec<(u128, usize, bool)> = Vec::new();
        for RuleRange { first, last, rule } in ranges {
            edges.push((first, rule, true));
            edges.extend(last.checked_add(1).map(|end| (end, rule, false)));
        }
        edges.sort_unstable();
        let mut depths = vec![0u32; rules.len()];
        let mut set = vec![0u64; words];
        let mut known = HashMap::new();
        let mut all = Self { words, ..Self::default() };
        all.begin(0, &set, &mut known);
        for edges in edges.chunk_by(|a, b| a.0 == b.0) {
            for (_, rule, begins) in edges {
                // The ranges of one rule may overlap.
                let depth = &mut depths[*rule];
                *depth = if *begins { *depth + 1 } else { *depth - 1 };
                let holds = *depth != 0;
                rules[*rule].clone().for_each(|bit| assign(&mut set, bit, holds));
            }
            all.begin(edges[0].0, &set, &mut known);
        }
        all
    }

    /// The rules that contain `number`, as bits.
    pub(super) fn at(&self, number: u128) -> &[u64] {
        let stretch = self.starts.partition_point(|start| *start <= number) - 1;
        let first = self.sets[stretch] as usize * self.words;
        &self.bits[first..first + self.words]
    }

    fn begin(&mut self, start: u128, set: &[u64], known: &mut HashMap<Box<[u64]>, u32>) {
        let index = known.get(set).copied().unwrap_or_else(|| {
            let index = known.len() as u32;
            known.insert(set.into(), index);
            self.bits.extend(set);
            index
        });
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.sets.pop();
        }
        if self.sets.last() != Some(&index) {
            self.starts.push(start);
            self.sets.push(index);
        }
    }
}

fn assign(set: &mut [u64], bit: usize, value: bool) {
    let mask = 1 << (bit % 64);
    let word = &mut set[bit / 64];
    *word = if value { *word | mask } else { *word & !mask };
}
