//! Netcheck: latencies of the relays, and the addresses and NAT of this machine as the Internet
//! sees them (tailscale `net/netcheck/netcheck.go`).
//!
//! ```text
//!   start ──► probes by the plan ──► poll_transmit ──► UDP socket
//!                  ▲                                       │
//!   poll_lookup ──┘ handle_address    handle_stun_response ┘
//!                                          │ all answered, enough, or 3 s
//!                                          ▼
//!        UDP blocked? ──► poll_tcp_probe, handle_tcp_latency ──► poll_report
//! ```
//!
//! The caller resolves the hostnames of relays without addresses: `poll_lookup` returns a name, and
//! `handle_address` processes the result. After each input, and at `poll_timeout`, call
//! `poll_transmit` until it returns `None`, then `poll_report`, then `poll_tcp_probe`.

mod check_plan;
mod check_report;
mod nat_type;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rand_core::CryptoRng;
use tailnet::{
    map_messages::{DerpMap, DerpNode, DerpRegion, RelayAddress},
    stun::{self, REQUEST_LEN, TxId},
};

use self::{check_plan::Set, nat_type::Hairpin};
pub use self::{
    check_report::{NetInfo, ReflexiveAddress, Report},
    nat_type::{Mapping, Nat, PeerReports},
};
use crate::permitted_addresses::Scope;

/// UDP counts as blocked if no relay answers within this time.
const STUN_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout of the TCP measurements.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// After answers from this number of regions, the check does not wait long for others.
const ENOUGH_REGIONS: usize = 3;
/// The time between two checks of all regions.
const FULL_EVERY: Duration = Duration::from_secs(5 * 60);
/// The time between two checks: less than the 30 s after which NATs remove a mapping, and with a
/// random part, so that nodes are not synchronized.
const EVERY: Duration = Duration::from_secs(20);
const EVERY_SPREAD_MS: u32 = 6000;
/// The maximum number of stored answers of a check.
const MAX_REFLEXIVE_ADDRESSES: usize = 64;

/// Checks the network of this machine.
pub struct Netcheck {
    regions: BTreeMap<u16, DerpRegion>,
    scope: Scope,
    families: Families,
    /// The addresses of hostnames; empty if the look-up failed.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// The hostnames to look up.
    wanted: BTreeSet<String>,
    home: Option<u16>,
    last: Option<Report>,
    last_full: Option<Duration>,
    due: Duration,
    check: Option<Check>,
    report: Option<Report>,
    hairpin: Hairpin,
    rng: Box<dyn CryptoRng + Send>,
}

/// The address families of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// A running check.
#[derive(Debug)]
struct Check {
    full: bool,
    ends: Duration,
    sets: Vec<Set>,
    in_flight: BTreeMap<TxId, InFlight>,
    report: Report,
    /// The TCP measurements, once they started.
    tcp: Option<Tcp>,
}

/// Regions to measure over TCP.
#[derive(Debug)]
struct Tcp {
    /// Not yet returned to the caller.
    wanted: BTreeSet<u16>,
    /// Returned to the caller, without a result.
    awaited: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    set: usize,
    server: SocketAddr,
    sent: Duration,
}

impl Netcheck {
    /// Creates it without relays. `rng` creates the transaction IDs, which must be unpredictable.
    pub fn new(rng: Box<dyn CryptoRng + Send>) -> Self {
        Self {
            regions: BTreeMap::new(),
            scope: Scope::default(),
            families: Families { v4: true, v6: true },
            addresses: BTreeMap::new(),
            wanted: BTreeSet::new(),
            home: None,
            last: None,
            last_full: None,
            due: Duration::ZERO,
            check: None,
            report: None,
            hairpin: Hairpin::default(),
            rng,
        }
    }

    /// Sets the relays of a map. Addresses outside the scope are not used. The next check measures
    /// all regions.
    pub fn set_map(&mut self, map: &DerpMap, scope: Scope) {
        self.scope = scope;
        let regions = map.regions.iter().flatten();
        self.regions = regions.filter_map(|(id, region)| Some((*id, region.clone()?))).collect();
        let names = |region: &DerpRegion, name: &String| {
            region.nodes.iter().any(|node| node.host_name == *name)
        };
        self.addresses.retain(|name, _| self.regions.values().any(|region| names(region, name)));
        self.make_next_full();
    }

    /// Sets the address families of this machine.
    pub fn set_families(&mut self, families: Families) {
        self.families = families;
    }

    /// Sets the home region, which is measured in each check.
    pub fn set_home(&mut self, home: Option<u16>) {
        self.home = home;
    }

    /// The network changed: the next check measures all regions and does not use previous results.
    pub fn make_next_full(&mut self) {
        self.last_full = None;
        self.last = None;
        self.hairpin = Hairpin::default();
    }

    /// Returns whether this machine reaches itself at its public address; `None` if untested.
    pub fn hairpin(&self) -> Option<bool> {
        self.hairpin.works()
    }

    /// Ends a running check without a report.
    pub fn stop(&mut self) {
        self.check = None;
    }

    /// Returns the time of the next check, if it is needed at all.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Returns whether a check is running.
    pub fn is_running(&self) -> bool {
        self.check.is_some()
    }

    /// Starts a check, unless one is running.
    pub fn start(&mut self, now: Duration) {
        if self.check.is_some() {
            return;
        }
        let is_late = |last| now.saturating_sub(last) >= FULL_EVERY;
        let full = self.last.is_none() || self.last_full.is_none_or(is_late);
        let last = self.last.as_ref().filter(|last| !full && !last.latencies.is_empty());
        let sets = check_plan::plan(&self.regions, self.families, last, self.home, now);
        if full {
            self.last_full = Some(now);
            // Names are looked up again, because their addresses may have changed. The known
            // addresses are used until then.
            self.wanted.clear();
        }
        for set in &sets {
            let nodes = set.probes.iter().filter_map(|probe| self.node(set.region, probe.node));
            let unknown = nodes.filter(|node| address(node, set.v6) == RelayAddress::ByName);
            let asked = unknown.filter(|node| {
                full || self.addresses.get(&node.host_name).is_none_or(Vec::is_empty)
            });
            let asked: Vec<String> = asked.map(|node| node.host_name.clone()).collect();
            self.wanted.extend(asked);
        }
        self.check = Some(Check {
            full: last.is_none(),
            ends: now + STUN_TIMEOUT,
            sets,
            in_flight: BTreeMap::new(),
            report: Report { began: now, ..Report::default() },
            tcp: None,
        });
    }

    /// Returns a hostname to look up, each once. Pass the result to
    /// [`handle_address`](Self::handle_address).
    pub fn poll_lookup(&mut self) -> Option<String> {
        self.wanted.pop_first()
    }

    /// Sets the addresses of a hostname. Empty means that the look-up failed: previous addresses
    /// stay.
    pub fn handle_address(&mut self, name: &str, addresses: Vec<IpAddr>) {
        if addresses.is_empty() {
            self.addresses.entry(name.to_owned()).or_default();
        } else {
            self.addresses.insert(name.to_owned(), addresses);
        }
    }

    /// Processes a STUN datagram. Returns whether it answers a request of the check.
    pub fn handle_stun_response(&mut self, datagram: &[u8], now: Duration) -> bool {
        if self.hairpin.handle(datagram) {
            return true;
        }
        let Ok((tx, own)) = stun::read_response(datagram) else { return false };
        // The hairpin test sends a request to this address.
        if !self.scope.admits(own.ip()) {
            return false;
        }
        let Some(check) = &mut self.check else { return false };
        let Some(InFlight { set, server, sent }) = check.in_flight.remove(&tx) else {
            return false;
        };
        check.sets[set].done = true;
        if check.full && own.is_ipv4() {
            self.hairpin.want(own);
        }
        let latency = now.saturating_sub(sent);
        check.report.note(check.sets[set].region, ReflexiveAddress { server, own }, latency);
        let measured = &check.report.latencies;
        if measured.len() == ENOUGH_REGIONS {
            let slowest = measured.values().max().copied().unwrap_or_default();
            let wait = if check.full { slowest * 2 } else { slowest };
            check.ends = check.ends.min(now + wait);
        }
        true
    }

    /// Returns a region to measure over TCP because UDP is blocked, each once: connect with TLS and
    /// measure one request. Pass the result to [`handle_tcp_latency`](Self::handle_tcp_latency).
    pub fn poll_tcp_probe(&mut self) -> Option<u16> {
        let tcp = self.check.as_mut()?.tcp.as_mut()?;
        let region = tcp.wanted.pop_first()?;
        tcp.awaited.insert(region);
        Some(region)
    }

    /// Sets the result of a TCP measurement. It is ignored if the check does not wait for it.
    pub fn handle_tcp_latency(&mut self, region: u16, latency: Option<Duration>) {
        let Some(check) = &mut self.check else { return };
        let is_awaited = check.tcp.as_mut().is_some_and(|tcp| tcp.awaited.remove(&region));
        if let Some(latency) = latency.filter(|_| is_awaited) {
            check.report.note_latency(region, latency);
        }
    }

    /// Returns a due request for the UDP socket.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<(SocketAddr, [u8; REQUEST_LEN])> {
        if let Some(hairpin) = self.hairpin.poll_transmit(&mut self.rng) {
            return Some(hairpin);
        }
        let check = self.check.as_mut().filter(|check| check.tcp.is_none())?;
        for (number, set) in check.sets.iter_mut().enumerate() {
            set.done |= !check.report.wants(set.region, set.v6);
            while let Some(probe) = set.next(now) {
                let node = self.regions.get(&set.region);
                let node = node.and_then(|region| region.nodes.get(probe.node));
                let Some(node) = node else {
                    set.pop();
                    continue;
                };
                let server = match server(node, set.v6, &self.addresses, self.scope) {
                    ServerAddress::At(server) => server,
                    ServerAddress::Unknown => break,
                    ServerAddress::None => {
                        set.pop();
                        continue;
                    }
                };
                set.pop();
                let mut tx = TxId::default();
                self.rng.fill_bytes(&mut tx);
                check.in_flight.insert(tx, InFlight { set: number, server, sent: now });
                return Some((server, stun::request(tx)));
            }
        }
        None
    }

    /// Returns the time of the next call of [`poll_transmit`](Self::poll_transmit) and
    /// [`poll_report`](Self::poll_report).
    pub fn poll_timeout(&self) -> Option<Duration> {
        let check = self.check.as_ref()?;
        let probes = check.sets.iter().filter(|_| check.tcp.is_none());
        let is_known = |set: &&Set| {
            let node = set.due().and_then(|probe| self.node(set.region, probe.node));
            node.is_none_or(|node| {
                let at = server(node, set.v6, &self.addresses, self.scope);
                !matches!(at, ServerAddress::Unknown)
            })
        };
        let dues = probes.filter(is_known).filter_map(|set| set.due().map(|probe| probe.at));
        dues.chain([check.ends]).min()
    }

    /// Returns the report after the check has ended.
    pub fn poll_report(&mut self, now: Duration) -> Option<Report> {
        self.handle_end(now);
        self.report.take()
    }

    fn handle_end(&mut self, now: Duration) {
        let Some(check) = &mut self.check else { return };
        let is_over = match &check.tcp {
            None => check.sets.iter().all(|set| {
                // No request was sent if the addresses of the relays are unknown.
                set.done || (set.probes.is_empty() && check.in_flight.is_empty())
            }),
            Some(tcp) => tcp.wanted.is_empty() && tcp.awaited.is_empty(),
        };
        if !is_over && now < check.ends {
            return;
        }
        let is_measured = |region: &&DerpRegion| {
            let relays = region.nodes.iter().any(|node| !node.stun_only);
            relays && !region.avoid && !region.no_measure_no_home
        };
        let wanted: BTreeSet<u16> = self
            .regions
            .iter()
            .filter_map(|(id, region)| is_measured(&region).then_some(*id))
            .collect();
        if check.tcp.is_none() && !check.report.udp && !wanted.is_empty() {
            check.tcp = Some(Tcp { wanted, awaited: BTreeSet::new() });
            check.ends = now + TCP_TIMEOUT;
            return;
        }
        let Some(check) = self.check.take() else { return };
        let mut jitter = [0; 4];
        self.rng.fill_bytes(&mut jitter);
        let jitter = u32::from_le_bytes(jitter) % EVERY_SPREAD_MS;
        self.due = now + EVERY + Duration::from_millis(jitter.into());
        self.last = Some(check.report.clone());
        self.report = Some(check.report);
    }

    fn node(&self, region: u16, number: usize) -> Option<&DerpNode> {
        self.regions.get(&region)?.nodes.get(number)
    }
}

impl fmt::Debug for Netcheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Netcheck").field("check", &self.check).finish_non_exhaustive()
    }
}

/// The address of a relay's STUN server.
enum ServerAddress {
    At(SocketAddr),
    /// The hostname has not been looked up.
    Unknown,
    None,
}

/// Returns the address of a relay in one family.
fn address(node: &DerpNode, v6: bool) -> RelayAddress<IpAddr> {
    let is_family = |ip: &IpAddr| ip.is_ipv6() == v6;
    if node.stun_port().is_none() {
        return RelayAddress::Nowhere;
    }
    // The hostname may be an address.
    let literal = if node.stun_test_ip.is_empty() {
        let by_name = if v6 {
            node.ipv6() == RelayAddress::ByName
        } else {
            node.ipv4() == RelayAddress::ByName
        };
        by_name.then(|| node.host_name.parse().ok()).flatten()
    } else {
        match node.stun_test_ip.parse() {
            Ok(ip) => Some(ip),
            Err(_) => return RelayAddress::Nowhere,
        }
    };
    if let Some(ip) = literal {
        return if is_family(&ip) { RelayAddress::At(ip) } else { RelayAddress::Nowhere };
    }
    let known = if v6 {
        node.ipv6().address().map(IpAddr::V6)
    } else {
        node.ipv4().address().map(IpAddr::V4)
    };
    let by_name =
        if v6 { node.ipv6() == RelayAddress::ByName } else { node.ipv4() == RelayAddress::ByName };
    match known {
        Some(ip) => RelayAddress::At(ip),
        None if by_name && !node.host_name.is_empty() => RelayAddress::ByName,
        None => RelayAddress::Nowhere,
    }
}

fn server(
    node: &DerpNode,
    v6: bool,
    addresses: &BTreeMap<String, Vec<IpAddr>>,
    scope: Scope,
) -> ServerAddress {
    let Some(port) = node.stun_port() else { return ServerAddress::None };
    let ip = match address(node, v6) {
        RelayAddress::At(ip) => Some(ip).filter(|ip| scope.admits(*ip)),
        RelayAddress::Nowhere => None,
        RelayAddress::ByName => match addresses.get(&node.host_name) {
            None => return ServerAddress::Unknown,
            Some(found) => {
                found.iter().find(|ip| ip.is_ipv6() == v6 && scope.admits(**ip)).copied()
            }
        },
    };
    match ip {
        Some(ip) => ServerAddress::At(SocketAddr::new(ip, port)),
        None => ServerAddress::None,
    }
}

#[cfg(test)]
mod tests;
