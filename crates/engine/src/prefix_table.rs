//! Peers behind a peer relay. Datagrams for such a peer are sent to the relay's address with a
//! prefix of eight bytes, which identifies the pair of peers.
//!
//! ```text
//!   outbound, slow path -- runs to such endpoints --> DatagramSender -- prefix, datagram, ... --> UDP
//!   inbound <-- the datagram, from such an endpoint -- address and prefix are in the table <-- UDP
//! ```
//!
//! The endpoint of such a peer is a relayed one ([`packet::Remote::Relayed`]) with the highest bit
//! set in its number. Only the path discovery adds entries. A datagram from another address or with
//! another prefix is malformed.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::{Endpoint, RelayId, Remote};

use crate::lock;

/// Bytes before each datagram.
pub const PREFIX_LEN: usize = 8;
/// Capacity of the table.
const MAX_ENTRIES: usize = 1 << 16;
/// Set in all numbers of this table.
const ID_BIT: u32 = 1 << 31;

/// The address of a peer behind a peer relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixedAddr {
    /// Address of the peer relay.
    pub at: SocketAddr,
    /// The bytes before each datagram. They must not begin like a WireGuard message.
    pub prefix: [u8; PREFIX_LEN],
}

/// The table of such peers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PrefixTable(Arc<State>);

#[derive(Debug, Default)]
struct State {
    table: Mutex<Table>,
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Option<PrefixedAddr>>,
    ids: HashMap<PrefixedAddr, u32>,
    free: Vec<u32>,
}

impl PrefixTable {
    /// The endpoint of an address, which is added to the table if absent. Returns `None` if the
    /// table is full.
    pub fn endpoint(&self, addr: PrefixedAddr) -> Option<Endpoint> {
        let mut table = lock(&self.0.table);
        let known = table.ids.get(&addr).copied();
        let id = match known.or_else(|| table.free.pop()) {
            Some(id) => id,
            None if table.entries.len() >= MAX_ENTRIES => return None,
            None => {
                table.entries.push(None);
                table.entries.len() as u32 - 1
            }
        };
        table.entries[id as usize] = Some(addr);
        table.ids.insert(addr, id);
        self.0.any.store(true, Ordering::Relaxed);
        Some(endpoint(id))
    }

    /// Removes an address from the table. Its endpoint must not be in use any more, because another
    /// address may get it.
    pub fn remove(&self, addr: &PrefixedAddr) {
        let mut table = lock(&self.0.table);
        if let Some(id) = table.ids.remove(addr) {
            table.entries[id as usize] = None;
            table.free.push(id);
        }
        self.0.any.store(!table.ids.is_empty(), Ordering::Relaxed);
    }

    /// The address of an endpoint in this table.
    pub fn get(&self, endpoint: &Endpoint) -> Option<PrefixedAddr> {
        let Remote::Relayed(id) = endpoint.remote else { return None };
        let index = (id.index() as u32).checked_sub(ID_BIT)?;
        lock(&self.0.table).entries.get(index as usize).copied().flatten()
    }
}

/// Finds the endpoint of received datagrams. The last result is cached, because datagrams of one
/// peer arrive in bursts.
pub(crate) struct Origins {
    prefixes: PrefixTable,
    last: Option<(PrefixedAddr, Endpoint)>,
}

impl Origins {
    pub(crate) fn new(prefixes: &PrefixTable) -> Self {
        Self { prefixes: prefixes.clone(), last: None }
    }

    /// The distinct addresses of the peer relays.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let table = lock(&self.prefixes.0.table);
        let all: HashSet<IpAddr> = table.ids.keys().map(|addr| addr.at.ip()).collect();
        all.into_iter().collect()
    }

    /// Clears the cached result. The table may have changed.
    pub(crate) fn clear_cached(&mut self) {
        self.last = None;
    }

    /// The endpoint of a datagram, if its address and prefix are in the table.
    pub(crate) fn find(&mut self, datagram: &[u8], from: &Endpoint) -> Option<Endpoint> {
        if !self.prefixes.0.any.load(Ordering::Relaxed) {
            return None;
        }
        let addr = PrefixedAddr { at: from.remote.direct()?, prefix: *datagram.first_chunk()? };
        if let Some((last, endpoint)) = self.last
            && last == addr
        {
            return Some(endpoint);
        }
        let found = lock(&self.prefixes.0.table).ids.get(&addr).map(|id| endpoint(*id))?;
        self.last = Some((addr, found));
        Some(found)
    }
}

fn endpoint(id: u32) -> Endpoint {
    Endpoint::relayed(RelayId::new(ID_BIT | id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(number: u8) -> PrefixedAddr {
        PrefixedAddr { at: ([192, 0, 2, 1], 7).into(), prefix: [0, 0, 0x7a, 0x12, 0, 0, number, 0] }
    }

    #[test]
    fn an_address_has_one_endpoint_while_it_is_in_the_table() {
        let table = PrefixTable::default();
        let [first, second] = [1, 2].map(|number| table.endpoint(addr(number)).unwrap());
        assert_ne!(first, second);
        assert_eq!(table.endpoint(addr(1)), Some(first));
        assert_eq!(table.get(&second), Some(addr(2)));
        table.remove(&addr(2));
        assert_eq!(table.get(&second), None);
        assert_eq!(table.endpoint(addr(3)), Some(second), "its number is free");
        for other in [Endpoint::relayed(RelayId::new(0)), Endpoint::new(addr(1).at)] {
            assert_eq!(table.get(&other), None);
        }
    }

    #[test]
    fn a_datagram_gets_the_endpoint_of_its_address_and_prefix() {
        let table = PrefixTable::default();
        let from = Endpoint::new(addr(1).at);
        let datagram = [&addr(1).prefix[..], b"data"].concat();
        let mut origins = Origins::new(&table);
        assert_eq!(origins.find(&datagram, &from), None);
        assert_eq!(origins.addresses(), Vec::<IpAddr>::new());
        let known = table.endpoint(addr(1));
        for _ in 0..2 {
            assert_eq!(origins.find(&datagram, &from), known);
        }
        table.endpoint(addr(3));
        assert_eq!(origins.addresses(), [addr(1).at.ip()]);
        assert_eq!(origins.find(&datagram[..7], &from), None);
        assert_eq!(origins.find(&[&addr(2).prefix[..], b"data"].concat(), &from), None);
        assert_eq!(origins.find(&datagram, &Endpoint::new(([192, 0, 2, 1], 8).into())), None);
        table.remove(&addr(1));
        origins.clear_cached();
        assert_eq!(origins.find(&datagram, &from), None);
    }
}
