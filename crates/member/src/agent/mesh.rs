//! Paths to peers: disco messages in both directions, this node's endpoints, and its home relay.
//!
//! ```text
//!   datagrams ──► disco ──► Paths ──► transmits ──► disco ──► UDP by the data plane, or a relay
//!        |                                          events ──► data plane: path, handshake
//!        `──────► Netcheck ──► report ──► endpoints, latencies ──► Home
//! ```

mod nat64;
mod netcheck_tasks;
mod previous_paths;
mod send;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use getrandom::{
    SysRng,
    rand_core::{Rng as _, UnwrapErr},
};
use tailnet::{
    control::messages::EndpointKind,
    derp::{Bundles, home::HomeSelector, read_bundle},
    disco::{Disco, Message},
    ipc::{Activity, Incoming, Outgoing, Path, Relayed},
    keys::{DiscoKey, DiscoPublic, NodePublic},
    messages::DerpMap,
    netcheck::{Nat, NetInfo, Netcheck, PeerReports, ReflexiveAddress, Report},
    paths::{PathView, Paths, PeerInfo, PeerRelay, To, Traffic, Transmit, Via},
    peer_relay::{GENEVE_LEN, Geneve},
    scope::Scope,
    stun,
};
use tokio::sync::{mpsc, oneshot};

use super::{portmap::PortMapping, relay_process::AllocationRequest};

use self::{nat64::Nat64, previous_paths::PreviousPaths};
pub(super) use self::{
    nat64::discover_prefix,
    netcheck_tasks::{CheckResult, look_up},
};

/// Pending work for the agent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    /// Read the machine's addresses again.
    pub endpoints: bool,
    /// Announce the endpoints or the home relay to the coordinator.
    pub announce: bool,
    /// The home relay changed.
    home: bool,
}

pub(super) struct Mesh {
    disco: Disco,
    paths: Paths,
    own_key: NodePublic,
    local: Vec<SocketAddr>,
    netcheck: Netcheck,
    /// The report of the last check.
    report: Report,
    seen_by_peers: PeerReports,
    net_info: NetInfo,
    pub port_mapping: PortMapping,
    homes: HomeSelector,
    /// Receives the results of a check's tasks.
    results: mpsc::Sender<CheckResult>,
    logins: HashMap<u32, oneshot::Sender<Bytes>>,
    next_login: u32,
    activity: HashMap<NodePublic, Activity>,
    previous_paths: PreviousPaths,
    bundles: Bundles,
    /// Messages to send, in addition to those of paths.
    messages: Vec<Transmit>,
    /// Requests for endpoints of this node's peer relay.
    allocation_requests: Vec<AllocationRequest>,
    pending: Vec<Outgoing>,
    /// Birthday probes: pings to random ports of peers.
    probes: Vec<Outgoing>,
    /// Whether birthday probing is enabled.
    birthday_probing: bool,
    due: Due,
    nat64: Nat64,
}

impl Mesh {
    /// A mesh without peers.
    pub fn new(
        key: DiscoKey,
        results: mpsc::Sender<CheckResult>,
        port_mapping: PortMapping,
    ) -> Self {
        let rng = || Box::new(UnwrapErr(SysRng));
        let disco = Disco::new(key);
        let pick = usize::from(disco.public().0[0]);
        Self {
            disco,
            paths: Paths::new(NodePublic::default(), rng()),
            own_key: NodePublic::default(),
            local: Vec::new(),
            netcheck: Netcheck::new(rng()),
            report: Report::default(),
            seen_by_peers: PeerReports::default(),
            net_info: NetInfo::default(),
            port_mapping,
            homes: HomeSelector::new(None, pick),
            results,
            logins: HashMap::new(),
            // Logins of the previous agent may still be answered.
            next_login: rng().next_u32(),
            activity: HashMap::new(),
            previous_paths: PreviousPaths::default(),
            bundles: Bundles::default(),
            messages: Vec::new(),
            allocation_requests: Vec::new(),
            pending: Vec::new(),
            probes: Vec::new(),
            birthday_probing: false,
            due: Due::default(),
            nat64: Nat64::default(),
        }
    }

    /// The public disco key of this node.
    pub fn disco_key(&self) -> DiscoPublic {
        self.disco.public()
    }

    pub fn home(&self) -> Option<u16> {
        self.homes.current()
    }

    /// The network information for the coordinator. Changed latencies alone do not count, or nodes
    /// would announce each check.
    pub fn net_info(&self) -> &NetInfo {
        &self.net_info
    }

    /// This machine's own addresses.
    pub fn local(&self) -> &[SocketAddr] {
        &self.local
    }

    fn update_net_info(&mut self) {
        let report = self.report.net_info(self.home(), self.has_local(true));
        let new = self.port_mapping.add_to(report);
        let before = self.net_info.derp_latency.clone();
        if (NetInfo { derp_latency: before, ..new.clone() }) != self.net_info {
            self.net_info = new;
            self.due.announce = true;
        }
    }

    /// The addresses that STUN servers report.
    fn reflexive(&self) -> Vec<SocketAddr> {
        [self.report.global(true), self.report.global(false)].concat()
    }

    /// The endpoints of this node with their origins.
    pub fn endpoints(&self) -> Vec<(SocketAddr, EndpointKind)> {
        let local = self.local.iter().map(|at| (*at, EndpointKind::Local));
        let mapped = self.port_mapping.endpoint().filter(|at| !self.local.contains(at));
        let is_listed = |at: &SocketAddr| self.local.contains(at) || mapped == Some(*at);
        let reflexive = self.reflexive().into_iter().filter(|at| !is_listed(at));
        let reflexive = reflexive.map(|at| (at, EndpointKind::Stun));
        local.chain(mapped.map(|at| (at, EndpointKind::Portmapped))).chain(reflexive).collect()
    }

    /// Whether a STUN server answered the last check.
    pub fn udp_works(&self) -> bool {
        self.report.udp
    }

    /// The traffic of a peer.
    pub fn activity(&self, peer: &NodePublic) -> Option<&Activity> {
        self.activity.get(peer)
    }

    /// The state of the path to a peer.
    pub fn path(&self, peer: NodePublic) -> Option<PathView> {
        self.paths.view(peer)
    }

    /// The latencies of relays.
    pub fn latencies(&self) -> impl Iterator<Item = (u16, Duration)> {
        self.report.latencies.iter().map(|(region, latency)| (*region, *latency))
    }

    pub fn set_own_key(&mut self, key: NodePublic, now: Duration) {
        self.own_key = key;
        self.update_paths(now);
    }

    /// Sets this machine's addresses. Returns whether they changed.
    pub fn set_local(&mut self, local: Vec<SocketAddr>, now: Duration) -> bool {
        let differs = self.local != local;
        self.due.announce |= differs;
        self.local = local;
        self.update_paths(now);
        differs
    }

    pub fn set_relays(&mut self, map: &DerpMap, scope: Scope, now: Duration) {
        self.netcheck.set_map(map, scope);
        self.homes.set_map(map);
        // A single region is home without a measurement.
        if map.regions.iter().flatten().count() == 1 {
            self.homes.handle_report(&BTreeMap::new(), now, true, now);
            self.handle_new_home(now);
        }
        self.netcheck.make_next_full();
        self.check(now);
    }

    fn handle_new_home(&mut self, now: Duration) {
        self.netcheck.set_home(self.home());
        self.paths.set_home(self.home(), now);
        self.due.home = true;
        self.update_net_info();
    }

    /// A relay of a region sent something.
    pub fn handle_relay_frame(&mut self, region: u16, now: Duration) {
        self.homes.handle_received(region, now);
    }

    /// A relay of a region was connected.
    pub fn handle_relay_up(&mut self, region: u16, now: Duration) {
        self.handle_relay_frame(region, now);
        self.paths.set_relay(region, true, now);
    }

    /// The connection to a region failed or ended. If the home region cannot be connected, another
    /// one becomes home at once.
    pub fn handle_relay_down(&mut self, region: u16, was_up: bool, now: Duration) {
        self.homes.handle_down(region, now);
        self.paths.set_relay(region, false, now);
        if !was_up && self.home() == Some(region) {
            self.choose_another_home(now);
        }
    }

    /// Uses the last report, because a dead relay would delay a check for seconds.
    fn choose_another_home(&mut self, now: Duration) {
        let before = self.home();
        self.homes.handle_report(&self.report.latencies, now, true, now);
        if self.home() != before {
            self.handle_new_home(now);
            self.netcheck.make_next_full();
            self.check(now);
        }
    }

    pub fn set_peers(&mut self, peers: &[(NodePublic, PeerInfo)], now: Duration) {
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
    pub fn set_peer_relays(&mut self, relays: Option<Vec<PeerRelay>>) {
        self.paths.set_peer_relays(self.disco.public(), relays);
    }

    /// The NAT of this machine, if known.
    pub fn nat(&self) -> Option<Nat> {
        self.report.nat(&self.local, &self.seen_by_peers, self.netcheck.hairpin())
    }

    /// Received data was not handled for this time.
    pub fn handle_stall(&mut self, time: Duration, now: Duration) {
        self.paths.handle_stall(time, now);
    }

    pub fn handle_network_change(&mut self, now: Duration) {
        self.seen_by_peers.clear();
        self.nat64.invalidate();
        self.paths.handle_network_change(now);
        self.netcheck.make_next_full();
        self.check(now);
    }

    /// Handles a datagram of the UDP socket that does not belong to WireGuard.
    pub fn handle_datagram(&mut self, one: Incoming, now: Duration) {
        let one = self.nat64.incoming_datagram(one);
        // Auxiliary sockets receive only disco messages of peers.
        let is_usual = one.to.is_none();
        if is_usual && stun::is_stun(&one.bytes) {
            self.netcheck.handle_stun_response(&one.bytes, one.at);
        } else if let Some(header) = Geneve::read(&one.bytes).filter(|_| is_usual) {
            let via = Via::PeerRelay { at: one.from, vni: header.vni };
            if let Ok((from, message)) = self.disco.open(&one.bytes[GENEVE_LEN..])
                && header.control == matches!(message, Message::BindChallenge(_))
            {
                self.paths.handle_disco(from, via, &message, now);
            }
        } else if tailnet::disco::sender(&one.bytes)
            .is_some_and(|from| self.paths.has_disco_key(&from))
            && let Ok((from, message)) = self.disco.open(&one.bytes)
        {
            if let Message::Pong { source, .. } = message
                && is_usual
            {
                self.seen_by_peers.note(ReflexiveAddress { server: one.from, own: source });
                self.update_probing();
            }
            let via = match one.to {
                Some(socket) => Via::Auxiliary { remote: one.from, socket },
                None => Via::Udp { remote: one.from, local: one.local },
            };
            self.paths.handle_disco(from, via, &message, now);
        }
    }

    fn update_paths(&mut self, now: Duration) {
        let endpoints: Vec<SocketAddr> = self.endpoints().into_iter().map(|(at, _)| at).collect();
        self.paths.set_own_endpoints(self.own_key, endpoints, now);
        self.update_probing();
    }

    pub fn set_birthday_probing(&mut self, enabled: bool) {
        self.birthday_probing = enabled;
        self.update_probing();
    }

    /// The state of birthday probing for users.
    pub fn birthday_probing_text(&self) -> &'static str {
        match self.report.public_endpoint(&self.local, &self.seen_by_peers) {
            _ if !self.birthday_probing => "off",
            None => "not known yet",
            Some(endpoint) if endpoint.varies => {
                "opens many ports for peers without a symmetric NAT"
            }
            Some(_) => "probes ports of peers with a symmetric NAT",
        }
    }

    fn update_probing(&mut self) {
        let endpoint = self
            .report
            .public_endpoint(&self.local, &self.seen_by_peers)
            .filter(|_| self.birthday_probing);
        self.paths.set_public_endpoint(endpoint);
    }

    /// The data plane has opened auxiliary sockets.
    pub fn handle_opened(&mut self, number: u32, count: u16, now: Duration) {
        self.paths.handle_sockets_opened(number, count, now);
    }

    /// Handles datagrams from a relay. Returns those of WireGuard.
    pub fn handle_relayed(
        &mut self,
        region: u16,
        datagrams: Vec<(NodePublic, Bytes)>,
        now: Duration,
    ) -> Vec<Relayed> {
        let mut relayed = Vec::new();
        for (from, bytes) in datagrams {
            if tailnet::disco::sender(&bytes).is_none() {
                let (bytes, segment) = read_bundle(bytes);
                let segment = u32::try_from(segment).unwrap_or(u32::MAX);
                relayed.push(Relayed { region, from, bytes: bytes.into(), segment });
            } else if let Ok((disco, message)) = self.disco.open(&bytes) {
                let is_of_peer = self.paths.disco(&from) == Some(disco);
                match message {
                    Message::BundleOffer if is_of_peer => self.bundles.handle_offer(from, disco),
                    Message::AllocateRequest(request) if is_of_peer => {
                        self.allocation_requests.push(AllocationRequest {
                            region,
                            peer: from,
                            disco,
                            message: request,
                        });
                    }
                    _ => {}
                }
                self.paths.handle_disco(disco, Via::Relay { region, from }, &message, now);
            }
        }
        self.offer_bundles(&relayed, now);
        relayed
    }

    /// Takes the requests for relay endpoints.
    pub fn take_allocation_requests(&mut self) -> Vec<AllocationRequest> {
        std::mem::take(&mut self.allocation_requests)
    }

    /// Queues a message.
    pub fn send(&mut self, message: Transmit) {
        self.messages.push(message);
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
                self.messages.push(Transmit { to, disco, message: Message::BundleOffer });
            }
        }
    }

    /// Whether a peer accepts bundles from a relay.
    pub fn takes_bundles(&self, peer: &NodePublic) -> bool {
        self.paths.disco(peer).is_some_and(|disco| self.bundles.accepts(peer, disco))
    }

    /// The data plane sent bytes to a peer by a relay.
    pub fn handle_relay_sent(&mut self, peer: NodePublic, bytes: usize, now: Duration) {
        let traffic = Traffic { sent: bytes as u64, ..Traffic::default() };
        self.paths.handle_wireguard(peer, traffic, now);
    }

    /// Handles reports about peers. Returns whether they are the first from the data plane.
    pub fn handle_activity(&mut self, all: Vec<Activity>, now: Duration) -> bool {
        let is_first = self.previous_paths.handle_activity(&all, now);
        all.into_iter().for_each(|one| self.handle_peer_activity(one, now));
        is_first
    }

    /// The time until which the settings of the previous agent have priority over the saved map.
    pub fn previous_agent_until(&self) -> Duration {
        self.previous_paths.agent_until()
    }

    /// Handles a report about a peer.
    fn handle_peer_activity(&mut self, mut new: Activity, now: Duration) {
        new.received_from = new.received_from.map(|from| self.nat64.incoming_path(from));
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
    pub fn handle_wanted(&mut self, peer: NodePublic, now: Duration) {
        let traffic = Traffic { sent: 1, ..Traffic::default() };
        self.paths.handle_wireguard(peer, traffic, now);
    }

    pub fn handle_handshake_done(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_handshake_done(peer, now);
    }

    pub fn handle_stale(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_stale(peer, now);
    }

    pub fn handle_peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.paths.handle_peer_gone(region, peer, now);
    }

    /// Pings a peer. `None` if it has no path.
    pub fn ping(&mut self, peer: NodePublic, now: Duration) -> Option<u32> {
        self.paths.ping(peer, now)
    }

    /// Stores the reply of a relay login. Returns the number of the login.
    pub fn begin_relay_login(&mut self, reply: oneshot::Sender<Bytes>) -> u32 {
        self.next_login = self.next_login.wrapping_add(1);
        self.logins.retain(|_, waiting| !waiting.is_closed());
        self.logins.insert(self.next_login, reply);
        self.next_login
    }

    /// Answers a relay login.
    pub fn finish_relay_login(&mut self, id: u32, sealed: Vec<u8>) {
        if let Some(reply) = self.logins.remove(&id) {
            let _ = reply.send(sealed.into());
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let paths = self.paths.poll_timeout();
        // Without path timers there is no traffic, so checks are not needed.
        let due = paths.map(|_| self.netcheck.due());
        let previous = self.previous_paths.poll_timeout();
        let check = if self.netcheck.is_running() { self.netcheck.poll_timeout() } else { due };
        paths.into_iter().chain(check).chain(previous).min()
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        self.paths.handle_timeout(now);
        let is_due = self.paths.poll_timeout().is_some() && self.netcheck.due() <= now;
        if is_due && !self.netcheck.is_running() {
            self.check(now);
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
