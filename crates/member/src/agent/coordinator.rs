//! This node's side of its coordinator: the login, the session, and tailnet lock.
//!
//! ```text
//!   control::Event ──┐                     ┌──► Session ──► control::Command
//!   programs ────────┼──► Coordinator ─────┼──► Login: decides, and returns actions
//!   candidate key ───┘                     ├──► Tka
//!                                          └──► Effect: data plane, map, notifications
//! ```

mod login;
mod session;

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use ipc::ToDataPlane;
use mesh::{
    local_json::State, network_map::Changes, registration::Registered, tka_command::TkaCommand,
    tka_follower::SyncRequest,
};
use serde_json::Value;
use tailnet::{
    keys::NodePublic,
    map_messages::{MapResponse, UserProfile},
    ts2021::requests::{Announcement, PingRequest},
};
use zeroize::Zeroizing;

use self::{
    login::{Action, Login, NodeFacts},
    session::Session,
};
pub(super) use self::{
    login::{EXPIRED, is_page},
    session::{Connect, SessionParts},
};
use super::{
    clock::Clock,
    control::{Command, Event},
    local_api::{ApiError, Reply},
    peer_paths::Mesh,
    problems::Problems,
    this_node::ThisNode,
    tka::Tka,
};

/// A consequence of an event for the other parts of the agent.
#[derive(Debug)]
pub(super) enum Effect {
    /// Send this to the data plane.
    Plane(ToDataPlane),
    /// The coordinator registered a candidate key of the data plane.
    KeyChanged,
    /// The map changed.
    MapChanged(Changes),
    /// Apply the settings again.
    Apply,
    /// Ping a peer for the coordinator.
    Ping(PingRequest),
    /// Notify programs.
    Notify(Notification),
}

/// A notification for programs.
#[derive(Debug)]
pub(super) enum Notification {
    /// The user must log in at this URL.
    LoginPage(String),
    LoginFinished,
    LoginFailed(String),
    /// The coordinator cannot be reached, and this node has not received a map.
    Unreachable(String),
    PrefsChanged,
}

/// The parts of the agent that an event of the coordinator concerns.
pub(super) struct Context<'a> {
    pub node: &'a mut ThisNode,
    pub mesh: &'a Mesh,
    pub problems: &'a mut Problems,
    pub clock: Clock,
    pub effects: Vec<Effect>,
}

impl Context<'_> {
    fn facts(&self) -> NodeFacts {
        NodeFacts::of(self.node, self.clock.wall)
    }

    fn notify(&mut self, notification: Notification) {
        self.effects.push(Effect::Notify(notification));
    }

    fn clear_control_problems(&mut self) {
        self.problems.clear("control");
        self.problems.clear("refusal");
    }
}

/// The login, the session and tailnet lock.
pub(super) struct Coordinator {
    login: Login,
    session: Session,
    tka: Tka,
}

impl Coordinator {
    pub(super) fn new(session: SessionParts, tka: Tka) -> Self {
        Self { login: Login::default(), session: Session::new(session), tka }
    }

    pub(super) fn tka(&self) -> &Tka {
        &self.tka
    }

    pub(super) fn is_connected(&self) -> bool {
        self.login.is_connected()
    }

    /// Whether the coordinator sent a map in this session.
    pub(super) fn has_map(&self) -> bool {
        self.login.has_map()
    }

    /// The login page, or empty.
    pub(super) fn login_page(&self) -> &str {
        self.login.page()
    }

    /// The state for users.
    pub(super) fn node_state(&self, node: &ThisNode, wall: Duration) -> State {
        self.login.state(NodeFacts::of(node, wall))
    }

    /// Connects to the coordinator or disconnects, according to the preferences.
    pub(super) fn connect(&mut self, context: &mut Context<'_>) {
        let prefs = context.node.prefs();
        let wanted = prefs.want_running && !prefs.control_url.is_empty();
        let is_other = self.session.is_open() && !self.session.matches(prefs);
        if !wanted || is_other {
            self.end_session(context);
        }
        if wanted
            && !self.session.is_open()
            && self.start_session(context)
            && context.node.has_key()
        {
            self.resume(context);
        }
    }

    fn resume(&mut self, context: &Context<'_>) {
        let auth_key = self.login.fallback_key();
        let login = self.tka.login(context.node.key(), auth_key, None);
        self.session.set_goal(Command::Resume(login));
    }

    /// Starts a session, unless there is one. Returns whether there is one then.
    fn start_session(&mut self, context: &mut Context<'_>) -> bool {
        if self.session.is_open() {
            return true;
        }
        let prefs = context.node.prefs();
        let url = match prefs.control_url.parse() {
            Ok(url) => url,
            Err(error) => {
                let problem = format!("{}: {error}", prefs.control_url);
                context.problems.set("control", problem);
                return false;
            }
        };
        self.tka.set_coordinator(&prefs.control_url, context.problems);
        let announced = self.announcement(context.node, context.mesh);
        self.session.start(url, prefs, context.node.scope(), announced);
        true
    }

    fn end_session(&mut self, context: &mut Context<'_>) {
        self.session.end();
        self.login.handle_session_end();
        self.tka.handle_disconnected();
        context.clear_control_problems();
    }

    /// Connects to the coordinator again after a network change.
    pub(super) fn reconnect(&mut self) {
        self.session.reconnect();
    }

    /// Starts at the request of a program: with an auth key, or with the present node key.
    pub(super) fn start(&mut self, auth_key: Option<Zeroizing<String>>, context: &mut Context<'_>) {
        self.connect(context);
        let actions = self.login.start(auth_key, context.facts());
        self.apply(actions, context);
    }

    /// Logs in with a new key: by an auth key, or by a login page.
    pub(super) fn begin_login(
        &mut self,
        auth_key: Option<Zeroizing<String>>,
        context: &mut Context<'_>,
    ) {
        if self.start_session(context) {
            self.login.begin(auth_key);
            context.effects.push(Effect::Plane(ToDataPlane::MakeCandidate));
        }
    }

    /// Requests a login page, or sends the present one again.
    pub(super) fn log_in_interactively(&mut self, context: &mut Context<'_>) {
        match self.login.page() {
            "" => self.begin_login(None, context),
            page => context.notify(Notification::LoginPage(page.to_owned())),
        }
    }

    /// Logs in with the candidate key from the data plane.
    pub(super) fn handle_candidate(&mut self, candidate: NodePublic, node: &ThisNode) {
        let Some((auth_key, previous)) = self.login.handle_candidate() else { return };
        let old = Some(node.key()).filter(|key| !key.is_zero() && *key != candidate);
        let login = self.tka.login(candidate, auth_key, previous.as_deref());
        self.session
            .set_goal(Command::Login(mesh::registration::Login { old_node_key: old, ..login }));
    }

    /// Logs out, at the coordinator first if it answers.
    pub(super) fn logout(&mut self, reply: Reply<()>, context: &mut Context<'_>) {
        if !context.node.has_key() {
            self.tka.clear(context.problems);
            let _ = reply.send(Ok(()));
            return;
        }
        if !self.start_session(context) {
            let _ = reply.send(Err(ApiError::failed("the coordinator cannot be notified")));
            return self.handle_logged_out(context);
        }
        self.login.add_logout(reply);
        self.session.set_goal(Command::Logout(context.node.key()));
    }

    /// Handles an event of a session.
    pub(super) fn handle_event(&mut self, session: u32, event: Event, context: &mut Context<'_>) {
        if !self.session.is_current(session) {
            return;
        }
        let actions = match event {
            Event::ServerKey(key) => {
                self.session.set_server_key(key);
                context.node.set_server_key(key, context.problems);
                context.notify(Notification::PrefsChanged);
                return;
            }
            Event::Connected { resumed } => {
                self.tka.handle_connected();
                self.login.handle_connected(resumed)
            }
            Event::Disconnected { why, .. } => {
                tracing::info!(%why, "the coordinator");
                self.tka.handle_disconnected();
                self.login.handle_disconnected(&why.to_string(), context.facts())
            }
            Event::AuthUrl(page) => self.login.handle_auth_url(page),
            Event::Registered(registered) => return self.handle_registered(registered, context),
            Event::NeedsNewNodeKey { signature } => {
                let previous = signature.and_then(|text| Base64::decode_vec(&text).ok());
                let renewable = previous.filter(|previous| self.tka.renews(previous));
                self.login.handle_rejected_key(renewable)
            }
            Event::Refused { why, .. } => self.login.handle_refused(why, context.facts()),
            Event::Map { head, map, room: _room } => {
                self.handle_map(*map, head.keep_alive, context);
                if let Some(ping) = head.ping_request {
                    context.effects.push(Effect::Ping(ping));
                }
                return;
            }
            Event::TkaResponse { number, answer } => {
                let answer = answer.as_deref().map_err(ToString::to_string);
                let (node, now) = (&*context.node, context.clock.now);
                let update = self.tka.handle_response(number, answer, node, now, context.problems);
                if update.has_changed {
                    context.effects.push(Effect::Apply);
                }
                return self.request_tka(update.request);
            }
            Event::LoggedOut => return self.handle_logged_out(context),
        };
        self.apply(actions, context);
    }

    /// Handles a map, or a keepalive with its contents.
    fn handle_map(&mut self, map: MapResponse, is_keepalive: bool, context: &mut Context<'_>) {
        let (is_first, is_map) = (self.login.handle_map(is_keepalive), !map.keep_alive);
        let changes = context.node.apply_map(map, is_first, context.clock);
        context.effects.push(Effect::MapChanged(changes));
        if is_map {
            self.sync_tka(context);
        }
        if !is_keepalive {
            let actions = self.login.handle_applied_map(context.facts());
            self.apply(actions, context);
        }
    }

    fn handle_registered(&mut self, registered: Registered, context: &mut Context<'_>) {
        if registered.node_key != context.node.key() {
            context.node.set_key(registered.node_key);
            context.effects.push(Effect::KeyChanged);
        }
        let actions = self.login.handle_registered(registered.is_authorized);
        self.apply(actions, context);
        let user = UserProfile {
            id: registered.user.id,
            login_name: registered.user.login_name,
            display_name: registered.user.display_name,
            ..UserProfile::default()
        };
        context.node.log_in(user, context.problems);
        context.notify(Notification::LoginFinished);
    }

    fn handle_logged_out(&mut self, context: &mut Context<'_>) {
        self.end_session(context);
        context.effects.push(Effect::Plane(ToDataPlane::Reset));
        context.node.log_out(context.problems);
        self.tka.clear(context.problems);
        context.node.remove_map(context.problems);
        context.effects.push(Effect::Apply);
        self.login.handle_logged_out();
    }

    /// Carries out the actions of the login.
    fn apply(&mut self, actions: Vec<Action>, context: &mut Context<'_>) {
        for action in actions {
            match action {
                Action::Begin(auth_key) => self.begin_login(auth_key, context),
                Action::MakeCandidate => {
                    context.effects.push(Effect::Plane(ToDataPlane::MakeCandidate));
                }
                Action::Resume => self.resume(context),
                Action::ClearControlProblems => context.clear_control_problems(),
                Action::Problem(kind, text) => context.problems.update(kind, text),
                Action::Notify(notification) => context.notify(notification),
            }
        }
    }

    /// Sends the present state of this node to the coordinator, if it changed.
    pub(super) fn announce(&mut self, node: &ThisNode, mesh: &Mesh) {
        if self.session.is_open() {
            let announced = self.announcement(node, mesh);
            self.session.announce(announced);
        }
    }

    fn announcement(&self, node: &ThisNode, mesh: &Mesh) -> Announcement {
        Announcement {
            hostinfo: self.session.hostinfo(node.prefs(), mesh.network().net_info()),
            endpoints: mesh.network().endpoints(),
            disco_key: mesh.disco_key(),
            tka_head: self.tka.head(),
        }
    }

    /// Sends the result of a ping to the coordinator that requested it.
    pub(super) fn answer_ping(&self, url: String, over_noise: bool, body: Vec<u8>) {
        self.session.answer_ping(url, over_noise, body);
    }

    /// Starts a command of a user for tailnet lock.
    pub(super) fn begin_tka_command(
        &mut self,
        command: TkaCommand,
        reply: Reply<Value>,
        node_key: NodePublic,
    ) {
        let request = self.tka.begin_command(command, reply, node_key);
        self.request_tka(request);
    }

    /// Requests missing updates of tailnet lock.
    pub(super) fn sync_tka(&mut self, context: &mut Context<'_>) {
        let request = self.tka.sync(context.node, context.clock.now, context.problems);
        self.request_tka(request);
    }

    fn request_tka(&mut self, request: Option<SyncRequest>) {
        if let Some(request) = request {
            self.session.request_tka(request);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.tka.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, context: &mut Context<'_>) {
        if self.tka.poll_timeout().is_some_and(|at| at <= context.clock.now) {
            self.sync_tka(context);
        }
    }

    /// Sends the queued commands to the session.
    pub(super) async fn flush(&mut self) {
        self.session.flush().await;
    }
}
