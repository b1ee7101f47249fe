//! The state that all proxies of a process share, and the functions that serve clients.

use std::{future::Future, io, net::IpAddr, sync::Arc, time::Duration};

use sys::ACCEPT_PAUSE;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    task::yield_now,
    time::{sleep, timeout},
};

use super::{
    connections::{Connection, Connections, Group, Refused, Source},
    dial::Dialer,
    half_open::Client,
    local::{Listener, Stream},
    stack::{Accept, Stack},
    users::Users,
};
use config::conf::SocketAddress;
use config::target::Target;

/// The time limit for a client's request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long input is read and discarded after our last byte: in total, and without any input. nginx
/// has the same limits (`lingering_time`, `lingering_timeout`).
const LINGER_TIME: Duration = Duration::from_secs(30);
const LINGER_SILENT: Duration = Duration::from_secs(5);
/// The limit in bytes: a client that has sent this amount has received the answer.
const LINGER_BYTES: usize = 4 << 20;

/// The state that the proxies share.
pub(super) struct ProxyContext<S> {
    pub dialer: Arc<Dialer<S>>,
    pub users: Users,
    pub connections: Connections,
}

/// The name of a listener in the log, and the group of its clients.
pub(super) struct ListenerRole {
    pub name: String,
    pub group: Group,
}

/// Serves each client of a listener in a separate task, until the client is evicted. In the group
/// `BeforeRequest` a client counts as one descriptor until its request is read. If this group is full,
/// the next client waits, and later ones stay in the listener's queue.
pub(super) async fn serve_each<S: Stack, F>(
    context: Arc<ProxyContext<S>>,
    listener: Listener,
    role: ListenerRole,
    serve: impl Fn(Stream, Client, Connection) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let ListenerRole { name: what, group } = role;
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let (connections, source) = (&context.connections, Source::Client(client));
                let admitted = match group {
                    Group::BeforeRequest => {
                        connections.admit_before_request(source, stream.silent_for()).await
                    }
                    _ => connections.admit(group, source, S::CONNECTION),
                };
                let connection = match admitted {
                    Ok(connection) => connection,
                    Err(refused) => {
                        stream.reset();
                        log_refusal(&what, refused, &client);
                        continue;
                    }
                };
                let activity = connection.activity();
                let serving = serve(stream, client, connection);
                let what = what.clone();
                tokio::spawn(async move {
                    let served = tokio::select! {
                        biased;
                        served = serving => served,
                        () = activity.evicted() => Err(evicted_error()),
                    };
                    if let Err(error) = served {
                        tracing::debug!(%error, ?client, "{what}");
                    }
                });
                // The evicted connection gives its descriptors back first.
                yield_now().await;
            }
            Err(error) => {
                // No file descriptor is left, or the client has gone already.
                tracing::error!(%error, "{what}: a client could not be served");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Logs a refused connection. The log has a rate limit.
fn log_refusal(what: &str, refused: Refused, from: &dyn std::fmt::Debug) {
    tracing::warn!(?from, "{what}: a connection was refused: {refused}");
}

fn evicted_error() -> io::Error {
    io::Error::other("it was closed to make room for another connection")
}

/// Runs `work` until the connection is evicted.
///
/// # Errors
/// The error of `work`, or the connection was evicted.
pub(super) async fn unless_evicted<T>(
    connection: &Connection,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let activity = connection.activity();
    tokio::select! {
        biased;
        worked = work => worked,
        () = activity.evicted() => Err(evicted_error()),
    }
}

/// Relays bytes until both ends are done. If one end fails, the other is reset.
pub(super) async fn carry<S: Stack>(
    mut here: Stream,
    mut there: S::Stream,
    connection: &Connection,
) -> io::Result<()> {
    let moved = || connection.touch();
    let carried = unless_evicted(connection, async {
        S::carry(&mut here, &mut there, &moved).await?;
        tokio::join!(linger(&mut here), linger(&mut there));
        Ok(())
    });
    let carried = carried.await;
    if carried.is_err() {
        here.reset();
        S::reset(there);
    }
    carried
}

/// Continues to read after we have ended our direction (lingering close). If the socket were closed,
/// the kernel would answer further input by RST, and the client could lose our last bytes (RFC 9112,
/// section 9.6).
pub(super) async fn linger(stream: &mut (impl AsyncRead + Unpin)) {
    let draining = async {
        let mut rest = vec![0; 16 * 1024];
        let mut drained = 0;
        while drained < LINGER_BYTES {
            match timeout(LINGER_SILENT, stream.read(&mut rest)).await {
                Ok(Ok(len)) if len > 0 => drained += len,
                _ => return,
            }
        }
    };
    // A time-out ends it like the end of the stream.
    let _ = timeout(LINGER_TIME, draining).await;
}

/// Serves a client of a forward: dials the target and relays.
pub(super) async fn forward<S: Stack>(
    context: Arc<ProxyContext<S>>,
    to: Arc<Target>,
    here: Stream,
    client: Client,
    connection: Connection,
) -> io::Result<()> {
    match context.dialer.dial_unless_gone(client, &here, &to).await {
        Ok(there) => carry::<S>(here, there, &connection).await,
        Err(error) => {
            here.reset();
            Err(error)
        }
    }
}

/// An exposed service. `source` maps an address in the tunnel to its source.
pub(super) struct ExposedService {
    pub number: usize,
    pub what: String,
    pub to: Arc<SocketAddress>,
    pub source: Arc<dyn Fn(IpAddr) -> Source + Send + Sync>,
}

/// Relays connections from the tunnel to an exposed service. They are refused by RST while the service
/// is down or has its maximum of connections.
pub(super) async fn expose<S: Stack>(
    context: Arc<ProxyContext<S>>,
    listener: S::Listener,
    exposed: ExposedService,
) {
    let ExposedService { number, what, to, source } = exposed;
    loop {
        let (there, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "{what}: a client could not be served");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let group = Group::Exposed(number);
        let connection = match context.connections.admit(group, source(from.ip()), S::CONNECTION) {
            Ok(connection) => connection,
            Err(refused) => {
                S::reset(there);
                log_refusal(&what, refused, &from);
                continue;
            }
        };
        let (what, to) = (what.clone(), to.clone());
        tokio::spawn(async move {
            let served = match unless_evicted(&connection, Stream::connect(&to)).await {
                Ok(here) => carry::<S>(here, there, &connection).await,
                Err(error) => {
                    S::reset(there);
                    Err(error)
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, %from, "{what}");
            }
        });
        // The evicted connection gives its descriptors back first.
        yield_now().await;
    }
}

/// Sends a last answer and closes the connection without losing it.
pub(super) async fn refuse(mut stream: Stream, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    linger(&mut stream).await;
    Ok(())
}

#[cfg(test)]
mod tests;
