//! The state that all connections to the local API share: the agent's channel, the writers, and the
//! limits of connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::StatusCode;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

use super::{ApiError, Reply, Request, Writers};

/// The most connections of a user without write access, so that others can connect.
const MAX_PER_READER: usize = 16;
/// The most connections of all such users.
const MAX_READERS: usize = 48;
/// The most connections of all writers.
const MAX_WRITERS: usize = 64;
/// The most connections with notifications, of all users.
const MAX_WATCHERS: usize = 48;
/// The time limit of an answer: more than the longest limit of the agent, which is that of a login.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The state that all connections share.
pub(super) struct Api {
    requests: mpsc::Sender<Request>,
    writers: Arc<Writers>,
    watchers: Arc<Semaphore>,
    users: Mutex<HashMap<u32, usize>>,
}

impl Api {
    pub(super) fn new(writers: Arc<Writers>, requests: mpsc::Sender<Request>) -> Self {
        let watchers = Arc::new(Semaphore::new(MAX_WATCHERS));
        Self { requests, writers, watchers, users: Mutex::default() }
    }

    /// Whether this user may write.
    pub(super) fn may_write(&self, user: u32) -> bool {
        self.writers.has(user)
    }

    /// The permits of connections with notifications.
    pub(super) fn watchers(&self) -> &Arc<Semaphore> {
        &self.watchers
    }

    /// Sends a request without an answer to the agent.
    pub(super) async fn send(&self, request: Request) -> Result<(), ApiError> {
        let ended = |_| ApiError::not_now("the node is ending");
        self.requests.send(request).await.map_err(ended)
    }

    /// Sends a request to the agent and returns its answer.
    pub(super) async fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let answered = async {
            self.send(request(reply)).await?;
            answer.await.map_err(|_| ApiError::not_now("the node is ending"))?
        };
        let late = |_| ApiError::new(StatusCode::GATEWAY_TIMEOUT, "the node did not answer");
        timeout(ANSWER_TIMEOUT, answered).await.map_err(late)?
    }
}

/// A user's connection, counted until it ends.
pub(super) struct Admitted {
    api: Arc<Api>,
    user: u32,
}

impl Admitted {
    pub(super) fn new(api: &Arc<Api>, user: u32) -> Option<Self> {
        let mut users = api.users.lock().unwrap_or_else(PoisonError::into_inner);
        let may_write = api.writers.has(user);
        let same = users.iter().filter(|(user, _)| api.writers.has(**user) == may_write);
        let all: usize = same.map(|(_, count)| count).sum();
        let own = users.get(&user).copied().unwrap_or_default();
        let admitted =
            if may_write { all < MAX_WRITERS } else { all < MAX_READERS && own < MAX_PER_READER };
        admitted.then(|| {
            users.insert(user, own + 1);
            Self { api: api.clone(), user }
        })
    }

    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut users = self.api.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}
