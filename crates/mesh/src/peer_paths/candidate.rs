//! The candidate endpoints of a peer: from its map entry, from its last call, and the sources of
//! its packets.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    Candidate, Origins, ProbeOutcome,
    rank::Rank,
    timing::{AGAIN, CALL_CANDIDATES, MAP_CANDIDATES, RECEIVED_CANDIDATES, RECEIVED_LIFETIME},
};
use crate::permitted_addresses::Scope;

/// All candidates of a peer, IPv6 first.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates(Vec<Entry>);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub addr: SocketAddr,
    origins: Origins,
    /// The time of the last packet from there, while that makes it a candidate.
    received: Option<Duration>,
    /// The start of the last round that included it.
    round: Option<Duration>,
    pub pinged: Option<Duration>,
    pub pong: Option<Duration>,
    pub latency: Duration,
    /// Not usable as path before this time.
    pub quarantine: Duration,
}

impl Candidates {
    /// Replaces the candidates of the map. Returns whether there is a new one.
    pub(super) fn set_map(&mut self, addrs: &[SocketAddr], keep: Option<SocketAddr>) -> bool {
        self.set(addrs, MAP_CANDIDATES, |origins| &mut origins.map, keep)
    }

    /// Replaces the candidates of the last call.
    pub(super) fn set_call(&mut self, addrs: &[SocketAddr], keep: Option<SocketAddr>) {
        self.set(addrs, CALL_CANDIDATES, |origins| &mut origins.call, keep);
    }

    fn set(
        &mut self,
        addrs: &[SocketAddr],
        most: usize,
        origin: fn(&mut Origins) -> &mut bool,
        keep: Option<SocketAddr>,
    ) -> bool {
        self.0.iter_mut().for_each(|entry| *origin(&mut entry.origins) = false);
        let mut new = false;
        for addr in addrs.iter().map(|addr| canonical(*addr)).filter(may_be_reached).take(most) {
            new |= self.get(addr).is_none();
            *origin(&mut self.insert(addr).origins) = true;
        }
        self.forget(keep);
        new
    }

    /// A packet was received from an address.
    pub(super) fn note_received(
        &mut self,
        now: Duration,
        addr: SocketAddr,
        keep: Option<SocketAddr>,
    ) {
        if !may_be_reached(&addr) {
            return;
        }
        let entry = self.insert(addr);
        entry.received = Some(now);
        entry.origins.received = true;
        let heard = |entry: &&mut Entry| entry.origins.received;
        if self.0.iter().filter(|entry| entry.origins.received).count() > RECEIVED_CANDIDATES
            && let Some(oldest) = self.0.iter_mut().filter(heard).min_by_key(|entry| entry.received)
        {
            oldest.origins.received = false;
            self.forget(keep);
        }
    }

    /// Includes the candidates that may be pinged again in a round.
    pub(super) fn begin_round(&mut self, now: Duration, keep: Option<SocketAddr>) {
        for entry in &mut self.0 {
            entry.origins.received &=
                entry.received.is_some_and(|heard| now < heard + RECEIVED_LIFETIME);
        }
        self.forget(keep);
        for entry in &mut self.0 {
            if entry.round.is_none_or(|round| now >= round + AGAIN) {
                entry.round = Some(now);
            }
        }
    }

    /// Returns the candidates of the round with this start.
    pub(super) fn of_round(&self, began: Duration) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(move |entry| entry.round == Some(began))
    }

    /// Includes all candidates in the round with this start, and returns the added ones.
    pub(super) fn join_round(&mut self, began: Duration) -> Vec<SocketAddr> {
        let new = self.0.iter_mut().filter(|entry| entry.round != Some(began));
        new.map(|entry| {
            entry.round = Some(began);
            entry.addr
        })
        .collect()
    }

    /// Lets the next round ping all candidates.
    pub(super) fn reset_limits(&mut self) {
        self.0.iter_mut().for_each(|entry| entry.round = None);
    }

    pub(super) fn get(&self, addr: SocketAddr) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.addr == addr)
    }

    pub(super) fn get_mut(&mut self, addr: SocketAddr) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.addr == addr)
    }

    /// Returns whether there is a public address.
    pub(super) fn any_public(&self) -> bool {
        self.0.iter().any(|entry| is_public(entry.addr.ip()))
    }

    /// Returns whether the map or a call contains the address.
    pub(super) fn has_ip(&self, ip: IpAddr) -> bool {
        let is_told = |origins: Origins| origins.map || origins.call;
        self.0.iter().any(|entry| entry.addr.ip() == ip && is_told(entry.origins))
    }

    pub(super) fn first_of_map(&self) -> Option<SocketAddr> {
        self.0.iter().find(|entry| entry.origins.map).map(|entry| entry.addr)
    }

    /// Returns all addresses, if all come from the map and are unused.
    pub(super) fn only_of_map(&self) -> Option<Box<[SocketAddr]>> {
        let is_untouched = |entry: &Entry| {
            let mut new = Entry::new(entry.addr);
            new.origins.map = true;
            *entry == new
        };
        let all = self.0.iter();
        all.map(|entry| is_untouched(entry).then_some(entry.addr)).collect()
    }

    /// Returns the best candidate that answered after `since`.
    pub(super) fn best_since(&self, since: Duration, now: Duration) -> Option<&Entry> {
        let answered =
            |entry: &&Entry| entry.pong.is_some_and(|pong| pong > since) && now >= entry.quarantine;
        self.0.iter().filter(answered).reduce(|best, entry| {
            if entry.rank().replaces(best.rank(), false) { entry } else { best }
        })
    }

    pub(super) fn view(&self) -> Vec<Candidate> {
        self.0.iter().map(Entry::view).collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn insert(&mut self, addr: SocketAddr) -> &mut Entry {
        let at = self.0.iter().position(|entry| entry.addr == addr).unwrap_or_else(|| {
            let at = if addr.is_ipv6() {
                self.0.partition_point(|entry| entry.addr.is_ipv6())
            } else {
                self.0.len()
            };
            // Most peers have one or two.
            self.0.reserve_exact(1);
            self.0.insert(at, Entry::new(addr));
            at
        });
        &mut self.0[at]
    }

    fn forget(&mut self, keep: Option<SocketAddr>) {
        self.0.retain(|entry| entry.origins != Origins::default() || keep == Some(entry.addr));
    }
}

impl Entry {
    fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            origins: Origins::default(),
            received: None,
            round: None,
            pinged: None,
            pong: None,
            latency: Duration::ZERO,
            quarantine: Duration::ZERO,
        }
    }

    /// Returns whether a ping outside of rounds may be sent to it.
    pub(super) fn may_ping(&self, now: Duration, after: Duration) -> bool {
        self.pinged.is_none_or(|pinged| now >= pinged + after)
    }

    fn rank(&self) -> Rank {
        Rank { addr: self.addr, latency: self.latency }
    }

    fn view(&self) -> Candidate {
        let outcome = match (self.pinged, self.pong) {
            (_, Some(at)) => ProbeOutcome::Answered { at, latency: self.latency },
            (Some(last), None) => ProbeOutcome::NeverAnswered { last },
            (None, None) => ProbeOutcome::NotTried,
        };
        Candidate { addr: self.addr, origins: self.origins, outcome }
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Returns whether a peer may have an address. Loopback, link-local, unspecified, multicast and
/// broadcast addresses are excluded, and tailnet addresses, which would lead into the tunnel.
pub(super) fn may_be_reached(addr: &SocketAddr) -> bool {
    let ip = addr.ip();
    let leads_into_tunnel =
        matches!(ip, IpAddr::V6(v6) if v6.segments()[..3] == [0xfd7a, 0x115c, 0xa1e0]);
    addr.port() != 0 && !leads_into_tunnel && Scope::default().admits(ip)
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // Shared by the customers of a provider (RFC 6598).
            let shared = a == 100 && b & 0xc0 == 64;
            !(v4.is_private() || v4.is_loopback() || v4.is_link_local() || shared)
        }
        IpAddr::V6(v6) => !(v6.is_unique_local() || v6.is_loopback()),
    }
}
