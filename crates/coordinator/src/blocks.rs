//! Neighbouring nodes, as peers are told of them, in blocks: most clients are shown all of most blocks,
//! so their text is joined, and packed, once for all of these.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

/// How many places are in a block: each whole map has the block of its own node packed anew.
const PLACES: u32 = u64::BITS;

/// The nodes of neighbouring places that can be reached, each behind a comma.
pub struct Block {
    nodes: Vec<Arc<str>>,
    packed: OnceLock<Bytes>,
}

impl Block {
    /// Its text.
    pub fn text(&self) -> String {
        self.nodes.iter().flat_map(|node| [",", node]).collect()
    }

    /// Its text as `pack` packs it, which is asked once.
    pub fn packed(&self, pack: impl FnOnce(&str) -> Bytes) -> Bytes {
        self.packed.get_or_init(|| pack(&self.text())).clone()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

/// All blocks; each is made when it is first asked for behind a change.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<OnceLock<(u64, Arc<Block>)>>);

impl Blocks {
    /// The node at a place is another, or there is a new one.
    pub fn touch(&mut self, place: u32) {
        let number = (place / PLACES) as usize;
        if number >= self.0.len() {
            self.0.resize_with(number + 1, OnceLock::new);
        }
        self.0[number] = OnceLock::new();
    }

    /// Of places in ascending order: those of which whole blocks are made, and the rest. `node` is the
    /// text of the node at a place, if it can be reached.
    pub fn cover(
        &self,
        places: impl Iterator<Item = u32>,
        node: impl Fn(u32) -> Option<Arc<str>>,
    ) -> (Vec<Arc<Block>>, Vec<u32>) {
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        let mut places = places.peekable();
        while let Some(first) = places.peek().map(|place| place / PLACES) {
            let mut wanted = 0;
            while let Some(place) = places.next_if(|place| place / PLACES == first) {
                wanted |= 1 << (place % PLACES);
            }
            let block = self
                .0
                .get(first as usize)
                .map(|kept| kept.get_or_init(|| Self::make(first * PLACES, &node)));
            match block {
                Some((has, block)) if *has == wanted => whole.push(Arc::clone(block)),
                _ => {
                    let is_wanted = |at: &u32| wanted & 1 << at != 0;
                    rest.extend((0..PLACES).filter(is_wanted).map(|at| first * PLACES + at));
                }
            }
        }
        (whole, rest)
    }

    fn make(first: u32, node: impl Fn(u32) -> Option<Arc<str>>) -> (u64, Arc<Block>) {
        let (mut has, mut nodes) = (0, Vec::new());
        for at in 0..PLACES {
            if let Some(text) = node(first + at) {
                has |= 1 << at;
                nodes.push(text);
            }
        }
        (has, Arc::new(Block { nodes, packed: OnceLock::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_shown_all_of_a_block_is_told_it_until_one_of_it_changes() {
        let mut blocks = Blocks::default();
        (0..200).for_each(|place| blocks.touch(place));
        let text =
            |place: u32| (place != 70 && place < 200).then(|| Arc::<str>::from(place.to_string()));
        let all = || (0..200).filter(|place| *place != 70);
        let (whole, rest) = blocks.cover(all().filter(|place| *place != 3), text);
        assert_eq!((whole.len(), rest.len()), (3, 63));
        assert!(whole[0].text().starts_with(",64,65") && !whole[0].text().contains(",70,"));
        let packed = whole[2].packed(|text| Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(packed, whole[2].text());
        let (again, rest) = blocks.cover(all(), text);
        assert!(rest.is_empty() && Arc::ptr_eq(&again[1], &whole[0]));
        blocks.touch(64);
        let (other, _) = blocks.cover(all(), text);
        assert!(!Arc::ptr_eq(&other[1], &whole[0]) && Arc::ptr_eq(&other[3], &whole[2]));
    }
}
