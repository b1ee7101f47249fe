//! The three keypairs of a peer, and their order (paper 6.3; kernel `noise.c`, `add_new_keypair`
//! and `wg_noise_received_with_keypair`).
//!
//! ```text
//!   initiator:  new -> current -> previous        (a waiting next -> previous)
//!   responder:  new -> next;  first data by it:  next -> current -> previous
//! ```

use std::sync::Arc;

use crate::keypair::{Keypair, Role};

/// The keypairs of a peer. `current` sends data; all of them receive.
#[derive(Debug, Default)]
pub(crate) struct Keypairs {
    pub current: Option<Arc<Keypair>>,
    previous: Option<Arc<Keypair>>,
    /// A responder's new keypair, until the initiator proves that it has the keys.
    next: Option<Arc<Keypair>>,
}

/// Keypairs that are out of use. Their indices must be removed.
pub(crate) type Displaced = [Option<Arc<Keypair>>; 2];

impl Keypairs {
    /// Adds a new keypair.
    pub(crate) fn begin(&mut self, new: Arc<Keypair>) -> Displaced {
        match new.role {
            Role::Initiator => {
                let current = self.current.replace(new);
                match self.next.take() {
                    Some(next) => [self.previous.replace(next), current],
                    None => [std::mem::replace(&mut self.previous, current), None],
                }
            }
            Role::Responder => [self.next.replace(new), self.previous.take()],
        }
    }

    /// Handles data received by `keypair`. If it is `next`, it becomes `current`; otherwise returns
    /// `None`.
    pub(crate) fn confirm(&mut self, keypair: &Arc<Keypair>) -> Option<Displaced> {
        self.next.take_if(|next| Arc::ptr_eq(next, keypair))?;
        let current = self.current.replace(keypair.clone());
        Some([std::mem::replace(&mut self.previous, current), None])
    }

    /// Whether one of them has this remote index.
    pub(crate) fn has_remote(&self, index: u32) -> bool {
        let all = [&self.current, &self.previous, &self.next];
        all.into_iter().flatten().any(|keypair| keypair.send.remote_index == index)
    }

    /// Removes and returns all keypairs.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = Arc<Keypair>> + use<> {
        let all = std::mem::take(self);
        [all.current, all.previous, all.next].into_iter().flatten()
    }
}
