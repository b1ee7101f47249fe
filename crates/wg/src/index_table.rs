//! Maps the 32-bit indices that this device assigned to handshakes and sessions (paper 5.4).
//! Indices are random, so that they reveal nothing.

use std::{collections::HashMap, sync::Arc};

use rand_core::CryptoRng;

use crate::{keypair::Keypair, peer::Peer};

/// The owner of an index.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// A handshake that this device started, not answered yet.
    Handshake(Arc<Peer>),
    /// A session.
    Session(Session),
}

/// A session and its peer.
#[derive(Clone, Debug)]
pub struct Session {
    /// The peer at the other end.
    pub peer: Arc<Peer>,
    /// The session's keys.
    pub keypair: Arc<Keypair>,
}

/// All indices in use.
#[derive(Debug, Default)]
pub(crate) struct IndexTable {
    owners: HashMap<u32, Owner>,
}

impl IndexTable {
    /// Returns the owner of `index`.
    pub(crate) fn get(&self, index: u32) -> Option<&Owner> {
        self.owners.get(&index)
    }

    /// Returns a random index that is not in use. [`IndexTable::set`] assigns it.
    pub(crate) fn unused(&self, rng: &mut impl CryptoRng) -> u32 {
        loop {
            let index = rng.next_u32();
            if !self.owners.contains_key(&index) {
                return index;
            }
        }
    }

    pub(crate) fn set(&mut self, index: u32, owner: Owner) {
        self.owners.insert(index, owner);
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.owners.remove(&index);
    }
}
