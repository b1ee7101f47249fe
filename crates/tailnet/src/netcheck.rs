//! Netcheck: how far the relays are, and how the Internet sees this machine (tailscale
//! `net/netcheck/netcheck.go`).
//!
//! ```text
//!   start ──► probes by the plan ──► poll_transmit ──► UDP socket
//!                  ▲                                       │
//!   poll_lookup ─┘ handle_address   handle_stun_response ◄┘
//!                                          │ all answered, enough, or 3 s
//!                                          ▼
//!        UDP blocked? ──► poll_tcp_probe, handle_tcp_latency ──► poll_report
//! ```
//!
//! Relays that have a name only are asked once the caller has looked it up: `poll_lookup` names
//! what to look up, and `handle_address` takes what was found. Call `poll_transmit` until it has
//! nothing after each input and when `poll_timeout` says so, then `poll_report`, and then `poll_tcp_probe`.

mod nat;
mod plan;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rand_core::CryptoRng;

pub use self::nat::{Mapping, Nat, PeerReports};
pub use self::report::{NetInfo, ReflexiveAddress, Report};
use self::{nat::Hairpin, plan::Set};
use crate::{
    messages::{DerpMap, DerpNode, DerpRegion, RelayAddress},
    scope::Scope,
    stun::{self, REQUEST_LEN, TxId},
};

/// UDP is blocked if no relay answers for so long.
const STUN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long TCP may take then.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// Latencies of so many regions are enough not to wait long for others.
const ENOUGH_REGIONS: usize = 3;
/// Between two checks of all regions.
const FULL_EVERY: Duration = Duration::from_secs(5 * 60);
/// Between two checks: less than the 30 s after which NATs forget a mapping, and not in step with
/// others.
const EVERY: Duration = Duration::from_secs(20);
const EVERY_SPREAD_MS: u32 = 6000;
/// Answers that are kept of a check.
const MAX_REFLEXIVE_ADDRESSES: usize = 64;

/// Finds out what this machine's network is like.
pub struct Netcheck {
    regions: BTreeMap<u16, DerpRegion>,
    scope: Scope,
    families: Families,
    /// What names stand for; nothing if they could not be looked up.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Names to be looked up.
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

/// The families of addresses that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// A check under way.
#[derive(Debug)]
struct Check {
    full: bool,
    ends: Duration,
    sets: Vec<Set>,
    in_flight: BTreeMap<TxId, InFlight>,
    report: Report,
    /// Once it came to that.
    tcp: Option<Tcp>,
}

/// Regions that are measured by TCP.
#[derive(Debug)]
struct Tcp {
    /// Not told yet.
    wanted: BTreeSet<u16>,
    /// Told, and not measured yet.
    awaited: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    set: usize,
    server: SocketAddr,
    sent: Duration,
}

impl Netcheck {
    /// Without relays. `rng` gives the numbers of requests, which nobody may guess.
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

    /// Takes the relays of a map, of which those at other addresses than the scope's are not asked. The
    /// next check is one of all regions.
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

    /// Says which families of addresses this machine has.
    pub fn set_families(&mut self, families: Families) {
        self.families = families;
    }

    /// Says which region is home: it is measured each time.
    pub fn set_home(&mut self, home: Option<u16>) {
        self.home = home;
    }

    /// The network is another: the next check is one of all regions, and takes nothing for granted.
    pub fn make_next_full(&mut self) {
        self.last_full = None;
        self.last = None;
        self.hairpin = Hairpin::default();
    }

    /// Whether this machine reaches itself by its address outside; nothing if that was not tried.
    pub fn hairpin(&self) -> Option<bool> {
        self.hairpin.works()
    }

    /// Ends a check that is under way, without a report.
    pub fn stop(&mut self) {
        self.check = None;
    }

    /// When the next check is due, if peers are spoken to.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Whether a check is under way.
    pub fn is_running(&self) -> bool {
        self.check.is_some()
    }

    /// Begins a check, unless one is under way.
    pub fn start(&mut self, now: Duration) {
        if self.check.is_some() {
            return;
        }
        let is_late = |last| now.saturating_sub(last) >= FULL_EVERY;
        let full = self.last.is_none() || self.last_full.is_none_or(is_late);
        let last = self.last.as_ref().filter(|last| !full && !last.latencies.is_empty());
        let sets = plan::plan(&self.regions, self.families, last, self.home, now);
        if full {
            self.last_full = Some(now);
            // Names may stand for other addresses meanwhile. Those known are used until then.
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

    /// Names of relays to be looked up. Each is told once; say what came of it by
    /// [`handle_address`](Self::handle_address).
    pub fn poll_lookup(&mut self) -> Option<String> {
        self.wanted.pop_first()
    }

    /// Takes what a name stands for; nothing if that cannot be said. What was known before is kept
    /// then.
    pub fn handle_address(&mut self, name: &str, addresses: Vec<IpAddr>) {
        if !addresses.is_empty() {
            self.addresses.insert(name.to_owned(), addresses);
        } else {
            self.addresses.entry(name.to_owned()).or_default();
        }
    }

    /// Takes a datagram of STUN. Returns whether it answers a request of the check.
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

    /// A region to be measured by TCP, as UDP is blocked: connect to it with TLS and time one
    /// request. Each is told once; say what came of it by
    /// [`handle_tcp_latency`](Self::handle_tcp_latency).
    pub fn poll_tcp_probe(&mut self) -> Option<u16> {
        let tcp = self.check.as_mut()?.tcp.as_mut()?;
        let region = tcp.wanted.pop_first()?;
        tcp.awaited.insert(region);
        Some(region)
    }

    /// Takes what came of measuring a region by TCP. Counts only while a check waits for it.
    pub fn handle_tcp_latency(&mut self, region: u16, latency: Option<Duration>) {
        let Some(check) = &mut self.check else { return };
        let is_awaited = check.tcp.as_mut().is_some_and(|tcp| tcp.awaited.remove(&region));
        if let Some(latency) = latency.filter(|_| is_awaited) {
            check.report.note_latency(region, latency);
        }
    }

    /// A request to be sent by the UDP socket, if one is due.
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

    /// When to call [`poll_transmit`](Self::poll_transmit) and [`poll_report`](Self::poll_report)
    /// next.
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

    /// What the check found, once it has ended.
    pub fn poll_report(&mut self, now: Duration) -> Option<Report> {
        self.handle_end(now);
        self.report.take()
    }

    fn handle_end(&mut self, now: Duration) {
        let Some(check) = &mut self.check else { return };
        let is_over = match &check.tcp {
            None => check.sets.iter().all(|set| {
                // Nothing was sent where a relay turned out to be nowhere.
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

/// Where a relay's STUN is.
enum ServerAddress {
    At(SocketAddr),
    /// Its name has not been looked up.
    Unknown,
    None,
}

/// Where a relay is, in one family.
fn address(node: &DerpNode, v6: bool) -> RelayAddress<IpAddr> {
    let is_family = |ip: &IpAddr| ip.is_ipv6() == v6;
    if node.stun_port().is_none() {
        return RelayAddress::Nowhere;
    }
    // A name may be an address itself.
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
