//! The options of a join.

use std::{fmt, path::PathBuf, time::Duration};

use zeroize::Zeroizing;

/// The default time limit of a join.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The options of a join. A setting that is not given remains as at the last start.
pub struct Options {
    pub(super) coordinator: String,
    pub(super) state_dir: PathBuf,
    pub(super) server_key: Option<String>,
    pub(super) auth_key: Option<Zeroizing<String>>,
    pub(super) hostname: Option<String>,
    pub(super) tags: Option<Vec<String>>,
    pub(super) accept_routes: Option<bool>,
    pub(super) on_page: Option<OnPage>,
    pub(super) timeout: Duration,
}

type OnPage = Box<dyn Fn(&str) + Send + Sync>;

impl Options {
    /// The options for a coordinator, such as `https://headscale.example`, and the folder of this node's
    /// keys and state, which is created if absent.
    pub fn new(coordinator: impl Into<String>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            coordinator: coordinator.into().trim_end_matches('/').to_owned(),
            state_dir: state_dir.into(),
            server_key: None,
            auth_key: None,
            hostname: None,
            tags: None,
            accept_routes: None,
            on_page: None,
            timeout: TIMEOUT,
        }
    }

    /// Sets the coordinator's key, `mkey:` and 64 hexadecimal digits, which proves its identity. By default
    /// the key of the first join is required at later ones.
    pub fn server_key(mut self, key: impl Into<String>) -> Self {
        self.server_key = Some(key.into());
        self
    }

    /// Sets a key that admits this node. It is used if the node is not logged in.
    pub fn auth_key(mut self, key: impl Into<String>) -> Self {
        self.auth_key = Some(Zeroizing::new(key.into())).filter(|key| !key.is_empty());
        self
    }

    /// Sets the name to request; initially the machine's name.
    pub fn hostname(mut self, name: impl Into<String>) -> Self {
        self.hostname = Some(name.into());
        self
    }

    /// Sets the tags to request, such as `tag:web`.
    pub fn advertise_tags(mut self, tags: impl IntoIterator<Item = String>) -> Self {
        self.tags = Some(tags.into_iter().collect());
        self
    }

    /// Sets whether to use the routes that other nodes advertise; initially off.
    pub fn accept_routes(mut self, accept: bool) -> Self {
        self.accept_routes = Some(accept);
        self
    }

    /// Sets a function that receives the URL of the login page. Without it and without a key, a join that
    /// requires a login fails.
    pub fn on_login_page(mut self, show_page: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_page = Some(Box::new(show_page));
        self
    }

    /// Sets the time limit of a join; 60 seconds by default. A login in a browser may need more time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for Options {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("coordinator", &self.coordinator)
            .field("state_dir", &self.state_dir)
            .finish_non_exhaustive()
    }
}
