//! State and decisions of the agent, without sockets. [`Agent::handle`] takes an event and the
//! time. The effects go to queues, which other tasks send.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr, ops::Range, sync::Arc, time::Duration};

use ipnet::IpNet;
use sys::{clock, netlink::DefaultRoute};
use tailnet::{
    ipc::{
        FromSteward, PeerEvent, ToAgent, ToDataPlane, ToSteward,
        peer_relay::{FromRelayServer, ToRelayServer},
    },
    keys::{MachineKey, NodePublic},
    map::NetworkMap,
    messages::MapResponse,
    prefs::Prefs,
    scope::Scope,
    settings::Settings,
};
use tokio::sync::mpsc;

use super::{
    check_tasks::{CheckResult, CheckTasks},
    commands::RelayCommands,
    control::{self, dial::SocketHook},
    derp, dns,
    endpoints::CHECK_INTERVAL,
    line::LineSender,
    local_api::{Request, Writers},
    login::{Login, is_page},
    mesh::{self, Mesh},
    portmap::PortMapping,
    programs::Programs,
    relay_logins::RelayLogins,
    relay_process::RelayProcess,
    roots::Roots,
    saved,
    state_folder::StateFolder,
    throttle::Throttle,
    tka::Tka,
    tunnel_pings::TunnelPings,
};

/// Host names that the user of this machine configured (hosts(5)).
const HOSTS: &str = "/etc/hosts";
/// The delay between a change of the map and its write to disk, because changes come in bursts.
const SAVE_DELAY: Duration = Duration::from_secs(2);

/// This node, as the data plane describes it.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNode {
    pub key: NodePublic,
    pub port: u16,
    pub index: u32,
}

/// A delay of a timer that indicates a stall of this process, for example while it reads a large
/// map on a busy machine. Replies of peers wait in queues during a stall. After a longer delay the
/// machine may have slept, and paths may be gone.
const STALL: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(30);

/// The state of the agent.
pub(super) struct Agent {
    pub has_interface: bool,
    /// Networks of addresses that the user accepts, in addition to tailnet addresses.
    pub address_ranges: Vec<IpNet>,
    pub state: StateFolder,
    pub machine_key: MachineKey,
    pub roots: Roots,
    pub hook: Option<SocketHook>,
    pub plane: LineSender<ToDataPlane>,
    pub steward: Option<LineSender<ToSteward>>,
    pub relays: RelayCommands,
    relay_logins: RelayLogins,
    check_tasks: CheckTasks,
    pub relay_process: RelayProcess,
    pub control_events: mpsc::Sender<(u32, control::Event)>,
    pub own: OwnNode,
    pub prefs: Prefs,
    pub map: NetworkMap,
    pub login: Login,
    pub tka: Tka,
    pub mesh: Mesh,
    pub programs: Programs,
    pub tunnel_pings: TunnelPings,
    pub settings: Settings,
    /// Present problems, by kind.
    pub problems: BTreeMap<&'static str, String>,
    /// The default routes at the last check.
    pub default_routes: [DefaultRoute; 2],
    /// The resolvers that the host used before.
    pub servers: Vec<IpAddr>,
    /// The running DNS server and its address.
    pub names: Option<(IpAddr, dns::Server)>,
    /// Whether data plane and steward have all settings of this agent, and none of the previous
    /// one.
    pub sent_all: bool,
    /// Whether they have the settings of the saved map.
    pub sent_saved_map: bool,
    /// Whether the data plane has sent its description of this node.
    pub has_hello: bool,
    /// Checks of the machine's network.
    pub network_check: Throttle,
    /// The time at which to save the map.
    pub save_map_at: Option<Duration>,
    /// The time at which it was saved last.
    map_saved_at: Option<Duration>,
    /// The time at which the next key expires.
    pub expiry: Option<Duration>,
    /// Updates of the settings from maps: at most a fifth of the time, so that a flood of maps
    /// leaves time for all other work.
    pub settings_update: Throttle,
    pub writers: Arc<Writers>,
    pub effects: Effects,
    /// The time of the last event.
    pub clock: Clock,
}

/// The parts of a new agent.
pub(super) struct Parts {
    pub has_interface: bool,
    pub address_ranges: Vec<IpNet>,
    pub state: StateFolder,
    pub roots: Roots,
    pub hook: Option<SocketHook>,
    pub plane: LineSender<ToDataPlane>,
    pub steward: Option<LineSender<ToSteward>>,
    pub relay_server: Option<LineSender<ToRelayServer>>,
    pub relays: mpsc::Sender<derp::Command>,
    pub control_events: mpsc::Sender<(u32, control::Event)>,
    /// Receives the results of network checks.
    pub check_results: mpsc::Sender<CheckResult>,
    pub port_mapping: PortMapping,
    pub writers: Arc<Writers>,
    pub effects: Effects,
    pub clock: Clock,
}

/// Access to the machine.
pub(super) struct Effects {
    /// Its addresses with their prefix lengths, except those of one interface.
    pub addresses: Box<dyn Fn(u32) -> Vec<IpNet>>,
    /// Its default routes.
    pub default_routes: Box<dyn Fn() -> [DefaultRoute; 2]>,
    /// Starts a session with a coordinator.
    pub connect: Box<Connect>,
}

type Connect =
    dyn Fn(control::Settings, mpsc::Receiver<control::Command>, mpsc::Sender<control::Event>);

/// The present time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// On the clock that paths use.
    pub now: Duration,
    /// Since 1970.
    pub wall: Duration,
}

/// Events.
pub(super) enum Input {
    Plane(ToAgent),
    Steward(FromSteward),
    StewardEnded,
    RelayServer(FromRelayServer),
    RelayServerEnded,
    /// With the number of the session.
    Control(u32, control::Event),
    Relays(derp::Event),
    Request(Request),
    CheckResult(CheckResult),
    Timeout,
}

impl Clock {
    pub fn read() -> Self {
        Self { now: clock::boottime(), wall: clock::wall() }
    }
}

impl Agent {
    /// An agent without information from the data plane or a coordinator.
    ///
    /// # Errors
    /// Its keys cannot be read or created.
    pub fn new(parts: Parts) -> anyhow::Result<Self> {
        let machine_key = parts.state.machine_key()?;
        let relay_process = RelayProcess::new(parts.relay_server);
        let mesh = Mesh::new(parts.state.disco_key()?, parts.port_mapping);
        let prefs = saved::load_prefs(&parts.state);
        let tka = Tka::new(&parts.state, &prefs.control_url)?;
        let mut problems = BTreeMap::new();
        if let Some(problem) = parts.roots.problem() {
            tracing::warn!("{problem}");
            problems.insert("certificates", problem);
        }
        Ok(Self {
            has_interface: parts.has_interface,
            address_ranges: parts.address_ranges,
            state: parts.state,
            machine_key,
            roots: parts.roots,
            hook: parts.hook,
            plane: parts.plane,
            steward: parts.steward,
            relays: RelayCommands::new(parts.relays),
            relay_logins: RelayLogins::new(),
            check_tasks: CheckTasks::new(parts.check_results),
            relay_process,
            control_events: parts.control_events,
            own: OwnNode::default(),
            prefs,
            map: NetworkMap::default(),
            login: Login::default(),
            tka,
            mesh,
            programs: Programs::default(),
            tunnel_pings: TunnelPings::default(),
            settings: Settings::default(),
            problems,
            default_routes: <[DefaultRoute; 2]>::default(),
            servers: Vec::new(),
            names: None,
            sent_all: false,
            sent_saved_map: false,
            has_hello: false,
            network_check: Throttle::new(CHECK_INTERVAL),
            save_map_at: None,
            map_saved_at: None,
            expiry: None,
            settings_update: Throttle::new(Duration::ZERO),
            writers: parts.writers,
            effects: parts.effects,
            clock: parts.clock,
        })
    }

    /// Requests the data plane's description of this node.
    pub fn hello(&self) {
        self.plane.send(ToDataPlane::Hello);
        // The data plane may have paths of the previous agent.
        self.plane.send(ToDataPlane::Report);
        self.relay_process.hello();
    }

    /// Handles an event and its consequences.
    pub async fn handle(&mut self, input: Input, clock: Clock) {
        let late = self.poll_timeout().map(|due| clock.now.saturating_sub(due));
        if let Some(late) = late.filter(|late| STALL.contains(late)) {
            self.mesh.handle_stall(late, clock.now);
        }
        self.clock = clock;
        match input {
            Input::Plane(message) => self.handle_plane(message).await,
            Input::Steward(message) => self.handle_steward(message),
            Input::StewardEnded => self.handle_steward_ended(),
            Input::RelayServer(message) => self.handle_relay_message(message),
            Input::RelayServerEnded => self.relay_process.stop(),
            Input::Control(session, event) => self.handle_control(session, event),
            Input::Relays(event) => self.handle_relays(event),
            Input::Request(request) => self.answer(request),
            Input::CheckResult(result) => {
                self.relay_process.handle_check_result(&result);
                self.mesh.handle_check_result(result, clock.now);
            }
            Input::Timeout => {}
        }
        self.handle_timeout();
        self.flush().await;
    }

    /// Takes the time at which the last event was handled.
    pub fn handle_done(&mut self, now: Duration) {
        self.settings_update.handle_done(self.clock.now, now);
        self.network_check.handle_done(self.clock.now, now);
    }

    /// The time at which [`Input::Timeout`] has an effect.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let (mesh, programs) = (self.mesh.poll_timeout(), self.programs.poll_timeout());
        let tka = self.tka.poll_timeout();
        let (relay, pings) = (self.relay_process.poll_timeout(), self.tunnel_pings.poll_timeout());
        let own =
            [self.save_map_at, self.expiry, self.settings_update.due(), self.network_check.due()];
        let all = [mesh, programs, tka, relay, pings].into_iter().chain(own);
        all.flatten().min()
    }

    fn handle_timeout(&mut self) {
        let now = self.clock.now;
        self.check_network();
        self.mesh.handle_timeout(now);
        self.programs.handle_timeout(now);
        self.tunnel_pings.handle_timeout(now);
        let names = self.relay_process.handle_timeout(self.mesh.network().local(), now);
        names.into_iter().for_each(|name| self.check_tasks.look_up(name));
        if self.save_map_at.is_some_and(|at| at <= now) {
            self.save_map_at = None;
            self.map_saved_at = Some(now);
            self.save_map();
        }
        if self.expiry.is_some_and(|at| at <= now) || self.settings_update.is_due(now) {
            self.apply_settings();
            self.publish_state();
        }
        if self.tka.poll_timeout().is_some_and(|at| at <= now) {
            self.sync_tka();
        }
    }

    async fn handle_plane(&mut self, message: ToAgent) {
        // Earlier messages were for the previous agent.
        if !self.has_hello && !matches!(message, ToAgent::Hello { .. }) {
            return;
        }
        match message {
            ToAgent::Hello { node_key, port, index, .. } => {
                self.own = OwnNode { key: node_key, port, index };
                self.begin();
            }
            ToAgent::Datagrams(datagrams) => {
                let now = self.clock.now;
                datagrams.into_iter().for_each(|one| self.mesh.handle_datagram(one, now));
            }
            ToAgent::ToRelay { region, to, bytes, segment } => {
                self.mesh.handle_relay_sent(to, bytes.len(), self.clock.now);
                let (bytes, segment) = (bytes.into(), segment as usize);
                let bundled = self.mesh.takes_bundles(&to);
                let send = derp::Command::Send { region, to, bytes, segment, bundled };
                // If the relays' tasks do not keep up, the data plane's queue fills and drops
                // datagrams.
                self.relays.send(send).await;
            }
            ToAgent::Event(event) => {
                let now = self.clock.now;
                match event {
                    PeerEvent::HandshakeDone(peer) => self.mesh.handle_handshake_done(peer, now),
                    PeerEvent::NewPath { .. } => {}
                    PeerEvent::Stale(peer) => self.mesh.handle_stale(peer, now),
                    PeerEvent::SessionNeeded(peer) => self.mesh.handle_wanted(peer, now),
                }
            }
            ToAgent::Activity(active) => {
                let now = self.clock.now;
                if self.mesh.handle_activity(active, now) {
                    self.apply_settings();
                }
            }
            ToAgent::Login { id, sealed } => self.relay_logins.finish(id, sealed),
            ToAgent::Candidate(key) => self.log_in_with(key),
            ToAgent::NetworkChanged => self.network_check.request(self.clock.now),
            ToAgent::SocketsOpened { number, count } => {
                self.mesh.handle_opened(number, count, self.clock.now)
            }
            ToAgent::Port(port) => {
                self.own.port = port;
                self.network_changed();
            }
            ToAgent::TunnelPong(pong) => self.handle_pong(&pong),
        }
    }

    /// Starts from the files, so that a joined node works before the coordinator answers.
    fn begin(&mut self) {
        self.has_hello = true;
        self.mesh.set_own_key(self.own.key, self.clock.now);
        if let Some(map) = self.load_map() {
            self.map = map;
            self.relays_changed();
        }
        self.default_routes = (self.effects.default_routes)();
        self.find_endpoints();
        self.set_operator();
        self.apply_settings();
        self.sync_tka();
        self.connect();
        self.publish_state();
    }

    fn handle_steward(&mut self, message: FromSteward) {
        // The loop handles the other message.
        let FromSteward::Done { problems, servers } = message else { return };
        match &problems[..] {
            [] => drop(self.problems.remove("host")),
            some => {
                some.iter().for_each(|problem| tracing::error!("{problem}"));
                self.problems.insert("host", some.join("; "));
            }
        }
        // The address of the DNS server may be available only now.
        let unbound = self.settings.host.names.is_some() && self.names.is_none();
        if self.servers != servers || unbound {
            self.servers = servers;
            self.apply_settings();
        }
    }

    /// No new steward can be started, because its privileges ended with it. Everything that needs
    /// no privileges continues.
    fn handle_steward_ended(&mut self) {
        const GONE: &str = "the process that configures routes and names was killed: they remain \
                            unchanged until this node is restarted";
        tracing::error!("{GONE}");
        self.steward = None;
        self.problems.insert("host", GONE.to_owned());
    }

    fn handle_relays(&mut self, event: derp::Event) {
        match event {
            derp::Event::Received { region, datagrams } => {
                let now = self.clock.now;
                self.mesh.handle_relay_frame(region, now);
                let relayed = self.mesh.handle_relayed(region, datagrams, now);
                if !relayed.wireguard.is_empty() {
                    self.plane.send(ToDataPlane::Relayed(relayed.wireguard));
                }
                relayed.requests.into_iter().for_each(|request| self.allocate(request));
            }
            derp::Event::Connected { region, .. } => {
                self.problems.remove("relay");
                // The reported health was that of the previous connection.
                self.problems.remove("relay health");
                self.mesh.handle_relay_up(region, self.clock.now);
            }
            derp::Event::Disconnected { region, was_up, why } => {
                tracing::info!(region, why, "relay");
                self.mesh.handle_relay_down(region, was_up, self.clock.now);
                if self.mesh.network().home() == Some(region) {
                    self.problems.insert("relay", format!("the home relay does not answer: {why}"));
                }
            }
            derp::Event::PeerGone { region, peer, .. } => {
                self.mesh.handle_peer_gone(region, peer, self.clock.now);
            }
            derp::Event::Health { region, text } if text.is_empty() => {
                tracing::debug!(region, "the relay has recovered");
                self.problems.remove("relay health");
            }
            derp::Event::Health { text, .. } => {
                self.problems.insert("relay health", format!("the relay reports: {text}"));
            }
            derp::Event::Login { server, reply, .. } => {
                let id = self.relay_logins.begin(reply);
                self.plane.send(ToDataPlane::Login { id, server });
            }
        }
    }

    /// Handles a map or a change of it.
    pub fn handle_map(&mut self, map: MapResponse, is_first: bool) {
        let is_map = !map.keep_alive;
        let wall = self.clock.wall;
        let changes =
            if is_first { self.map.apply_first(map, wall) } else { self.map.apply(map, wall) };
        for bad in &changes.bad {
            tracing::warn!("the coordinator sent an invalid record: {bad}");
        }
        match changes.bad.first() {
            Some(bad) => drop(self.problems.insert("map", format!("ignored: {bad}"))),
            None => drop(self.problems.remove("map")),
        }
        if is_page(&changes.page) {
            self.programs.login_page(&changes.page);
        }
        if changes.relays {
            self.relays_changed();
        }
        if changes.node
            && let Some(node) = self.map.node()
        {
            self.programs.node_changed(node);
        }
        if changes.settings {
            self.settle();
            let due = self.map_saved_at.map_or(self.clock.now, |at| at + SAVE_DELAY);
            self.save_map_at.get_or_insert(due);
        }
        if is_map {
            self.sync_tka();
        }
        self.publish_state();
    }

    /// Updates the settings from the map: at once, or after a delay if others came shortly before.
    fn settle(&mut self) {
        self.settings_update.request(self.clock.now);
        if self.settings_update.is_due(self.clock.now) {
            self.apply_settings();
        }
    }

    fn relays_changed(&mut self) {
        let scope = self.scope();
        self.relays.set_map(self.map.derp_map().clone(), scope);
        self.mesh.set_relays(self.map.derp_map(), scope, self.clock.now);
        self.relay_process.set_relays(self.map.derp_map(), scope);
    }

    /// The addresses that the coordinator may direct this node to.
    pub fn scope(&self) -> Scope {
        let Ok(url) = self.prefs.control_url.parse() else { return Scope::default() };
        let hosts = std::fs::read(HOSTS).unwrap_or_default();
        Scope::of_control(&url, &String::from_utf8_lossy(&hosts))
    }

    /// Grants the operator write access, in addition to root.
    pub fn set_operator(&mut self) {
        let name = &self.prefs.operator_user;
        let number = (!name.is_empty()).then(|| sys::process::user_id(name)).flatten();
        self.writers.set_operator(number);
        match number.is_none() && !name.is_empty() {
            true => {
                let problem = format!("the operator {name:?} is not a user of this machine");
                self.problems.insert("operator", problem);
            }
            false => drop(self.problems.remove("operator")),
        }
    }

    async fn flush(&mut self) {
        let now = self.clock.now;
        self.programs.send_pings(|peer| self.mesh.ping(peer, now));
        for output in self.mesh.flush(now) {
            self.apply_mesh_output(output).await;
        }
        self.relays.flush().await;
        self.login.flush().await;
    }

    async fn apply_mesh_output(&mut self, output: mesh::Output) {
        match output {
            mesh::Output::Plane(message) => self.plane.send(message),
            mesh::Output::Relay { region, peer, bytes } => {
                let segment = bytes.len();
                let send = derp::Command::Send { region, to: peer, bytes, segment, bundled: false };
                self.relays.send(send).await;
            }
            mesh::Output::Home(home) => self.relays.set_home(home),
            mesh::Output::Pong { number, via, latency } => {
                self.programs.pong(number, via, latency);
            }
            mesh::Output::LookUp(name) => self.check_tasks.look_up(name),
            mesh::Output::LookUpPrefix => self.check_tasks.look_up_prefix(),
            mesh::Output::MeasureLatency(region) => {
                self.check_tasks.measure(region, &self.relays).await;
            }
            mesh::Output::FindEndpoints => self.find_endpoints(),
            mesh::Output::Announce => self.announce(),
        }
    }
}
