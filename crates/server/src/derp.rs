//! The DERP relay. It relays datagrams by node key, between clients that the network knows and with
//! other relays of its region.
//!
//! ```text
//!   upgrade ── greeting, login ── session ── Table ── the receiver's queue ── writer
//!                                               │'── the queue of a link ── another relay (mesh.rs)
//!                                               '── unknown: the sender is notified
//! ```

mod admission;
pub(crate) mod maps;
pub(crate) mod mesh;
mod queue;
mod session;
mod table;
mod yaml;

use std::{
    future::pending,
    io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use getrandom::{SysRng, rand_core::UnwrapErr};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{HeaderValue, UPGRADE},
};
use hyper_util::rt::TokioIo;
use tailnet::{
    derp::{Decoder, GoneReason, RelayKey, kind, write_frame},
    keys::{MachinePublic, NodePublic},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

pub(crate) use self::admission::Admission;
use self::{
    mesh::Mesh,
    session::{QUIET, Session},
    table::{Client, Route, Table, gone},
};
use crate::{
    clock::now,
    http::{
        arrival::Arrival,
        body::{Answer, text},
        upgrade::{connection_of, switching},
        web_socket::{self, WebSocket},
    },
    net::connections::{Connection, Stage},
    network::{NetworkState, counters},
};

/// Maximum time for a client to log in (tailscale `derp/derpserver`).
const LOGIN: Duration = Duration::from_secs(10);
/// A client is disconnected if its connection does not accept data for this time.
const WRITE: Duration = Duration::from_secs(10);
/// Interval of keepalives, and of checks with another server whether a client is still admitted.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Interval at which a client is looked up in the network.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum number of bytes per read.
const READ: usize = 64 << 10;
/// Maximum size of a login with its frame header, in bytes.
const LONGEST_LOGIN: usize = 4 << 10;
/// Maximum size of a WebSocket message, in bytes. A browser sends one datagram per message.
const MESSAGE: usize = 32 << 10;

/// The relay.
pub struct Relay {
    key: RelayKey,
    table: Table,
    mesh: Option<Mesh>,
    admission: Option<Admission>,
    counters: &'static counters::RelayCounters,
    threads: Handle,
}

impl Relay {
    /// Creates a relay, which runs on `threads`. `admission` queries another server about
    /// clients that are not nodes.
    pub fn new(
        key: RelayKey,
        mesh: Option<Mesh>,
        admission: Option<Admission>,
        counters: &'static counters::RelayCounters,
        threads: Handle,
    ) -> Self {
        Self { key, table: Table::default(), mesh, admission, counters, threads }
    }
}

/// Answers a request for the relay, and serves the connection.
pub(crate) fn upgrade(
    relay: &Arc<Relay>,
    network: &Arc<NetworkState>,
    request: Request<Incoming>,
) -> Response<Answer> {
    if let Some(response) = web_socket::accept(&request, "derp") {
        let (parts, connection) =
            ((Arc::clone(relay), Arc::clone(network)), connection_of(&request));
        let at = source_of(&request);
        tokio::spawn(async move {
            if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
                let stream = WebSocket::new(TokioIo::new(upgraded), MESSAGE).await;
                serve(parts, stream, connection, at).await;
            }
        });
        return response;
    }
    let upgrade = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    if !upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case(b"derp")) {
        return text(
            StatusCode::UPGRADE_REQUIRED,
            "this is a DERP relay: an upgrade is required\n",
        );
    }
    let (parts, connection) = ((Arc::clone(relay), Arc::clone(network)), connection_of(&request));
    let at = source_of(&request);
    tokio::spawn(async move {
        if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
            serve(parts, TokioIo::new(upgraded), connection, at).await;
        }
    });
    switching(HeaderValue::from_static("DERP"))
}

fn source_of(request: &Request<Incoming>) -> SocketAddr {
    match request.extensions().get::<Arrival>() {
        Some(Arrival::Remote(at)) => *at,
        _ => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Logs a client in, and relays for it on the relay's threads.
async fn serve(
    (relay, network): (Arc<Relay>, Arc<NetworkState>),
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    connection: Arc<Connection>,
    at: SocketAddr,
) {
    connection.advance(Stage::Speaking);
    let (mut from, mut to) = split(stream);
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
    let greeted = async {
        let contents = greet(&relay, &mut decoder, &mut buffer, &mut from, &mut to).await?;
        log_in(&network, &relay, &contents, at, &mut to).await
    };
    let logged_in = tokio::select! {
        logged_in = timeout(LOGIN, greeted) => logged_in,
        () = connection.evicted() => return,
    };
    let Ok(Some(client)) = logged_in else { return };
    let machine = network.read(|state| state.machine_of(&client.key));
    // A client that another server admits is not a machine of this network, but it is not limited
    // as a stranger either.
    connection.set_machine(machine.unwrap_or(MachinePublic(client.key.0)));
    let client = Arc::new(client);
    // On the threads of the control plane, because the network may be locked while it changes.
    let mut revocation = JoinSet::new();
    revocation.spawn(until_revoked(Arc::clone(&network), Arc::clone(&relay), Arc::clone(&client)));
    let threads = relay.threads.clone();
    threads.spawn(relay_for(
        relay,
        client,
        (connection, revocation),
        (decoder, buffer),
        (from, to),
    ));
}

/// Relays for a client until its connection or the task in `revocation` ends.
async fn relay_for(
    relay: Arc<Relay>,
    client: Arc<Client>,
    (connection, mut revocation): (Arc<Connection>, JoinSet<()>),
    (mut decoder, mut buffer): (Decoder, BytesMut),
    (mut from, mut to): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) {
    relay.table.insert(&client);
    let _guard = relay.counters.clients.increment();
    let mut session = Session::new(&relay, &client);
    tokio::select! {
        _ = session.run(&mut decoder, &mut buffer, &mut from) => {}
        _ = write(&client, &mut to) => {}
        _ = revocation.join_next() => {}
        () = client.closed() => {}
        () = connection.evicted() => {}
    }
    if !relay.table.remove(&client) {
        return;
    }
    // The peers that it sent to cannot reach it in this region any more. Peers at other relays
    // are notified there.
    let words = gone(&client.key, GoneReason::Disconnected);
    for peer in session.recipients {
        if let Some(Route::Local(peer)) = relay.table.route(&peer) {
            peer.queue.fill().control(&words);
        }
    }
}

/// Greets a client and returns the contents of its login. `None` if the client sent no login.
async fn greet(
    relay: &Relay,
    decoder: &mut Decoder,
    buffer: &mut BytesMut,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Option<Bytes> {
    let mut out = BytesMut::new();
    write_frame(&mut out, kind::SERVER_KEY, &relay.key.greeting());
    to.write_all(&out).await.ok()?;
    to.flush().await.ok()?;
    let (kind, contents) = next(decoder, buffer, from, LONGEST_LOGIN).await.ok()??;
    Some(contents).filter(|_| kind == kind::CLIENT_INFO)
}

/// Answers a login. `None` if it is invalid or the client may not be served.
async fn log_in(
    network: &NetworkState,
    relay: &Relay,
    contents: &[u8],
    at: SocketAddr,
    to: &mut (impl AsyncWrite + Unpin),
) -> Option<Client> {
    let login = relay.key.open_login(contents)?;
    let is_of_mesh = relay.mesh.as_ref().is_some_and(|mesh| mesh.key().is_of(&login));
    let key = login.client;
    let is_known = is_of_mesh || has_valid_key(network, &key);
    if !is_known && !is_admitted(relay, &key, at).await {
        network.counters().refused.relay.add(1);
        tracing::debug!("relay: {key} is not admitted");
        return None;
    }
    let mut out = BytesMut::new();
    let info = relay.key.server_info(&key, &mut UnwrapErr(SysRng));
    write_frame(&mut out, kind::SERVER_INFO, &info);
    to.write_all(&out).await.ok()?;
    to.flush().await.ok()?;
    Some(Client::new(key, at, is_of_mesh, relay.counters))
}

/// Returns when a client may not be served any more. It runs concurrently with writing, because
/// another server's answer may take long.
async fn until_revoked(network: Arc<NetworkState>, relay: Arc<Relay>, client: Arc<Client>) {
    if client.is_of_mesh {
        return pending::<()>().await;
    }
    let mut checked_at = Instant::now();
    let mut was_here = has_valid_key(&network, &client.key);
    loop {
        sleep(LOOK).await;
        let is_here = has_valid_key(&network, &client.key);
        if !is_here && (was_here || checked_at.elapsed() >= KEEP_ALIVE) {
            checked_at = Instant::now();
            if !is_admitted(&relay, &client.key, client.at).await {
                return;
            }
        }
        was_here = is_here;
    }
}

/// Whether the network has a node with this key, and the key is valid.
fn has_valid_key(network: &NetworkState, key: &NodePublic) -> bool {
    network.read(|state| state.has_valid_key(key, now()))
}

/// Whether the other server, if one is configured, admits a client.
async fn is_admitted(relay: &Relay, key: &NodePublic, at: SocketAddr) -> bool {
    match &relay.admission {
        Some(admission) => admission.admits(key, at.ip()).await,
        None => false,
    }
}

/// Reads the next frame, of at most `longest` bytes. `None` at the end.
async fn next(
    decoder: &mut Decoder,
    buffer: &mut BytesMut,
    from: &mut (impl AsyncRead + Unpin),
    longest: usize,
) -> io::Result<Option<(u8, Bytes)>> {
    loop {
        if let Some(frame) = decoder.poll_frame(buffer).map_err(io::Error::other)? {
            return Ok(Some(frame));
        }
        if buffer.len() >= longest {
            return Err(io::ErrorKind::InvalidData.into());
        }
        buffer.reserve(longest.min(READ / 2));
        if from.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Writes the queue of a client, and keepalives.
async fn write(client: &Client, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut out = BytesMut::new();
    let mut alive_at = Instant::now() + KEEP_ALIVE;
    loop {
        let idle = out.capacity() == 0;
        let wake_at = if idle { alive_at } else { alive_at.min(Instant::now() + QUIET) };
        tokio::select! {
            taken = client.queue.take(&mut out) => taken.map_err(|_| io::ErrorKind::OutOfMemory)?,
            () = sleep_until(wake_at) => {
                if wake_at < alive_at {
                    client.queue.release();
                    out = BytesMut::new();
                    continue;
                }
                write_frame(&mut out, kind::KEEP_ALIVE, &[]);
                alive_at = Instant::now() + KEEP_ALIVE;
            }
        }
        write_out(&mut out, to).await?;
    }
}

/// Writes a buffer and clears it.
async fn write_out(out: &mut BytesMut, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let written = async {
        to.write_all(out).await?;
        to.flush().await
    };
    timeout(WRITE, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
    out.clear();
    Ok(())
}
