//! Neighbouring nodes, as peers are told of them, in blocks: most clients are shown all of most blocks,
//! so their text is joined, and packed, once for all of these.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use policy::NodeSet;

use crate::node_index;

/// How many places are in a block: each whole map has the block of its own node packed anew.
const BLOCK_NODES: u32 = u64::BITS;

/// Text that many are told: the nodes of neighbouring places that can be reached, or what is as long.
pub struct Block {
    texts: Vec<Arc<str>>,
    before_each: &'static str,
    packed: OnceLock<Bytes>,
}

impl Block {
    /// Of this text.
    pub fn of(text: Arc<str>) -> Self {
        Self { texts: vec![text], before_each: "", packed: OnceLock::new() }
    }

    /// Of nodes, each behind a comma.
    pub fn of_nodes(texts: Vec<Arc<str>>) -> Self {
        Self { texts, before_each: ",", packed: OnceLock::new() }
    }

    /// About its bytes in memory, of which half are for the packed text.
    pub fn bytes(&self) -> usize {
        2 * self.texts.iter().map(|text| text.len()).sum::<usize>()
    }

    /// Its text.
    pub fn text(&self) -> String {
        self.texts.iter().flat_map(|text| [self.before_each, text]).collect()
    }

    /// Its text as `pack` packs it, which is asked once.
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

/// All blocks; each is made when it is first asked for behind a change.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<OnceLock<(u64, Arc<Block>)>>);

impl Blocks {
    /// The node at a place is another, or there is a new one.
    pub fn invalidate(&mut self, index: u32) {
        let number = (index / BLOCK_NODES) as usize;
        if number >= self.0.len() {
            self.0.resize_with(number + 1, OnceLock::new);
        }
        self.0[number] = OnceLock::new();
    }

    /// Of places: those of which whole blocks are made, and the rest. `node` is the text of the node
    /// at a place, if it can be reached.
    pub fn cover(
        &self,
        indexes: &NodeSet,
        node: impl Fn(u32) -> Option<Arc<str>>,
    ) -> (Vec<Arc<Block>>, NodeSet) {
        let (mut whole, mut rest) = (Vec::new(), indexes.words().to_vec());
        for (number, wanted) in indexes.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            let first = node_index::as_index(number) * BLOCK_NODES;
            let block =
                self.0.get(number).map(|kept| kept.get_or_init(|| Self::make(first, &node)));
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
    fn who_is_shown_all_of_a_block_is_told_it_until_one_of_it_changes() {
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
