//! Peers that are reached from a socket of their own beside the data plane's.
//!
//! ```text
//!   outbound, slow path -- runs to such endpoints --> outlet -- that socket's UdpSend -----------> UDP
//!   inbound <-- slots of the batch, after the socket's <- RelayQueues <- a thread of that socket <------ UDP
//! ```
//!
//! Such an endpoint is a relayed one ([`packet::Remote::Relayed`]) whose number has its second highest
//! bit set. The inbound thread waits for its one socket as ever: what comes to another one is received
//! by a thread of that, and handed over in the queue of the relays ([`RelayQueues::inject_batch`]), so that
//! those who have none pay nothing.
//!
//! [`RelayQueues::inject_batch`]: crate::RelayQueues::inject_batch

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use packet::{Endpoint, RelayId, Remote, UdpSend};

use crate::lock;

/// Sockets at most: each has a thread.
const MOST: usize = 16;
/// The numbers of this table, beside those of [`crate::RelayQueues`] and below those of
/// [`crate::PrefixTable`].
const FIRST: u32 = 1 << 30;

/// A socket's sending half. The lock is held for a batch: beside the data, handshakes with the one
/// peer alone go by it.
type Sender = Arc<Mutex<Box<dyn UdpSend>>>;

/// The table of such sockets. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct PeerSockets(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// How many there have been. No number is soon given again, so that the last datagrams of a peer
    /// go nowhere, and not to another one.
    count: u32,
    entries: Vec<Entry>,
}

struct Entry {
    id: RelayId,
    at: SocketAddr,
    sender: Sender,
}

impl PeerSockets {
    /// The endpoint of a peer that is reached at `at` from the socket of `sender`; `None` if there are
    /// too many.
    pub fn add(&self, at: SocketAddr, sender: Box<dyn UdpSend>) -> Option<Endpoint> {
        let mut table = lock(&self.0);
        if table.entries.len() >= MOST {
            return None;
        }
        let id = RelayId::new(FIRST + table.count % FIRST);
        table.count = table.count.wrapping_add(1);
        table.entries.push(Entry { id, at, sender: Arc::new(Mutex::new(sender)) });
        Some(Endpoint::relayed(id))
    }

    /// Removes a socket from the table.
    pub fn remove(&self, endpoint: &Endpoint) {
        lock(&self.0).entries.retain(|entry| Remote::Relayed(entry.id) != endpoint.remote);
    }

    /// Where the peer is that an endpoint stands for, and what sends there.
    pub(crate) fn place(&self, endpoint: &Endpoint) -> Option<(SocketAddr, Sender)> {
        let Remote::Relayed(id) = endpoint.remote else { return None };
        if id.index() < FIRST as usize {
            return None;
        }
        let table = lock(&self.0);
        let entry = table.entries.iter().find(|entry| entry.id == id)?;
        Some((entry.at, entry.sender.clone()))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use packet::{SendBatch, SendError};

    use super::*;

    struct Nowhere;

    impl UdpSend for Nowhere {
        fn send(&mut self, _: &mut SendBatch) {}

        fn send_unfragmented(&mut self, _: &[u8], _: Endpoint) -> Result<(), SendError> {
            Ok(())
        }
    }

    #[test]
    fn there_are_few_and_no_number_is_given_again() {
        let all = PeerSockets::default();
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let endpoints: Vec<_> = (0..20).filter_map(|n| all.add(at(n), Box::new(Nowhere))).collect();
        assert_eq!(endpoints.len(), MOST);
        assert_eq!(all.place(&endpoints[3]).map(|(at, _)| at), Some(at(3)));
        all.remove(&endpoints[3]);
        assert!(all.place(&endpoints[3]).is_none());
        let next = all.add(at(99), Box::new(Nowhere)).unwrap();
        assert!(!endpoints.contains(&next));
        for other in [0, 1 << 31, u32::MAX].map(|id| Endpoint::relayed(RelayId::new(id))) {
            assert!(all.place(&other).is_none());
            all.remove(&other);
        }
        assert!(all.place(&Endpoint::new(at(3))).is_none());
    }
}
