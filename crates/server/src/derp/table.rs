//! Who is connected to the relay.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::{BufMut, BytesMut};
use tailnet::{
    derp::{HEADER_LEN, kind},
    keys::NodePublic,
};

use super::queue::Queue;

/// A connection.
#[derive(Debug)]
pub struct Client {
    /// Who it is.
    pub key: NodePublic,
    /// What waits for it.
    pub queue: Queue,
    /// Whether what is sent to its key goes to it.
    is_active: AtomicBool,
}

impl Client {
    /// Whether what is sent to its key goes to it.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    /// One that has logged in.
    pub fn new(key: NodePublic) -> Self {
        Self { key, queue: Queue::default(), is_active: AtomicBool::new(false) }
    }
}

/// All connections. Of several with one key the one that sent last is sent to.
#[derive(Debug, Default)]
pub struct Table(RwLock<HashMap<NodePublic, Arc<Client>>>);

impl Table {
    /// A client has logged in.
    pub fn insert(&self, client: &Arc<Client>) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        client.is_active.store(true, Relaxed);
        if let Some(other) = table.insert(client.key, Arc::clone(client)) {
            other.is_active.store(false, Relaxed);
        }
    }

    /// A client sends.
    pub fn note_active(&self, client: &Arc<Client>) {
        if !client.is_active.load(Relaxed) {
            self.insert(client);
        }
    }

    /// A connection ended. Whether its client is gone: it may have another.
    pub fn remove(&self, client: &Arc<Client>) -> bool {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        client.is_active.store(false, Relaxed);
        let is_last = table.get(&client.key).is_some_and(|other| Arc::ptr_eq(other, client));
        if is_last {
            table.remove(&client.key);
        }
        is_last
    }

    /// The client with this key.
    pub fn of(&self, key: &NodePublic) -> Option<Arc<Client>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

/// Writes a datagram as its receiver reads it, behind what is in `out`.
pub fn write_received(out: &mut BytesMut, from: &NodePublic, datagram: &[u8]) {
    let length = from.0.len() + datagram.len();
    out.reserve(HEADER_LEN + length);
    out.put_u8(kind::RECV_PACKET);
    out.put_u32(u32::try_from(length).expect("datagrams that were read are short"));
    out.extend_from_slice(&from.0);
    out.extend_from_slice(datagram);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_with_one_key_the_one_that_sent_last_is_sent_to() {
        let table = Table::default();
        let key = NodePublic([1; 32]);
        let (old, new) = (Arc::new(Client::new(key)), Arc::new(Client::new(key)));
        table.insert(&old);
        table.insert(&new);
        assert!(Arc::ptr_eq(&table.of(&key).unwrap(), &new));
        table.note_active(&old);
        assert!(Arc::ptr_eq(&table.of(&key).unwrap(), &old));
        assert!(!table.remove(&new));
        assert!(Arc::ptr_eq(&table.of(&key).unwrap(), &old));
        assert!(table.remove(&old));
        assert!(table.of(&key).is_none());
    }
}
