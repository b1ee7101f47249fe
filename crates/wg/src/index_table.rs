//! Which handshake or session a received message belongs to: the 32-bit indices
//! that we gave out (paper 5.4). They are random, so that they tell nothing.

use std::{collections::HashMap, sync::Arc};

use rand_core::CryptoRng;

use crate::{keypair::Keypair, peer::Peer};

/// What an index stands for.
#[derive(Clone, Debug)]
pub enum Owner {
    /// A handshake that we began and that is not answered yet.
    Handshake(Arc<Peer>),
    /// A session.
    Session(Session),
}

/// A session and the peer that it is with.
#[derive(Clone, Debug)]
pub struct Session {
    /// Who is at the other end.
    pub peer: Arc<Peer>,
    /// The session's keys.
    pub keypair: Arc<Keypair>,
}

/// All indices in use.
#[derive(Debug, Default)]
pub struct IndexTable {
    owners: HashMap<u32, Owner>,
}

impl IndexTable {
    /// What `index` stands for.
    pub fn get(&self, index: u32) -> Option<&Owner> {
        self.owners.get(&index)
    }

    /// A random index that is not in use; [`IndexTable::set`] puts it in use.
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
