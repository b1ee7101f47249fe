//! Memory usage of records, by which the size of a map is limited.

use std::collections::BTreeMap;

use tailnet::{
    map_messages::{CapGrant, Destination, FilterRule, Hostinfo, Node, UserProfile},
    raw_json::Json,
};

/// The number of slots in a node of a [`BTreeMap`], and the minimum number of entries.
const SLOTS: (usize, usize) = (11, 5);

/// A value with a memory usage.
pub(super) trait Weight {
    /// Returns the number of bytes that it owns on the heap.
    fn heap(&self) -> usize;
}

/// Returns the memory of an allocated block: with its header a multiple of 16, at least 32 (glibc
/// `malloc/malloc.c`, `MINSIZE`).
pub(super) const fn block(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let with_header = (bytes + 8).next_multiple_of(16);
    if with_header < 32 { 32 } else { with_header }
}

impl Weight for String {
    fn heap(&self) -> usize {
        block(self.capacity())
    }
}

impl Weight for Json {
    fn heap(&self) -> usize {
        block(self.text().len())
    }
}

impl<T: Weight> Weight for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, T::heap)
    }
}

impl<T: Weight> Weight for Vec<T> {
    fn heap(&self) -> usize {
        flat(self) + self.iter().map(T::heap).sum::<usize>()
    }
}

impl<V: Weight> Weight for BTreeMap<String, V> {
    fn heap(&self) -> usize {
        let (slots, filled) = SLOTS;
        let nodes = self.len().div_ceil(filled);
        let own = nodes * block(slots * (size_of::<String>() + size_of::<V>()));
        own + self.iter().map(|(name, value)| name.heap() + value.heap()).sum::<usize>()
    }
}

/// Returns the memory of a list of items without heap memory.
fn flat<T>(items: &Vec<T>) -> usize {
    block(items.capacity() * size_of::<T>())
}

impl Weight for Node {
    fn heap(&self) -> usize {
        let texts = [&self.stable_id, &self.name, &self.key_signature, &self.computed_name];
        let more = [&self.key_expiry, &self.created, &self.last_seen];
        texts.map(Weight::heap).iter().sum::<usize>()
            + more.map(Weight::heap).iter().sum::<usize>()
            + self.legacy_derp.heap()
            + flat(&self.addresses)
            + self.allowed_ips.as_ref().map_or(0, flat)
            + flat(&self.endpoints)
            + self.hostinfo.heap()
            + self.tags.heap()
            + flat(&self.primary_routes)
            + self.capabilities.heap()
            + self.cap_map.heap()
    }
}

impl Weight for Hostinfo {
    fn heap(&self) -> usize {
        self.os.heap() + self.hostname.heap() + flat(&self.routable_ips)
    }
}

impl Weight for UserProfile {
    fn heap(&self) -> usize {
        self.login_name.heap() + self.display_name.heap() + self.profile_pic_url.heap()
    }
}

impl Weight for FilterRule {
    fn heap(&self) -> usize {
        self.sources.heap()
            + flat(&self.source_bits)
            + self.destinations.heap()
            + flat(&self.protocols)
            + self.grants.heap()
    }
}

impl Weight for Destination {
    fn heap(&self) -> usize {
        self.addresses.heap()
    }
}

impl Weight for CapGrant {
    fn heap(&self) -> usize {
        self.destinations.heap() + self.caps.heap() + self.cap_map.heap()
    }
}
