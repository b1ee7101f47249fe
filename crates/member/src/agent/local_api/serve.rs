//! Connections: their users and their limits.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sys::ACCEPT_PAUSE;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::{Request, Writers, call};

/// The most connections of a user who may not write, so that others can connect.
const MAX_PER_READER: usize = 16;
/// The most connections of all such users.
const MAX_READERS: usize = 48;
/// The most connections of all writers.
const MAX_WRITERS: usize = 64;
/// The most connections with notifications, of all users.
const MAX_WATCHERS: usize = 48;
/// The time limit of a request's head, and of the pause between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes: a path and a few headers.
const MAX_HEAD: usize = 16 << 10;

/// The state that all connections share.
pub(super) struct Api {
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) writers: Arc<Writers>,
    pub(super) watchers: Arc<Semaphore>,
    users: Mutex<HashMap<u32, usize>>,
}

impl Api {
    pub(super) fn new(writers: Arc<Writers>, requests: mpsc::Sender<Request>) -> Self {
        let watchers = Arc::new(Semaphore::new(MAX_WATCHERS));
        Self { requests, writers, watchers, users: Mutex::default() }
    }
}

/// Accepts connections; never returns. Dropping it ends them.
pub(super) async fn accept(
    listener: UnixListener,
    writers: Arc<Writers>,
    requests: mpsc::Sender<Request>,
) {
    let api = Arc::new(Api::new(writers, requests));
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "the local interface's socket");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Ok(user) = stream.peer_cred().map(|cred| cred.uid()) else { continue };
        match connect(&api, user, stream) {
            Some(serving) => drop(connections.spawn(serving)),
            None => tracing::debug!(user, "too many connections to the local interface"),
        }
    }
}

/// Serves a user's connection, unless there are too many.
pub(super) fn connect(
    api: &Arc<Api>,
    user: u32,
    stream: UnixStream,
) -> Option<impl Future<Output = ()> + use<>> {
    Admitted::new(api, user).map(|admitted| serve(admitted, stream))
}

/// A user's connection, counted until it ends.
struct Admitted {
    api: Arc<Api>,
    user: u32,
}

impl Admitted {
    fn new(api: &Arc<Api>, user: u32) -> Option<Self> {
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

async fn serve(admitted: Admitted, stream: UnixStream) {
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(call::answer(&admitted.api, admitted.user, request).await)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the local interface ends");
    }
}
