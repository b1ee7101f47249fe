//! Who is connected, so that nobody's connections are at the expense of others'.
//!
//! ```text
//!   accepted ── a stranger of its address ── shows a key of the network ── one of that machine's
//!                 │ too many of all: the address with most gives up its oldest
//!                                                │ too many of one machine: its oldest goes
//! ```
//!
//! A flood from one address therefore ends its own connections and no other's, and none of a machine
//! that is in the network. Strangers wait for the costly part of a handshake by address, too: whoever
//! begins thousands has two at a time.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tailnet::keys::MachinePublic;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

/// The most connections of strangers: a network of 10,000 nodes whose server starts again comes at
/// once, maybe all from one address.
const MOST_STRANGERS: usize = 12_000;
/// The most connections of one machine: a client has two, and old ones that are not known to be
/// dead.
const MOST_EACH: usize = 64;
/// How many handshakes are computed at once, of one address and of all.
const HANDSHAKES_EACH: usize = 2;
const HANDSHAKES: usize = 2;
/// How many bodies of one connection are taken at once.
const BODIES: usize = 4;
/// The longest body, in bytes: a machine's description of itself with all it listens on, and what a
/// stranger may say.
const LONGEST_BODY: usize = 256 << 10;
const LONGEST_OF_STRANGER: usize = 64 << 10;

/// Everybody who is connected.
pub struct Visitors {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    handshakes: Semaphore,
    most: usize,
}

#[derive(Default)]
struct Table {
    last: u64,
    strangers: usize,
    sources: HashMap<IpAddr, Source>,
    machines: HashMap<MachinePublic, BTreeMap<u64, watch::Sender<bool>>>,
}

/// An address with strangers.
struct Source {
    handshakes: Arc<Semaphore>,
    visitors: BTreeMap<u64, watch::Sender<bool>>,
}

/// A connection.
pub struct Visitor {
    shared: Arc<Shared>,
    number: u64,
    machine: Mutex<Option<MachinePublic>>,
    /// Locked behind `machine`, if both are.
    place: Mutex<Place>,
    is_to_leave: watch::Receiver<bool>,
    bodies: Semaphore,
    first_maps: Semaphore,
}

/// Where a connection counts.
struct Place {
    source: IpAddr,
    handshakes: Arc<Semaphore>,
}

/// Leave to compute a handshake.
struct Turn<'a> {
    _own: OwnedSemaphorePermit,
    _all: SemaphorePermit<'a>,
}

impl Default for Visitors {
    fn default() -> Self {
        Self::up_to(MOST_STRANGERS)
    }
}

impl Visitors {
    fn up_to(most: usize) -> Self {
        let (table, handshakes) = (Mutex::default(), Semaphore::new(HANDSHAKES));
        Self { shared: Arc::new(Shared { table, handshakes, most }) }
    }

    /// Somebody connects.
    pub fn arrive(&self, from: IpAddr) -> Visitor {
        let source = source(from);
        let (sender, is_to_leave) = watch::channel(false);
        let mut table = self.shared.lock();
        table.last += 1;
        let number = table.last;
        let handshakes = table.note_stranger(source, number, sender);
        if table.strangers > self.shared.most {
            table.make_room();
        }
        drop(table);
        let (shared, machine) = (Arc::clone(&self.shared), Mutex::default());
        let place = Mutex::new(Place { source, handshakes });
        let (bodies, first_maps) = (Semaphore::new(BODIES), Semaphore::new(1));
        Visitor { shared, number, machine, place, is_to_leave, bodies, first_maps }
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
        let source = source(client);
        let mut place = self.place();
        if place.source == source {
            return;
        }
        let mut table = self.shared.lock();
        // A machine's of the network, and one that was told to leave, are in the table no more.
        if let Some(sender) = table.forget_stranger(place.source, self.number) {
            place.handshakes = table.note_stranger(source, self.number, sender);
        }
        place.source = source;
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Some(sender) = table.forget_stranger(source, self.number) else { return };
        *own = Some(machine);
        let of_machine = table.machines.entry(machine).or_default();
        of_machine.insert(self.number, sender);
        if of_machine.len() > MOST_EACH
            && let Some((_, oldest)) = of_machine.pop_first()
        {
            let _ = oldest.send(true);
        }
    }

    /// The address, or the network of IPv6, that it comes from.
    pub fn source(&self) -> IpAddr {
        self.place().source
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

    async fn turn(&self) -> Option<Turn<'_>> {
        let own = Arc::clone(&self.place().handshakes);
        let own = own.acquire_owned().await.ok()?;
        let all = self.shared.handshakes.acquire().await.ok()?;
        Some(Turn { _own: own, _all: all })
    }

    /// Waits until no other stream of the connection is sent its first map.
    pub async fn first_map(&self) -> Option<SemaphorePermit<'_>> {
        self.first_maps.acquire().await.ok()
    }

    /// Waits for leave to take a body, whose most bytes come with it.
    pub async fn body(&self) -> Option<(SemaphorePermit<'_>, usize)> {
        let leave = self.bodies.acquire().await.ok()?;
        let most = if self.is_stranger() { LONGEST_OF_STRANGER } else { LONGEST_BODY };
        Some((leave, most))
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
    /// The oldest of the address with most has to leave.
    fn make_room(&mut self) {
        let most = self.sources.iter().max_by_key(|(_, source)| source.visitors.len());
        let oldest = most.and_then(|(at, source)| Some((*at, *source.visitors.keys().next()?)));
        if let Some((source, number)) = oldest
            && let Some(sender) = self.forget_stranger(source, number)
        {
            // It may have gone by itself.
            let _ = sender.send(true);
        }
    }

    fn note_stranger(
        &mut self,
        source: IpAddr,
        number: u64,
        sender: watch::Sender<bool>,
    ) -> Arc<Semaphore> {
        let of_source = self.sources.entry(source).or_insert_with(|| Source {
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_EACH)),
            visitors: BTreeMap::new(),
        });
        of_source.visitors.insert(number, sender);
        self.strangers += 1;
        Arc::clone(&of_source.handshakes)
    }

    fn forget_stranger(&mut self, source: IpAddr, number: u64) -> Option<watch::Sender<bool>> {
        let of_source = self.sources.get_mut(&source)?;
        let sender = of_source.visitors.remove(&number)?;
        self.strangers -= 1;
        if of_source.visitors.is_empty() {
            self.sources.remove(&source);
        }
        Some(sender)
    }
}

/// What counts as one address: of IPv6 a network, of which everybody has as many as they like.
fn source(from: IpAddr) -> IpAddr {
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

    fn has_to_leave(visitor: &Visitor) -> bool {
        visitor.must_leave().now_or_never().is_some()
    }

    #[test]
    fn a_flood_ends_its_own_connections_and_no_others() {
        let visitors = Visitors::up_to(10);
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
        let visitors = Visitors::up_to(10);
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
