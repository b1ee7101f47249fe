//! JSON of neighbouring nodes in blocks. Most clients see all nodes of most blocks, so the text of a block is joined
//! and compressed once for all of them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use policy::NodeSet;

use crate::node_index;

/// The number of nodes in a block. Each full map compresses the block of its own node again.
const BLOCK_NODES: u32 = u64::BITS;

/// Shared text: the reachable nodes with neighbouring indexes, or another long text.
pub struct Block {
    texts: Vec<Arc<str>>,
    before_each: &'static str,
    packed: OnceLock<Bytes>,
}

impl Block {
    /// Returns a block with this text.
    pub fn of(text: Arc<str>) -> Self {
        Self { texts: vec![text], before_each: "", packed: OnceLock::new() }
    }

    /// Returns a block of nodes, with a comma before each.
    pub fn of_nodes(texts: Vec<Arc<str>>) -> Self {
        Self { texts, before_each: ",", packed: OnceLock::new() }
    }

    /// The approximate size in memory, in bytes. Half of it is for the compressed text.
    pub fn bytes(&self) -> usize {
        2 * self.texts.iter().map(|text| text.len()).sum::<usize>()
    }

    pub fn text(&self) -> String {
        self.texts.iter().flat_map(|text| [self.before_each, text]).collect()
    }

    /// The text compressed by `pack`, which is called once.
    pub fn packed(&self, pack: impl FnOnce(&str) -> Bytes) -> Bytes {
        self.packed.get_or_init(|| pack(&self.text())).clone()
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.before_each == other.before_each && self.texts == other.texts)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("texts", &self.texts.len()).finish_non_exhaustive()
    }
}

/// All blocks. Each is made on first use after a change.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<OnceLock<(u64, Arc<Block>)>>);

impl Blocks {
    /// Invalidates the block of an index, after its node changed.
    pub(crate) fn invalidate(&mut self, index: u32) {
        let number = (index / BLOCK_NODES) as usize;
        if number >= self.0.len() {
            self.0.resize_with(number + 1, OnceLock::new);
        }
        self.0[number] = OnceLock::new();
    }

    /// Splits indexes into whole blocks and the rest. `node` returns the text of the node at an index, if it is
    /// reachable.
    pub(crate) fn cover(
        &self,
        indexes: &NodeSet,
        node: impl Fn(u32) -> Option<Arc<str>>,
    ) -> (Vec<Arc<Block>>, NodeSet) {
        let (mut whole, mut rest) = (Vec::new(), indexes.words().to_vec());
        for (number, wanted) in indexes.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            let first = node_index::as_index(number) * BLOCK_NODES;
            let block =
                self.0.get(number).map(|cached| cached.get_or_init(|| Self::make(first, &node)));
            if let Some((has, block)) = block
                && has == wanted
            {
                whole.push(Arc::clone(block));
                rest[number] = 0;
            }
        }
        (whole, NodeSet::from_words(rest))
    }

    fn make(first: u32, node: impl Fn(u32) -> Option<Arc<str>>) -> (u64, Arc<Block>) {
        let (mut has, mut nodes) = (0, Vec::new());
        for at in 0..BLOCK_NODES {
            if let Some(text) = node(first + at) {
                has |= 1 << at;
                nodes.push(text);
            }
        }
        (has, Arc::new(Block::of_nodes(nodes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_reused_until_one_of_its_nodes_changes() {
        let mut blocks = Blocks::default();
        (0..200).for_each(|index| blocks.invalidate(index));
        let text =
            |index: u32| (index != 70 && index < 200).then(|| Arc::<str>::from(index.to_string()));
        let all = || (0..200).filter(|index| *index != 70).collect::<NodeSet>();
        let mut others = all();
        others.remove(3);
        let (whole, rest) = blocks.cover(&others, text);
        assert_eq!((whole.len(), rest.iter().count()), (3, 63));
        assert!(whole[0].text().starts_with(",64,65") && !whole[0].text().contains(",70,"));
        let packed = whole[2].packed(|text| Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(packed, whole[2].text());
        let (again, rest) = blocks.cover(&all(), text);
        assert!(rest.is_empty() && Arc::ptr_eq(&again[1], &whole[0]));
        blocks.invalidate(64);
        let (other, _) = blocks.cover(&all(), text);
        assert!(!Arc::ptr_eq(&other[1], &whole[0]) && Arc::ptr_eq(&other[3], &whole[2]));
    }
}
