//! The login at the coordinator: registration, expiry, logout.
//!
//! ```text
//!   no key ── auth key, or login page ──► candidate ── registered ──► key, map ──► running
//!      ^                                                                |
//!      `───────────────── logout, or a new login is needed ◄────────────'
//! ```
//!
//! The node key remains in use until the coordinator accepts another one, so an unfinished login
//! breaks no connection.

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::{
    control::{self as protocol, dial::ControlUrl, messages::Announcement},
    ipc::ToDataPlane,
    keys::{MachinePublic, NodePublic},
    local::{State as NodeState, UserProfile},
    prefs::Prefs,
    tka::follow::SyncRequest,
};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::{
    commands::SessionCommands,
    control::{self, Command, Event, dial::Dialer},
    core::Agent,
    local_api::{ApiError, Reply},
};

/// The length of a log ID (`logtail/id.go`). This node uploads no log.
const LOG_ID_LEN: usize = 64;

/// The state of the login.
#[derive(Default)]
pub(super) struct Login {
    session: Option<Session>,
    /// The number of the present session. Events of ended sessions are ignored.
    number: u32,
    /// The next login, while the data plane creates its key.
    pending: Option<PendingLogin>,
    /// The auth key of the unfinished login.
    auth_key: Option<Zeroizing<String>>,
    /// The auth key for the case that the coordinator rejects the node key: it may have deleted
    /// this node since the last map.
    fallback_key: Option<Zeroizing<String>>,
    /// The login page, or empty.
    pub page: String,
    /// Whether the user must log in.
    needs_login: bool,
    /// Whether an administrator must approve this machine.
    needs_approval: bool,
    pub connected: bool,
    /// Whether the next map is the first of a stream.
    is_new_stream: bool,
    /// Whether a map was received in this session.
    pub has_map: bool,
    logouts: Vec<Reply<()>>,
}

struct Session {
    url: String,
    server_key: MachinePublic,
    commands: SessionCommands,
    announced: Announcement,
}

impl Session {
    /// Whether it is the session of these preferences.
    fn matches(&self, prefs: &Prefs) -> bool {
        self.url == prefs.control_url && self.server_key == prefs.server_key
    }
}

/// A login that waits for its candidate key.
#[derive(Default)]
struct PendingLogin {
    auth_key: Option<Zeroizing<String>>,
    /// The signature of the previous node key, by tailnet lock.
    previous: Option<Vec<u8>>,
}

/// The message about an expired or revoked node key.
pub(super) const EXPIRED: &str = "this node's key has expired or was revoked: log in again";

impl Login {
    pub async fn flush(&mut self) {
        if let Some(session) = &mut self.session {
            session.commands.flush().await;
        }
    }
}

impl Agent {
    /// The state for users.
    pub fn node_state(&self) -> NodeState {
        match () {
            () if !self.login.page.is_empty() || self.login.needs_login => NodeState::NeedsLogin,
            () if !self.node.has_key() || self.node.has_expired(self.clock.wall) => {
                NodeState::NeedsLogin
            }
            () if !self.node.prefs().want_running => NodeState::Stopped,
            () if self.login.needs_approval => NodeState::NeedsMachineAuth,
            // A map of a previous session is sufficient.
            () if self.node.map().node().is_some() => NodeState::Running,
            () => NodeState::Starting,
        }
    }

    /// Connects to the coordinator or disconnects, according to the preferences.
    pub fn connect(&mut self) {
        let wanted = self.node.prefs().want_running && !self.node.prefs().control_url.is_empty();
        let is_other =
            self.login.session.as_ref().is_some_and(|session| !session.matches(self.node.prefs()));
        if !wanted || is_other {
            self.end_session();
        }
        if wanted && self.login.session.is_none() && self.start_session() && self.node.has_key() {
            self.resume();
        }
    }

    fn resume(&mut self) {
        let auth_key = self.login.fallback_key.clone();
        self.set_goal(Command::Resume(self.tka.login(self.node.key(), auth_key, None)));
    }

    fn start_session(&mut self) -> bool {
        let url: ControlUrl = match self.node.prefs().control_url.parse() {
            Ok(url) => url,
            Err(error) => {
                self.problems.set("control", format!("{}: {error}", self.node.prefs().control_url));
                return false;
            }
        };
        let settings = control::Settings {
            url,
            server_key: self.node.prefs().server_key,
            machine_key: self.machine_key.clone(),
            dialer: Dialer::from_environment(self.hook.clone(), &self.roots)
                .within(self.node.scope()),
        };
        let (command_sender, inbox) = mpsc::channel(64);
        let (events, mut receiver) = mpsc::channel(16);
        self.login.number += 1;
        let (number, to_core) = (self.login.number, self.control_events.clone());
        (self.start_session_task)(settings, inbox, events);
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if to_core.send((number, event)).await.is_err() {
                    return;
                }
            }
        });
        let control_url = self.node.prefs().control_url.clone();
        self.set_tka_coordinator(&control_url);
        let announced = self.announced();
        let mut commands = SessionCommands::new(command_sender);
        commands.set_announced(announced.clone());
        let url = self.node.prefs().control_url.clone();
        let server_key = self.node.prefs().server_key;
        self.login.session = Some(Session { url, server_key, commands, announced });
        true
    }

    fn end_session(&mut self) {
        // A session ends when its channel is closed.
        if self.login.session.take().is_some() {
            self.login.number += 1;
        }
        (self.login.connected, self.login.has_map) = (false, false);
        self.tka.handle_disconnected();
        self.clear_control_problems();
    }

    fn clear_control_problems(&mut self) {
        self.problems.clear("control");
        self.problems.clear("refusal");
    }

    /// Connects to the coordinator again after a network change.
    pub fn reconnect(&mut self) {
        if let Some(session) = &mut self.login.session {
            session.commands.reconnect();
        }
    }

    fn set_goal(&mut self, goal: Command) {
        if let Some(session) = &mut self.login.session {
            session.commands.set_goal(goal);
        }
    }

    /// Starts at the request of a program: with an auth key, or with the present node key.
    pub fn start(&mut self, auth_key: Option<Zeroizing<String>>) {
        self.connect();
        let needs_key = !self.node.has_key() || self.login.needs_login;
        let is_admitted = self.login.connected && self.login.page.is_empty();
        if auth_key.is_some() {
            // Problems of an earlier attempt do not concern this key.
            self.clear_control_problems();
        }
        match auth_key {
            None => self.login.needs_login |= needs_key,
            key if needs_key || self.node.has_expired(self.clock.wall) => self.begin_login(key),
            Some(_) if is_admitted => {}
            key => {
                self.login.fallback_key = key;
                self.resume();
            }
        }
        self.publish_state();
    }

    /// Logs in with a new key: by an auth key, or by a login page.
    pub fn begin_login(&mut self, auth_key: Option<Zeroizing<String>>) {
        if self.login.session.is_none() && !self.start_session() {
            return;
        }
        self.login.pending = Some(PendingLogin { auth_key, previous: None });
        self.plane.send(ToDataPlane::MakeCandidate);
    }

    /// Repeats the last login under tailnet lock with another node key, signed like the previous
    /// one.
    fn begin_signed_login(&mut self, previous: Vec<u8>) {
        let auth_key = self.login.auth_key.take().or(self.login.fallback_key.take());
        self.login.pending = Some(PendingLogin { auth_key, previous: Some(previous) });
        self.plane.send(ToDataPlane::MakeCandidate);
    }

    /// Sends a request about tailnet lock to the coordinator.
    pub fn request_tka(&mut self, tka_request: SyncRequest) {
        if let Some(session) = &mut self.login.session {
            session.commands.request_tka(tka_request);
        }
    }

    /// Sends the result of a ping to the coordinator that requested it.
    pub fn answer_ping(&self, url: String, over_noise: bool, body: Vec<u8>) {
        if let Some(session) = &self.login.session {
            session.commands.answer_ping(url, over_noise, body);
        }
    }

    /// Logs in with the candidate key from the data plane.
    pub fn log_in_with(&mut self, candidate: NodePublic) {
        let Some(PendingLogin { auth_key, previous }) = self.login.pending.take() else { return };
        let old = Some(self.node.key()).filter(|key| !key.is_zero() && *key != candidate);
        self.login.auth_key.clone_from(&auth_key);
        let login = protocol::register::Login {
            old_node_key: old,
            ..self.tka.login(candidate, auth_key, previous.as_deref())
        };
        self.set_goal(Command::Login(login));
    }

    /// Handles an event of the coordinator's session.
    pub fn handle_control(&mut self, session: u32, event: Event) {
        if session != self.login.number {
            return;
        }
        match event {
            Event::ServerKey(key) => {
                if let Some(session) = &mut self.login.session {
                    session.server_key = key;
                }
                self.node.set_server_key(key, &mut self.problems);
                self.programs.prefs_changed(self.node.prefs());
            }
            Event::Connected { resumed } => {
                (self.login.connected, self.login.is_new_stream) = (true, !resumed);
                self.tka.handle_connected();
                self.clear_control_problems();
            }
            Event::Disconnected { why, .. } => {
                tracing::info!(%why, "the coordinator");
                self.login.connected = false;
                self.tka.handle_disconnected();
                self.problems.set("control", format!("the coordinator: {why}"));
                if !self.login.has_map && self.node.map().node().is_none() {
                    self.programs.log_unreachable(&format!("{why}"));
                }
            }
            Event::AuthUrl(page) if !is_page(&page) => {
                let problem = "the coordinator sent an invalid login page".to_owned();
                self.problems.set("control", problem);
            }
            Event::AuthUrl(page) => {
                self.programs.login_page(&page);
                self.login.page = page;
            }
            Event::Registered(registered) => self.handle_registered(registered),
            Event::NeedsNewNodeKey { signature: Some(previous) }
                if let Ok(previous) = Base64::decode_vec(&previous)
                    && self.tka.renews(&previous) =>
            {
                self.begin_signed_login(previous);
            }
            Event::NeedsNewNodeKey { .. } => match self.login.fallback_key.take() {
                Some(key) => self.begin_login(Some(key)),
                None => {
                    self.login.needs_login = true;
                    self.problems.set("key", EXPIRED.to_owned());
                }
            },
            Event::Refused { why, .. } => {
                self.login.needs_login |= !self.node.has_key();
                self.problems.set("refusal", format!("the coordinator refuses: {why}"));
                self.programs.login_failed(&why);
            }
            Event::Map { head, map, room: _room } => {
                let is_first = !head.keep_alive && std::mem::take(&mut self.login.is_new_stream);
                self.login.has_map |= !head.keep_alive;
                self.handle_map(*map, is_first);
                if !head.keep_alive
                    && let key @ Some(_) = self.login.fallback_key.take()
                    && self.node.has_expired(self.clock.wall)
                {
                    self.begin_login(key);
                }
                if let Some(ping) = head.ping_request {
                    let output = self.tunnel_pings.handle_request(&self.node, ping, self.clock.now);
                    self.apply_ping_output(output);
                }
            }
            Event::TkaResponse { number, answer } => {
                self.handle_tka_response(number, answer.as_deref());
            }
            Event::LoggedOut => self.handle_logged_out(),
        }
        self.publish_state();
    }

    fn handle_registered(&mut self, registered: protocol::register::Registered) {
        if registered.node_key != self.node.key() {
            self.node.set_key(registered.node_key);
            self.plane.send(ToDataPlane::UseCandidate(registered.node_key));
            self.mesh.set_own_key(self.node.key(), self.clock.now);
            self.relays.key_changed();
            // Handshakes of peers used another key.
            self.applied.reset();
            self.apply_settings();
        }
        self.login.needs_login = false;
        self.login.needs_approval = !registered.is_authorized;
        self.login.page.clear();
        (self.login.auth_key, self.login.fallback_key) = (None, None);
        self.problems.clear("key");
        self.clear_control_problems();
        let user = UserProfile {
            id: registered.user.id,
            login_name: registered.user.login_name,
            display_name: registered.user.display_name,
            ..UserProfile::default()
        };
        self.node.log_in(user, &mut self.problems);
        self.programs.login_finished(self.node.prefs());
    }

    /// Logs out, at the coordinator first if it answers.
    pub fn logout(&mut self, reply: Reply<()>) {
        if !self.node.has_key() {
            self.clear_tka();
            let _ = reply.send(Ok(()));
            return;
        }
        if self.login.session.is_none() && !self.start_session() {
            let _ = reply.send(Err(ApiError::failed("the coordinator cannot be notified")));
            return self.handle_logged_out();
        }
        self.login.logouts.push(reply);
        self.set_goal(Command::Logout(self.node.key()));
    }

    fn handle_logged_out(&mut self) {
        self.end_session();
        self.plane.send(ToDataPlane::Reset);
        self.login.needs_login = true;
        self.login.fallback_key = None;
        self.login.page.clear();
        self.node.log_out(&mut self.problems);
        self.clear_tka();
        self.node.remove_map(&mut self.problems);
        self.apply_settings();
        for reply in self.login.logouts.drain(..) {
            let _ = reply.send(Ok(()));
        }
        self.publish_state();
    }

    /// Sends the present state of this node to the coordinator, if it changed.
    pub fn announce(&mut self) {
        let announced = self.announced();
        let Some(session) = &mut self.login.session else { return };
        if session.announced != announced {
            session.announced = announced.clone();
            session.commands.set_announced(announced);
        }
    }

    fn announced(&self) -> Announcement {
        Announcement {
            hostinfo: self.hostinfo(),
            endpoints: self.mesh.network().endpoints(),
            disco_key: self.mesh.disco_key(),
            tka_head: self.tka.head(),
        }
    }

    fn hostinfo(&self) -> Value {
        let mut id = self.machine_key.public().to_string().split_off("mkey:".len());
        id.truncate(LOG_ID_LEN);
        let hostname = match &*self.node.prefs().hostname {
            "" => sys::process::hostname(),
            name => name.to_owned(),
        };
        json!({
            "IPNVersion": concat!(env!("CARGO_PKG_VERSION"), "-linerate"),
            "BackendLogID": id,
            "OS": "linux",
            "GoArch": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "Hostname": hostname,
            "ShieldsUp": self.node.prefs().shields_up,
            "RoutableIPs": self.node.prefs().advertise_routes,
            "RequestTags": self.node.prefs().advertise_tags,
            "Userspace": true,
            "UserspaceRouter": !self.applied.has_interface(),
            "PeerRelay": self.node.prefs().relay_server_port.is_some(),
            "NetInfo": self.mesh.network().net_info(),
        })
    }

    /// Notifies programs of the state, if it changed.
    pub fn publish_state(&mut self) {
        let state = self.node_state();
        self.programs.set_state(state);
    }
}

/// Whether the URL may be opened in a browser and printed on a terminal.
pub(super) fn is_page(page: &str) -> bool {
    const LONGEST: usize = 2048;
    let is_web = page.starts_with("https://") || page.starts_with("http://");
    is_web && page.len() <= LONGEST && page.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_page_must_be_a_web_url() {
        for good in ["https://net.example/register/x?a=b", "http://127.0.0.1:8080/a"] {
            assert!(is_page(good), "{good}");
        }
        let long = format!("https://{}", "a".repeat(2048));
        for bad in ["", "javascript:x", "file:///etc", "https://a\u{1b}[2J", "https://a b", &long] {
            assert!(!is_page(bad), "{bad:?}");
        }
    }
}
