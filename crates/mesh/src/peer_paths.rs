//! Path selection: a state machine for each peer decides the path of its datagrams, on virtual
//! time.
//!
//! ```text
//!   map ---------> set_peer            .-- relay, at once
//!   netcheck ----> set_own_endpoints   |
//!   UDP, relay --> handle_disco        v
//!   data plane --> handle_wireguard    a round: prime, call by relay, ping -- pong --> direct
//!   clock -------> handle_timeout      ^                                                 |
//!                                      `---- neither pongs nor data --> relay -----------'
//!   poll_transmit, poll_event, poll_timeout
//! ```
//!
//! A round starts with priming: a ping with a TTL that ends before the peer's NAT opens pinholes in
//! our NAT without reaching the peer's. Then the round calls the peer through its relay, which
//! primes as well. After the relay confirms that the call arrived, the round pings. An earlier ping
//! would create a conntrack entry in a Linux NAT that does not drop unexpected input, and that
//! entry would change the port of the peer's packets.
//!
//! Call `handle_*` for each event, then drain `poll_transmit` and `poll_event`, and call
//! `handle_timeout` at `poll_timeout`. If nothing was sent to a peer for 45 s, its timer is
//! removed.
//!
//! A peer has one path at a time. Stock nodes send to the address and the relay simultaneously
//! while a path is in doubt. Here data goes through the relay while pings test the address. The
//! first pong moves the data back.

mod candidate;
mod limit;
mod path_events;
mod peer;
mod rank;
mod shared_birthday;
mod timing;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use ipc::Path;
use rand_core::CryptoRng;
use tailnet::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
};

use self::{
    candidate::canonical,
    peer::{Peer, PeerEntry, Pinged},
    shared_birthday::BirthdaySlot,
};
pub use self::{
    path_events::{Event, SocketsToOpen, To, Traffic, Transmit, Via},
    shared_birthday::PublicEndpoint,
    view::{BirthdayOutcome, Candidate, Origins, PathView, ProbeOutcome},
};

/// The capacity that an empty queue retains.
const ROOM: usize = 64;

/// The peer's entry in the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The key for disco messages; zero if the peer does not support disco.
    pub disco: DiscoPublic,
    /// The region of its home relay.
    pub home: Option<u16>,
    /// The endpoints.
    pub endpoints: Vec<SocketAddr>,
    /// Whether it supports peer relays.
    pub supports_peer_relays: bool,
}

/// A node that may allocate endpoints for us at its peer relay ([`crate::peer_relay`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRelay {
    /// The node key.
    pub node: NodePublic,
    /// The node's key for disco messages; that of its relay is different.
    pub disco: DiscoPublic,
    /// The region of its home relay.
    pub home: Option<u16>,
}

/// The paths of all peers.
#[derive(Debug)]
pub struct Paths {
    own: Own,
    peers: BTreeMap<NodePublic, PeerEntry>,
    /// Several nodes may have the same key: on one machine, or because a peer lies.
    by_disco: BTreeSet<(DiscoPublic, NodePublic)>,
    deadlines: BTreeSet<(Duration, NodePublic)>,
    numbers: Numbers,
    out: Out,
}

/// This node.
#[derive(Debug)]
struct Own {
    node: NodePublic,
    /// The region of our home relay.
    home: Option<u16>,
    /// The regions of unreachable relays.
    relays_down: BTreeSet<u16>,
    endpoints: Vec<SocketAddr>,
    /// The time when the endpoints were determined.
    at: Option<Duration>,
    /// The time of the last request to determine them.
    requested: Option<Duration>,
    /// Our key for disco messages.
    disco: DiscoPublic,
    /// The nodes with usable peer relays, and whether we bind to endpoints that peers allocated.
    relays: Vec<PeerRelay>,
    binds: bool,
    birthday: BirthdaySlot,
}

impl Own {
    fn new(node: NodePublic) -> Self {
        let (endpoints, relays_down) = (Vec::new(), BTreeSet::new());
        Self {
            node,
            home: None,
            relays_down,
            endpoints,
            at: None,
            requested: None,
            disco: DiscoPublic::default(),
            relays: Vec::new(),
            binds: false,
            birthday: BirthdaySlot::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Out {
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

struct Numbers {
    rng: Box<dyn CryptoRng + Send>,
    pings: u32,
}

/// The context of a peer's state machine.
struct Context<'a> {
    now: Duration,
    own: &'a mut Own,
    numbers: &'a mut Numbers,
    out: &'a mut Out,
}

impl Paths {
    /// Creates it without peers. `rng` creates the IDs of pings, which must be unpredictable.
    pub fn new(node: NodePublic, rng: Box<dyn CryptoRng + Send>) -> Self {
        Self {
            own: Own::new(node),
            peers: BTreeMap::new(),
            by_disco: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            numbers: Numbers { rng, pings: 0 },
            out: Out::default(),
        }
    }

    /// Adds or updates a peer.
    pub fn set_peer(&mut self, key: NodePublic, info: &PeerInfo, now: Duration) {
        match self.peers.get(&key).map(|peer| peer.disco()) {
            Some(disco) if disco != info.disco => _ = self.by_disco.remove(&(disco, key)),
            Some(_) => {}
            None => _ = self.peers.insert(key, PeerEntry::new(key, info.disco)),
        }
        if !info.disco.is_zero() {
            self.by_disco.insert((info.disco, key));
        }
        self.step(key, now, |peer, cx| peer.update(info, cx));
    }

    /// Removes a peer.
    pub fn remove_peer(&mut self, key: NodePublic) {
        if let Some(peer) = self.peers.remove(&key) {
            self.by_disco.remove(&(peer.disco(), key));
            let deadline = peer.full().and_then(Peer::deadline);
            deadline.map(|at| self.deadlines.remove(&(at, key)));
            let sockets = peer.full().and_then(Peer::sockets);
            self.out.events.extend(sockets.map(Event::CloseSockets));
            self.own.birthday.release(key);
        }
    }

    /// Sets our node key and our endpoints, which were just determined.
    pub fn set_own_endpoints(
        &mut self,
        node: NodePublic,
        endpoints: Vec<SocketAddr>,
        now: Duration,
    ) {
        let new = endpoints.iter().any(|addr| !self.own.endpoints.contains(addr));
        (self.own.node, self.own.endpoints) = (node, endpoints);
        (self.own.at, self.own.requested) = (Some(now), None);
        if new {
            self.step_all(now, PeerEntry::wants_direct, Peer::handle_new_endpoints);
        } else {
            self.step_all(now, PeerEntry::wants_direct, Peer::handle_timeout);
        }
    }

    /// Sets our key for disco messages and the usable peer relays; `None` disables them.
    pub fn set_peer_relays(&mut self, disco: DiscoPublic, relays: Option<Vec<PeerRelay>>) {
        self.own.disco = disco;
        self.own.binds = relays.is_some();
        self.own.relays = relays.unwrap_or_default();
    }

    /// Sets our public IPv4 endpoint; `None` disables birthday probing.
    pub fn set_public_endpoint(&mut self, place: Option<PublicEndpoint>) {
        self.own.birthday.place = place;
    }

    /// The auxiliary sockets of the group with this number are open.
    pub fn handle_sockets_opened(&mut self, number: u32, count: u16, now: Duration) {
        if let Some(key) = self.own.birthday.with() {
            self.step(key, now, |peer, cx| peer.handle_sockets_opened(number, count, cx));
        }
    }

    /// Sets the region of our home relay. It is the guess for peers with an unknown home.
    pub fn set_home(&mut self, home: Option<u16>, now: Duration) {
        if std::mem::replace(&mut self.own.home, home) != home {
            self.step_all(now, PeerEntry::has_unknown_home, Peer::handle_timeout);
        }
    }

    /// Sets whether a relay of a region is connected. Without a relay, the path falls back to an
    /// unproven address: a stock peer that restarted with a disco key that is unknown here
    /// still answers there.
    pub fn set_relay(&mut self, region: u16, up: bool, now: Duration) {
        let down = &mut self.own.relays_down;
        if if up { down.remove(&region) } else { down.insert(region) } {
            self.step_all(now, PeerEntry::has_unproven_path, Peer::handle_timeout);
        }
    }

    /// Processes an opened disco message of `from`.
    pub fn handle_disco(&mut self, from: DiscoPublic, via: Via, message: &Message, now: Duration) {
        let via = match via {
            Via::Udp { remote, local } => Via::Udp { remote: canonical(remote), local },
            Via::PeerRelay { at, vni } => Via::PeerRelay { at: canonical(at), vni },
            Via::Auxiliary { remote, socket } => {
                Via::Auxiliary { remote: canonical(remote), socket }
            }
            relay @ Via::Relay { .. } => relay,
        };
        if self.handle_peer_relay(from, via, message, now).is_some() {
            return;
        }
        let Some(key) = self.sender(from, via, message) else { return };
        self.step(key, now, |peer, cx| {
            if let Via::Relay { region, .. } = via {
                peer.note_relay_message(region);
            }
            match message {
                Message::Ping { tx, .. } => peer.handle_ping(*tx, via, cx),
                Message::Pong { tx, .. } => peer.handle_pong(*tx, via, cx),
                Message::CallMeMaybe { endpoints } if matches!(via, Via::Relay { .. }) => {
                    peer.handle_call(endpoints, cx);
                }
                Message::CallMeMaybeVia(endpoint) if matches!(via, Via::Relay { .. }) => {
                    peer.handle_call_via(endpoint, cx);
                }
                Message::Birthday(meet) if matches!(via, Via::Relay { .. }) => {
                    peer.handle_step(*meet, cx);
                }
                _ => {}
            }
        });
    }

    /// Processes a message of a peer relay or of its node.
    fn handle_peer_relay(
        &mut self,
        from: DiscoPublic,
        via: Via,
        message: &Message,
        now: Duration,
    ) -> Option<()> {
        match (message, via) {
            (Message::AllocateResponse { generation, endpoint }, Via::Relay { from: node, .. }) => {
                let is_relay = |one: &PeerRelay| one.node == node && one.disco == from;
                self.own.relays.iter().find(|one| is_relay(one))?;
                let mut peers = self.peers.iter();
                let key = peers.find(|(_, peer)| {
                    peer.full().is_some_and(|peer| peer.has_requested(&node, *generation))
                })?;
                let key = *key.0;
                self.step(key, now, |peer, cx| peer.handle_allocated(*generation, endpoint, cx))
            }
            (Message::BindChallenge(bind), Via::PeerRelay { at, vni }) if bind.vni == vni => {
                let range = (bind.other, NodePublic([0; 32]))..=(bind.other, NodePublic([255; 32]));
                let keys = self.by_disco.range(range).map(|(_, key)| *key);
                for key in keys.collect::<Vec<_>>() {
                    self.step(key, now, |peer, cx| peer.handle_challenge(from, at, bind, cx));
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Returns the peer that sent a message, of those with the disco key.
    fn sender(&self, from: DiscoPublic, via: Via, message: &Message) -> Option<NodePublic> {
        let range = (from, NodePublic([0; 32]))..=(from, NodePublic([255; 32]));
        let mut keys = self.by_disco.range(range).map(|(_, key)| *key);
        if let Via::Relay { from, .. } = via {
            return keys.find(|key| *key == from);
        }
        match message {
            Message::Ping { node_key: Some(node), .. } => keys.find(|key| key == node),
            Message::Pong { tx, .. } => {
                let awaits = |peer: &PeerEntry| peer.full().is_some_and(|peer| peer.awaits(tx));
                keys.find(|key| self.peers.get(key).is_some_and(awaits))
            }
            _ => keys.next().filter(|_| keys.next().is_none()),
        }
    }

    /// Processes the traffic of a peer's sessions since the last report.
    pub fn handle_wireguard(&mut self, peer: NodePublic, traffic: Traffic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_traffic(traffic, cx));
    }

    /// A handshake with a peer completed.
    pub fn handle_handshake_done(&mut self, peer: NodePublic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_handshake_done(cx));
    }

    /// Packets were sent to a peer, and no authentic packet was received for a while.
    pub fn handle_stale(&mut self, peer: NodePublic, now: Duration) {
        self.step(peer, now, Peer::handle_stale);
    }

    /// A relay reports that a peer is not connected. It reports this only for disco messages and at
    /// most three times a second (tailscale `derp/derpserver`), so that the absence of a report
    /// proves nothing.
    pub fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_gone(region, cx));
    }

    /// Our addresses or the default route changed. Each path in use must be confirmed within a
    /// second.
    pub fn handle_network_change(&mut self, now: Duration) {
        self.own.at = None;
        self.step_all(now, |peer| peer.full().is_some(), Peer::handle_network_change);
    }

    /// Received packets were not processed for this time. The trust in paths is prolonged by it.
    pub fn handle_stall(&mut self, time: Duration, now: Duration) {
        self.step_all(now, |peer| peer.full().is_some(), |peer, _| peer.handle_stall(time));
    }

    /// Pings a peer on its current path, and starts a search for a better one. The answer is
    /// [`Event::Pong`] with the returned number; `None` without a path to the peer.
    pub fn ping(&mut self, peer: NodePublic, now: Duration) -> Option<u32> {
        self.numbers.pings = self.numbers.pings.wrapping_add(1);
        let number = self.numbers.pings;
        self.step(peer, now, |peer, cx| peer.ping_for_user(number, cx))?.then_some(number)
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((at, key)) = self.deadlines.first().copied()
            && at <= now
        {
            self.step(key, now, Peer::handle_timeout);
        }
    }

    /// Returns whether a peer has this disco key. Datagrams of unknown keys need not be opened.
    pub fn has_disco_key(&self, disco: &DiscoPublic) -> bool {
        let first = (*disco, NodePublic([0; 32]));
        self.by_disco.range(first..).next().is_some_and(|(key, _)| key == disco)
    }

    /// Returns the disco key of a peer.
    pub fn disco(&self, peer: &NodePublic) -> Option<DiscoPublic> {
        self.peers.get(peer).map(|peer| peer.disco()).filter(|disco| !disco.is_zero())
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        pop(&mut self.out.transmits)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        pop(&mut self.out.events)
    }

    /// Returns the time of the next call of [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the keys of all peers.
    pub fn keys(&self) -> impl Iterator<Item = NodePublic> {
        self.peers.keys().copied()
    }

    /// Returns the state of the path to a peer.
    pub fn view(&self, peer: NodePublic) -> Option<PathView> {
        self.peers.get(&peer).map(|known| known.view(peer))
    }

    fn step_all(
        &mut self,
        now: Duration,
        which: impl Fn(&PeerEntry) -> bool,
        act: impl Fn(&mut Peer, &mut Context<'_>),
    ) {
        let keys = self.peers.iter().filter(|(_, peer)| which(peer)).map(|(key, _)| *key);
        for key in keys.collect::<Vec<_>>() {
            self.step(key, now, &act);
        }
    }

    /// Calls a method of a peer, and processes its consequences.
    fn step<T>(
        &mut self,
        key: NodePublic,
        now: Duration,
        act: impl FnOnce(&mut Peer, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Self { own, peers, deadlines, numbers, out, .. } = self;
        let known = peers.get_mut(&key)?;
        let peer = known.expand(key);
        let mut cx = Context { now, own, numbers, out };
        let before = peer.deadline();
        let result = act(peer, &mut cx);
        peer.continue_peer_relays(&mut cx);
        peer.continue_birthday(&mut cx);
        peer.publish_path(&mut cx);
        let after = peer.deadline();
        if before != after {
            before.map(|at| deadlines.remove(&(at, key)));
            after.map(|at| deadlines.insert((at, key)));
        }
        known.compact_if_idle();
        Some(result)
    }
}

/// Returns the first item. An empty queue releases most of its memory.
fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() && queue.capacity() > ROOM {
        queue.shrink_to_fit();
    }
    first
}

impl Context<'_> {
    fn send(&mut self, to: To, disco: DiscoPublic, message: Message) {
        self.out.transmits.push_back(Transmit { to, disco, message });
    }

    fn emit(&mut self, event: Event) {
        self.out.events.push_back(event);
    }

    /// Creates a ping, and the entry for its pong.
    fn new_ping(&mut self, to: Path, number: Option<u32>) -> (Message, Pinged) {
        let mut tx = TxId::default();
        self.numbers.rng.fill_bytes(&mut tx);
        let message = Message::Ping { tx, node_key: Some(self.own.node), padding: 0 };
        (message, Pinged { tx, to, at: self.now, number })
    }

    fn random_port(&mut self) -> u16 {
        let (first, all) =
            (shared_birthday::FIRST_PORT, u64::from(u16::MAX - shared_birthday::FIRST_PORT) + 1);
        // The upper half of the product is below `all`.
        first + ((u64::from(self.numbers.rng.next_u32()) * all) >> 32) as u16
    }

    /// Returns the number of a request, never 0.
    fn generation(&mut self) -> u32 {
        self.numbers.rng.next_u32() | 1
    }

    /// Returns `time` plus up to a tenth of it, randomly.
    fn jittered(&mut self, time: Duration) -> Duration {
        time + time / 10 * (self.numbers.rng.next_u32() >> 16) / (1 << 16)
    }
}

impl Own {
    fn is_fresh(&self, now: Duration) -> bool {
        self.at.is_some_and(|at| now < at + timing::FRESH)
    }

    /// Returns whether to request the endpoints now.
    fn request(&mut self, now: Duration) -> bool {
        let asks = self.requested.is_none_or(|at| now >= at + timing::REFRESH_WAIT);
        if asks {
            self.requested = Some(now);
        }
        asks
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbers").finish_non_exhaustive()
    }
}
