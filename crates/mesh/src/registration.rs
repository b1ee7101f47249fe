//! Registration of a node.
//!
//! ```text
//!                 .---- AuthURL: a person logs in; repeated with the URL ----.
//!                 v                                                          |
//!   login ---> request ---> answer ------------------------------------------'
//!                             |---> Registered
//!                             |---> NewNodeKey: the key expired, or must be signed
//!                             `---> Refused
//! ```
//!
//! The same node key is used until an answer without a URL confirms the registration. Only then may
//! it replace the key in use (tailscale `control/controlclient/direct.go`).

use std::fmt;

use serde_json::Value;
use tailnet::{
    keys::NodePublic,
    ts2021::requests::{RegisterParams, RegisterRequest, RegisterResponse, User},
};
use zeroize::Zeroizing;

/// The longest URL that is shown to the user, in bytes.
const LONGEST_URL: usize = 2048;

/// The credentials of a registration.
#[derive(Clone)]
pub struct Login {
    /// The key to register.
    pub node_key: NodePublic,
    /// The key that it replaces; `None` if the key is not a replacement.
    pub old_node_key: Option<NodePublic>,
    /// The auth key; `None` if the node key is registered already or the user logs in at a URL.
    pub auth_key: Option<Zeroizing<String>>,
    /// The public tailnet-lock key, `nlpub:` and hexadecimal digits.
    pub tka_key: Option<String>,
    /// The signature of the node key by a tailnet-lock key, in base64.
    pub signature: Option<String>,
    /// Whether the coordinator removes the node when it disconnects.
    pub ephemeral: bool,
}

impl Login {
    /// A login without an auth key.
    pub fn new(node_key: NodePublic) -> Self {
        Self {
            node_key,
            old_node_key: None,
            auth_key: None,
            tka_key: None,
            signature: None,
            ephemeral: false,
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("node_key", &self.node_key)
            .field("old_node_key", &self.old_node_key)
            .field("has_auth_key", &self.auth_key.is_some())
            .finish_non_exhaustive()
    }
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The user must log in at this URL; `None` if the URL has not changed. The coordinator answers
    /// the next request after the login.
    Visit(Option<String>),
    /// The node is registered.
    Registered(Registered),
    /// The node must create another node key. If a signature must be renewed for it, this is the
    /// previous one in base64.
    NewNodeKey(Option<String>),
    /// The coordinator refused with this message.
    Refused(String),
}

/// A successful registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The registered key.
    pub node_key: NodePublic,
    /// The owner of the node.
    pub user: User,
    /// The login.
    pub login: User,
    /// Whether the node may communicate; otherwise an administrator must approve it.
    pub is_authorized: bool,
}

/// A registration in progress.
#[derive(Clone, Debug)]
pub struct Registration {
    login: Login,
    url: Option<String>,
}

impl Registration {
    /// Begins one.
    pub fn new(login: Login) -> Self {
        Self { login, url: None }
    }

    /// The next request.
    pub fn request<'a>(&'a self, hostinfo: &'a Value) -> RegisterRequest<'a> {
        let login = &self.login;
        let from = RegisterParams {
            node_key: login.node_key,
            old_node_key: login.old_node_key,
            auth_key: login.auth_key.as_ref().map(|key| key.as_str()),
            tka_key: login.tka_key.as_deref(),
            signature: login.signature.as_deref(),
            ephemeral: login.ephemeral,
            followup: self.url.as_deref(),
        };
        RegisterRequest::new(from, hostinfo)
    }

    /// Returns the key to register.
    pub fn node_key(&self) -> NodePublic {
        self.login.node_key
    }

    /// Returns whether the next request waits for the user's login.
    pub fn awaits_login(&self) -> bool {
        self.url.is_some()
    }

    /// The coordinator does not wait for the login. The next request requests a new URL.
    pub fn clear_url(&mut self) {
        self.url = None;
    }

    /// Returns the credentials to register the same key again. The auth key is left out, because it
    /// may be single-use.
    pub fn again(&self) -> Login {
        let Login { node_key, ref tka_key, ref signature, ephemeral, .. } = self.login;
        let (tka_key, signature) = (tka_key.clone(), signature.clone());
        Login { node_key, old_node_key: None, auth_key: None, tka_key, signature, ephemeral }
    }

    /// Takes the answer.
    pub fn handle_response(&mut self, response: RegisterResponse) -> Step {
        let is_new = self.login.old_node_key.is_some();
        if !response.error.is_empty() {
            return Step::Refused(response.error);
        }
        if !response.node_key_signature.is_empty() {
            return if self.login.signature.is_some() {
                Step::Refused("tailnet lock does not accept this node's signature".into())
            } else {
                Step::NewNodeKey(Some(response.node_key_signature))
            };
        }
        if response.node_key_expired {
            return if is_new {
                Step::Refused("the coordinator reports that the new node key is expired".into())
            } else {
                Step::NewNodeKey(None)
            };
        }
        if response.auth_url.is_empty() {
            return Step::Registered(Registered {
                node_key: self.login.node_key,
                user: response.user,
                login: response.login,
                is_authorized: response.machine_authorized,
            });
        }
        if !is_showable(&response.auth_url) {
            return Step::Refused("the coordinator's login URL is not a web address".into());
        }
        let is_known = self.url.as_ref() == Some(&response.auth_url);
        self.url = Some(response.auth_url);
        Step::Visit(if is_known { None } else { self.url.clone() })
    }
}

/// Returns whether the URL is safe to show in a terminal and to open in a browser.
fn is_showable(url: &str) -> bool {
    (url.starts_with("https://") || url.starts_with("http://"))
        && url.len() <= LONGEST_URL
        && url.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: NodePublic = NodePublic([1; 32]);

    fn begun() -> Registration {
        let auth_key = Some(Zeroizing::new("key".into()));
        Registration::new(Login { auth_key, ..Login::new(KEY) })
    }

    fn url(url: &str) -> RegisterResponse {
        RegisterResponse { auth_url: url.into(), ..RegisterResponse::default() }
    }

    fn sent(registration: &Registration) -> Value {
        serde_json::to_value(registration.request(&Value::Null)).unwrap()
    }

    #[test]
    fn node_key_stays_the_same_while_the_login_url_changes() {
        let mut registration = begun();
        assert_eq!(sent(&registration)["Followup"], "");
        for (answer, shown) in [
            ("https://a.example/1", Some("https://a.example/1")),
            ("https://a.example/1", None),
            ("https://a.example/2", Some("https://a.example/2")),
        ] {
            let step = registration.handle_response(url(answer));
            assert_eq!(step, Step::Visit(shown.map(Into::into)));
            assert_eq!(sent(&registration)["Followup"], answer);
            assert_eq!(sent(&registration)["NodeKey"], KEY.to_string());
            assert!(registration.awaits_login());
        }
        let done = RegisterResponse { machine_authorized: true, ..RegisterResponse::default() };
        let Step::Registered(registered) = registration.handle_response(done) else { panic!() };
        assert_eq!((registered.node_key, registered.is_authorized), (KEY, true));
    }

    #[test]
    fn expired_key_is_replaced_once() {
        let expired = RegisterResponse { node_key_expired: true, ..RegisterResponse::default() };
        assert_eq!(begun().handle_response(expired.clone()), Step::NewNodeKey(None));
        let mut replaced =
            Registration::new(Login { old_node_key: Some(KEY), ..Login::new(NodePublic([2; 32])) });
        assert_eq!(sent(&replaced)["OldNodeKey"], KEY.to_string());
        assert!(matches!(replaced.handle_response(expired), Step::Refused(_)));
    }

    #[test]
    fn signature_is_renewed_once() {
        let answer =
            RegisterResponse { node_key_signature: "c2ln".into(), ..RegisterResponse::default() };
        let step = begun().handle_response(answer.clone());
        assert_eq!(step, Step::NewNodeKey(Some("c2ln".into())));
        let signed = Login { signature: Some("bmV3".into()), ..Login::new(KEY) };
        let step = Registration::new(signed).handle_response(answer);
        assert!(matches!(step, Step::Refused(_)));
    }

    #[test]
    fn error_of_the_coordinator_has_precedence() {
        let answer =
            RegisterResponse { error: "authkey expired".into(), ..url("https://a.example") };
        assert_eq!(begun().handle_response(answer), Step::Refused("authkey expired".into()));
    }

    #[test]
    fn login_url_with_unsafe_characters_is_refused() {
        for text in [
            "javascript:1",
            "https://a\u{1b}[2J",
            "https://a b",
            &format!("https://{}", "a".repeat(3000)),
        ] {
            assert!(matches!(begun().handle_response(url(text)), Step::Refused(_)), "{text}");
        }
    }

    #[test]
    fn auth_key_is_not_printed_and_not_reused() {
        let registration = begun();
        assert!(!format!("{registration:?}").contains("\"key\""));
        assert!(registration.again().auth_key.is_none());
    }
}
