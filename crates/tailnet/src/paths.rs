//! Path choice: for each peer a state machine that says where its datagrams go, on virtual time.
//!
//! ```text
//!   map ------> set_peer          .-- relay, at once
//!   netcheck -> set_own_endpoints           |
//!   UDP, relay -> handle_disco    v
//!   plane ----> handle_wireguard  a round: prime, call by relay, ping -- pong --> direct
//!   clock ----> handle_timeout    ^                                                  |
//!                                 `------ silence of pongs and of data --> relay ----'
//!   poll_transmit, poll_event, poll_timeout
//! ```
//!
//! A round primes first: a ping whose hops end before the peer's box opens the own pinholes and
//! touches no other. Then it calls the peer through its relay, which primes too, and pings when the
//! relay has proven that the call arrived. A ping that came before would leave an entry in a Linux
//! box without an input drop, and that would move the peer's outgoing port.
//!
//! Call `handle_*` with what happens, then take all of `poll_transmit` and `poll_event`, and call
//! `handle_timeout` when `poll_timeout` says so. A peer to which nothing was sent for 45 s has no
//! timer.
//!
//! One path is told at a time. Where stock sends to the address and the relay both, what is sent
//! here goes by the relay, and pings try the address; its first pong brings traffic back.

mod birthday;
mod candidate;
mod events;
mod limit;
mod peer;
mod rank;
mod timing;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use rand_core::CryptoRng;

use self::{
    birthday::BirthdaySlot,
    candidate::canonical,
    peer::{Peer, PeerEntry, Pinged},
};
pub use self::{
    birthday::PublicEndpoint,
    events::{Event, SocketsToOpen, To, Traffic, Transmit, Via},
    view::{BirthdayOutcome, Candidate, Origins, PathView, ProbeOutcome},
};
pub use crate::ipc::{AuxiliarySocket, LocalAddress, Path};
use crate::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
};

/// What is kept of a queue's room while it is empty.
const ROOM: usize = 64;

/// What the map says of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The key of its disco messages; zero if it speaks none.
    pub disco: DiscoPublic,
    /// The region of its home relay.
    pub home: Option<u16>,
    /// Where it may be reached.
    pub endpoints: Vec<SocketAddr>,
    /// Whether it knows peer relays.
    pub supports_peer_relays: bool,
}

/// A node whose peer relay may be asked for endpoints ([`crate::peer_relay`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRelay {
    /// Its node key.
    pub node: NodePublic,
    /// The key of its disco messages: not that of its relay.
    pub disco: DiscoPublic,
    /// The region of its home relay.
    pub home: Option<u16>,
}

/// The paths of all peers.
#[derive(Debug)]
pub struct Paths {
    own: Own,
    peers: BTreeMap<NodePublic, PeerEntry>,
    /// A key may be that of several nodes: of one machine, or by somebody's lie.
    by_disco: BTreeSet<(DiscoPublic, NodePublic)>,
    deadlines: BTreeSet<(Duration, NodePublic)>,
    numbers: Numbers,
    out: Out,
}

/// Where we are.
#[derive(Debug)]
struct Own {
    node: NodePublic,
    /// The region of our home relay.
    home: Option<u16>,
    /// The regions whose relays cannot be connected.
    relays_down: BTreeSet<u16>,
    endpoints: Vec<SocketAddr>,
    /// When they were found out.
    at: Option<Duration>,
    /// When they were last asked for.
    requested: Option<Duration>,
    /// The key of our disco messages.
    disco: DiscoPublic,
    /// Whose relays may be asked, and whether we bind at those that peers asked.
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

/// What a peer's state machine has besides itself.
struct Context<'a> {
    now: Duration,
    own: &'a mut Own,
    numbers: &'a mut Numbers,
    out: &'a mut Out,
}

impl Paths {
    /// No peers yet. `rng` gives the numbers of pings, which nobody may guess.
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

    /// Takes what the map says of a peer, new or known.
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

    /// Forgets a peer.
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

    /// Takes our own endpoints, as just found out, and the node key.
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

    /// Takes the key of our disco messages, and whose peer relays may be asked; `None` if we are to
    /// use none.
    pub fn set_peer_relays(&mut self, disco: DiscoPublic, relays: Option<Vec<PeerRelay>>) {
        self.own.disco = disco;
        self.own.binds = relays.is_some();
        self.own.relays = relays.unwrap_or_default();
    }

    /// Takes where others see us in IPv4, and what is before us; `None` if nobody is to be met by
    /// chance.
    pub fn set_public_endpoint(&mut self, place: Option<PublicEndpoint>) {
        self.own.birthday.place = place;
    }

    /// AuxiliarySocket sockets of that number are open.
    pub fn handle_sockets_opened(&mut self, number: u32, count: u16, now: Duration) {
        if let Some(key) = self.own.birthday.with() {
            self.step(key, now, |peer, cx| peer.handle_sockets_opened(number, count, cx));
        }
    }

    /// Takes the region of our own home relay: a peer whose home is not known yet may have the same.
    pub fn set_home(&mut self, home: Option<u16>, now: Duration) {
        if std::mem::replace(&mut self.own.home, home) != home {
            self.step_all(now, PeerEntry::has_unknown_home, Peer::handle_timeout);
        }
    }

    /// A relay of a region was connected, or none could be. While none can be, an address that is
    /// not proven goes before it: a stock peer answers there whoever restarted, and was not told its
    /// new disco key.
    pub fn set_relay(&mut self, region: u16, up: bool, now: Duration) {
        let down = &mut self.own.relays_down;
        if if up { down.remove(&region) } else { down.insert(region) } {
            self.step_all(now, PeerEntry::has_unproven_path, Peer::handle_timeout);
        }
    }

    /// Takes a disco message that was opened, and so is from `from`.
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

    /// Takes what a peer relay said, by its node or by itself.
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

    /// Which of the peers with that disco key it was.
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

    /// Takes what a peer's sessions carried since the last report.
    pub fn handle_wireguard(&mut self, peer: NodePublic, traffic: Traffic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_traffic(traffic, cx));
    }

    /// A handshake with a peer is done.
    pub fn handle_handshake_done(&mut self, peer: NodePublic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_handshake_done(cx));
    }

    /// Something was sent to a peer, and nothing authentic came for a while.
    pub fn handle_stale(&mut self, peer: NodePublic, now: Duration) {
        self.step(peer, now, Peer::handle_stale);
    }

    /// A relay says that a peer is not there. It says so of disco messages alone, three times a
    /// second (tailscale `derp/derpserver`), so that its silence proves nothing.
    pub fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.step(peer, now, |peer, cx| peer.handle_gone(region, cx));
    }

    /// Our addresses or the default route changed. Paths in use have a second to prove themselves.
    pub fn handle_network_change(&mut self, now: Duration) {
        self.own.at = None;
        self.step_all(now, |peer| peer.full().is_some(), Peer::handle_network_change);
    }

    /// Nothing that arrived was handled for this time: paths in use are trusted for as much longer.
    pub fn handle_stall(&mut self, time: Duration, now: Duration) {
        self.step_all(now, |peer| peer.full().is_some(), |peer, _| peer.handle_stall(time));
    }

    /// Pings a peer on the path that its data takes, and looks for a better one. The answer is
    /// [`Event::Pong`] with the number that is returned; `None` for a peer without a path.
    pub fn ping(&mut self, peer: NodePublic, now: Duration) -> Option<u32> {
        self.numbers.pings = self.numbers.pings.wrapping_add(1);
        let number = self.numbers.pings;
        self.step(peer, now, |peer, cx| peer.ping_for_user(number, cx))?.then_some(number)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((at, key)) = self.deadlines.first().copied()
            && at <= now
        {
            self.step(key, now, Peer::handle_timeout);
        }
    }

    /// Whether a peer has this disco key. What others sealed need not be opened.
    pub fn has_disco_key(&self, disco: &DiscoPublic) -> bool {
        let first = (*disco, NodePublic([0; 32]));
        self.by_disco.range(first..).next().is_some_and(|(key, _)| key == disco)
    }

    /// A peer's disco key.
    pub fn disco(&self, peer: &NodePublic) -> Option<DiscoPublic> {
        self.peers.get(peer).map(|peer| peer.disco()).filter(|disco| !disco.is_zero())
    }

    /// The next message to be sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        pop(&mut self.out.transmits)
    }

    /// The next thing to be done.
    pub fn poll_event(&mut self) -> Option<Event> {
        pop(&mut self.out.events)
    }

    /// When [`Self::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The keys of all peers.
    pub fn keys(&self) -> impl Iterator<Item = NodePublic> {
        self.peers.keys().copied()
    }

    /// What is known of the way to a peer.
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

    /// Has a peer do something, and what follows from it.
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

/// The first; the room that a whole network took is not kept for the next one.
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

    /// A ping to be sent, and what to remember of it.
    fn new_ping(&mut self, to: Path, number: Option<u32>) -> (Message, Pinged) {
        let mut tx = TxId::default();
        self.numbers.rng.fill_bytes(&mut tx);
        let message = Message::Ping { tx, node_key: Some(self.own.node), padding: 0 };
        (message, Pinged { tx, to, at: self.now, number })
    }

    fn random_port(&mut self) -> u16 {
        let (first, all) = (birthday::FIRST_PORT, u64::from(u16::MAX - birthday::FIRST_PORT) + 1);
        // The product's high half is below `all`, and so fits.
        first + ((u64::from(self.numbers.rng.next_u32()) * all) >> 32) as u16
    }

    /// The number of something that is asked, never 0.
    fn generation(&mut self) -> u32 {
        self.numbers.rng.next_u32() | 1
    }

    /// A random tenth of `time` and all of it.
    fn jittered(&mut self, time: Duration) -> Duration {
        time + time / 10 * (self.numbers.rng.next_u32() >> 16) / (1 << 16)
    }
}

impl Own {
    fn is_fresh(&self, now: Duration) -> bool {
        self.at.is_some_and(|at| now < at + timing::FRESH)
    }

    /// Whether they are to be asked for now.
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
