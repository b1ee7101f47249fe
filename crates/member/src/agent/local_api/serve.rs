//! Connections: their users and their limits.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sys::ACCEPT_PAUSE;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
    time::sleep,
};

use super::{
    Request, Writers,
    api::{Admitted, Api},
    routes,
};

/// The time limit of a request's head, and of the pause between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes: a path and a few headers.
const MAX_HEAD: usize = 16 << 10;

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

async fn serve(admitted: Admitted, stream: UnixStream) {
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(routes::answer(admitted.api(), admitted.user(), request).await)
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
