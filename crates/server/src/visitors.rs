//! Who is connected, so that nobody's connections are at the expense of others'.
//!
//! ```text
//!   accepted ── a stranger of its address ── shows a key of the network ── one of that machine's
//!                 │ too many, or too much memory: the network that has most gives up the oldest of
//!                 │ its address that has most
//!                                                │ too many of one machine: its oldest goes
//! ```
//!
//! A flood from one address or network therefore ends its own connections and no other's, and none of a
//! machine that is in the network. Strangers wait for the costly part of a handshake by address, too: an
//! address that begins thousands has two at a time.
//!
//! The memory of strangers is bounded. Each connection counts with the most that it can take in its
//! [`Stage`], and the text of its requests is bounded for each connection.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use sys::process::release_heap;
use tailnet::keys::MachinePublic;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    fair_turns::{FairTurns, Turn},
    lock,
};

/// The most connections of strangers: a network of 10,000 nodes whose server starts again comes at
/// once, maybe all from one address.
const MOST_STRANGERS: usize = 12_000;
/// The most memory of all strangers, in bytes: that of 7,000 connections at rest.
const MEMORY: usize = 256 << 20;
/// The most connections of one machine: a client has two, and old ones that are not known to be
/// dead.
const MOST_EACH: usize = 16;
/// How many handshakes are computed at once, of one address and of all.
const HANDSHAKES_EACH: usize = 2;
const HANDSHAKES: usize = 2;
/// The longest body of a machine of the network, in bytes: its description of itself with all its
/// services; and the bodies of one connection together, one of which may turn tailnet lock on.
const BODY: usize = 256 << 10;
const BODIES: usize = BODY + lock::LONGEST;
/// The bodies of a stranger's connection together, in bytes: a description of a machine.
const BODIES_OF_STRANGER: usize = 24 << 10;
/// A stranger without a request is disconnected after this time.
const IDLE: Duration = Duration::from_secs(30);
/// Memory is returned to the system at most this often, and only after strangers took this many bytes.
const RELEASE: Duration = Duration::from_secs(10);
const MUCH: usize = 16 << 20;

/// Everybody who is connected.
pub struct Visitors {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    handshakes: FairTurns<IpAddr>,
    limits: Limits,
}

/// The most strangers, and the most bytes of their memory.
#[derive(Clone, Copy)]
struct Limits {
    strangers: usize,
    memory: usize,
}

/// How far a stranger's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is accepted.
    Accepted,
    /// TLS is done. Many clients of a network that starts again wait here for their turn.
    Resting,
    /// It sends a body, or speaks another protocol after an upgrade.
    Speaking,
}

impl Stage {
    /// The most memory that a connection takes in this stage, in bytes, as the end-to-end test
    /// `server::hostile::memory` measures it.
    const fn weight(self) -> usize {
        match self {
            Self::Accepted => 24 << 10,
            Self::Resting => 36 << 10,
            Self::Speaking => 76 << 10,
        }
    }
}

#[derive(Default)]
struct Table {
    last: u64,
    strangers: usize,
    /// The memory of strangers, and the most that it was since memory was released.
    memory: usize,
    most_memory: usize,
    sources: HashMap<IpAddr, Source>,
    machines: HashMap<MachinePublic, BTreeMap<u64, watch::Sender<bool>>>,
}

/// An address with strangers.
#[derive(Default)]
struct Source {
    memory: usize,
    visitors: BTreeMap<u64, Stranger>,
}

struct Stranger {
    stage: Stage,
    leave: watch::Sender<bool>,
}

/// A connection.
pub struct Visitor {
    shared: Arc<Shared>,
    number: u64,
    machine: Mutex<Option<MachinePublic>>,
    /// The address that it is counted for. Locked behind `machine`, if both are.
    source: Mutex<IpAddr>,
    is_to_leave: watch::Receiver<bool>,
    /// The bytes of its bodies.
    bodies: AtomicUsize,
    first_maps: Semaphore,
    requests: Mutex<Requests>,
}

/// The requests of a connection that are being answered, and when the last one ended.
struct Requests {
    count: usize,
    last: Instant,
}

/// A request, until it is answered: its body counts until then.
pub struct Asking<'a> {
    visitor: &'a Visitor,
    body: usize,
}

impl Default for Visitors {
    fn default() -> Self {
        Self::within(Limits { strangers: MOST_STRANGERS, memory: MEMORY })
    }
}

impl Visitors {
    fn within(limits: Limits) -> Self {
        let (table, handshakes) = (Mutex::default(), FairTurns::new(HANDSHAKES, HANDSHAKES_EACH));
        Self { shared: Arc::new(Shared { table, handshakes, limits }) }
    }

    /// Returns the memory of strangers that have left to the system, for as long as the server runs.
    pub async fn release_memory(&self) {
        loop {
            sleep(RELEASE).await;
            if self.shared.lock().has_shrunk() {
                // The runtime may end meanwhile.
                let _ = spawn_blocking(release_heap).await;
            }
        }
    }

    /// Somebody connects.
    pub fn arrive(&self, from: IpAddr) -> Visitor {
        let source = source(from);
        let (leave, is_to_leave) = watch::channel(false);
        let mut table = self.shared.lock();
        table.last += 1;
        let number = table.last;
        let stage = Stage::Accepted;
        table.note_stranger(source, number, Stranger { stage, leave });
        table.make_room(self.shared.limits);
        drop(table);
        let (shared, machine) = (Arc::clone(&self.shared), Mutex::default());
        let source = Mutex::new(source);
        let (bodies, first_maps) = (AtomicUsize::new(0), Semaphore::new(1));
        let requests = Mutex::new(Requests { count: 0, last: Instant::now() });
        Visitor { shared, number, machine, source, is_to_leave, bodies, first_maps, requests }
    }
}

impl Visitor {
    /// Ends when the connection has to.
    pub async fn must_leave(&self) {
        let mut is_to_leave = self.is_to_leave.clone();
        // Without a sender nobody can ask it to.
        if is_to_leave.wait_for(|is| *is).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// It comes from this address, though its connection may come from a proxy.
    pub fn comes_from(&self, client: IpAddr) {
        let client = source(client);
        let mut source = self.lock_source();
        if *source == client {
            return;
        }
        let mut table = self.shared.lock();
        // A machine's of the network, and one that was told to leave, are in the table no more.
        if let Some(stranger) = table.forget_stranger(*source, self.number) {
            table.note_stranger(client, self.number, stranger);
        }
        *source = client;
    }

    fn lock_source(&self) -> MutexGuard<'_, IpAddr> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is a machine's of the network.
    pub fn belongs_to(&self, machine: MachinePublic) {
        let mut own = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_some() {
            return;
        }
        let source = self.source();
        let mut table = self.shared.lock();
        // One that was told to leave is in the table no more.
        let Some(stranger) = table.forget_stranger(source, self.number) else { return };
        *own = Some(machine);
        let of_machine = table.machines.entry(machine).or_default();
        of_machine.insert(self.number, stranger.leave);
        if of_machine.len() > MOST_EACH
            && let Some((_, oldest)) = of_machine.pop_first()
        {
            let _ = oldest.send(true);
        }
    }

    /// The address, or the network of IPv6, that it comes from.
    pub fn source(&self) -> IpAddr {
        *self.lock_source()
    }

    /// Whether it has not shown that it is of the network.
    pub fn is_stranger(&self) -> bool {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Computes a handshake as soon as it is this visitor's turn.
    pub async fn in_turn<T>(&self, compute: impl FnOnce() -> T) -> T {
        let _turn = self.turn().await;
        compute()
    }

    async fn turn(&self) -> Option<Turn<'_, IpAddr>> {
        self.shared.handshakes.take(self.source()).await.ok()
    }

    /// Waits until no other stream of the connection is sent its first map.
    pub async fn first_map(&self) -> Option<SemaphorePermit<'_>> {
        self.first_maps.acquire().await.ok()
    }

    /// The connection has come to a stage, unless it had already.
    pub fn reaches(&self, stage: Stage) {
        let source = self.source();
        let mut table = self.shared.lock();
        table.note_stage(source, self.number, stage);
        table.make_room(self.shared.limits);
    }

    /// The connection can carry requests from now on: it has waited for its handshakes.
    pub fn begins(&self) {
        self.requests().last = Instant::now();
    }

    /// A request begins. It lasts until the returned value is dropped.
    pub fn begin_request(&self) -> Asking<'_> {
        self.requests().count += 1;
        Asking { visitor: self, body: 0 }
    }

    /// The longest body, in bytes.
    pub fn longest_body(&self) -> usize {
        if self.is_stranger() { BODIES_OF_STRANGER } else { BODY }
    }

    /// Ends when a stranger has sent no request for [`IDLE`].
    pub async fn is_idle(&self) {
        while self.is_stranger() {
            let now = Instant::now();
            let idle_since = self.requests().idle_since(now);
            if now >= idle_since + IDLE {
                return;
            }
            sleep_until(idle_since + IDLE).await;
        }
        std::future::pending().await
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    fn idle_since(&self, now: Instant) -> Instant {
        if self.count > 0 { now } else { self.last }
    }
}

impl Asking<'_> {
    /// Takes more bytes of its body. False if the bodies of the connection would be too long together.
    pub fn takes(&mut self, bytes: usize) -> bool {
        let most = if self.visitor.is_stranger() { BODIES_OF_STRANGER } else { BODIES };
        let sum = self.visitor.bodies.fetch_add(bytes, Relaxed) + bytes;
        self.body += bytes;
        sum <= most
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.visitor.bodies.fetch_sub(self.body, Relaxed);
        let mut requests = self.visitor.requests();
        requests.count -= 1;
        requests.last = Instant::now();
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let machine = *self.machine.get_mut().unwrap_or_else(PoisonError::into_inner);
        let source = self.source();
        let mut table = self.shared.lock();
        let Some(machine) = machine else {
            table.forget_stranger(source, self.number);
            return;
        };
        if let Some(of_machine) = table.machines.get_mut(&machine) {
            of_machine.remove(&self.number);
            if of_machine.is_empty() {
                table.machines.remove(&machine);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whether strangers take much less memory than before.
    fn has_shrunk(&mut self) -> bool {
        let has_shrunk = self.most_memory > MUCH && self.memory < self.most_memory / 2;
        if has_shrunk {
            self.most_memory = self.memory;
        }
        has_shrunk
    }

    /// Has the oldest of the network and address that have most leave, until all are within the limits.
    fn make_room(&mut self, limits: Limits) {
        while self.strangers > limits.strangers || self.memory > limits.memory {
            let Some(source) = self.largest() else { return };
            let oldest = self.sources[&source].visitors.keys().next().copied();
            let Some(oldest) = oldest.and_then(|oldest| self.forget_stranger(source, oldest))
            else {
                return;
            };
            // It may have gone by itself.
            let _ = oldest.leave.send(true);
        }
    }

    /// The address with most memory, of the network with most.
    fn largest(&self) -> Option<IpAddr> {
        let mut networks: HashMap<IpAddr, (usize, usize, IpAddr)> = HashMap::new();
        for (&address, source) in &self.sources {
            let (sum, most, largest) = networks.entry(network(address)).or_insert((0, 0, address));
            *sum += source.memory;
            if source.memory > *most {
                (*most, *largest) = (source.memory, address);
            }
        }
        networks.into_values().max_by_key(|(sum, ..)| *sum).map(|(.., largest)| largest)
    }

    fn note_stranger(&mut self, source: IpAddr, number: u64, stranger: Stranger) {
        let of_source = self.sources.entry(source).or_default();
        self.strangers += 1;
        self.memory += stranger.stage.weight();
        self.most_memory = self.most_memory.max(self.memory);
        of_source.memory += stranger.stage.weight();
        of_source.visitors.insert(number, stranger);
    }

    fn note_stage(&mut self, source: IpAddr, number: u64, stage: Stage) {
        let Some(of_source) = self.sources.get_mut(&source) else { return };
        // One that was told to leave, and a machine's of the network, are in the table no more.
        let Some(stranger) = of_source.visitors.get_mut(&number) else { return };
        let more = stage.weight().saturating_sub(stranger.stage.weight());
        if more > 0 {
            stranger.stage = stage;
            of_source.memory += more;
            self.memory += more;
            self.most_memory = self.most_memory.max(self.memory);
        }
    }

    fn forget_stranger(&mut self, source: IpAddr, number: u64) -> Option<Stranger> {
        let of_source = self.sources.get_mut(&source)?;
        let stranger = of_source.visitors.remove(&number)?;
        self.strangers -= 1;
        self.memory -= stranger.stage.weight();
        of_source.memory -= stranger.stage.weight();
        if of_source.visitors.is_empty() {
            self.sources.remove(&source);
        }
        Some(stranger)
    }
}

/// The network of an address: a /24 of IPv4, or a /48 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, 0).into()
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).into()
        }
    }
}

/// What counts as one address: of IPv6 a network, of which everybody has as many as they like.
pub fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn other(number: u8) -> IpAddr {
        [192, 0, 2, 10 + number].into()
    }

    fn up_to(strangers: usize) -> Visitors {
        Visitors::within(Limits { strangers, memory: usize::MAX })
    }

    fn has_to_leave(visitor: &Visitor) -> bool {
        visitor.must_leave().now_or_never().is_some()
    }

    #[test]
    fn a_flood_ends_its_own_connections_and_no_others() {
        let visitors = up_to(10);
        let others: Vec<Visitor> = (0..4).map(|number| visitors.arrive(other(number))).collect();
        let node = visitors.arrive(FLOOD);
        node.belongs_to(MachinePublic([1; 32]));
        let flood: Vec<Visitor> = (0..100).map(|_| visitors.arrive(FLOOD)).collect();
        assert!(!others.iter().any(has_to_leave) && !has_to_leave(&node));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6, "the newest");
        assert!(!has_to_leave(&flood[99]) && has_to_leave(&flood[0]));
        drop(flood);
        let table = visitors.shared.lock();
        assert_eq!((table.strangers, table.sources.len(), table.machines.len()), (4, 4, 1));
    }

    #[test]
    fn strangers_leave_for_memory_that_others_reach() {
        let memory = 4 * Stage::Speaking.weight();
        let visitors = Visitors::within(Limits { strangers: 100, memory });
        let others: Vec<Visitor> = (0..2).map(|number| visitors.arrive(other(number))).collect();
        let flood: Vec<Visitor> = (0..5).map(|_| visitors.arrive(FLOOD)).collect();
        assert!(!flood.iter().any(has_to_leave));
        for visitor in &flood {
            visitor.reaches(Stage::Speaking);
            visitor.reaches(Stage::Accepted);
        }
        let gone: Vec<bool> = flood.iter().map(has_to_leave).collect();
        assert_eq!(gone, [true, true, false, false, false], "the oldest leave");
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(
            visitors.shared.lock().memory,
            memory - Stage::Speaking.weight() + 2 * Stage::Accepted.weight()
        );
        drop((flood, others));
        assert_eq!(visitors.shared.lock().memory, 0);
    }

    #[test]
    fn a_flood_from_the_addresses_of_a_network_ends_its_own_connections_and_no_others() {
        let visitors = up_to(10);
        let elsewhere = |number: u8| IpAddr::from([198, 51, 100, number]);
        let others: Vec<Visitor> =
            (0..4).map(|number| visitors.arrive(elsewhere(number))).collect();
        let flood: Vec<Visitor> = (0..100).map(|number| visitors.arrive(other(number))).collect();
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6);
    }

    #[test]
    fn a_flood_from_the_subnets_of_a_site_ends_its_own_connections_and_no_others() {
        let visitors = up_to(10);
        let elsewhere = |number: u8| IpAddr::from([198, 51, number, 1]);
        let others: Vec<Visitor> =
            (0..4).map(|number| visitors.arrive(elsewhere(number))).collect();
        let subnet = |number: u16| IpAddr::from([0x2001, 0xdb8, 1, number, 0, 0, 0, 1]);
        let flood: Vec<Visitor> = (0..100).map(|number| visitors.arrive(subnet(number))).collect();
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6);
    }

    #[test]
    fn the_bodies_of_a_strangers_connection_are_bounded_together() {
        let visitors = Visitors::default();
        let visitor = visitors.arrive(FLOOD);
        let (mut first, mut second) = (visitor.begin_request(), visitor.begin_request());
        assert!(first.takes(BODIES_OF_STRANGER / 2) && second.takes(BODIES_OF_STRANGER / 2));
        assert!(!first.takes(1));
        drop(second);
        assert!(first.takes(BODIES_OF_STRANGER / 2 - 1));
        visitor.belongs_to(MachinePublic([1; 32]));
        assert!(first.takes(BODY) && visitor.longest_body() == BODY);
        drop(first);
        assert_eq!(visitor.bodies.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_without_a_request_is_idle_after_a_while_and_a_machine_never() {
        let visitors = Visitors::default();
        let visitor = visitors.arrive(FLOOD);
        let begun = Instant::now();
        let request = visitor.begin_request();
        let (idle, ()) = tokio::join!(visitor.is_idle(), async {
            tokio::time::sleep(2 * IDLE).await;
            drop(request);
        });
        let () = idle;
        assert!((3 * IDLE..4 * IDLE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        visitor.belongs_to(MachinePublic([1; 32]));
        assert!(tokio::time::timeout(10 * IDLE, visitor.is_idle()).await.is_err());
    }

    #[test]
    fn one_machine_has_so_many_connections_and_its_oldest_go() {
        let visitors = Visitors::default();
        let of_machine: Vec<Visitor> = (0..MOST_EACH + 3)
            .map(|_| {
                let visitor = visitors.arrive(FLOOD);
                visitor.belongs_to(MachinePublic([1; 32]));
                visitor
            })
            .collect();
        let gone: Vec<bool> = of_machine.iter().map(has_to_leave).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 3);
        assert!(gone[0] && gone[1] && gone[2]);
        drop(of_machine);
        let table = visitors.shared.lock();
        assert!(table.sources.is_empty() && table.machines.is_empty() && table.strangers == 0);
    }

    #[test]
    fn handshakes_of_one_address_wait_for_each_other() {
        let visitors = Visitors::default();
        let flood: Vec<Visitor> = (0..3).map(|_| visitors.arrive(FLOOD)).collect();
        let first = flood[0].turn().now_or_never().flatten();
        let second = flood[1].turn().now_or_never().flatten();
        assert!(first.is_some() && second.is_some());
        assert!(flood[2].turn().now_or_never().is_none());
        drop(first);
        assert!(visitors.arrive(other(1)).turn().now_or_never().flatten().is_some());
    }

    #[test]
    fn a_turn_lasts_for_as_long_as_a_handshake_is_computed() {
        let visitors = Visitors::default();
        let flood: Vec<Visitor> = (0..3).map(|_| visitors.arrive(FLOOD)).collect();
        let has_turn = |visitor: &Visitor| visitor.turn().now_or_never().is_some();
        let beside = || flood[1].in_turn(|| has_turn(&flood[2])).now_or_never();
        assert_eq!(flood[0].in_turn(beside).now_or_never(), Some(Some(false)));
        assert!(has_turn(&flood[2]), "both turns are over");
    }

    #[test]
    fn behind_a_proxy_a_flood_ends_its_own_connections_and_no_others() {
        let proxy = other(9);
        let visitors = up_to(10);
        let from = |client| {
            let visitor = visitors.arrive(proxy);
            visitor.comes_from(client);
            visitor
        };
        let others: Vec<Visitor> = (0..4).map(|number| from(other(number))).collect();
        let flood: Vec<Visitor> = (0..100).map(|_| from(FLOOD)).collect();
        assert!(!others.iter().any(has_to_leave));
        let first = flood[98].turn().now_or_never().flatten();
        let second = flood[99].turn().now_or_never().flatten();
        assert!(first.is_some() && second.is_some() && others[0].source() == other(0));
        // A machine's stays its own, wherever it comes from next.
        others[0].belongs_to(MachinePublic([1; 32]));
        others[0].comes_from(FLOOD);
        drop((first, second));
        drop((others, flood));
        let table = visitors.shared.lock();
        assert!(table.sources.is_empty() && table.machines.is_empty() && table.strangers == 0);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_and_a_mapped_address_as_its_own() {
        assert_eq!(source("::ffff:192.0.2.1".parse().unwrap()), FLOOD);
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
