//! Numbers that other hosts cannot predict.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
};

pub(super) struct Secret {
    key: u128,
    /// Number of chosen ports and identifiers.
    choices: u32,
    /// Number of packets that were sent in fragments.
    fragmented: u32,
}

impl Secret {
    pub(super) fn new(key: u128) -> Self {
        Self { key, choices: 0, fragmented: 0 }
    }

    /// A hash of `of` with the secret as the key.
    pub(super) fn hash(&self, of: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.key, of).hash(&mut hasher);
        hasher.finish()
    }

    /// The start of the next sequence of ports or identifiers.
    pub(super) fn next_choice(&mut self) -> u32 {
        self.choices = self.choices.wrapping_add(1);
        self.hash(&("port", self.choices)) as u32
    }

    /// The identification for the fragments of one packet (RFC 7739 section 5.3).
    pub(super) fn next_fragment_id(&mut self, addresses: (IpAddr, IpAddr)) -> u32 {
        self.fragmented = self.fragmented.wrapping_add(1);
        (self.hash(&("fragment", addresses)) as u32).wrapping_add(self.fragmented)
    }
}
