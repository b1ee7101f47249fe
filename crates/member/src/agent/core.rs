//! The agent's router, without sockets: [`Agent::handle`] gives each event to its owner, and
//! applies the effects that the owner returns.
//!
//! ```text
//!   data plane ──┐            ┌── ThisNode: key, preferences, map, files
//!   steward ─────┤            ├── Coordinator: login, session, tailnet lock
//!   relays ──────┤            ├── Mesh: paths, endpoints, home relay
//!   coordinator ─┼──► Agent ──┼── AppliedSettings: the result of map and preferences
//!   programs ────┤            ├── Machine, Host: addresses; routes, resolvers, DNS server
//!   check tasks ─┤            ├── RelayProcess, TunnelPings, Programs
//!   clock ───────┘            `── Problems
//! ```
//!
//! The effects go to queues. Other tasks send them.

mod parts;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, net::IpAddr, ops::Range, time::Duration};

use ipc::{FromSteward, PeerEvent, ToAgent, ToDataPlane, relay_process::FromRelayServer};
use mesh::{
    local_json::{PingKind, PingResult, StartOptions},
    network_map::Changes,
    prefs::Prefs,
};
use sys::process::release_heap;
use tailnet::map_messages::DerpRegion;
use zeroize::Zeroizing;

use super::{
    applied_settings::{AppliedSettings, Surroundings},
    check_tasks::{CheckResult, CheckTasks},
    clock::Clock,
    control,
    coordinator::{self, Coordinator, EXPIRED, Effect, Notification, is_page},
    derp,
    host::Host,
    local_api::{ApiError, Reply, Request},
    machine::Machine,
    peer_paths::{Mesh, Output as MeshOutput},
    problems::Problems,
    process_channel::LineSender,
    programs::Programs,
    relay_process::RelayProcess,
    relays::Relays,
    this_node::ThisNode,
    tunnel_pings::{self, PingRequester, TunnelPings},
    view::View,
};

pub(super) use self::parts::{Lines, Parts};

/// A delay of a timer that indicates a stall of this process, for example while it reads a large
/// map on a busy machine. Replies of peers wait in queues during a stall. After a longer delay the
/// machine may have slept, and paths may be gone.
const STALL: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(30);

/// The state of the agent.
pub(super) struct Agent {
    node: ThisNode,
    coordinator: Coordinator,
    mesh: Mesh,
    applied: AppliedSettings,
    machine: Machine,
    host: Host,
    relay_process: RelayProcess,
    programs: Programs,
    tunnel_pings: TunnelPings,
    problems: Problems,
    plane: LineSender<ToDataPlane>,
    relays: Relays,
    check_tasks: CheckTasks,
    /// The time of the last event.
    clock: Clock,
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

impl Agent {
    /// Whether requests of programs can be answered: before the data plane's description of this
    /// node, the agent does not know whether it is logged in.
    pub(super) fn is_ready(&self) -> bool {
        self.node.is_described()
    }

    /// Requests the data plane's description of this node.
    pub(super) fn hello(&self) {
        self.plane.send(ToDataPlane::Hello);
        // The data plane may have paths of the previous agent.
        self.plane.send(ToDataPlane::Report);
        self.relay_process.hello();
    }

    /// Handles an event and its consequences.
    pub(super) async fn handle(&mut self, input: Input, clock: Clock) {
        let late = self.poll_timeout().map(|due| clock.now.saturating_sub(due));
        if let Some(late) = late.filter(|late| STALL.contains(late)) {
            self.mesh.handle_stall(late, clock.now);
        }
        self.clock = clock;
        match input {
            Input::Plane(message) => self.handle_plane(message).await,
            Input::Steward(message) => self.handle_steward(message),
            Input::StewardEnded => self.host.handle_steward_ended(&mut self.problems),
            Input::RelayServer(message) => self.handle_relay_server(message),
            Input::RelayServerEnded => self.relay_process.stop(),
            Input::Control(session, event) => {
                self.coordinate(|coordinator, context| {
                    coordinator.handle_event(session, event, context);
                });
                self.publish_state();
            }
            Input::Relays(event) => self.handle_relays(event),
            Input::Request(request) => {
                if let Some(change) = self.view().answer(request) {
                    self.handle_change(change);
                }
            }
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
    pub(super) fn handle_done(&mut self, now: Duration) {
        self.applied.handle_done(self.clock.now, now);
        self.machine.handle_done(self.clock.now, now);
    }

    /// The time at which [`Input::Timeout`] has an effect.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let all = [
            self.mesh.poll_timeout(),
            self.programs.poll_timeout(),
            self.coordinator.poll_timeout(),
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
        self.coordinate(Coordinator::handle_timeout);
    }

    async fn handle_plane(&mut self, message: ToAgent) {
        // Earlier messages were for the previous agent.
        if !self.node.is_described() && !matches!(message, ToAgent::Hello { .. }) {
            return;
        }
        let now = self.clock.now;
        match message {
            ToAgent::Hello { node_key, port, index, .. } => {
                self.node.describe(node_key, port, index);
                self.begin();
            }
            ToAgent::Datagrams(datagrams) => {
                datagrams.into_iter().for_each(|one| self.mesh.handle_datagram(one, now));
            }
            ToAgent::ToRelay { region, to, bytes, segment } => {
                self.mesh.handle_relay_sent(to, bytes.len(), now);
                let (bytes, segment) = (bytes.into(), segment as usize);
                let bundled = self.mesh.takes_bundles(&to);
                let send = derp::Command::Send { region, to, bytes, segment, bundled };
                // If the relays' tasks do not keep up, the data plane's queue fills and drops
                // datagrams.
                self.relays.send(send).await;
            }
            ToAgent::Event(event) => match event {
                PeerEvent::HandshakeDone(peer) => self.mesh.handle_handshake_done(peer, now),
                PeerEvent::NewPath { .. } => {}
                PeerEvent::Stale(peer) => self.mesh.handle_stale(peer, now),
                PeerEvent::SessionNeeded(peer) => self.mesh.handle_wanted(peer, now),
            },
            ToAgent::Activity(active) => {
                if self.mesh.handle_activity(active, now) {
                    self.apply_settings();
                }
            }
            ToAgent::Login { id, sealed } => self.relays.finish_login(id, sealed),
            ToAgent::Candidate(key) => self.coordinator.handle_candidate(key, &self.node),
            ToAgent::NetworkChanged => self.machine.request_check(now),
            ToAgent::SocketsOpened { number, count } => {
                self.mesh.handle_opened(number, count, now);
            }
            ToAgent::Port(port) => {
                self.node.set_port(port);
                self.network_changed();
            }
            ToAgent::TunnelPong(pong) => {
                let output = self.tunnel_pings.handle_pong(&pong, now);
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
        self.coordinate(|coordinator, context| {
            coordinator.sync_tka(context);
            coordinator.connect(context);
        });
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

    fn handle_relay_server(&mut self, message: FromRelayServer) {
        let is_enabled = self.applied.settings().host.relay_server.is_some();
        let (local, problems) = (self.mesh.network().local(), &mut self.problems);
        let response = self.relay_process.handle_message(message, is_enabled, local, problems);
        response.into_iter().for_each(|message| self.mesh.send(message));
    }

    fn handle_relays(&mut self, event: derp::Event) {
        let now = self.clock.now;
        match event {
            derp::Event::Received { region, datagrams } => {
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
                self.mesh.handle_relay_up(region, now);
            }
            derp::Event::Disconnected { region, was_up, why } => {
                tracing::info!(region, why, "relay");
                self.mesh.handle_relay_down(region, was_up, now);
                if self.mesh.network().home() == Some(region) {
                    self.problems.set("relay", format!("the home relay does not answer: {why}"));
                }
            }
            derp::Event::PeerGone { region, peer, .. } => {
                self.mesh.handle_peer_gone(region, peer, now);
            }
            derp::Event::Health { region, text } if text.is_empty() => {
                tracing::debug!(region, "the relay has recovered");
                self.problems.clear("relay health");
            }
            derp::Event::Health { text, .. } => {
                self.problems.set("relay health", format!("the relay reports: {text}"));
            }
            derp::Event::Login { server, reply, .. } => {
                let id = self.relays.begin_login(reply);
                self.plane.send(ToDataPlane::Login { id, server });
            }
        }
    }

    fn view(&self) -> View<'_> {
        View {
            node: &self.node,
            coordinator: &self.coordinator,
            mesh: &self.mesh,
            applied: &self.applied,
            problems: &self.problems,
            clock: self.clock,
        }
    }

    /// Handles a request that changes something. Programs may be gone.
    fn handle_change(&mut self, request: Request) {
        match request {
            Request::EditPrefs { edits, reply } => {
                let edited = self.node.prefs().edited(&edits).map_err(ApiError::from);
                let edited = edited.and_then(|prefs| self.set_prefs(prefs));
                let _ = reply.send(edited.map(|()| Box::new(self.node.prefs().clone())));
            }
            Request::Start { options, reply } => drop(reply.send(self.start(options))),
            Request::LoginInteractive { reply } => {
                let _ = reply.send(Ok(()));
                self.coordinate(Coordinator::log_in_interactively);
            }
            Request::Logout { reply } => {
                self.coordinate(|coordinator, context| coordinator.logout(reply, context));
                self.publish_state();
            }
            Request::Ping { ip, kind, reply, .. } => self.ping(ip, kind, reply),
            Request::Tka { command, reply } => {
                self.coordinator.begin_tka_command(*command, reply, self.node.key());
            }
            Request::Watch { mask, watcher } => {
                let first = self.view().first_notification(mask);
                self.programs.watch(watcher, &first, mask);
            }
            // The view answers all others.
            _ => {}
        }
    }

    /// Replaces the preferences.
    fn set_prefs(&mut self, prefs: Prefs) -> Result<(), ApiError> {
        let prefs = self.node.completed_prefs(prefs)?;
        if let Err(error) = self.node.set_prefs(prefs, &mut self.problems) {
            return Err(ApiError::failed(format!("settings cannot be saved: {error}")));
        }
        self.set_operator();
        self.apply_settings();
        self.coordinate(Coordinator::connect);
        self.announce();
        self.programs.prefs_changed(self.node.prefs());
        self.publish_state();
        Ok(())
    }

    fn start(&mut self, options: StartOptions) -> Result<(), ApiError> {
        let login = self.node.prefs().login.clone();
        if let Some(prefs) = options.update_prefs {
            self.set_prefs(Prefs { login, ..*prefs })?;
        }
        let key = options.auth_key.text();
        let key = (!key.is_empty()).then(|| Zeroizing::new(key.to_owned()));
        self.coordinate(|coordinator, context| coordinator.start(key, context));
        self.publish_state();
        Ok(())
    }

    fn ping(&mut self, ip: IpAddr, kind: PingKind, reply: Reply<PingResult>) {
        let (key, waiting) = match self.node.ping_target(ip) {
            Ok(peer) => peer,
            Err(result) => {
                let _ = reply.send(Ok(*result));
                return;
            }
        };
        let now = self.clock.now;
        if kind == PingKind::Tsmp {
            let requester = PingRequester::Program(reply);
            let output = self.tunnel_pings.ping(&self.node, ip, waiting, requester, now);
            return self.apply_ping_output(output);
        }
        let regions = self.node.map().derp_map().regions.iter().flatten();
        let code = |(id, region): (&u16, &Option<DerpRegion>)| {
            Some((*id, region.as_ref()?.region_code.clone()))
        };
        let regions: HashMap<u16, String> = regions.filter_map(code).collect();
        self.programs.add_ping(key, waiting, regions, reply, now);
    }

    /// Grants the operator write access, in addition to root.
    fn set_operator(&mut self) {
        let problem = self.programs.set_operator(&self.node.prefs().operator_user);
        self.problems.update("operator", problem);
    }

    /// Notifies programs of the state, if it changed.
    fn publish_state(&mut self) {
        let state = self.coordinator.node_state(&self.node, self.clock.wall);
        self.programs.set_state(state);
    }

    /// Gives the coordinator's owner an event, and applies the effects.
    fn coordinate(&mut self, event: impl FnOnce(&mut Coordinator, &mut coordinator::Context<'_>)) {
        let mut context = coordinator::Context {
            node: &mut self.node,
            mesh: &self.mesh,
            problems: &mut self.problems,
            clock: self.clock,
            effects: Vec::new(),
        };
        event(&mut self.coordinator, &mut context);
        for effect in context.effects {
            self.apply_effect(effect);
        }
    }

    fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Plane(message) => self.plane.send(message),
            Effect::KeyChanged => {
                self.plane.send(ToDataPlane::UseCandidate(self.node.key()));
                self.mesh.set_own_key(self.node.key(), self.clock.now);
                self.relays.key_changed();
                // Handshakes of peers used another key.
                self.applied.reset();
                self.apply_settings();
            }
            Effect::MapChanged(changes) => self.handle_map_changes(&changes),
            Effect::Apply => self.apply_settings(),
            Effect::Ping(ping) => {
                let output = self.tunnel_pings.handle_request(&self.node, ping, self.clock.now);
                self.apply_ping_output(output);
            }
            Effect::Notify(notification) => match notification {
                Notification::LoginPage(page) => self.programs.login_page(&page),
                Notification::LoginFinished => self.programs.login_finished(self.node.prefs()),
                Notification::LoginFailed(why) => self.programs.login_failed(&why),
                Notification::Unreachable(why) => tracing::warn!(why, "not connected"),
                Notification::PrefsChanged => self.programs.prefs_changed(self.node.prefs()),
            },
        }
    }

    fn handle_map_changes(&mut self, changes: &Changes) {
        for bad in &changes.bad {
            tracing::warn!("the coordinator sent an invalid record: {bad}");
        }
        let problem = changes.bad.first().map(|bad| format!("ignored: {bad}"));
        self.problems.update("map", problem);
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
        // Applied at once, or after a delay if other changes came shortly before.
        if changes.settings && self.applied.request(self.clock.now) {
            self.apply_settings();
        }
        self.publish_state();
    }

    /// Applies map and preferences to the data plane, the paths, the host and the names.
    fn apply_settings(&mut self) {
        let (node, now) = (&self.node, self.clock.now);
        let around = Surroundings {
            tka: self.coordinator.tka().trust(),
            connected: &self.machine.connected_networks(node.interface()),
            resolvers: self.host.resolvers(),
            has_new_map: self.coordinator.has_map(),
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

    fn announce(&mut self) {
        self.coordinator.announce(&self.node, &self.mesh);
    }

    fn relays_changed(&mut self) {
        let (map, scope) = (self.node.map().derp_map(), self.node.scope());
        self.relays.set_map(map.clone(), scope);
        self.mesh.set_relays(map, scope, self.clock.now);
        self.relay_process.set_relays(map, scope);
    }

    /// Compares addresses and default routes, because the routes of this node change as well.
    fn network_changed(&mut self) {
        self.mesh.network().port_mapping().check();
        let now = self.clock.now;
        let found = self.machine.endpoints(self.node.interface(), self.node.port());
        let has_moved = self.machine.update_routes();
        if !self.mesh.set_local(found, now) && !has_moved {
            return;
        }
        self.relays.network_changed();
        self.coordinator.reconnect();
        self.mesh.handle_network_change(now);
        self.apply_settings();
    }

    /// Reads this machine's addresses again.
    fn find_endpoints(&mut self) {
        let found = self.machine.endpoints(self.node.interface(), self.node.port());
        self.mesh.set_local(found, self.clock.now);
    }

    async fn flush(&mut self) {
        let now = self.clock.now;
        self.programs.send_pings(|peer| self.mesh.ping(peer, now));
        for output in self.mesh.flush(now) {
            self.apply_mesh_output(output).await;
        }
        self.relays.flush().await;
        self.coordinator.flush().await;
    }

    async fn apply_mesh_output(&mut self, output: MeshOutput) {
        match output {
            MeshOutput::Plane(message) => self.plane.send(message),
            MeshOutput::Relay { region, peer, bytes } => {
                let segment = bytes.len();
                let send = derp::Command::Send { region, to: peer, bytes, segment, bundled: false };
                self.relays.send(send).await;
            }
            MeshOutput::Home(home) => self.relays.set_home(home),
            MeshOutput::Pong { number, via, latency } => {
                self.programs.pong(number, via, latency);
            }
            MeshOutput::LookUp(name) => self.check_tasks.look_up(name),
            MeshOutput::LookUpPrefix => self.check_tasks.look_up_prefix(),
            MeshOutput::MeasureLatency(region) => {
                self.check_tasks.measure(region, &self.relays).await;
            }
            MeshOutput::FindEndpoints => self.find_endpoints(),
            MeshOutput::Announce => self.announce(),
        }
    }

    fn apply_ping_output(&mut self, output: Option<tunnel_pings::Output>) {
        match output {
            Some(tunnel_pings::Output::Ping(ping)) => {
                self.plane.send(ToDataPlane::TunnelPing(ping));
            }
            Some(tunnel_pings::Output::Answer { url, over_noise, body }) => {
                self.coordinator.answer_ping(url, over_noise, body);
            }
            None => {}
        }
    }
}
