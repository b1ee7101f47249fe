//! Hosts by UDP address, the Internet between them, and networks behind NAT boxes.
//!
//! ```text
//!   host -> box -> box -> | link, routers | -> box -> host
//!   at once, as it is sent                     as it arrives
//! ```
//!
//! What stays behind a box takes no time; the link is that of the Internet. Each box that
//! forwards takes one off the TTL, and the routers between two networks theirs.

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

/// Where an address means something: the Internet, or the network behind a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Realm(usize);

impl Realm {
    pub const INTERNET: Self = Self(0);
}

/// All networks of a test; clones are the same ones.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
pub(crate) struct State {
    rng: ChaCha20Rng,
    pub now: Duration,
    serial: u64,
    /// What is on the way, by when it arrives.
    in_flight: BTreeMap<(Duration, u64), (Hop, Datagram)>,
    link: Link,
    /// The link towards each address of the Internet.
    wires: HashMap<IpAddr, Wire>,
    /// Between any two networks on the Internet.
    routers: u8,
    /// Of each realm behind a box, by its number less one.
    gateways: Vec<Gateway>,
    /// Addresses behind boxes.
    hosts: HashSet<(Realm, IpAddr)>,
    pub sockets: HashMap<(Realm, SocketAddr), Queue>,
    /// What arrived on the Internet where no socket is.
    arrived: VecDeque<Datagram>,
    /// Datagrams that a socket's queue holds.
    room: usize,
}

#[derive(Debug)]
struct Gateway {
    table: Table,
    outside: Realm,
}

/// What a datagram reaches next.
#[derive(Clone, Copy, Debug)]
enum Hop {
    Host(Realm),
    /// The outer side of the box before this realm.
    Gateway(Realm),
}

impl Network {
    /// A network that does the same with the same seed.
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

    /// A network behind a box that has the addresses `outer` in `outside`.
    pub fn add_nat(&self, outside: Realm, nat: Nat, outer: &[IpAddr]) -> Realm {
        let mut state = self.lock();
        state.gateways.push(Gateway { table: Table::new(nat, outer), outside });
        Realm(state.gateways.len())
    }

    /// A socket of the Internet at `address`.
    pub fn socket(&self, address: SocketAddr) -> (NetRecv, NetSend) {
        self.bind(Realm::INTERNET, address).halves()
    }

    /// A socket of the host at `address`.
    pub fn bind(&self, realm: Realm, address: SocketAddr) -> Socket {
        let mut state = self.lock();
        state.hosts.insert((realm, address.ip()));
        state.sockets.entry((realm, address)).or_default();
        Socket::new(self.clone(), realm, address)
    }

    /// Changes what happens to datagrams sent from now on.
    pub fn set_link(&self, link: Link) {
        let mut state = self.lock();
        state.link = link;
        state.wires.values_mut().for_each(|wire| wire.link = link);
    }

    /// The same for datagrams to one address.
    pub fn set_link_to(&self, address: IpAddr, link: Link) {
        self.lock().wire(address).link = link;
    }

    pub fn link(&self) -> Link {
        self.lock().link
    }

    /// How long a datagram that is sent now would wait for the rate of the link.
    pub fn wait_to(&self, address: IpAddr) -> Duration {
        let mut state = self.lock();
        let now = state.now;
        state.wire(address).wait(now)
    }

    /// Sets how many routers are between two networks of the Internet.
    pub fn set_routers(&self, routers: u8) {
        self.lock().routers = routers;
    }

    /// Bounds the queue of every socket to so many datagrams.
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

    /// When the next datagram reaches a host or a box.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.lock().in_flight.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first of the datagrams that arrived on the Internet where no socket is.
    pub fn poll_arrival(&self) -> Option<Datagram> {
        self.lock().arrived.pop_front()
    }

    /// Sends on the Internet what no socket did.
    pub fn send(&self, datagram: Datagram) {
        self.lock().send(Realm::INTERNET, datagram);
    }

    /// Sends on the Internet what arrives so much later than it would.
    pub fn send_late(&self, datagram: Datagram, late: Duration) {
        self.lock().launch(datagram, late);
    }

    /// Has a datagram arrive at once, whatever the link does.
    pub fn deliver(&self, datagram: Datagram) {
        let mut state = self.lock();
        let now = state.now;
        state.schedule(now, Hop::Host(Realm::INTERNET), datagram);
    }

    /// Sends bytes that no engine made.
    pub fn inject(&self, from: SocketAddr, to: SocketAddr, ecn: Ecn, bytes: &[u8]) {
        self.send(Datagram { ecn, ..Datagram::new(from, to, bytes) });
    }

    /// Takes everything that is on the way off the network.
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
    /// Sends a datagram from within `realm`: out through boxes as far as it must, then on its
    /// way.
    pub fn send(&mut self, mut realm: Realm, mut datagram: Datagram) {
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

    /// The box whose outer address this is.
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

    /// A datagram is before the box of `realm`.
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

/// Takes `hops` off the TTL; whether some is left.
fn forward(datagram: &mut Datagram, hops: u8) -> bool {
    datagram.ttl = datagram.ttl.saturating_sub(hops);
    datagram.ttl > 0
}
