//! The login at the coordinator: registration, expiry, logout.
//!
//! ```text
//!   no key ── auth key, or login page ──► candidate ── registered ──► key, map ──► running
//!      ^                                                                |
//!      `───────────────── logout, or a new login is needed ◄────────────'
//! ```
//!
//! The node key remains in use until the coordinator accepts another one, so an unfinished login
//! breaks no connection. [`Login`] sends nothing: it returns [`Action`]s.

use std::time::Duration;

use mesh::local_json::State;
use zeroize::Zeroizing;

use super::Notification;
use crate::agent::{local_api::Reply, this_node::ThisNode};

/// The message about an expired or revoked node key.
pub(in crate::agent) const EXPIRED: &str =
    "this node's key has expired or was revoked: log in again";

/// A secret that registers a node without a user.
pub(super) type AuthKey = Zeroizing<String>;

/// The facts about this node on which the login depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    /// Whether the user wants it to run.
    pub wants_running: bool,
    pub has_key: bool,
    /// Whether its key has expired according to the map.
    pub has_expired: bool,
    /// Whether a map contains it: also one of a previous session.
    pub is_in_map: bool,
}

impl NodeFacts {
    pub(super) fn of(node: &ThisNode, wall: Duration) -> Self {
        Self {
            wants_running: node.prefs().want_running,
            has_key: node.has_key(),
            has_expired: node.has_expired(wall),
            is_in_map: node.is_in_map(),
        }
    }
}

/// The result of an event, in this order.
#[derive(Debug)]
pub(super) enum Action {
    /// Begin a login with this auth key or a login page, by [`Login::begin`].
    Begin(Option<AuthKey>),
    /// Make the data plane create a candidate key.
    MakeCandidate,
    /// Follow the map of the present key, with [`Login::fallback_key`].
    Resume,
    /// Clear the problems of the coordinator.
    ClearControlProblems,
    /// Set or clear the problem of a kind.
    Problem(&'static str, Option<String>),
    Notify(Notification),
}

/// The state of the login.
#[derive(Default)]
pub(super) struct Login {
    /// The next login, while the data plane creates its key.
    pending: Option<PendingLogin>,
    /// The auth key of the unfinished login.
    auth_key: Option<AuthKey>,
    /// The auth key for the case that the coordinator rejects the node key: it may have deleted
    /// this node since the last map.
    fallback_key: Option<AuthKey>,
    /// The login page, or empty.
    page: String,
    /// Whether the user must log in.
    needs_login: bool,
    /// Whether an administrator must approve this machine.
    needs_approval: bool,
    stream: MapStream,
    logouts: Vec<Reply<()>>,
}

/// A login that waits for its candidate key.
#[derive(Default)]
struct PendingLogin {
    auth_key: Option<AuthKey>,
    /// The signature of the previous node key, by tailnet lock.
    previous: Option<Vec<u8>>,
}

/// The stream of maps.
#[derive(Default)]
struct MapStream {
    is_connected: bool,
    /// Whether the next map is the first of a stream.
    is_new: bool,
    /// Whether a map was received in this session.
    has_map: bool,
}

impl Login {
    /// The state for users.
    pub(super) fn state(&self, node: NodeFacts) -> State {
        match () {
            () if !self.page.is_empty() || self.needs_login => State::NeedsLogin,
            () if !node.has_key || node.has_expired => State::NeedsLogin,
            () if !node.wants_running => State::Stopped,
            () if self.needs_approval => State::NeedsMachineAuth,
            // A map of a previous session is sufficient.
            () if node.is_in_map => State::Running,
            () => State::Starting,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_connected
    }

    /// Whether a map was received in this session.
    pub(super) fn has_map(&self) -> bool {
        self.stream.has_map
    }

    /// The login page, or empty.
    pub(super) fn page(&self) -> &str {
        &self.page
    }

    /// The auth key for the case that the coordinator rejects the node key.
    pub(super) fn fallback_key(&self) -> Option<AuthKey> {
        self.fallback_key.clone()
    }

    /// Starts with an auth key, or with the present node key.
    pub(super) fn start(&mut self, auth_key: Option<AuthKey>, node: NodeFacts) -> Vec<Action> {
        let needs_key = !node.has_key || self.needs_login;
        let is_admitted = self.stream.is_connected && self.page.is_empty();
        if auth_key.is_none() {
            self.needs_login |= needs_key;
            return Vec::new();
        }
        // Problems of an earlier attempt do not concern this key.
        let mut actions = vec![Action::ClearControlProblems];
        if needs_key || node.has_expired {
            actions.push(Action::Begin(auth_key));
        } else if !is_admitted {
            self.fallback_key = auth_key;
            actions.push(Action::Resume);
        }
        actions
    }

    /// A login begins. The data plane must create a candidate key.
    pub(super) fn begin(&mut self, auth_key: Option<AuthKey>) {
        self.pending = Some(PendingLogin { auth_key, previous: None });
    }

    /// The data plane created a candidate key. Returns the auth key and the signature to renew for
    /// it; `None` if no login waits for it.
    pub(super) fn handle_candidate(&mut self) -> Option<(Option<AuthKey>, Option<Vec<u8>>)> {
        let PendingLogin { auth_key, previous } = self.pending.take()?;
        self.auth_key.clone_from(&auth_key);
        Some((auth_key, previous))
    }

    pub(super) fn handle_connected(&mut self, resumed: bool) -> Vec<Action> {
        (self.stream.is_connected, self.stream.is_new) = (true, !resumed);
        vec![Action::ClearControlProblems]
    }

    pub(super) fn handle_disconnected(&mut self, why: &str, node: NodeFacts) -> Vec<Action> {
        self.stream.is_connected = false;
        let mut actions = vec![Action::Problem("control", Some(format!("the coordinator: {why}")))];
        if !self.stream.has_map && !node.is_in_map {
            actions.push(Action::Notify(Notification::Unreachable(why.to_owned())));
        }
        actions
    }

    /// The session ended.
    pub(super) fn handle_session_end(&mut self) {
        (self.stream.is_connected, self.stream.has_map) = (false, false);
    }

    /// The user must log in at this URL.
    pub(super) fn handle_auth_url(&mut self, page: String) -> Vec<Action> {
        if !is_page(&page) {
            let problem = "the coordinator sent an invalid login page".to_owned();
            return vec![Action::Problem("control", Some(problem))];
        }
        self.page.clone_from(&page);
        vec![Action::Notify(Notification::LoginPage(page))]
    }

    /// The coordinator requires another node key. `renewable` is the signature of the present one,
    /// if tailnet lock can renew it: then the last login is repeated, signed like the previous one.
    pub(super) fn handle_rejected_key(&mut self, renewable: Option<Vec<u8>>) -> Vec<Action> {
        if renewable.is_some() {
            let auth_key = self.auth_key.take().or(self.fallback_key.take());
            self.pending = Some(PendingLogin { auth_key, previous: renewable });
            return vec![Action::MakeCandidate];
        }
        match self.fallback_key.take() {
            Some(key) => vec![Action::Begin(Some(key))],
            None => {
                self.needs_login = true;
                vec![Action::Problem("key", Some(EXPIRED.to_owned()))]
            }
        }
    }

    pub(super) fn handle_refused(&mut self, why: String, node: NodeFacts) -> Vec<Action> {
        self.needs_login |= !node.has_key;
        let problem = format!("the coordinator refuses: {why}");
        vec![
            Action::Problem("refusal", Some(problem)),
            Action::Notify(Notification::LoginFailed(why)),
        ]
    }

    /// A map or a keepalive was received. Returns whether it is the first map of a stream.
    pub(super) fn handle_map(&mut self, is_keepalive: bool) -> bool {
        if is_keepalive {
            return false;
        }
        self.stream.has_map = true;
        std::mem::take(&mut self.stream.is_new)
    }

    /// A map was applied. If the node key has expired by then, the fallback key is used.
    pub(super) fn handle_applied_map(&mut self, node: NodeFacts) -> Vec<Action> {
        match self.fallback_key.take() {
            Some(key) if node.has_expired => vec![Action::Begin(Some(key))],
            _ => Vec::new(),
        }
    }

    pub(super) fn handle_registered(&mut self, is_authorized: bool) -> Vec<Action> {
        self.needs_login = false;
        self.needs_approval = !is_authorized;
        self.page.clear();
        (self.auth_key, self.fallback_key) = (None, None);
        vec![Action::Problem("key", None), Action::ClearControlProblems]
    }

    /// Stores the reply of a logout until it is done.
    pub(super) fn add_logout(&mut self, reply: Reply<()>) {
        self.logouts.push(reply);
    }

    pub(super) fn handle_logged_out(&mut self) {
        self.needs_login = true;
        self.fallback_key = None;
        self.page.clear();
        for reply in self.logouts.drain(..) {
            let _ = reply.send(Ok(()));
        }
    }
}

/// Whether the URL may be opened in a browser and printed on a terminal.
pub(in crate::agent) fn is_page(page: &str) -> bool {
    const LONGEST: usize = 2048;
    let is_web = page.starts_with("https://") || page.starts_with("http://");
    is_web && page.len() <= LONGEST && page.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINED: NodeFacts =
        NodeFacts { wants_running: true, has_key: true, has_expired: false, is_in_map: true };

    fn key() -> Option<AuthKey> {
        Some(Zeroizing::new("secret".to_owned()))
    }

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

    #[test]
    fn only_the_first_map_of_a_new_stream_is_first() {
        let mut login = Login::default();
        login.handle_connected(false);
        assert_eq!(
            [true, false, false].map(|keepalive| login.handle_map(keepalive)),
            [false, true, false]
        );
        login.handle_connected(true);
        assert!(!login.handle_map(false), "the stream was resumed");
    }

    #[test]
    fn auth_key_of_a_connected_node_is_ignored() {
        let mut login = Login::default();
        login.handle_connected(false);
        let actions = login.start(key(), JOINED);
        assert!(matches!(actions[..], [Action::ClearControlProblems]), "{actions:?}");
        assert_eq!(login.fallback_key(), None);
    }

    #[test]
    fn rejected_node_key_uses_the_fallback_key_once() {
        let mut login = Login::default();
        let actions = login.start(key(), JOINED);
        assert!(
            matches!(actions[..], [Action::ClearControlProblems, Action::Resume]),
            "{actions:?}"
        );
        let actions = login.handle_rejected_key(None);
        assert!(matches!(&actions[..], [Action::Begin(Some(_))]), "{actions:?}");
        assert_eq!(login.state(JOINED), State::Running);
        let actions = login.handle_rejected_key(None);
        assert!(matches!(actions[..], [Action::Problem("key", Some(_))]), "{actions:?}");
        assert_eq!(login.state(JOINED), State::NeedsLogin);
    }

    #[test]
    fn candidate_key_without_a_login_is_ignored() {
        let mut login = Login::default();
        assert_eq!(login.handle_candidate(), None);
        login.begin(key());
        assert_eq!(login.handle_candidate(), Some((key(), None)));
        assert_eq!(login.handle_candidate(), None);
        // The login is repeated with another key, signed like the previous one.
        let actions = login.handle_rejected_key(Some(vec![1]));
        assert!(matches!(actions[..], [Action::MakeCandidate]), "{actions:?}");
        assert_eq!(login.handle_candidate(), Some((key(), Some(vec![1]))));
    }
}
