//! A path-compressed binary trie over fixed-width keys.
//!
//! ```text
//!            10.0.0.0/8 = a
//!            /            \
//!   10.0.0.0/15 (no value)  10.128.0.0/9 = b
//!      /        \
//!  10.0.0.0/16=c  10.1.0.0/16=d
//! ```
//!
//! A node without a value has two children, so there are fewer than twice as many nodes as values.
//! Nodes are stored in one `Vec` and refer to each other by index.

use std::fmt::Debug;

/// The bits of an address.
pub(super) trait Bits: Copy + Eq + Debug {
    const WIDTH: u8;

    /// Returns the bit at `at`, counted from the most significant one.
    fn bit(self, at: u8) -> usize;

    /// Number of equal leading bits.
    fn common(self, other: Self) -> u8;

    /// Returns the first `len` bits, with the others zero.
    fn prefix(self, len: u8) -> Self;
}

macro_rules! impl_bits {
    ($int:ty) => {
        impl Bits for $int {
            const WIDTH: u8 = <$int>::BITS as u8;

            fn bit(self, at: u8) -> usize {
                (self >> (Self::WIDTH - 1 - at) & 1) as usize
            }

            fn common(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }

            fn prefix(self, len: u8) -> Self {
                match len {
                    0 => 0,
                    len => self & <$int>::MAX << (Self::WIDTH - len),
                }
            }
        }
    };
}
impl_bits!(u32);
impl_bits!(u128);

/// The index of a node. `NONE` means that there is no node.
type Link = u32;
const NONE: Link = Link::MAX;

#[derive(Debug)]
struct Node<K, V> {
    key: K,
    len: u8,
    value: Option<V>,
    children: [Link; 2],
}

/// The position of a link: a side of a node, or the root.
type Slot = Option<(Link, usize)>;

#[derive(Debug)]
pub(super) struct Trie<K, V> {
    nodes: Vec<Node<K, V>>,
    free: Vec<Link>,
    root: Link,
}

impl<K, V> Default for Trie<K, V> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE }
    }
}

impl<K: Bits, V> Trie<K, V> {
    pub(super) fn lookup(&self, key: K) -> Option<&V> {
        let mut best = None;
        let mut link = self.root;
        while let Some(node) = self.nodes.get(link as usize) {
            if node.key.common(key) < node.len {
                break;
            }
            best = node.value.as_ref().or(best);
            if node.len == K::WIDTH {
                break;
            }
            link = node.children[key.bit(node.len)];
        }
        best
    }

    pub(super) fn get(&self, key: K, len: u8) -> Option<&V> {
        let (link, _) = self.descend(key, len);
        let node = self.nodes.get(link as usize)?;
        if node.len == len && node.key == key { node.value.as_ref() } else { None }
    }

    pub(super) fn insert(&mut self, key: K, len: u8, value: V) -> Option<V> {
        let (link, trail) = self.descend(key, len);
        let slot = trail.last;
        let Some(node) = self.nodes.get_mut(link as usize) else {
            let leaf = self.add(key, len, Some(value));
            self.set(slot, leaf);
            return None;
        };
        let common = node.key.common(key).min(node.len).min(len);
        if common == node.len && common == len {
            return node.value.replace(value);
        }
        let below = node.key;
        if common == len {
            let above = self.add(key, len, Some(value));
            self.nodes[above as usize].children[below.bit(len)] = link;
            self.set(slot, above);
        } else {
            let leaf = self.add(key, len, Some(value));
            let fork = self.add(key.prefix(common), common, None);
            let children = &mut self.nodes[fork as usize].children;
            children[key.bit(common)] = leaf;
            children[below.bit(common)] = link;
            self.set(slot, fork);
        }
        None
    }

    pub(super) fn remove(&mut self, key: K, len: u8) -> Option<V> {
        let (link, trail) = self.descend(key, len);
        let node = self.nodes.get_mut(link as usize)?;
        if node.len != len || node.key != key {
            return None;
        }
        let value = node.value.take()?;
        self.splice(link, trail.last);
        if let Some((parent, _)) = trail.last
            && self.nodes[parent as usize].value.is_none()
        {
            self.splice(parent, trail.before);
        }
        Some(value)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE && self.free.len() == self.nodes.len()
    }

    /// Follows `key` to the first node that is not strictly above it. Returns its link and the last
    /// two slots on the path.
    fn descend(&self, key: K, len: u8) -> (Link, Trail) {
        let mut trail = Trail { last: None, before: None };
        let mut link = self.root;
        while let Some(node) = self.nodes.get(link as usize) {
            if node.len >= len || node.key.common(key) < node.len {
                break;
            }
            let side = key.bit(node.len);
            trail = Trail { last: Some((link, side)), before: trail.last };
            link = node.children[side];
        }
        (link, trail)
    }

    /// Removes a node without a value from the tree, unless it has two children.
    fn splice(&mut self, link: Link, slot: Slot) {
        let ([only, NONE] | [NONE, only]) = self.nodes[link as usize].children else { return };
        self.set(slot, only);
        self.nodes[link as usize].children = [NONE, NONE];
        self.free.push(link);
    }

    fn set(&mut self, slot: Slot, link: Link) {
        match slot {
            Some((parent, side)) => self.nodes[parent as usize].children[side] = link,
            None => self.root = link,
        }
    }

    fn add(&mut self, key: K, len: u8, value: Option<V>) -> Link {
        let node = Node { key, len, value, children: [NONE, NONE] };
        match self.free.pop() {
            Some(link) => {
                self.nodes[link as usize] = node;
                link
            }
            None => {
                self.nodes.push(node);
                Link::try_from(self.nodes.len() - 1).expect("2^32 nodes do not fit in memory")
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Trail {
    last: Slot,
    before: Slot,
}
