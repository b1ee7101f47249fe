//! Open connections, with limits that protect clients from the connections of others.
//!
//! ```text
//!   accepted ── stranger of its address ── shows a key of the network ── connection of this machine
//!                 │ too many, or too much memory: the largest network closes the oldest connection of
//!                 │ its largest address
//!                                                │ too many of one machine: its oldest is closed
//! ```
//!
//! A flood from one address or network therefore closes only its own connections, and none of a
//! machine in the network. Handshakes are limited by address as well: an address that starts
//! thousands has two at a time.
//!
//! The memory of strangers is limited. Each connection counts with the maximum for its [`Stage`],
//! and the request data of each connection is limited.

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

use super::fair_semaphore::{FairPermit, FairSemaphore};

/// Maximum number of strangers' connections. After a restart, a network of 10,000 nodes reconnects
/// at once, possibly from one address.
const MOST_STRANGERS: usize = 12_000;
/// Maximum memory of all strangers, in bytes: that of 7,000 connections at rest.
const MEMORY: usize = 256 << 20;
/// Maximum number of connections of one machine. A client has two, and old ones may not be closed
/// yet.
const MOST_EACH: usize = 16;
/// Maximum number of concurrent handshakes, for one address and in total.
const HANDSHAKES_EACH: usize = 2;
const HANDSHAKES: usize = 2;
/// Maximum size of a request that enables tailnet lock, in bytes: signatures of about 8,000 nodes.
pub(crate) const LONGEST_TKA_BODY: usize = 2 << 20;
/// Maximum size of a request body of a machine in the network, in bytes: its description with all
/// services. And of all concurrent bodies of a connection, one of which may enable tailnet lock.
const BODY: usize = 256 << 10;
const BODIES: usize = BODY + LONGEST_TKA_BODY;
/// Maximum size of all concurrent bodies of a stranger's connection, in bytes: a description of a
/// machine.
const BODIES_OF_STRANGER: usize = 24 << 10;
/// Time after which a stranger without a request is disconnected.
const IDLE: Duration = Duration::from_secs(30);
/// Minimum interval between releases of memory to the system, and the memory of strangers, in bytes,
/// from which it is worthwhile.
const RELEASE: Duration = Duration::from_secs(10);
const MUCH: usize = 16 << 20;

/// All open connections.
pub struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    handshakes: FairSemaphore<IpAddr>,
    limits: Limits,
}

/// Maximum number of strangers, and maximum size of their memory in bytes.
#[derive(Clone, Copy)]
struct Limits {
    strangers: usize,
    memory: usize,
}

/// Progress of a stranger's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Accepted.
    Accepted,
    /// TLS is done. After a restart, many clients wait here.
    Resting,
    /// It sends a body, or another protocol after an upgrade.
    Speaking,
}

impl Stage {
    /// Maximum memory of a connection in this stage, in bytes, as measured by the end-to-end
    /// test `server::hostile::memory`.
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
    /// Memory of strangers, and its maximum since memory was last released.
    memory: usize,
    most_memory: usize,
    sources: HashMap<IpAddr, Source>,
    machines: HashMap<MachinePublic, BTreeMap<u64, watch::Sender<bool>>>,
}

/// An address with strangers.
#[derive(Default)]
struct Source {
    memory: usize,
    connections: BTreeMap<u64, Stranger>,
}

struct Stranger {
    stage: Stage,
    leave: watch::Sender<bool>,
}

/// A connection.
pub struct Connection {
    shared: Arc<Shared>,
    number: u64,
    machine: Mutex<Option<MachinePublic>>,
    /// The address that it is counted for. If both are locked, `machine` is locked first.
    source: Mutex<IpAddr>,
    evict: watch::Receiver<bool>,
    /// Total size of its bodies.
    bodies: AtomicUsize,
    first_maps: Semaphore,
    requests: Mutex<Requests>,
}

/// Number of concurrent requests, and the end of the last one.
struct Requests {
    count: usize,
    last: Instant,
}

/// A request until it is answered. Its body counts until then.
pub struct RequestGuard<'a> {
    connection: &'a Connection,
    body: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self::within(Limits { strangers: MOST_STRANGERS, memory: MEMORY })
    }
}

impl Connections {
    fn within(limits: Limits) -> Self {
        let (table, handshakes) =
            (Mutex::default(), FairSemaphore::new(HANDSHAKES, HANDSHAKES_EACH));
        Self { shared: Arc::new(Shared { table, handshakes, limits }) }
    }

    /// Periodically returns the memory of closed connections to the system.
    pub async fn release_memory(&self) {
        loop {
            sleep(RELEASE).await;
            if self.shared.lock().has_shrunk() {
                // The runtime may have ended.
                let _ = spawn_blocking(release_heap).await;
            }
        }
    }

    /// Registers a new connection.
    pub fn accept(&self, from: IpAddr) -> Connection {
        let source = source(from);
        let (leave, evict) = watch::channel(false);
        let mut table = self.shared.lock();
        table.last += 1;
        let number = table.last;
        let stage = Stage::Accepted;
        table.add_stranger(source, number, Stranger { stage, leave });
        table.make_room(self.shared.limits);
        drop(table);
        let (shared, machine) = (Arc::clone(&self.shared), Mutex::default());
        let source = Mutex::new(source);
        let (bodies, first_maps) = (AtomicUsize::new(0), Semaphore::new(1));
        let requests = Mutex::new(Requests { count: 0, last: Instant::now() });
        Connection { shared, number, machine, source, evict, bodies, first_maps, requests }
    }
}

impl Connection {
    /// Returns when the connection must be closed.
    pub async fn evicted(&self) {
        let mut evict = self.evict.clone();
        // Without a sender, it stays open.
        if evict.wait_for(|is| *is).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Sets the client's address, if the connection comes from a proxy.
    pub fn set_source(&self, client: IpAddr) {
        let client = source(client);
        let mut source = self.lock_source();
        if *source == client {
            return;
        }
        let mut table = self.shared.lock();
        // Machines of the network and evicted connections are not in the table.
        if let Some(stranger) = table.remove_stranger(*source, self.number) {
            table.add_stranger(client, self.number, stranger);
        }
        *source = client;
    }

    fn lock_source(&self) -> MutexGuard<'_, IpAddr> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns the connection to a machine of the network.
    pub fn set_machine(&self, machine: MachinePublic) {
        let mut own = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_some() {
            return;
        }
        let source = self.source();
        let mut table = self.shared.lock();
        // Evicted connections are not in the table.
        let Some(stranger) = table.remove_stranger(source, self.number) else { return };
        *own = Some(machine);
        let of_machine = table.machines.entry(machine).or_default();
        of_machine.insert(self.number, stranger.leave);
        if of_machine.len() > MOST_EACH
            && let Some((_, oldest)) = of_machine.pop_first()
        {
            let _ = oldest.send(true);
        }
    }

    /// The source: an IPv4 address, or an IPv6 network.
    pub fn source(&self) -> IpAddr {
        *self.lock_source()
    }

    /// Whether it has not been assigned to a machine.
    pub fn is_stranger(&self) -> bool {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Computes a handshake when a permit is available.
    pub async fn in_turn<T>(&self, compute: impl FnOnce() -> T) -> T {
        let _turn = self.turn().await;
        compute()
    }

    async fn turn(&self) -> Option<FairPermit<'_, IpAddr>> {
        self.shared.handshakes.acquire(self.source()).await.ok()
    }

    /// Waits until no other stream of the connection is sending its first map.
    pub async fn first_map_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.first_maps.acquire().await.ok()
    }

    /// Records that the connection reached a stage. Earlier stages are ignored.
    pub fn advance(&self, stage: Stage) {
        let source = self.source();
        let mut table = self.shared.lock();
        table.set_stage(source, self.number, stage);
        table.make_room(self.shared.limits);
    }

    /// Starts the idle timer after the handshakes.
    pub fn start_idle_timer(&self) {
        self.requests().last = Instant::now();
    }

    /// Registers a request until the guard is dropped.
    pub fn begin_request(&self) -> RequestGuard<'_> {
        self.requests().count += 1;
        RequestGuard { connection: self, body: 0 }
    }

    /// Maximum size of a body, in bytes.
    pub fn longest_body(&self) -> usize {
        if self.is_stranger() { BODIES_OF_STRANGER } else { BODY }
    }

    /// Returns when a stranger has sent no request for [`IDLE`].
    pub async fn idle(&self) {
        while self.is_stranger() {
            let now = Instant::now();
            let idle_since = self.requests().idle_since(now);
            if now >= idle_since + IDLE {
                return;
            }
            sleep_until(idle_since + IDLE).await;
        }
        std::future::pending::<()>().await;
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

impl RequestGuard<'_> {
    /// Counts bytes of the body. Returns false if the connection's bodies are too long in total.
    pub fn takes(&mut self, bytes: usize) -> bool {
        let most = if self.connection.is_stranger() { BODIES_OF_STRANGER } else { BODIES };
        let sum = self.connection.bodies.fetch_add(bytes, Relaxed) + bytes;
        self.body += bytes;
        sum <= most
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.connection.bodies.fetch_sub(self.body, Relaxed);
        let mut requests = self.connection.requests();
        requests.count -= 1;
        requests.last = Instant::now();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let machine = *self.machine.get_mut().unwrap_or_else(PoisonError::into_inner);
        let source = self.source();
        let mut table = self.shared.lock();
        let Some(machine) = machine else {
            table.remove_stranger(source, self.number);
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

    /// Closes the oldest connection of the largest network and address, until the limits are
    /// met.
    fn make_room(&mut self, limits: Limits) {
        while self.strangers > limits.strangers || self.memory > limits.memory {
            let Some(source) = self.largest() else { return };
            let oldest = self.sources[&source].connections.keys().next().copied();
            let Some(oldest) = oldest.and_then(|oldest| self.remove_stranger(source, oldest))
            else {
                return;
            };
            // It may be closed already.
            let _ = oldest.leave.send(true);
        }
    }

    /// The address with the most memory, in the network with the most.
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

    fn add_stranger(&mut self, source: IpAddr, number: u64, stranger: Stranger) {
        let of_source = self.sources.entry(source).or_default();
        self.strangers += 1;
        self.memory += stranger.stage.weight();
        self.most_memory = self.most_memory.max(self.memory);
        of_source.memory += stranger.stage.weight();
        of_source.connections.insert(number, stranger);
    }

    fn set_stage(&mut self, source: IpAddr, number: u64, stage: Stage) {
        let Some(of_source) = self.sources.get_mut(&source) else { return };
        // Evicted connections and machines of the network are not in the table.
        let Some(stranger) = of_source.connections.get_mut(&number) else { return };
        let more = stage.weight().saturating_sub(stranger.stage.weight());
        if more > 0 {
            stranger.stage = stage;
            of_source.memory += more;
            self.memory += more;
            self.most_memory = self.most_memory.max(self.memory);
        }
    }

    fn remove_stranger(&mut self, source: IpAddr, number: u64) -> Option<Stranger> {
        let of_source = self.sources.get_mut(&source)?;
        let stranger = of_source.connections.remove(&number)?;
        self.strangers -= 1;
        self.memory -= stranger.stage.weight();
        of_source.memory -= stranger.stage.weight();
        if of_source.connections.is_empty() {
            self.sources.remove(&source);
        }
        Some(stranger)
    }
}

/// The network of an address: an IPv4 /24 or an IPv6 /48.
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

/// The source of an address: the address itself, or its IPv6 /64, because a client can use all
/// addresses of it.
pub(crate) fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
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

    fn up_to(strangers: usize) -> Connections {
        Connections::within(Limits { strangers, memory: usize::MAX })
    }

    fn has_to_leave(connection: &Connection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn a_flood_from_one_address_ends_only_its_own_connections() {
        let connections = up_to(10);
        let others: Vec<Connection> =
            (0..4).map(|number| connections.accept(other(number))).collect();
        let node = connections.accept(FLOOD);
        node.set_machine(MachinePublic([1; 32]));
        let flood: Vec<Connection> = (0..100).map(|_| connections.accept(FLOOD)).collect();
        assert!(!others.iter().any(has_to_leave) && !has_to_leave(&node));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6, "the newest");
        assert!(!has_to_leave(&flood[99]) && has_to_leave(&flood[0]));
        drop(flood);
        let table = connections.shared.lock();
        assert_eq!((table.strangers, table.sources.len(), table.machines.len()), (4, 4, 1));
    }

    #[test]
    fn the_oldest_strangers_are_evicted_when_memory_runs_out() {
        let memory = 4 * Stage::Speaking.weight();
        let connections = Connections::within(Limits { strangers: 100, memory });
        let others: Vec<Connection> =
            (0..2).map(|number| connections.accept(other(number))).collect();
        let flood: Vec<Connection> = (0..5).map(|_| connections.accept(FLOOD)).collect();
        assert!(!flood.iter().any(has_to_leave));
        for connection in &flood {
            connection.advance(Stage::Speaking);
            connection.advance(Stage::Accepted);
        }
        let gone: Vec<bool> = flood.iter().map(has_to_leave).collect();
        assert_eq!(gone, [true, true, false, false, false], "the oldest leave");
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(
            connections.shared.lock().memory,
            memory - Stage::Speaking.weight() + 2 * Stage::Accepted.weight()
        );
        drop((flood, others));
        assert_eq!(connections.shared.lock().memory, 0);
    }

    #[test]
    fn a_flood_from_one_subnet_ends_only_its_own_connections() {
        let connections = up_to(10);
        let elsewhere = |number: u8| IpAddr::from([198, 51, 100, number]);
        let others: Vec<Connection> =
            (0..4).map(|number| connections.accept(elsewhere(number))).collect();
        let flood: Vec<Connection> =
            (0..100).map(|number| connections.accept(other(number))).collect();
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6);
    }

    #[test]
    fn a_flood_from_one_ipv6_site_ends_only_its_own_connections() {
        let connections = up_to(10);
        let elsewhere = |number: u8| IpAddr::from([198, 51, number, 1]);
        let others: Vec<Connection> =
            (0..4).map(|number| connections.accept(elsewhere(number))).collect();
        let subnet = |number: u16| IpAddr::from([0x2001, 0xdb8, 1, number, 0, 0, 0, 1]);
        let flood: Vec<Connection> =
            (0..100).map(|number| connections.accept(subnet(number))).collect();
        assert!(!others.iter().any(has_to_leave));
        assert_eq!(flood.iter().filter(|one| !has_to_leave(one)).count(), 6);
    }

    #[test]
    fn the_bodies_of_a_strangers_connection_are_bounded_together() {
        let connections = Connections::default();
        let connection = connections.accept(FLOOD);
        let (mut first, mut second) = (connection.begin_request(), connection.begin_request());
        assert!(first.takes(BODIES_OF_STRANGER / 2) && second.takes(BODIES_OF_STRANGER / 2));
        assert!(!first.takes(1));
        drop(second);
        assert!(first.takes(BODIES_OF_STRANGER / 2 - 1));
        connection.set_machine(MachinePublic([1; 32]));
        assert!(first.takes(BODY) && connection.longest_body() == BODY);
        drop(first);
        assert_eq!(connection.bodies.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_without_requests_becomes_idle_and_a_machine_never() {
        let connections = Connections::default();
        let connection = connections.accept(FLOOD);
        let begun = Instant::now();
        let request = connection.begin_request();
        let (idle, ()) = tokio::join!(connection.idle(), async {
            tokio::time::sleep(2 * IDLE).await;
            drop(request);
        });
        let () = idle;
        assert!((3 * IDLE..4 * IDLE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        connection.set_machine(MachinePublic([1; 32]));
        assert!(tokio::time::timeout(10 * IDLE, connection.idle()).await.is_err());
    }

    #[test]
    fn a_machines_oldest_connections_are_closed_above_its_limit() {
        let connections = Connections::default();
        let of_machine: Vec<Connection> = (0..MOST_EACH + 3)
            .map(|_| {
                let connection = connections.accept(FLOOD);
                connection.set_machine(MachinePublic([1; 32]));
                connection
            })
            .collect();
        let gone: Vec<bool> = of_machine.iter().map(has_to_leave).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 3);
        assert!(gone[0] && gone[1] && gone[2]);
        drop(of_machine);
        let table = connections.shared.lock();
        assert!(table.sources.is_empty() && table.machines.is_empty() && table.strangers == 0);
    }

    #[test]
    fn handshakes_of_one_address_wait_for_each_other() {
        let connections = Connections::default();
        let flood: Vec<Connection> = (0..3).map(|_| connections.accept(FLOOD)).collect();
        let first = flood[0].turn().now_or_never().flatten();
        let second = flood[1].turn().now_or_never().flatten();
        assert!(first.is_some() && second.is_some());
        assert!(flood[2].turn().now_or_never().is_none());
        drop(first);
        assert!(connections.accept(other(1)).turn().now_or_never().flatten().is_some());
    }

    #[test]
    fn a_permit_lasts_while_a_handshake_is_computed() {
        let connections = Connections::default();
        let flood: Vec<Connection> = (0..3).map(|_| connections.accept(FLOOD)).collect();
        let has_turn = |connection: &Connection| connection.turn().now_or_never().is_some();
        let beside = || flood[1].in_turn(|| has_turn(&flood[2])).now_or_never();
        assert_eq!(flood[0].in_turn(beside).now_or_never(), Some(Some(false)));
        assert!(has_turn(&flood[2]), "both turns are over");
    }

    #[test]
    fn a_flood_behind_a_proxy_ends_only_its_own_connections() {
        let proxy = other(9);
        let connections = up_to(10);
        let from = |client| {
            let connection = connections.accept(proxy);
            connection.set_source(client);
            connection
        };
        let others: Vec<Connection> = (0..4).map(|number| from(other(number))).collect();
        let flood: Vec<Connection> = (0..100).map(|_| from(FLOOD)).collect();
        assert!(!others.iter().any(has_to_leave));
        let first = flood[98].turn().now_or_never().flatten();
        let second = flood[99].turn().now_or_never().flatten();
        assert!(first.is_some() && second.is_some() && others[0].source() == other(0));
        // A machine's connection stays its own, whatever address it uses.
        others[0].set_machine(MachinePublic([1; 32]));
        others[0].set_source(FLOOD);
        drop((first, second));
        drop((others, flood));
        let table = connections.shared.lock();
        assert!(table.sources.is_empty() && table.machines.is_empty() && table.strangers == 0);
    }

    #[test]
    fn an_ipv6_64_is_one_source_and_a_mapped_address_counts_as_ipv4() {
        assert_eq!(source("::ffff:192.0.2.1".parse().unwrap()), FLOOD);
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
