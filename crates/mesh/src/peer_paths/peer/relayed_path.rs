//! Paths through peer relays ([`crate::peer_relay`]).
//!
//! ```text
//!   no direct path ── request to all relays (DERP) ── AllocateResponse ──┐
//!                                         a peer's CallMeMaybeVia ───────┼─► Bind to each address
//!   pong ◄── ping by the relay ◄── BindAnswer ◄── BindChallenge ◄────────┘
//!     '──► in use, until the relay does not answer or there is a direct path
//! ```

use std::{net::SocketAddr, time::Duration};

use ipc::Path;
use tailnet::{
    disco::{AllocateRequest, Bind, CHALLENGE_LEN, Message, RelayEndpoint},
    geneve::Vni,
    keys::{DiscoPublic, NodePublic},
};

use super::Peer;
use crate::peer_paths::{
    Context, PeerRelay, To,
    candidate::{canonical, may_be_reached},
    limit::Limit,
    timing::{
        ALLOCATE_AGAIN, ALLOCATE_TIMEOUT, BIND_TIMEOUT, CALLS, HEARTBEAT, HEARTBEAT_RETRY,
        PEER_RELAYS, RELAYED_ADDRESSES, RELAYED_AGAIN, RELAYED_BETTER, RELAYED_LOST, RELAYED_PINGS,
        TRUST,
    },
};

#[derive(Debug, Default)]
pub(super) struct RelayPath {
    pending: Vec<PendingRequest>,
    bindings: Vec<Binding>,
    used: Option<Used>,
    /// The time of the last request to all relays, and the earliest time of the next one.
    requested_at: Option<Duration>,
    next: Duration,
    calls: Limit,
    /// The time of the next timer.
    due: Option<Duration>,
}

/// A pending request for an endpoint.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    relay: PeerRelay,
    generation: u32,
    at: Duration,
    repeated: bool,
}

/// An endpoint to which we bind.
#[derive(Debug)]
struct Binding {
    endpoint: Box<RelayEndpoint>,
    generation: u32,
    ends: Duration,
    /// The address from which the relay answered.
    answered: Option<SocketAddr>,
    pings: u8,
}

/// The endpoint that a pong proved.
#[derive(Clone, Copy, Debug)]
struct Used {
    server: DiscoPublic,
    at: SocketAddr,
    vni: Vni,
    latency: Duration,
    alive: Duration,
    pinged: Duration,
}

impl RelayPath {
    /// Resets the state.
    pub(super) fn reset(&mut self) {
        *self = Self { calls: self.calls, ..Self::default() };
    }

    /// Returns whether no relay was used.
    pub(super) fn is_quiet(&self) -> bool {
        let Self { pending, bindings, used, requested_at, .. } = self;
        pending.is_empty() && bindings.is_empty() && used.is_none() && requested_at.is_none()
    }

    /// Returns the path through a relay, if one is proven.
    pub(super) fn path(&self) -> Option<Path> {
        self.used.map(|used| Path::PeerRelay { at: used.at, vni: used.vni })
    }

    pub(super) fn latency(&self) -> Option<Duration> {
        self.used.map(|used| used.latency)
    }

    /// A path was lost: relays are needed earlier.
    pub(super) fn handle_loss(&mut self, now: Duration) {
        self.next = self.requested_at.map_or(now, |at| now.max(at + RELAYED_LOST));
    }

    /// Received packets were not processed for this time.
    pub(super) fn handle_stall(&mut self, time: Duration) {
        if let Some(used) = &mut self.used {
            used.alive += time;
        }
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Returns whether a request with this number is pending at the relay.
    pub(super) fn awaits(&self, server: &NodePublic, generation: u32) -> bool {
        let is_it =
            |asked: &PendingRequest| asked.generation == generation && asked.relay.node == *server;
        self.pending.iter().any(is_it)
    }

    fn is_at(&self, at: SocketAddr, vni: Vni) -> bool {
        self.used.is_some_and(|used| (used.at, used.vni) == (at, vni))
    }
}

impl Used {
    fn next_ping(&self) -> Duration {
        let late = self.alive < self.pinged;
        self.pinged + if late { HEARTBEAT_RETRY.max(self.latency * 2) } else { HEARTBEAT }
    }
}

impl Peer {
    /// Returns whether a request with this number is pending at the node's relay.
    pub(crate) fn has_requested(&self, node: &NodePublic, generation: u32) -> bool {
        self.relayed.awaits(node, generation)
    }

    /// Processes expired timers.
    pub(crate) fn continue_peer_relays(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.relayed.bindings.retain(|binding| now < binding.ends);
        self.relayed.pending.retain(|asked| now < asked.at + ALLOCATE_TIMEOUT);
        let late =
            |asked: &&mut PendingRequest| !asked.repeated && now >= asked.at + ALLOCATE_AGAIN;
        let mut again = Vec::new();
        for asked in self.relayed.pending.iter_mut().filter(late) {
            asked.repeated = true;
            again.push(*asked);
        }
        again.iter().for_each(|asked| self.request(asked, cx));
        if let Some(used) = self.relayed.used {
            if now >= used.alive + TRUST {
                self.relayed.used = None;
                self.relayed.handle_loss(now);
            } else if self.pings_relayed() && now >= used.next_ping() {
                self.ping_relayed(used.at, used.vni, None, cx);
            }
        }
        let wants = self.needs_relay(cx);
        if wants && now >= self.relayed.next {
            self.request_all(cx);
        }
        self.relayed.due = self.relayed_due(wants);
    }

    /// Relays are used only after the search for a direct path failed.
    fn needs_relay(&self, cx: &Context<'_>) -> bool {
        self.supports_peer_relays
            && !self.disco.is_zero()
            && !cx.own.relays.is_empty()
            && self.direct.is_none()
            && self.is_active(cx.now)
            && (self.search.has_failed() || self.lost.is_some())
    }

    fn pings_relayed(&self) -> bool {
        self.direct.is_none()
            && self.relayed.used.is_some_and(|used| used.next_ping() < self.active_until())
    }

    fn request_all(&mut self, cx: &mut Context<'_>) {
        let pause = if self.relayed.used.is_some() { RELAYED_BETTER } else { RELAYED_AGAIN };
        self.relayed.requested_at = Some(cx.now);
        self.relayed.next = cx.now + cx.jittered(pause);
        self.relayed.pending.clear();
        let relays = cx.own.relays.iter().filter(|relay| relay.node != self.key);
        for relay in relays.take(PEER_RELAYS).copied().collect::<Vec<_>>() {
            let asked =
                PendingRequest { relay, generation: cx.generation(), at: cx.now, repeated: false };
            self.relayed.pending.push(asked);
            self.request(&asked, cx);
        }
    }

    fn request(&self, asked: &PendingRequest, cx: &mut Context<'_>) {
        let PeerRelay { node, disco, home } = asked.relay;
        let Some(region) = home.or(cx.own.home) else { return };
        let clients = [cx.own.disco, self.disco];
        let request = AllocateRequest { clients, generation: asked.generation };
        cx.send(To::Relay { region, peer: node }, disco, Message::AllocateRequest(request));
    }

    /// A relay returned a new or existing endpoint.
    pub(crate) fn handle_allocated(
        &mut self,
        generation: u32,
        endpoint: &RelayEndpoint,
        cx: &mut Context<'_>,
    ) {
        self.relayed.pending.retain(|asked| asked.generation != generation);
        if !self.is_for_both(endpoint, cx) {
            return;
        }
        if let Some(region) = self.region(cx) {
            let call = Message::CallMeMaybeVia(Box::new(endpoint.clone()));
            cx.send(To::Relay { region, peer: self.key }, self.disco, call);
        }
        self.bind(endpoint, cx);
    }

    /// The peer requests that we bind to an endpoint.
    pub(crate) fn handle_call_via(&mut self, endpoint: &RelayEndpoint, cx: &mut Context<'_>) {
        if cx.own.binds && self.is_for_both(endpoint, cx) && self.relayed.calls.admit(cx.now, CALLS)
        {
            self.bind(endpoint, cx);
        }
    }

    fn is_for_both(&self, endpoint: &RelayEndpoint, cx: &Context<'_>) -> bool {
        let [one, other] = endpoint.clients;
        let both = (cx.own.disco, self.disco);
        (one, other) == both || (other, one) == both
    }

    fn bind(&mut self, endpoint: &RelayEndpoint, cx: &mut Context<'_>) {
        let is_newer = |binding: &Binding| {
            let there = &binding.endpoint;
            there.server != endpoint.server || there.lamport < endpoint.lamport
        };
        // A new handshake could change our bound address, and packets in flight would be lost.
        let is_used = self.relayed.used.is_some_and(|used| {
            (used.server, used.vni) == (endpoint.server, endpoint.vni)
                && cx.now < used.alive + HEARTBEAT * 3 / 2
        });
        if is_used || !self.relayed.bindings.iter().all(is_newer) {
            return;
        }
        self.relayed.bindings.retain(|binding| binding.endpoint.server != endpoint.server);
        if self.relayed.bindings.len() >= PEER_RELAYS {
            return;
        }
        let mut endpoint = Box::new(endpoint.clone());
        endpoint.addresses.truncate(RELAYED_ADDRESSES);
        let (server, vni, generation) = (endpoint.server, endpoint.vni, cx.generation());
        let bind = Bind { vni, generation, other: self.disco, challenge: [0; CHALLENGE_LEN] };
        for addr in endpoint.addresses.iter().copied().map(canonical).filter(may_be_reached) {
            cx.send(To::PeerRelay { addr, vni, control: true }, server, Message::Bind(bind));
        }
        let ends = cx.now + endpoint.bind_lifetime.min(BIND_TIMEOUT);
        let binding = Binding { endpoint, generation, ends, answered: None, pings: 0 };
        self.relayed.bindings.push(binding);
    }

    /// A relay checks our address.
    pub(crate) fn handle_challenge(
        &mut self,
        server: DiscoPublic,
        at: SocketAddr,
        bind: &Bind,
        cx: &mut Context<'_>,
    ) {
        let is_it = |binding: &&mut Binding| {
            binding.endpoint.server == server
                && (binding.endpoint.vni, binding.generation) == (bind.vni, bind.generation)
                && binding.answered.is_none()
        };
        let Some(binding) = self.relayed.bindings.iter_mut().find(is_it) else { return };
        if bind.other != self.disco {
            return;
        }
        binding.answered = Some(at);
        let to = To::PeerRelay { addr: at, vni: bind.vni, control: true };
        cx.send(to, server, Message::BindAnswer(*bind));
        self.ping_bound(at, bind.vni, cx);
    }

    /// The peer pings through a relay, and therefore is bound.
    pub(crate) fn handle_relayed_ping(&mut self, at: SocketAddr, vni: Vni, cx: &mut Context<'_>) {
        self.ping_bound(at, vni, cx);
    }

    fn ping_bound(&mut self, at: SocketAddr, vni: Vni, cx: &mut Context<'_>) {
        let is_it = |one: &&mut Binding| one.answered == Some(at) && one.endpoint.vni == vni;
        let Some(binding) = self.relayed.bindings.iter_mut().find(is_it) else { return };
        if binding.pings < RELAYED_PINGS {
            binding.pings += 1;
            self.ping_relayed(at, vni, None, cx);
        }
    }

    /// A pong proves the path through a relay.
    pub(crate) fn prove_relayed(
        &mut self,
        at: SocketAddr,
        vni: Vni,
        latency: Duration,
        cx: &Context<'_>,
    ) {
        if self.relayed.is_at(at, vni)
            && let Some(used) = &mut self.relayed.used
        {
            (used.alive, used.latency) = (cx.now, (used.latency * 3 + latency) / 4);
            return;
        }
        let is_it = |one: &Binding| one.answered == Some(at) && one.endpoint.vni == vni;
        let Some(found) = self.relayed.bindings.iter().position(is_it) else { return };
        let server = self.relayed.bindings.swap_remove(found).endpoint.server;
        let replaces = |used: &Used| used.server == server || latency < used.latency * 9 / 10;
        if self.relayed.used.as_ref().is_none_or(replaces) {
            let (alive, pinged) = (cx.now, cx.now);
            self.relayed.used = Some(Used { server, at, vni, latency, alive, pinged });
        }
    }

    /// Data was received through a relay.
    pub(crate) fn handle_relayed_data(&mut self, at: SocketAddr, vni: Vni, now: Duration) {
        if self.relayed.is_at(at, vni)
            && let Some(used) = &mut self.relayed.used
        {
            used.alive = now;
        }
    }

    pub(crate) fn ping_relayed(
        &mut self,
        at: SocketAddr,
        vni: Vni,
        number: Option<u32>,
        cx: &mut Context<'_>,
    ) {
        if self.relayed.is_at(at, vni)
            && let Some(used) = &mut self.relayed.used
        {
            used.pinged = cx.now;
        }
        let (message, pinged) = cx.new_ping(Path::PeerRelay { at, vni }, number);
        self.await_pong(pinged);
        cx.send(To::PeerRelay { addr: at, vni, control: false }, self.disco, message);
    }

    fn relayed_due(&self, wants: bool) -> Option<Duration> {
        let asked = self.relayed.pending.iter();
        let asked = asked
            .map(|asked| asked.at + if asked.repeated { ALLOCATE_TIMEOUT } else { ALLOCATE_AGAIN });
        let bindings = self.relayed.bindings.iter().map(|binding| binding.ends);
        let used = self.relayed.used.map(|used| {
            let ends = used.alive + TRUST;
            if self.pings_relayed() { ends.min(used.next_ping()) } else { ends }
        });
        let next = Some(self.relayed.next).filter(|at| wants && *at < self.active_until());
        asked.chain(bindings).chain(used).chain(next).min()
    }
}
