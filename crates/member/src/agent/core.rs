//! State and decisions of the agent, without sockets. [`Agent::handle`] takes an event and the
//! time. The effects go to queues, which other tasks send.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc, time::Duration};

use ipnet::IpNet;
use sys::process::release_heap;
use tailnet::{
    ipc::{
        FromSteward, PeerEvent, ToAgent, ToDataPlane, ToSteward,
        peer_relay::{FromRelayServer, ToRelayServer},
    },
    keys::MachineKey,
    messages::MapResponse,
};
use tokio::sync::mpsc;

use super::{
    applied::{AppliedSettings, Surroundings},
    check_tasks::{CheckResult, CheckTasks},
    clock::Clock,
    commands::RelayCommands,
    control::{self, dial::SocketHook},
    derp,
    host::Host,
    line::LineSender,
    local_api::{Request, Writers},
    login::{EXPIRED, Login, is_page},
    machine::Machine,
    mesh::{self, Mesh},
    portmap::PortMapping,
    problems::Problems,
    programs::Programs,
    relay_logins::RelayLogins,
    relay_process::RelayProcess,
    roots::Roots,
    state_folder::StateFolder,
    this_node::ThisNode,
    tka::Tka,
    tunnel_pings::{self, TunnelPings},
};

/// A delay of a timer that indicates a stall of this process, for example while it reads a large
/// map on a busy machine. Replies of peers wait in queues during a stall. After a longer delay the
/// machine may have slept, and paths may be gone.
const STALL: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(30);

/// The state of the agent.
pub(super) struct Agent {
    pub state: StateFolder,
    pub machine_key: MachineKey,
    pub roots: Roots,
    pub hook: Option<SocketHook>,
    pub plane: LineSender<ToDataPlane>,
    pub relays: RelayCommands,
    relay_logins: RelayLogins,
    check_tasks: CheckTasks,
    pub relay_process: RelayProcess,
    pub control_events: mpsc::Sender<(u32, control::Event)>,
    pub start_session_task: Box<Connect>,
    pub node: ThisNode,
    pub login: Login,
    pub tka: Tka,
    pub mesh: Mesh,
    pub programs: Programs,
    pub tunnel_pings: TunnelPings,
    pub applied: AppliedSettings,
    pub problems: Problems,
    pub machine: Machine,
    pub host: Host,
    pub writers: Arc<Writers>,
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
    pub machine: Machine,
    /// Starts a session with a coordinator.
    pub connect: Box<Connect>,
    pub clock: Clock,
}

pub(super) type Connect =
    dyn Fn(control::Settings, mpsc::Receiver<control::Command>, mpsc::Sender<control::Event>);

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

impl Agent {
    /// An agent without information from the data plane or a coordinator.
    ///
    /// # Errors
    /// Its keys cannot be read or created.
    pub fn new(parts: Parts) -> anyhow::Result<Self> {
        let machine_key = parts.state.machine_key()?;
        let mesh = Mesh::new(parts.state.disco_key()?, parts.port_mapping);
        let node = ThisNode::new(parts.state.clone());
        let tka = Tka::new(&parts.state, &node.prefs().control_url)?;
        let mut problems = Problems::default();
        if let Some(problem) = parts.roots.problem() {
            tracing::warn!("{problem}");
            problems.set("certificates", problem);
        }
        Ok(Self {
            state: parts.state,
            machine_key,
            roots: parts.roots,
            host: Host::new(parts.steward, parts.hook.clone()),
            hook: parts.hook,
            plane: parts.plane,
            relays: RelayCommands::new(parts.relays),
            relay_logins: RelayLogins::new(),
            check_tasks: CheckTasks::new(parts.check_results),
            relay_process: RelayProcess::new(parts.relay_server),
            control_events: parts.control_events,
            start_session_task: parts.connect,
            node,
            login: Login::default(),
            tka,
            mesh,
            programs: Programs::default(),
            tunnel_pings: TunnelPings::default(),
            applied: AppliedSettings::new(parts.has_interface, parts.address_ranges),
            problems,
            machine: parts.machine,
            writers: parts.writers,
            clock: parts.clock,
        })
    }

    /// Whether requests of programs can be answered: before the data plane's description of this
    /// node, the agent does not know whether it is logged in.
    pub fn is_ready(&self) -> bool {
        self.node.is_described()
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
            Input::StewardEnded => self.host.handle_steward_ended(&mut self.problems),
            Input::RelayServer(message) => {
                let is_enabled = self.applied.settings().host.relay_server.is_some();
                let (local, problems) = (self.mesh.network().local(), &mut self.problems);
                let response =
                    self.relay_process.handle_message(message, is_enabled, local, problems);
                response.into_iter().for_each(|message| self.mesh.send(message));
            }
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
        self.applied.handle_done(self.clock.now, now);
        self.machine.handle_done(self.clock.now, now);
    }

    /// The time at which [`Input::Timeout`] has an effect.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let all = [
            self.mesh.poll_timeout(),
            self.programs.poll_timeout(),
            self.tka.poll_timeout(),
            self.relay_process.poll_timeout(),
            self.tunnel_pings.poll_timeout(),
            self.node.poll_timeout(),
            self.applied.poll_timeout(),
            self.machine.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self) {
        let now = self.clock.now;
        if self.machine.handle_timeout(now) {
            self.network_changed();
        }
        self.mesh.handle_timeout(now);
        self.programs.handle_timeout(now);
        self.tunnel_pings.handle_timeout(now);
        let names = self.relay_process.handle_timeout(self.mesh.network().local(), now);
        names.into_iter().for_each(|name| self.check_tasks.look_up(name));
        self.node.handle_timeout(now, &mut self.problems);
        if self.applied.poll_timeout().is_some_and(|at| at <= now) {
            self.apply_settings();
            self.publish_state();
        }
        if self.tka.poll_timeout().is_some_and(|at| at <= now) {
            self.sync_tka();
        }
    }

    async fn handle_plane(&mut self, message: ToAgent) {
        // Earlier messages were for the previous agent.
        if !self.node.is_described() && !matches!(message, ToAgent::Hello { .. }) {
            return;
        }
        match message {
            ToAgent::Hello { node_key, port, index, .. } => {
                self.node.describe(node_key, port, index);
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
            ToAgent::NetworkChanged => self.machine.request_check(self.clock.now),
            ToAgent::SocketsOpened { number, count } => {
                self.mesh.handle_opened(number, count, self.clock.now)
            }
            ToAgent::Port(port) => {
                self.node.set_port(port);
                self.network_changed();
            }
            ToAgent::TunnelPong(pong) => {
                let output = self.tunnel_pings.handle_pong(&pong, self.clock.now);
                self.apply_ping_output(output);
            }
        }
    }

    /// Starts from the files, so that a joined node works before the coordinator answers.
    fn begin(&mut self) {
        self.mesh.set_own_key(self.node.key(), self.clock.now);
        if self.node.load_map() {
            self.relays_changed();
        }
        self.machine.update_routes();
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
        let needs_server = self.applied.settings().host.names.is_some();
        if self.host.handle_done(&problems, servers, needs_server, &mut self.problems) {
            self.apply_settings();
        }
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
                for request in relayed.requests {
                    let grants = &self.applied.settings().grants;
                    self.relay_process.allocate(request, self.node.map(), grants);
                }
            }
            derp::Event::Connected { region, .. } => {
                self.problems.clear("relay");
                // The reported health was that of the previous connection.
                self.problems.clear("relay health");
                self.mesh.handle_relay_up(region, self.clock.now);
            }
            derp::Event::Disconnected { region, was_up, why } => {
                tracing::info!(region, why, "relay");
                self.mesh.handle_relay_down(region, was_up, self.clock.now);
                if self.mesh.network().home() == Some(region) {
                    self.problems.set("relay", format!("the home relay does not answer: {why}"));
                }
            }
            derp::Event::PeerGone { region, peer, .. } => {
                self.mesh.handle_peer_gone(region, peer, self.clock.now);
            }
            derp::Event::Health { region, text } if text.is_empty() => {
                tracing::debug!(region, "the relay has recovered");
                self.problems.clear("relay health");
            }
            derp::Event::Health { text, .. } => {
                self.problems.set("relay health", format!("the relay reports: {text}"));
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
        let changes = self.node.apply_map(map, is_first, self.clock);
        for bad in &changes.bad {
            tracing::warn!("the coordinator sent an invalid record: {bad}");
        }
        match changes.bad.first() {
            Some(bad) => drop(self.problems.set("map", format!("ignored: {bad}"))),
            None => self.problems.clear("map"),
        }
        if is_page(&changes.page) {
            self.programs.login_page(&changes.page);
        }
        if changes.relays {
            self.relays_changed();
        }
        if changes.node
            && let Some(node) = self.node.map().node()
        {
            self.programs.node_changed(node);
        }
        if changes.settings {
            self.settle();
        }
        if is_map {
            self.sync_tka();
        }
        self.publish_state();
    }

    /// Updates the settings from the map: at once, or after a delay if others came shortly before.
    fn settle(&mut self) {
        if self.applied.request(self.clock.now) {
            self.apply_settings();
        }
    }

    /// Applies map and preferences to the data plane, the paths, the host and the names.
    pub fn apply_settings(&mut self) {
        let (node, now) = (&self.node, self.clock.now);
        let around = Surroundings {
            tka: self.tka.trust(),
            connected: &self.machine.connected_networks(node.interface()),
            resolvers: self.host.resolvers(),
            has_new_map: self.login.has_map,
            previous_until: self.mesh.previous_agent_until(),
        };
        let update = self.applied.update(node, around, self.clock);
        update.plane.into_iter().for_each(|message| self.plane.send(message));
        if let Some(desired) = update.host {
            self.host.configure(desired);
        }
        let probes = node.is_enabled() && !node.prefs().no_port_guessing;
        let is_in = node.is_enabled() && node.is_in_map();
        let paths = self.applied.take_paths();
        let settings = self.applied.settings();
        self.mesh.set_peer_relays(settings.peer_relays.clone());
        self.mesh.set_birthday_probing(probes);
        self.mesh.set_peers(&paths, now);
        self.mesh.network().port_mapping().set_port(is_in.then_some(node.port()));
        let problems = &settings.problems;
        self.problems.update("settings", (!problems.is_empty()).then(|| problems.join("; ")));
        let has_expired = node.has_expired(self.clock.wall);
        self.problems.update("expiry", has_expired.then(|| EXPIRED.to_owned()));
        if settings.host.relay_server.is_none() {
            self.relay_process.stop();
            self.problems.clear("peer relay");
        }
        // Without an interface, programs in the same process get the names from the data plane.
        if self.applied.has_interface() {
            let names = self.applied.take_names();
            let desired = &self.applied.settings().host;
            self.host.serve_names(&names, desired, &mut self.problems);
        }
        self.announce();
        // Returns the memory of the old settings and of the map's text, which a large network has.
        drop((paths, update.previous));
        release_heap();
    }

    /// Compares addresses and default routes, because the routes of this node change as well.
    pub fn network_changed(&mut self) {
        self.mesh.network().port_mapping().check();
        let now = self.clock.now;
        let found = self.machine.endpoints(self.node.interface(), self.node.port());
        let has_moved = self.machine.update_routes();
        if !self.mesh.set_local(found, now) && !has_moved {
            return;
        }
        self.relays.network_changed();
        self.reconnect();
        self.mesh.handle_network_change(now);
        self.apply_settings();
    }

    /// Reads this machine's addresses again.
    fn find_endpoints(&mut self) {
        let found = self.machine.endpoints(self.node.interface(), self.node.port());
        self.mesh.set_local(found, self.clock.now);
    }

    fn relays_changed(&mut self) {
        let scope = self.node.scope();
        self.relays.set_map(self.node.map().derp_map().clone(), scope);
        self.mesh.set_relays(self.node.map().derp_map(), scope, self.clock.now);
        self.relay_process.set_relays(self.node.map().derp_map(), scope);
    }

    /// Grants the operator write access, in addition to root.
    pub fn set_operator(&mut self) {
        let name = &self.node.prefs().operator_user;
        let number = (!name.is_empty()).then(|| sys::process::user_id(name)).flatten();
        self.writers.set_operator(number);
        let is_unknown = number.is_none() && !name.is_empty();
        let problem = || format!("the operator {name:?} is not a user of this machine");
        self.problems.update("operator", is_unknown.then(problem));
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

    pub fn apply_ping_output(&mut self, output: Option<tunnel_pings::Output>) {
        match output {
            Some(tunnel_pings::Output::Ping(ping)) => {
                self.plane.send(ToDataPlane::TunnelPing(ping));
            }
            Some(tunnel_pings::Output::Answer { url, over_noise, body }) => {
                self.answer_ping(url, over_noise, body);
            }
            None => {}
        }
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
