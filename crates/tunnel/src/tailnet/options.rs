//! What a program joins with.

use std::{fmt, path::PathBuf, time::Duration};

use zeroize::Zeroizing;

/// How long a join takes at most, unless it is said.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a program joins with. A setting that is not given is what it was at the last start.
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
    /// The coordinator, as `https://headscale.example`, and the folder of this node's keys and
    /// state, which is made where there is none.
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

    /// The coordinator's key, `mkey:` and 64 hexadecimal digits, which proves its identity. Without it the key
    /// that the coordinator shows at the first join counts from then on.
    pub fn server_key(mut self, key: impl Into<String>) -> Self {
        self.server_key = Some(key.into());
        self
    }

    /// A key that admits this node. It is used where the node is not logged in.
    pub fn auth_key(mut self, key: impl Into<String>) -> Self {
        self.auth_key = Some(Zeroizing::new(key.into())).filter(|key| !key.is_empty());
        self
    }

    /// The name that is asked for; at first it is the machine's.
    pub fn hostname(mut self, name: impl Into<String>) -> Self {
        self.hostname = Some(name.into());
        self
    }

    /// The tags that are asked for, as `tag:web`.
    pub fn advertise_tags(mut self, tags: impl IntoIterator<Item = String>) -> Self {
        self.tags = Some(tags.into_iter().collect());
        self
    }

    /// Whether subnets that other nodes advertise are reached through these. At first they are
    /// not.
    pub fn accept_routes(mut self, accept: bool) -> Self {
        self.accept_routes = Some(accept);
        self
    }

    /// Is told the page where somebody logs this node in. Without it and without a key a join that
    /// needs a login fails.
    pub fn on_login_page(mut self, show_page: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_page = Some(Box::new(show_page));
        self
    }

    /// How long a join takes at most, 60 seconds unless it is said. Somebody who logs in by a page
    /// may need longer.
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
