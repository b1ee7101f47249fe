//! The agent's loop: one event after the other, and after each what follows from it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context;
use sys::clock;
use tailnet::{
    keys::{MachineKey, NodePublic},
    line::{FromSteward, PeerEvent, ToAgent, ToPlane, ToSteward},
    map::NetworkMap,
    messages::MapResponse,
    prefs::Prefs,
    settings::{Around, Settings, settings},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    Lines, Options,
    control::{self, dial::Hook},
    derp,
    dns::{self, Served, Sockets},
    endpoints,
    line::{self, ToLine},
    local_api::{self, Request, Writers},
    login::{Login, is_page},
    mesh::Mesh,
    programs::Programs,
    state::State,
};

/// Messages of each kind that wait at most.
const WAITING: usize = 256;
/// The map is kept so long after it changed: changes come in crowds.
const KEEP_AFTER: Duration = Duration::from_secs(2);
/// The name of the preferences' file.
pub(super) const PREFS: &str = "prefs.json";
/// The name of the map's file.
const MAP: &str = "map.json";

/// The map as it is kept: for the node key that it was told to.
#[derive(serde::Serialize, serde::Deserialize)]
struct KeptMap<M> {
    version: u32,
    node_key: NodePublic,
    map: M,
}

/// The version of the kept map's form.
const MAP_VERSION: u32 = 1;

/// Who this node is to the data plane.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub key: NodePublic,
    pub port: u16,
    pub index: u32,
}

/// All that the agent knows.
pub(super) struct Agent {
    pub has_interface: bool,
    pub state: State,
    pub machine_key: MachineKey,
    pub hook: Option<Hook>,
    pub plane: ToLine<ToPlane>,
    steward: Option<ToLine<ToSteward>>,
    pub relays: mpsc::Sender<derp::Command>,
    pub control_events: mpsc::Sender<(u32, control::Event)>,
    pub own: Own,
    pub prefs: Prefs,
    pub map: NetworkMap,
    pub login: Login,
    pub mesh: Mesh,
    pub programs: Programs,
    pub settings: Settings,
    /// What is wrong, by its kind.
    pub problems: BTreeMap<&'static str, String>,
    /// Who answered questions about names before.
    servers: Vec<std::net::IpAddr>,
    /// Who answers questions about names, at this address.
    names: Option<(std::net::IpAddr, dns::Server)>,
    /// Whether data plane and steward were told all: they may have what a former agent said.
    pub told_all: bool,
    /// Whether the data plane said who this node is. What it says before that is to a former agent.
    has_begun: bool,
    /// When the map is to be kept.
    keep_map: Option<Duration>,
    /// When a key expires next.
    expiry: Option<Duration>,
    pub writers: Arc<Writers>,
}

/// The time on the clock of paths.
pub(super) fn now() -> Duration {
    Duration::from_nanos(clock::boottime_nanos())
}

/// Runs until the data plane or the steward is gone.
pub(super) async fn run(options: Options, lines: Lines) -> anyhow::Result<()> {
    let (to_core, mut from_plane) = mpsc::channel(WAITING);
    let (plane, plane_line) = line::open(lines.plane, to_core).context("line")?;
    let (to_core, mut from_steward) = mpsc::channel(WAITING);
    let opened = lines.steward.map(|steward| line::open(steward, to_core.clone()));
    let (steward, steward_line) = opened.transpose().context("steward")?.unzip();
    let (to_core, mut requests) = mpsc::channel(WAITING);
    let writers = Arc::new(Writers::new(sys::process::own_user()));
    let serve = |clients| local_api::Server::start(clients, writers.clone(), to_core);
    let _server = lines.clients.map(serve).transpose().context("socket")?;
    let (control_events, mut from_control) = mpsc::channel(WAITING);
    let (relay_events, mut from_relays) = mpsc::channel(WAITING);
    let (relays, relay_commands) = mpsc::channel(WAITING);

    let state = State::new(options.folder);
    let hook = hook(options.mark);
    tokio::spawn(derp::run(derp_settings(&hook), relay_commands, relay_events));
    let lines_ended = async {
        tokio::select! {
            ended = plane_line => ended,
            ended = async {
                match steward_line {
                    Some(line) => line.await,
                    None => std::future::pending().await,
                }
            } => ended,
        }
    };
    tokio::pin!(lines_ended);
    let machine_key = state.machine_key()?;
    let (found, mut from_checks) = mpsc::channel(WAITING);
    let mesh = Mesh::new(state.disco_key()?, found);
    // Not `unwrap_or_default`: Go's zero is not what a node begins with.
    let prefs = match state.read(PREFS) {
        Some(kept) => kept,
        None => Prefs::new(),
    };
    let mut agent = Agent {
        has_interface: options.has_interface,
        state,
        machine_key,
        hook,
        plane,
        steward,
        relays,
        control_events,
        own: Own::default(),
        prefs,
        map: NetworkMap::default(),
        login: Login::default(),
        mesh,
        programs: Programs::default(),
        settings: Settings::default(),
        problems: BTreeMap::new(),
        servers: Vec::new(),
        names: None,
        told_all: false,
        has_begun: false,
        keep_map: None,
        expiry: None,
        writers,
    };
    agent.plane.send(ToPlane::Hello);
    loop {
        let due = agent.poll_timeout();
        let wake = Instant::now() + due.map_or(Duration::ZERO, |due| due.saturating_sub(now()));
        tokio::select! {
            ended = &mut lines_ended => return ended.context("line"),
            Some(message) = from_plane.recv() => agent.handle_plane(message).await,
            Some(message) = from_steward.recv() => agent.handle_steward(message),
            Some((session, event)) = from_control.recv() => agent.handle_control(session, event),
            Some(event) = from_relays.recv() => agent.handle_relays(event),
            Some(request) = requests.recv() => agent.handle_request(request),
            Some(found) = from_checks.recv() => agent.mesh.handle_found(found),
            () = sleep_until(wake), if due.is_some() => {}
        }
        agent.handle_timeout();
        agent.flush().await;
    }
}

/// Marks sockets, so that what they send does not go where the interface's routes lead.
fn hook(mark: u32) -> Option<Hook> {
    let hook: Hook = Arc::new(move |socket| sys::process::mark_socket(socket, mark));
    Some(hook).filter(|_| mark != 0)
}

fn derp_settings(hook: &Option<Hook>) -> derp::Settings {
    derp::Settings { dialer: control::dial::Dialer::of_environment(hook.clone()) }
}

impl Agent {
    /// When [`Agent::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Duration> {
        [self.mesh.poll_timeout(), self.keep_map, self.expiry, self.programs.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_timeout(&mut self) {
        let now = now();
        self.mesh.handle_timeout(now);
        self.programs.handle_timeout(now);
        if self.keep_map.is_some_and(|at| at <= now) {
            self.keep_map = None;
            self.keep();
        }
        if self.expiry.is_some_and(|at| at <= now) {
            self.apply_settings();
        }
    }

    async fn handle_plane(&mut self, message: ToAgent) {
        match message {
            ToAgent::Hello { node_key, port, index, .. } => {
                self.own = Own { key: node_key, port, index };
                self.begin();
            }
            ToAgent::Datagrams(datagrams) => {
                let now = now();
                datagrams.into_iter().for_each(|one| self.mesh.handle_datagram(one, now));
            }
            ToAgent::ToRelay { region, to, bytes, segment } => {
                self.mesh.sent_by_relay(to, bytes.len(), now());
                let segment = segment as usize;
                let send = derp::Command::Send { region, to, bytes: bytes.into(), segment };
                // Where the relays' tasks do not keep up, the data plane's queue fills and drops.
                let _ = self.relays.send(send).await;
            }
            ToAgent::Event(event) => {
                let now = now();
                match event {
                    PeerEvent::HandshakeDone(peer) => self.mesh.handshake_done(peer, now),
                    PeerEvent::NewPath { .. } => {}
                    PeerEvent::Stale(peer) => self.mesh.stale(peer, now),
                    PeerEvent::Wanted(peer) => self.mesh.wanted(peer, now),
                }
            }
            ToAgent::Activity(active) => {
                let now = now();
                active.into_iter().for_each(|one| self.mesh.active(one, now));
            }
            ToAgent::Login { id, sealed } => self.mesh.logged_in(id, sealed),
            ToAgent::Candidate(key) => self.login_with(key),
            ToAgent::NetworkChanged => self.network_changed(),
            ToAgent::Port(port) => {
                self.own.port = port;
                self.network_changed();
            }
        }
    }

    /// Begins with what is kept: what was joined goes on before any network is asked.
    fn begin(&mut self) {
        self.has_begun = true;
        self.mesh.set_own_key(self.own.key, now());
        let kept: Option<KeptMap<NetworkMap>> = self.state.read(MAP);
        let is_ours = |kept: &KeptMap<_>| {
            kept.version == MAP_VERSION && kept.node_key == self.own.key && !self.own.key.is_zero()
        };
        if let Some(kept) = kept.filter(is_ours) {
            self.map = kept.map.restored();
            self.relays_changed();
        }
        self.find_endpoints();
        self.set_operator();
        self.apply_settings();
        self.connect();
        self.tell_state();
    }

    fn handle_steward(&mut self, message: FromSteward) {
        let FromSteward::Done { problems, servers } = message;
        match &problems[..] {
            [] => drop(self.problems.remove("host")),
            some => {
                some.iter().for_each(|problem| tracing::error!("{problem}"));
                self.problems.insert("host", some.join("; "));
            }
        }
        if self.servers != servers {
            self.servers = servers;
            self.apply_settings();
        }
        self.serve_names();
    }

    fn handle_relays(&mut self, event: derp::Event) {
        match event {
            derp::Event::Received { region, datagrams } => {
                let now = now();
                self.mesh.relay_heard(region, now);
                let relayed = self.mesh.handle_relayed(region, datagrams, now);
                if !relayed.is_empty() {
                    self.plane.send(ToPlane::Relayed(relayed));
                }
            }
            derp::Event::Connected { region, .. } => {
                self.problems.remove("relay");
                self.mesh.relay_heard(region, now());
            }
            derp::Event::Disconnected { region, why } => {
                tracing::info!(region, why, "relay");
                self.mesh.relay_down(region);
                if self.mesh.home() == Some(region) {
                    self.problems.insert("relay", format!("the home relay does not answer: {why}"));
                }
            }
            derp::Event::PeerGone { region, peer, .. } => {
                self.mesh.peer_gone(region, peer, now());
            }
            derp::Event::Health { region, text } if text.is_empty() => {
                tracing::debug!(region, "the relay is well");
                self.problems.remove("relay health");
            }
            derp::Event::Health { text, .. } => {
                self.problems.insert("relay health", format!("the relay says: {text}"));
            }
            derp::Event::Login { server, reply, .. } => {
                let id = self.mesh.log_in(reply);
                self.plane.send(ToPlane::Login { id, server });
            }
        }
    }

    /// The coordinator said something about the network.
    pub fn handle_map(&mut self, text: &[u8]) {
        let response: MapResponse = match serde_json::from_slice(text) {
            Ok(response) => response,
            Err(error) => {
                self.problems.insert("map", format!("a map cannot be read: {error}"));
                return;
            }
        };
        let changes = self.map.apply(response, clock::wall());
        for bad in &changes.bad {
            tracing::warn!("the coordinator sent a bad record: {bad}");
        }
        match changes.bad.first() {
            Some(bad) => drop(self.problems.insert("map", format!("left out: {bad}"))),
            None => drop(self.problems.remove("map")),
        }
        if is_page(&changes.page) {
            self.programs.browse(&changes.page);
        }
        if changes.relays {
            self.relays_changed();
        }
        if changes.node
            && let Some(node) = self.map.node()
        {
            self.programs.self_change(serde_json::json!(node));
        }
        if changes.settings {
            self.apply_settings();
            self.keep_map = Some(self.keep_map.unwrap_or(now() + KEEP_AFTER));
        }
        self.tell_state();
    }

    fn relays_changed(&mut self) {
        let _ = self.relays.try_send(derp::Command::Map(self.map.derp_map().clone()));
        self.mesh.set_relays(self.map.derp_map(), now());
    }

    /// Routes change also by what we do ourselves: only other addresses are another network.
    fn network_changed(&mut self) {
        let found = endpoints::own(self.own.index, self.own.port);
        if !self.mesh.set_local(found, now()) {
            return;
        }
        let _ = self.relays.try_send(derp::Command::NetworkChanged);
        self.reconnect();
        self.mesh.handle_network_change(now());
        self.apply_settings();
    }

    /// Finds out this machine's own addresses anew.
    pub fn find_endpoints(&mut self) {
        let found = endpoints::own(self.own.index, self.own.port);
        self.mesh.set_local(found, now());
    }

    /// Brings data plane, paths, host and names to what map and preferences say.
    pub fn apply_settings(&mut self) {
        let wall = clock::wall();
        let connected = endpoints::connected(self.own.index);
        let around = Around {
            now: wall,
            connected: &connected,
            servers: &self.servers,
            answers: self.has_interface,
            lock: None,
        };
        let runs = self.prefs.want_running && !self.own.key.is_zero();
        let new =
            if runs { settings(&self.map, &self.prefs, &around) } else { Settings::default() };
        self.expiry = self.map.next_expiry(wall).map(|wait| now() + wait);
        let old = std::mem::replace(&mut self.settings, new);
        // Absence is no removal: what a former agent said stays until there is something to say.
        let knows = self.has_begun && (!runs || self.map.node().is_some());
        let former = (self.told_all || !knows).then_some(&old);
        self.tell_plane(former);
        let is_same = former.is_some_and(|old| old.host == self.settings.host);
        self.told_all |= knows;
        let now = now();
        self.mesh.set_peers(&self.settings.paths, now);
        match self.settings.problems.first() {
            Some(_) => drop(self.problems.insert("settings", self.settings.problems.join("; "))),
            None => drop(self.problems.remove("settings")),
        }
        if !is_same && let Some(steward) = &self.steward {
            steward.send(ToSteward::Host(self.settings.host.clone()));
        }
        self.serve_names();
        self.announce();
    }

    /// Tells the data plane what differs; all, where nobody knows what it was told.
    fn tell_plane(&self, former: Option<&Settings>) {
        let new = &self.settings;
        // The filter first: no new peer's packet enters by the old rules.
        if former.is_none_or(|former| former.filter != new.filter) {
            self.plane.send(ToPlane::Filter(new.filter.clone()));
        }
        if let Some(peers) = new.peers_since(former) {
            self.plane.send(peers);
        }
    }

    /// Answers questions about names from what is known now.
    fn serve_names(&mut self) {
        let own: std::collections::HashSet<_> =
            self.settings.host.addresses.iter().map(ipnet::IpNet::addr).collect();
        let (names, skipped) = tailnet::dns::Names::new(&self.settings.names);
        for one in skipped {
            tracing::debug!(?one, "left out of names");
        }
        let served = Served { names, own: own.clone() };
        let wish = self.settings.host.names.as_ref();
        let address = wish.and_then(|wish| wish.servers.first()).copied();
        // One that is not wanted for now answers all the same; at another address it cannot.
        self.names.take_if(|(at, _)| address.is_some_and(|address| address != *at));
        if let Some((_, server)) = &self.names {
            server.set(served);
            return;
        }
        let Some(address) = address else {
            self.problems.remove("names");
            return;
        };
        let hook: dns::SocketHook = match self.hook.clone() {
            Some(hook) => hook,
            None => Arc::new(|_| Ok(())),
        };
        let bound = bind(address).and_then(|sockets| dns::Server::start(sockets, served, hook));
        match bound {
            Ok(server) => {
                self.names = Some((address, server));
                self.problems.remove("names");
            }
            Err(error) => {
                self.problems
                    .insert("names", format!("names cannot be answered at {address}: {error}"));
            }
        }
    }

    /// Keeps the map for the next start.
    fn keep(&mut self) {
        let kept = KeptMap { version: MAP_VERSION, node_key: self.own.key, map: &self.map };
        match self.state.keep(MAP, &kept) {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => drop(self.problems.insert("disk", format!("{MAP}: {error}"))),
        }
    }

    /// Forgets the network.
    pub fn forget_map(&mut self) {
        self.map = NetworkMap::default();
        self.keep_map = None;
        if let Err(error) = self.state.forget(MAP) {
            self.problems.insert("disk", format!("{MAP}: {error}"));
        }
        self.apply_settings();
    }

    /// Keeps the preferences.
    pub fn keep_prefs(&mut self) -> std::io::Result<()> {
        let kept = self.state.keep(PREFS, &self.prefs);
        match &kept {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => drop(self.problems.insert("disk", format!("{PREFS}: {error}"))),
        }
        kept
    }

    /// The operator may write beside root.
    pub fn set_operator(&self) {
        let name = &self.prefs.operator_user;
        let number = (!name.is_empty()).then(|| sys::process::user_number(name)).flatten();
        self.writers.set_operator(number);
    }

    async fn flush(&mut self) {
        let now = now();
        self.programs.send_pings(|peer| self.mesh.ping(peer, now));
        let due = self.mesh.flush(&self.plane, &self.relays, &mut self.programs).await;
        if due.endpoints {
            self.find_endpoints();
        }
        if due.announce {
            self.announce();
        }
    }

    fn handle_request(&mut self, request: Request) {
        self.answer(request);
    }
}

/// Sockets for questions about names.
fn bind(address: std::net::IpAddr) -> std::io::Result<Sockets> {
    let at = (address, 53);
    let udp = vec![std::net::UdpSocket::bind(at)?];
    Ok(Sockets { udp, tcp: vec![std::net::TcpListener::bind(at)?] })
}
