//! Hosts by UDP address, the Internet between them, and networks behind NAT boxes.
//!
//! ```text
//!   host -> box -> box -> | link, routers | -> box -> host
//!   at sending time                             at arrival time
//! ```
//!
//! Traffic behind one box is instantaneous; the link is on the Internet. Each box decrements the TTL
//! by one, and the Internet by its number of routers.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packet::Ecn;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

use crate::{
    link::{Datagram, Link, Wire},
    nat::{Nat, table::Table},
    socket::{NetRecv, NetSend, Queue, Socket},
};

/// The scope of an address: the Internet, or the network behind a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Realm(usize);

impl Realm {
    pub const INTERNET: Self = Self(0);
}

/// All networks of a test. Clones share them.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
pub(crate) struct State {
    rng: ChaCha20Rng,
    pub now: Duration,
    serial: u64,
    /// Datagrams in flight, by arrival time.
    in_flight: BTreeMap<(Duration, u64), (Hop, Datagram)>,
    link: Link,
    /// The link towards each address of the Internet.
    wires: HashMap<IpAddr, Wire>,
    /// The number of routers between two networks on the Internet.
    routers: u8,
    /// The box of each realm, at the realm's number less one.
    gateways: Vec<Gateway>,
    /// Addresses behind boxes.
    hosts: HashSet<(Realm, IpAddr)>,
    pub sockets: HashMap<(Realm, SocketAddr), Queue>,
    /// Datagrams that arrived on the Internet at addresses without a socket.
    arrived: VecDeque<Datagram>,
    /// The capacity of a socket's queue, in datagrams.
    room: usize,
}

#[derive(Debug)]
struct Gateway {
    table: Table,
    outside: Realm,
}

/// The next stop of a datagram.
#[derive(Clone, Copy, Debug)]
enum Hop {
    Host(Realm),
    /// The outer side of the box of this realm.
    Gateway(Realm),
}

impl Network {
    /// A network that behaves the same with the same seed.
    pub fn new(seed: u64, link: Link) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: ChaCha20Rng::seed_from_u64(seed),
            now: Duration::from_secs(1_000),
            serial: 0,
            in_flight: BTreeMap::new(),
            link,
            wires: HashMap::new(),
            routers: 8,
            gateways: Vec::new(),
            hosts: HashSet::new(),
            sockets: HashMap::new(),
            arrived: VecDeque::new(),
            room: usize::MAX,
        })))
    }

    /// Adds a network behind a box that has the addresses `outer` in `outside`.
    pub fn add_nat(&self, outside: Realm, nat: Nat, outer: &[IpAddr]) -> Realm {
        let mut state = self.lock();
        state.gateways.push(Gateway { table: Table::new(nat, outer), outside });
        Realm(state.gateways.len())
    }

    /// Binds a socket on the Internet.
    pub fn socket(&self, address: SocketAddr) -> (NetRecv, NetSend) {
        self.bind(Realm::INTERNET, address).halves()
    }

    /// Binds a socket of a host.
    pub fn bind(&self, realm: Realm, address: SocketAddr) -> Socket {
        let mut state = self.lock();
        state.hosts.insert((realm, address.ip()));
        state.sockets.entry((realm, address)).or_default();
        Socket::new(self.clone(), realm, address)
    }

    /// Changes the link for datagrams sent from now on.
    pub fn set_link(&self, link: Link) {
        let mut state = self.lock();
        state.link = link;
        state.wires.values_mut().for_each(|wire| wire.link = link);
    }

    /// Changes the link to one address.
    pub fn set_link_to(&self, address: IpAddr, link: Link) {
        self.lock().wire(address).link = link;
    }

    pub fn link(&self) -> Link {
        self.lock().link
    }

    /// The wait of a datagram that is sent now, because of the link's rate.
    pub fn wait_to(&self, address: IpAddr) -> Duration {
        let mut state = self.lock();
        let now = state.now;
        state.wire(address).wait(now)
    }

    /// Sets the number of routers between two networks on the Internet.
    pub fn set_routers(&self, routers: u8) {
        self.lock().routers = routers;
    }

    /// Limits the queue of every socket to this many datagrams.
    pub fn set_room(&self, datagrams: usize) {
        self.lock().room = datagrams;
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets `duration` pass.
    pub fn pass(&self, duration: Duration) {
        let mut state = self.lock();
        let end = state.now + duration;
        state.pass_until(end);
    }

    /// Lets time pass until `end`, if that is later.
    pub fn pass_until(&self, end: Duration) {
        self.lock().pass_until(end);
    }

    /// The arrival time of the next datagram at a host or a box.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.lock().in_flight.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first datagram that arrived on the Internet at an address without a socket.
    pub fn poll_arrival(&self) -> Option<Datagram> {
        self.lock().arrived.pop_front()
    }

    /// Sends a datagram on the Internet without a socket.
    pub fn send(&self, datagram: Datagram) {
        self.lock().send(Realm::INTERNET, datagram);
    }

    /// Sends a datagram on the Internet with an additional delay.
    pub fn send_late(&self, datagram: Datagram, late: Duration) {
        self.lock().launch(datagram, late);
    }

    /// Delivers a datagram at once, without the link.
    pub fn deliver(&self, datagram: Datagram) {
        let mut state = self.lock();
        let now = state.now;
        state.schedule(now, Hop::Host(Realm::INTERNET), datagram);
    }

    /// Sends arbitrary bytes.
    pub fn inject(&self, from: SocketAddr, to: SocketAddr, ecn: Ecn, bytes: &[u8]) {
        self.send(Datagram { ecn, ..Datagram::new(from, to, bytes) });
    }

    /// Removes and returns all datagrams in flight.
    pub fn take_in_flight(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().in_flight)
            .into_values()
            .map(|(_, datagram)| datagram.bytes)
            .collect()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sends a datagram from `realm`, through boxes if necessary.
    pub(crate) fn send(&mut self, mut realm: Realm, mut datagram: Datagram) {
        while realm != Realm::INTERNET {
            let to = datagram.to.ip();
            let near = self
                .gateway_at(realm, to)
                .or_else(|| self.hosts.contains(&(realm, to)).then_some(Hop::Host(realm)));
            if let Some(hop) = near {
                return self.schedule(self.now, hop, datagram);
            }
            let Gateway { table, outside } = &mut self.gateways[realm.0 - 1];
            let returns = table.owns(to);
            if returns && !table.nat.hairpin || !returns && !forward(&mut datagram, 1) {
                return;
            }
            let from = table.outbound(self.now, datagram.from, datagram.to, &mut self.rng);
            let Some(from) = from else { return };
            datagram.from = from;
            if returns {
                return self.schedule(self.now, Hop::Gateway(realm), datagram);
            }
            realm = *outside;
        }
        self.launch(datagram, Duration::ZERO);
    }

    /// Sends a datagram through the Internet.
    fn launch(&mut self, mut datagram: Datagram, late: Duration) {
        if !forward(&mut datagram, self.routers) {
            return;
        }
        let to = datagram.to.ip();
        let hop = self.gateway_at(Realm::INTERNET, to).unwrap_or(Hop::Host(Realm::INTERNET));
        let link = self.link;
        let wire = self.wires.entry(to).or_insert_with(|| Wire::new(link));
        for at in wire.cross(&mut datagram, self.now, &mut self.rng).into_iter().flatten() {
            self.schedule(at + late, hop, datagram.clone());
        }
    }

    /// The box with this outer address.
    fn gateway_at(&self, outside: Realm, address: IpAddr) -> Option<Hop> {
        let owns = |gateway: &Gateway| gateway.outside == outside && gateway.table.owns(address);
        self.gateways.iter().position(owns).map(|at| Hop::Gateway(Realm(at + 1)))
    }

    fn schedule(&mut self, at: Duration, hop: Hop, datagram: Datagram) {
        self.serial += 1;
        self.in_flight.insert((at, self.serial), (hop, datagram));
    }

    fn pass_until(&mut self, end: Duration) {
        while let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), (hop, datagram)) = entry.remove_entry();
            self.now = self.now.max(at);
            match hop {
                Hop::Host(realm) => self.arrive(realm, datagram),
                Hop::Gateway(realm) => self.enter(realm, datagram),
            }
        }
        self.now = self.now.max(end);
    }

    fn arrive(&mut self, realm: Realm, datagram: Datagram) {
        match self.sockets.get_mut(&(realm, datagram.to)) {
            Some(queue) => queue.push(self.now, datagram, self.room),
            None if realm == Realm::INTERNET => self.arrived.push_back(datagram),
            None => {}
        }
    }

    /// A datagram arrives at the box of `realm`.
    fn enter(&mut self, realm: Realm, mut datagram: Datagram) {
        let table = &mut self.gateways[realm.0 - 1].table;
        let Some(to) = table.inbound(self.now, datagram.from, datagram.to) else { return };
        datagram.to = to;
        if forward(&mut datagram, 1) {
            self.send(realm, datagram);
        }
    }

    fn wire(&mut self, address: IpAddr) -> &mut Wire {
        let link = self.link;
        self.wires.entry(address).or_insert_with(|| Wire::new(link))
    }
}

/// Decrements the TTL by `hops`. Returns whether it is still positive.
fn forward(datagram: &mut Datagram, hops: u8) -> bool {
    datagram.ttl = datagram.ttl.saturating_sub(hops);
    datagram.ttl > 0
}
