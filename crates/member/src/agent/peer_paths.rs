//! Paths to peers: disco messages in both directions, this node's endpoints, and its home relay.
//!
//! ```text
//!   datagrams ──► Outbox::open ──► Paths ──► transmits ──► Outbox::seal ──┐
//!        |                           |                                    ├──► Output
//!        |                           `─ events: path, handshake, pong ────┤
//!        `──────► NetworkChecks ──► endpoints, home ──────────────────────┘
//! ```
//!
//! The mesh works without sockets and tasks: [`Mesh::flush`] returns everything that must be sent
//! or done.

mod nat64;
mod network_checks;
mod outbox;
mod previous_paths;

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use getrandom::{SysRng, rand_core::UnwrapErr};
use ipc::{Activity, Incoming, Path, Relayed, ToDataPlane};
use mesh::{
    netcheck::ReflexiveAddress,
    peer_paths::{Event, PathView, Paths, PeerInfo, PeerRelay, To, Traffic, Transmit, Via},
    permitted_addresses::Scope,
};
use tailnet::{
    derp::{Bundles, read_bundle},
    disco::{AllocateRequest, Message},
    geneve::{GENEVE_LEN, Geneve},
    keys::{DiscoKey, DiscoPublic, NodePublic},
    map_messages::DerpMap,
    stun,
};

use self::{network_checks::NetworkChecks, outbox::Outbox, previous_paths::PreviousPaths};
use super::{check_tasks::CheckResult, portmap::PortMapping};

/// A task for the agent.
#[derive(Debug)]
pub(super) enum Output {
    /// Send this to the data plane.
    Plane(ToDataPlane),
    /// Send a datagram by a relay.
    Relay { region: u16, peer: NodePublic, bytes: Bytes },
    /// The relay of this region is home.
    Home(Option<u16>),
    /// A ping of [`Mesh::ping`] was answered.
    Pong { number: u32, via: Path, latency: Duration },
    /// Resolve the name of a relay.
    LookUp(String),
    /// Query the NAT64 prefix.
    LookUpPrefix,
    /// Measure the latency of a region over TCP.
    MeasureLatency(u16),
    /// Read the machine's addresses again.
    FindEndpoints,
    /// Announce the endpoints or the home relay to the coordinator.
    Announce,
}

/// Datagrams from a relay.
pub(super) struct RelayedDatagrams {
    /// Those of WireGuard.
    pub wireguard: Vec<Relayed>,
    /// Requests for endpoints of this node's peer relay.
    pub requests: Vec<AllocationRequest>,
}

/// A decrypted request for an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationRequest {
    pub region: u16,
    pub peer: NodePublic,
    pub disco: DiscoPublic,
    pub message: AllocateRequest,
}

/// The paths to all peers.
pub(super) struct Mesh {
    paths: Paths,
    own_key: NodePublic,
    network: NetworkChecks,
    outbox: Outbox,
    activity: HashMap<NodePublic, Activity>,
    previous_paths: PreviousPaths,
    bundles: Bundles,
    /// Whether birthday probing is enabled.
    birthday_probing: bool,
    /// Whether the home relay changed.
    has_new_home: bool,
    /// Whether the endpoints or the home relay must be announced.
    must_announce: bool,
}

impl Mesh {
    /// A mesh without peers.
    pub(super) fn new(key: DiscoKey, port_mapping: PortMapping) -> Self {
        let outbox = Outbox::new(key);
        let pick = usize::from(outbox.disco_key().0[0]);
        Self {
            paths: Paths::new(NodePublic::default(), Box::new(UnwrapErr(SysRng))),
            own_key: NodePublic::default(),
            network: NetworkChecks::new(port_mapping, pick),
            outbox,
            activity: HashMap::new(),
            previous_paths: PreviousPaths::default(),
            bundles: Bundles::default(),
            birthday_probing: false,
            has_new_home: false,
            must_announce: false,
        }
    }

    /// The public disco key of this node.
    pub(super) fn disco_key(&self) -> DiscoPublic {
        self.outbox.disco_key()
    }

    /// The results of network checks.
    pub(super) fn network(&self) -> &NetworkChecks {
        &self.network
    }

    /// The traffic of a peer.
    pub(super) fn activity(&self, peer: &NodePublic) -> Option<&Activity> {
        self.activity.get(peer)
    }

    /// The state of the path to a peer.
    pub(super) fn path(&self, peer: NodePublic) -> Option<PathView> {
        self.paths.view(peer)
    }

    pub(super) fn set_own_key(&mut self, key: NodePublic, now: Duration) {
        self.own_key = key;
        self.update_paths(now);
    }

    /// Sets this machine's addresses. Returns whether they changed.
    pub(super) fn set_local(&mut self, local: Vec<SocketAddr>, now: Duration) -> bool {
        let differs = self.network.set_local(local);
        self.apply_changes(now);
        differs
    }

    pub(super) fn set_relays(&mut self, map: &DerpMap, scope: Scope, now: Duration) {
        self.network.set_relays(map, scope, now);
        self.apply_changes(now);
    }

    /// Applies the results of network checks to the paths.
    fn apply_changes(&mut self, now: Duration) {
        let changes = self.network.take_changes();
        if changes.home {
            self.paths.set_home(self.network.home(), now);
            self.has_new_home = true;
        }
        if changes.endpoints {
            self.update_paths(now);
        }
        self.must_announce |= changes.announce;
    }

    fn update_paths(&mut self, now: Duration) {
        let endpoints = self.network.endpoints().into_iter().map(|(at, _)| at).collect();
        self.paths.set_own_endpoints(self.own_key, endpoints, now);
        self.update_probing();
    }

    /// A relay of a region sent something.
    pub(super) fn handle_relay_frame(&mut self, region: u16, now: Duration) {
        self.network.handle_relay_frame(region, now);
    }

    /// A relay of a region was connected.
    pub(super) fn handle_relay_up(&mut self, region: u16, now: Duration) {
        self.handle_relay_frame(region, now);
        self.paths.set_relay(region, true, now);
    }

    /// The connection to a region failed or ended. If the home region cannot be connected, another
    /// one becomes home at once.
    pub(super) fn handle_relay_down(&mut self, region: u16, was_up: bool, now: Duration) {
        self.paths.set_relay(region, false, now);
        self.network.handle_relay_down(region, was_up, now);
        self.apply_changes(now);
    }

    pub(super) fn set_peers(&mut self, peers: &[(NodePublic, PeerInfo)], now: Duration) {
        let current: HashSet<NodePublic> = peers.iter().map(|(peer, _)| *peer).collect();
        let gone: Vec<NodePublic> =
            self.paths.keys().filter(|key| !current.contains(key)).collect();
        gone.into_iter().for_each(|key| self.paths.remove_peer(key));
        // The data plane may have reported peers without a path.
        self.activity.retain(|key, _| current.contains(key));
        self.bundles.retain(|key| current.contains(key));
        for (key, info) in peers {
            self.paths.set_peer(*key, info, now);
        }
    }

    /// Sets the peers whose relays may be used; `None` disables peer relays.
    pub(super) fn set_peer_relays(&mut self, relays: Option<Vec<PeerRelay>>) {
        self.paths.set_peer_relays(self.disco_key(), relays);
    }

    /// Received data was not handled for this time.
    pub(super) fn handle_stall(&mut self, time: Duration, now: Duration) {
        self.paths.handle_stall(time, now);
    }

    pub(super) fn handle_network_change(&mut self, now: Duration) {
        self.paths.handle_network_change(now);
        self.network.handle_network_change(now);
        self.apply_changes(now);
    }

    pub(super) fn handle_check_result(&mut self, result: CheckResult, now: Duration) {
        self.network.handle_result(result, now);
        self.apply_changes(now);
    }

    /// Handles a datagram of the UDP socket that does not belong to WireGuard.
    pub(super) fn handle_datagram(&mut self, one: Incoming, now: Duration) {
        let one = self.network.nat64().incoming_datagram(one);
        // Auxiliary sockets receive only disco messages of peers.
        let is_usual = one.to.is_none();
        if is_usual && stun::is_stun(&one.bytes) {
            self.network.handle_stun_response(&one.bytes, one.at);
        } else if let Some(header) = Geneve::read(&one.bytes).filter(|_| is_usual) {
            let via = Via::PeerRelay { at: one.from, vni: header.vni };
            if let Some((from, message)) = self.outbox.open(&one.bytes[GENEVE_LEN..])
                && header.control == matches!(message, Message::BindChallenge(_))
            {
                self.paths.handle_disco(from, via, &message, now);
            }
        } else if tailnet::disco::sender(&one.bytes)
            .is_some_and(|from| self.paths.has_disco_key(&from))
            && let Some((from, message)) = self.outbox.open(&one.bytes)
        {
            if let Message::Pong { source, .. } = message
                && is_usual
            {
                self.network.handle_peer_report(ReflexiveAddress { server: one.from, own: source });
                self.update_probing();
            }
            let via = match one.to {
                Some(socket) => Via::Auxiliary { remote: one.from, socket },
                None => Via::Udp { remote: one.from, local: one.local },
            };
            self.paths.handle_disco(from, via, &message, now);
        }
    }

    pub(super) fn set_birthday_probing(&mut self, enabled: bool) {
        self.birthday_probing = enabled;
        self.update_probing();
    }

    /// The state of birthday probing for users.
    pub(super) fn birthday_probing_text(&self) -> &'static str {
        match self.network.public_endpoint() {
            _ if !self.birthday_probing => "off",
            None => "not known yet",
            Some(endpoint) if endpoint.varies => {
                "opens many ports for peers without a symmetric NAT"
            }
            Some(_) => "probes ports of peers with a symmetric NAT",
        }
    }

    fn update_probing(&mut self) {
        let endpoint = self.network.public_endpoint().filter(|_| self.birthday_probing);
        self.paths.set_public_endpoint(endpoint);
    }

    /// The data plane has opened auxiliary sockets.
    pub(super) fn handle_opened(&mut self, number: u32, count: u16, now: Duration) {
        self.paths.handle_sockets_opened(number, count, now);
    }

    /// Handles datagrams from a relay.
    pub(super) fn handle_relayed(
        &mut self,
        region: u16,
        datagrams: Vec<(NodePublic, Bytes)>,
        now: Duration,
    ) -> RelayedDatagrams {
        let (mut wireguard, mut requests) = (Vec::new(), Vec::new());
        for (from, bytes) in datagrams {
            if tailnet::disco::sender(&bytes).is_none() {
                let (bytes, segment) = read_bundle(bytes);
                let segment = u32::try_from(segment).unwrap_or(u32::MAX);
                wireguard.push(Relayed { region, from, bytes: bytes.into(), segment });
            } else if let Some((disco, message)) = self.outbox.open(&bytes) {
                let is_of_peer = self.paths.disco(&from) == Some(disco);
                match message {
                    Message::BundleOffer if is_of_peer => self.bundles.handle_offer(from, disco),
                    Message::AllocateRequest(message) if is_of_peer => {
                        requests.push(AllocationRequest { region, peer: from, disco, message });
                    }
                    _ => {}
                }
                self.paths.handle_disco(disco, Via::Relay { region, from }, &message, now);
            }
        }
        self.offer_bundles(&wireguard, now);
        RelayedDatagrams { wireguard, requests }
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: Transmit) {
        self.outbox.push(message);
    }

    /// Offers bundles to peers that send many single datagrams.
    fn offer_bundles(&mut self, relayed: &[Relayed], now: Duration) {
        let is_single = |one: &Relayed| one.bytes.len() <= one.segment as usize;
        let in_numbers = relayed.windows(2).filter(|two| two[0].from == two[1].from);
        let singles = in_numbers.filter(|two| two.iter().all(is_single)).map(|two| &two[0]);
        for Relayed { region, from, .. } in singles {
            if let Some(disco) = self.paths.disco(from)
                && self.bundles.handle_singles(*from, disco, now)
            {
                let to = To::Relay { region: *region, peer: *from };
                self.outbox.push(Transmit { to, disco, message: Message::BundleOffer });
            }
        }
    }

    /// Whether a peer accepts bundles from a relay.
    pub(super) fn takes_bundles(&self, peer: &NodePublic) -> bool {
        self.paths.disco(peer).is_some_and(|disco| self.bundles.accepts(peer, disco))
    }

    /// The data plane sent bytes to a peer by a relay.
    pub(super) fn handle_relay_sent(&mut self, peer: NodePublic, bytes: usize, now: Duration) {
        let traffic = Traffic { sent: bytes as u64, ..Traffic::default() };
        self.paths.handle_wireguard(peer, traffic, now);
    }

    /// Handles reports about peers. Returns whether they are the first from the data plane.
    pub(super) fn handle_activity(&mut self, all: Vec<Activity>, now: Duration) -> bool {
        let is_first = self.previous_paths.handle_activity(&all, now);
        all.into_iter().for_each(|one| self.handle_peer_activity(one, now));
        is_first
    }

    /// The time until which the settings of the previous agent have priority over the saved map.
    pub(super) fn previous_agent_until(&self) -> Duration {
        self.previous_paths.agent_until()
    }

    /// Handles a report about a peer.
    fn handle_peer_activity(&mut self, mut new: Activity, now: Duration) {
        let nat64 = self.network.nat64();
        new.received_from = new.received_from.map(|from| nat64.incoming_path(from));
        let old = self.activity.insert(new.peer, new);
        let (sent, received) = old.map_or((0, 0), |old| (old.sent, old.received));
        let traffic = Traffic {
            sent: new.sent.saturating_sub(sent),
            received: new.received.saturating_sub(received),
            received_from: new.received_from,
        };
        self.paths.handle_wireguard(new.peer, traffic, now);
    }

    /// The data plane starts a handshake, which its reports show a second later.
    pub(super) fn handle_wanted(&mut self, peer: NodePublic, now: Duration) {
        let traffic = Traffic { sent: 1, ..Traffic::default() };
        self.paths.handle_wireguard(peer, traffic, now);
    }

    pub(super) fn handle_handshake_done(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_handshake_done(peer, now);
    }

    pub(super) fn handle_stale(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_stale(peer, now);
    }

    pub(super) fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.paths.handle_peer_gone(region, peer, now);
    }

    /// Pings a peer. `None` without a path.
    pub(super) fn ping(&mut self, peer: NodePublic, now: Duration) -> Option<u32> {
        self.paths.ping(peer, now)
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let paths = self.paths.poll_timeout();
        // Traffic sets path timers.
        let check = self.network.poll_timeout(paths.is_some());
        let previous = self.previous_paths.poll_timeout();
        paths.into_iter().chain(check).chain(previous).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        self.paths.handle_timeout(now);
        self.network.handle_timeout(self.paths.poll_timeout().is_some(), now);
        self.apply_changes(now);
    }

    /// Takes everything that must be sent or done, in this order.
    pub(super) fn flush(&mut self, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.flush_network(&mut outputs, now);
        self.resend_translated_paths(&mut outputs);
        let (home, announce) =
            (std::mem::take(&mut self.has_new_home), std::mem::take(&mut self.must_announce));
        let (has_refresh, closed) = self.flush_events(&mut outputs, now);
        while let Some((peer, path)) = self.previous_paths.poll(now) {
            outputs.push(Output::Plane(ToDataPlane::Path { peer, path }));
        }
        let of_paths = std::iter::from_fn(|| self.paths.poll_transmit());
        self.outbox.seal(of_paths, self.network.nat64(), &mut outputs);
        // Sockets are closed after peers have other paths.
        let closed = closed.into_iter().map(ToDataPlane::CloseSockets);
        outputs.extend(closed.map(Output::Plane));
        if home {
            outputs.push(Output::Home(self.network.home()));
        }
        if has_refresh {
            outputs.push(Output::FindEndpoints);
        }
        if announce {
            outputs.push(Output::Announce);
        }
        outputs
    }

    fn flush_network(&mut self, outputs: &mut Vec<Output>, now: Duration) {
        self.network.flush(&mut self.outbox, outputs, now);
        self.apply_changes(now);
    }

    /// Handles the events of paths. Returns whether the machine's addresses must be read again, and
    /// the sockets that must be closed.
    fn flush_events(&mut self, outputs: &mut Vec<Output>, now: Duration) -> (bool, Vec<u32>) {
        let (mut has_refresh, mut closed) = (false, Vec::new());
        while let Some(event) = self.paths.poll_event() {
            let message = match event {
                Event::UsePath { peer, path: Some(path) } => {
                    if !self.previous_paths.admits(peer, path, now) {
                        continue;
                    }
                    ToDataPlane::Path { peer, path: self.network.nat64().outgoing_path(path) }
                }
                // The next path is sent when there is one.
                Event::UsePath { path: None, .. } => continue,
                Event::HandshakeNow(peer) => ToDataPlane::Handshake(peer),
                Event::Pong { number, via, latency, .. } => {
                    outputs.push(Output::Pong { number, via, latency });
                    continue;
                }
                Event::RefreshEndpoints => {
                    has_refresh = true;
                    self.network.check(now);
                    self.flush_network(outputs, now);
                    continue;
                }
                Event::OpenSockets(opening) => {
                    let nat64 = self.network.nat64();
                    match self.outbox.open_sockets(opening, self.own_key, nat64) {
                        Some(message) => message,
                        None => continue,
                    }
                }
                Event::RetainSocket(socket) => ToDataPlane::RetainSocket(socket),
                Event::CloseSockets(number) => {
                    closed.push(number);
                    continue;
                }
            };
            outputs.push(Output::Plane(message));
        }
        (has_refresh, closed)
    }

    /// Sends all paths again after a change of the NAT64 prefix.
    fn resend_translated_paths(&mut self, outputs: &mut Vec<Output>) {
        if !self.network.poll_outdated_paths() {
            return;
        }
        for peer in self.paths.keys() {
            if let Some(path) = self.paths.view(peer).and_then(|view| view.path) {
                let path = self.network.nat64().outgoing_path(path);
                outputs.push(Output::Plane(ToDataPlane::Path { peer, path }));
            }
        }
    }
}

/// The address of a direct path.
pub(super) fn direct(path: Option<Path>) -> Option<SocketAddr> {
    match path {
        Some(Path::Direct(at) | Path::Auxiliary { at, .. }) => Some(at),
        _ => None,
    }
}
