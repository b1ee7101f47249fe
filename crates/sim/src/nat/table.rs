//! The table of a box: an entry for each flow, as in conntrack.
//!
//! ```text
//!   inner host                     box                      remote
//!   inner -> remote    entry (inner, outer, remote)    outer -> remote
//! ```
//!
//! An entry with equal inner and outer addresses is a flow to the box itself.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rand_chacha::{ChaCha20Rng, rand_core::Rng};

use super::{Nat, Ports};

/// A flow with traffic in both directions after this time is a stream (`nf_conntrack_proto_udp.c`).
const STREAM_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Table {
    pub nat: Nat,
    /// At most one address of each family.
    outer: Vec<IpAddr>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    inner: SocketAddr,
    outer: SocketAddr,
    remote: SocketAddr,
    began: Duration,
    replied: bool,
    expires: Duration,
}

impl Table {
    pub(crate) fn new(nat: Nat, outer: &[IpAddr]) -> Self {
        Self { nat, outer: outer.to_vec(), entries: Vec::new() }
    }

    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        self.outer.contains(&address)
    }

    /// The source address that the remote sees, or `None` if the datagram is dropped.
    pub(crate) fn outbound(
        &mut self,
        now: Duration,
        inner: SocketAddr,
        remote: SocketAddr,
        rng: &mut ChaCha20Rng,
    ) -> Option<SocketAddr> {
        self.expire(now);
        let nat = self.nat;
        if nat.blocks_udp {
            return None;
        }
        let same_flow = |entry: &&mut Entry| (entry.inner, entry.remote) == (inner, remote);
        if let Some(entry) = self.entries.iter_mut().find(same_flow) {
            entry.expires = now + entry.lifetime(nat, now);
            return Some(entry.outer);
        }
        let address = *self.outer.iter().find(|outer| outer.is_ipv4() == inner.is_ipv4())?;
        let outer = self.outer_for(address, inner, remote, rng);
        self.insert(now, inner, outer, remote);
        Some(outer)
    }

    /// The destination of a datagram to `outer`, or `None` if it is dropped.
    pub(crate) fn inbound(
        &mut self,
        now: Duration,
        remote: SocketAddr,
        outer: SocketAddr,
    ) -> Option<SocketAddr> {
        self.expire(now);
        let nat = self.nat;
        if nat.blocks_udp {
            return None;
        }
        let exact = |entry: &Entry| (entry.outer, entry.remote) == (outer, remote);
        let admits = |entry: &Entry| {
            entry.outer == outer && !entry.is_own() && nat.filtering.same(entry.remote, remote)
        };
        let at = self.entries.iter().position(exact);
        let Some(at) = at.or_else(|| self.entries.iter().position(admits)) else {
            if nat.tracks_input {
                self.insert(now, outer, outer, remote);
            }
            return None;
        };
        let entry = &mut self.entries[at];
        if nat.timeouts.refreshed_from_outside {
            entry.expires = now + entry.lifetime(nat, now);
        }
        entry.replied |= !entry.is_own();
        (!entry.is_own()).then_some(entry.inner)
    }

    fn insert(&mut self, now: Duration, inner: SocketAddr, outer: SocketAddr, remote: SocketAddr) {
        let expires = now + self.nat.timeouts.unreplied;
        self.entries.push(Entry { inner, outer, remote, began: now, replied: false, expires });
    }

    /// The outer address of a new flow: that of another flow of the host if the box treats both
    /// alike, otherwise a new one.
    fn outer_for(
        &self,
        address: IpAddr,
        inner: SocketAddr,
        remote: SocketAddr,
        rng: &mut ChaCha20Rng,
    ) -> SocketAddr {
        let others = self.entries.iter().filter(|entry| entry.inner == inner);
        let mapped = others
            .filter(|entry| self.nat.mapping.same(entry.remote, remote))
            .map(|entry| entry.outer);
        let preserved =
            (self.nat.ports == Ports::Preserved).then_some(SocketAddr::new(address, inner.port()));
        let free = |outer: &SocketAddr| self.is_free(*outer, inner, remote);
        mapped.chain(preserved).find(free).unwrap_or_else(|| {
            let random = || SocketAddr::new(address, 1024 + (rng.next_u32() % 64_512) as u16);
            std::iter::repeat_with(random).find(free).expect("a box of tests has free ports")
        })
    }

    /// Whether replies of `remote` would not go to another host.
    fn is_free(&self, outer: SocketAddr, inner: SocketAddr, remote: SocketAddr) -> bool {
        self.entries.iter().all(|entry| {
            entry.outer != outer
                || entry.inner == inner
                || !self.nat.filtering.same(entry.remote, remote)
        })
    }

    fn expire(&mut self, now: Duration) {
        self.entries.retain(|entry| entry.expires > now);
    }
}

impl Entry {
    /// Whether it is a flow to the box itself.
    fn is_own(&self) -> bool {
        self.inner == self.outer
    }

    fn lifetime(&self, nat: Nat, now: Duration) -> Duration {
        if self.replied && now > self.began + STREAM_AFTER {
            nat.timeouts.stream
        } else {
            nat.timeouts.unreplied
        }
    }
}
