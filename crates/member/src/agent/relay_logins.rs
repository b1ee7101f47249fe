//! Logins at relays that wait for the data plane, which has the node key.

use std::collections::HashMap;

use bytes::Bytes;
use getrandom::{
    SysRng,
    rand_core::{Rng as _, UnwrapErr},
};
use tokio::sync::oneshot;

/// Logins by number.
pub(super) struct RelayLogins {
    waiting: HashMap<u32, oneshot::Sender<Bytes>>,
    last: u32,
}

impl RelayLogins {
    pub fn new() -> Self {
        // Logins of the previous agent may still be answered.
        Self { waiting: HashMap::new(), last: UnwrapErr(SysRng).next_u32() }
    }

    /// Stores the reply of a login. Returns the number of the login.
    pub fn begin(&mut self, reply: oneshot::Sender<Bytes>) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.waiting.retain(|_, waiting| !waiting.is_closed());
        self.waiting.insert(self.last, reply);
        self.last
    }

    /// Answers a login with its sealed contents.
    pub fn finish(&mut self, id: u32, sealed: Vec<u8>) {
        if let Some(reply) = self.waiting.remove(&id) {
            let _ = reply.send(sealed.into());
        }
    }
}
