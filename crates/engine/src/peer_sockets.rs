//! Peers that have their own socket in addition to the data plane's.
//!
//! ```text
//!   outbound, slow path -- runs to such endpoints --> DatagramSender -- that socket's UdpSend -------> UDP
//!   inbound <-- slots of the batch, after the socket's <- RelayQueues <- a thread of that socket <---- UDP
//! ```
//!
//! The endpoint of such a peer is a relayed one ([`packet::Remote::Relayed`]) with the second
//! highest bit set in its number. The inbound thread waits only for the data plane's socket. Each
//! further socket has its own receiving thread, which passes datagrams through the relays' queue
//! ([`RelayQueues::inject_batch`]). Without such peers there is no cost.
//!
//! [`RelayQueues::inject_batch`]: crate::RelayQueues::inject_batch

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use packet::{Endpoint, RelayId, Remote, UdpSend};

use crate::lock;

/// The most sockets. Each has a thread.
const MAX_SOCKETS: usize = 16;
/// Lowest number of this table. Numbers below belong to [`crate::RelayQueues`], and those from
/// [`crate::PrefixTable`]'s bit on to that table.
const FIRST_ID: u32 = 1 << 30;

/// A socket's sending half, locked for one batch. Contention is rare: only data and handshakes of
/// one peer use it.
type Sender = Arc<Mutex<Box<dyn UdpSend>>>;

/// The table of such peers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PeerSockets(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// Entries created so far. Numbers are not reused soon, so that late datagrams for a removed
    /// peer are dropped instead of sent to another peer.
    created: u32,
    entries: Vec<Entry>,
}

struct Entry {
    id: RelayId,
    at: SocketAddr,
    sender: Sender,
}

impl PeerSockets {
    /// Adds a peer at the address `at`, with the sending half of its socket. Returns its endpoint,
    /// or `None` if the table is full.
    pub fn add(&self, at: SocketAddr, sender: Box<dyn UdpSend>) -> Option<Endpoint> {
        let mut table = lock(&self.0);
        if table.entries.len() >= MAX_SOCKETS {
            return None;
        }
        let id = RelayId::new(FIRST_ID + table.created % FIRST_ID);
        table.created = table.created.wrapping_add(1);
        table.entries.push(Entry { id, at, sender: Arc::new(Mutex::new(sender)) });
        Some(Endpoint::relayed(id))
    }

    /// Removes a peer from the table.
    pub fn remove(&self, endpoint: &Endpoint) {
        lock(&self.0).entries.retain(|entry| Remote::Relayed(entry.id) != endpoint.remote);
    }

    /// The address and the sending half of an endpoint in this table.
    pub(crate) fn get(&self, endpoint: &Endpoint) -> Option<(SocketAddr, Sender)> {
        let Remote::Relayed(id) = endpoint.remote else { return None };
        if id.index() < FIRST_ID as usize {
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
    fn the_table_is_bounded_and_numbers_are_not_reused() {
        let all = PeerSockets::default();
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let endpoints: Vec<_> = (0..20).filter_map(|n| all.add(at(n), Box::new(Nowhere))).collect();
        assert_eq!(endpoints.len(), MAX_SOCKETS);
        assert_eq!(all.get(&endpoints[3]).map(|(at, _)| at), Some(at(3)));
        all.remove(&endpoints[3]);
        assert!(all.get(&endpoints[3]).is_none());
        let next = all.add(at(99), Box::new(Nowhere)).unwrap();
        assert!(!endpoints.contains(&next));
        for other in [0, 1 << 31, u32::MAX].map(|id| Endpoint::relayed(RelayId::new(id))) {
            assert!(all.get(&other).is_none());
            all.remove(&other);
        }
        assert!(all.get(&Endpoint::new(at(3))).is_none());
    }
}
