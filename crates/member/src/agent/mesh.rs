//! Paths to peers: disco messages in and out, this node's endpoints, and its home relay.
//!
//! ```text
//!   datagrams ──► disco ──► Paths ──► transmits ──► disco ──► UDP by the data plane, or a relay
//!        `──────► STUN ───► endpoints               events ──► data plane: path, handshake
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use getrandom::{SysRng, rand_core::UnwrapErr};
use tailnet::{
    control::messages::EndpointKind,
    disco::Disco,
    keys::{DiscoKey, DiscoPublic, NodePublic},
    line::{Activity, Incoming, Outgoing, Path, Relayed, ToPlane},
    messages::DerpMap,
    paths::{Event, Paths, PeerInfo, Shown, To, Traffic, Transmit, Via},
    stun,
};
use tokio::sync::{mpsc, oneshot};

use super::{derp, line::ToLine, programs::Programs};

/// Datagrams in one message to the data plane at most.
const TOGETHER: usize = 64;
/// How long the answer of a STUN server counts as an endpoint.
const REFLEXIVE: Duration = Duration::from_secs(300);
/// How long a STUN server has to answer.
const STUN_PATIENCE: Duration = Duration::from_secs(3);

/// What follows from what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    /// Own addresses are to be found out anew.
    pub endpoints: bool,
    /// The coordinator is to be told of endpoints or of the home.
    pub announce: bool,
}

/// A STUN request that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    region: u16,
    at: Duration,
}

/// A relay's latency, and when it was found.
#[derive(Clone, Copy, Debug)]
struct Latency {
    best: Duration,
    at: Duration,
}

/// See the module.
pub(super) struct Mesh {
    disco: Disco,
    paths: Paths,
    own_key: NodePublic,
    local: Vec<SocketAddr>,
    /// As STUN servers see us.
    reflexive: BTreeMap<SocketAddr, Duration>,
    /// Addresses of STUN servers, with their regions.
    servers: Vec<(u16, SocketAddr)>,
    asked: HashMap<[u8; 12], Asked>,
    latencies: BTreeMap<u16, Latency>,
    regions: Vec<u16>,
    home: Option<u16>,
    /// What was last told to the paths.
    told: Vec<SocketAddr>,
    logins: HashMap<u32, oneshot::Sender<Bytes>>,
    next_login: u32,
    activity: HashMap<NodePublic, Activity>,
    pending: Vec<Outgoing>,
    due: Due,
}

impl Mesh {
    /// Without peers, by this disco key.
    pub fn new(key: DiscoKey) -> Self {
        Self {
            disco: Disco::new(key),
            paths: Paths::new(NodePublic::default(), Box::new(UnwrapErr(SysRng))),
            own_key: NodePublic::default(),
            local: Vec::new(),
            reflexive: BTreeMap::new(),
            servers: Vec::new(),
            asked: HashMap::new(),
            latencies: BTreeMap::new(),
            regions: Vec::new(),
            home: None,
            told: Vec::new(),
            logins: HashMap::new(),
            next_login: 0,
            activity: HashMap::new(),
            pending: Vec::new(),
            due: Due::default(),
        }
    }

    /// The key of our disco messages.
    pub fn disco_key(&self) -> DiscoPublic {
        self.disco.public()
    }

    /// The home relay's region.
    pub fn home(&self) -> Option<u16> {
        self.home
    }

    /// Where we may be reached, and how we know.
    pub fn endpoints(&self) -> Vec<(SocketAddr, EndpointKind)> {
        let local = self.local.iter().map(|at| (*at, EndpointKind::Local));
        let reflexive = self.reflexive.keys().filter(|at| !self.local.contains(at));
        local.chain(reflexive.map(|at| (*at, EndpointKind::Stun))).collect()
    }

    /// Whether a STUN server answered lately.
    pub fn udp_works(&self) -> bool {
        !self.reflexive.is_empty()
    }

    /// What a peer sent and received.
    pub fn activity(&self, peer: &NodePublic) -> Option<&Activity> {
        self.activity.get(peer)
    }

    /// What is known of the way to a peer.
    pub fn path(&self, peer: NodePublic) -> Option<Shown> {
        self.paths.path(peer)
    }

    /// The relays' latencies.
    pub fn latencies(&self) -> impl Iterator<Item = (u16, Duration)> {
        self.latencies.iter().map(|(region, latency)| (*region, latency.best))
    }

    pub fn set_own_key(&mut self, key: NodePublic, now: Duration) {
        self.own_key = key;
        self.tell_paths(now);
    }

    /// Takes our own addresses. Whether they are others than before.
    pub fn set_local(&mut self, local: Vec<SocketAddr>, now: Duration) -> bool {
        let differs = self.local != local;
        self.due.announce |= differs;
        self.local = local;
        self.tell_paths(now);
        differs
    }

    pub fn set_relays(&mut self, map: &DerpMap, now: Duration) {
        let regions = map.regions.iter().flatten().filter_map(|(id, region)| {
            region.as_ref().filter(|region| !region.avoid).map(|region| (*id, region))
        });
        self.servers.clear();
        self.regions.clear();
        for (id, region) in regions {
            if region.nodes.iter().any(|node| !node.stun_only) {
                self.regions.push(id);
            }
            for node in &region.nodes {
                let Some(port) = node.stun_port() else { continue };
                self.servers.extend(node.addresses().map(|ip| (id, (ip, port).into())));
            }
        }
        self.latencies.retain(|id, _| self.regions.contains(id));
        self.ask_servers(now);
        self.choose_home();
    }

    /// Asks all STUN servers where they see us.
    fn ask_servers(&mut self, now: Duration) {
        self.asked.retain(|_, asked| asked.at + STUN_PATIENCE > now);
        for (region, to) in self.servers.clone() {
            let mut tx = [0; 12];
            if getrandom::fill(&mut tx).is_err() {
                return;
            }
            self.asked.insert(tx, Asked { region, at: now });
            let bytes = stun::request(tx).to_vec();
            self.pending.push(Outgoing { to, source: None, hops: None, bytes });
        }
    }

    fn choose_home(&mut self) {
        let is_there = |home: &u16| self.regions.contains(home);
        let fastest = self.latencies.iter().min_by_key(|(_, latency)| latency.best);
        let better = |home: u16| {
            let own = self.latencies.get(&home)?.best;
            // A home that moves costs every peer a message (`netcheck.go`).
            fastest.filter(|(_, new)| {
                new.best + Duration::from_millis(10) <= own && new.best <= own * 2 / 3
            })
        };
        let home = match self.home.filter(is_there) {
            Some(home) => better(home).map(|(region, _)| *region).or(Some(home)),
            None => fastest.map(|(region, _)| *region).or(self.regions.first().copied()),
        };
        if home != self.home {
            self.home = home;
            self.due.announce = true;
        }
    }

    /// A relay is connected, after so long.
    pub fn relay_connected(&mut self, region: u16, latency: Duration, now: Duration) {
        // Where STUN did not say.
        self.latencies.entry(region).or_insert(Latency { best: latency, at: now });
    }

    pub fn set_peers(&mut self, peers: &[(NodePublic, PeerInfo)], now: Duration) {
        let known: Vec<NodePublic> = self.paths.keys().collect();
        for key in known {
            if !peers.iter().any(|(peer, _)| *peer == key) {
                self.paths.remove_peer(key);
                self.activity.remove(&key);
            }
        }
        for (key, info) in peers {
            self.paths.set_peer(*key, info, now);
        }
    }

    pub fn handle_network_change(&mut self, now: Duration) {
        self.reflexive.clear();
        self.paths.handle_network_change(now);
        self.ask_servers(now);
    }

    /// A datagram of the UDP socket that is not WireGuard's.
    pub fn handle_datagram(&mut self, one: Incoming, now: Duration) {
        if stun::is_stun(&one.bytes) {
            self.handle_stun(&one.bytes, one.at, now);
        } else if let Ok((from, message)) = self.disco.open(&one.bytes) {
            let via = Via::Udp { remote: one.from, local: one.local };
            self.paths.handle_disco(from, via, &message, now);
        }
    }

    fn handle_stun(&mut self, bytes: &[u8], at: Duration, now: Duration) {
        let Ok((tx, seen)) = stun::read_response(bytes) else { return };
        let Some(asked) = self.asked.remove(&tx) else { return };
        let took = at.saturating_sub(asked.at);
        let latency = self.latencies.entry(asked.region).or_insert(Latency { best: took, at: now });
        if took < latency.best || latency.at + REFLEXIVE < now {
            *latency = Latency { best: took, at: now };
        }
        self.due.announce |= self.reflexive.insert(seen, now).is_none();
        self.reflexive.retain(|_, at| *at + REFLEXIVE > now);
        self.choose_home();
        self.tell_paths(now);
    }

    fn tell_paths(&mut self, now: Duration) {
        let endpoints: Vec<SocketAddr> = self.endpoints().into_iter().map(|(at, _)| at).collect();
        self.told.clone_from(&endpoints);
        self.paths.set_own(self.own_key, endpoints, now);
    }

    /// Datagrams that came through a relay. Returns those that are WireGuard's.
    pub fn handle_relayed(
        &mut self,
        region: u16,
        datagrams: Vec<(NodePublic, Bytes)>,
        now: Duration,
    ) -> Vec<Relayed> {
        let mut relayed = Vec::new();
        for (from, bytes) in datagrams {
            if tailnet::disco::sender(&bytes).is_none() {
                relayed.push(Relayed { region, from, bytes: bytes.into() });
            } else if let Ok((disco, message)) = self.disco.open(&bytes) {
                self.paths.handle_disco(disco, Via::Relay { region, from }, &message, now);
            }
        }
        relayed
    }

    /// The data plane gave a relay so many bytes for a peer.
    pub fn sent_by_relay(&mut self, peer: NodePublic, bytes: usize, now: Duration) {
        let traffic = Traffic { sent: bytes as u64, ..Traffic::default() };
        self.paths.handle_wireguard(peer, traffic, now);
    }

    /// A peer sent or received something, by the data plane's count.
    pub fn active(&mut self, new: Activity, now: Duration) {
        let old = self.activity.insert(new.peer, new);
        let (sent, received) = old.map_or((0, 0), |old| (old.sent, old.received));
        let traffic = Traffic {
            sent: new.sent.saturating_sub(sent),
            received: new.received.saturating_sub(received),
            received_from: new.heard_from,
        };
        self.paths.handle_wireguard(new.peer, traffic, now);
    }

    pub fn handshake_done(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_handshake_done(peer, now);
    }

    pub fn stale(&mut self, peer: NodePublic, now: Duration) {
        self.paths.handle_stale(peer, now);
    }

    pub fn peer_gone(&mut self, region: u16, peer: NodePublic, now: Duration) {
        self.paths.handle_peer_gone(region, peer, now);
    }

    /// Pings a peer. `None` if it has no path.
    pub fn ping(&mut self, peer: NodePublic, now: Duration) -> Option<u32> {
        self.paths.ping(peer, now)
    }

    /// The number of a login, whose answer goes to `reply`.
    pub fn log_in(&mut self, reply: oneshot::Sender<Bytes>) -> u32 {
        self.next_login = self.next_login.wrapping_add(1);
        self.logins.retain(|_, waiting| !waiting.is_closed());
        self.logins.insert(self.next_login, reply);
        self.next_login
    }

    /// The answer.
    pub fn logged_in(&mut self, id: u32, sealed: Vec<u8>) {
        if let Some(reply) = self.logins.remove(&id) {
            let _ = reply.send(sealed.into());
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.paths.poll_timeout()
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        self.paths.handle_timeout(now);
    }

    /// Sends what is to be sent.
    pub async fn flush(
        &mut self,
        plane: &ToLine<ToPlane>,
        relays: &mpsc::Sender<derp::Command>,
        programs: &mut Programs,
    ) -> Due {
        let mut due = std::mem::take(&mut self.due);
        while let Some(event) = self.paths.poll_event() {
            match event {
                Event::UsePath { peer, path: Some(path) } => {
                    plane.send(ToPlane::Path { peer, path });
                }
                // Its datagrams have nowhere to go: the next path is told when there is one.
                Event::UsePath { path: None, .. } => {}
                Event::HandshakeNow(peer) => plane.send(ToPlane::Handshake(peer)),
                Event::Pong { number, via, latency, .. } => programs.pong(number, via, latency),
                Event::RefreshEndpoints => {
                    self.ask_servers(super::core::now());
                    due.endpoints = true;
                }
            }
        }
        while let Some(Transmit { to, disco, message }) = self.paths.poll_transmit() {
            let mut nonce = [0; 24];
            if getrandom::fill(&mut nonce).is_err() {
                break;
            }
            let bytes = self.disco.seal(disco, &message, nonce);
            match to {
                To::Udp { addr, source, hops } => {
                    self.pending.push(Outgoing { to: addr, source, hops, bytes });
                }
                To::Relay { region, peer } => {
                    let segment = bytes.len();
                    let send =
                        derp::Command::Send { region, to: peer, bytes: bytes.into(), segment };
                    let _ = relays.send(send).await;
                }
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for some in pending.chunks(TOGETHER) {
            plane.send(ToPlane::Datagrams(some.to_vec()));
        }
        if due.announce {
            let _ = relays.send(derp::Command::Home(self.home)).await;
        }
        due
    }
}

/// What a path is called for users, and whether it is direct.
pub(super) fn direct(path: Option<Path>) -> Option<SocketAddr> {
    match path {
        Some(Path::Direct(at)) => Some(at),
        _ => None,
    }
}
