//! The relay: passes datagrams on by node key, between clients that the network knows, and with
//! other relays of its region.
//!
//! ```text
//!   upgrade ── greeting, login ── session ── Table ── the receiver's queue ── writer
//!                                               │'── the queue of a link ── another relay (mesh.rs)
//!                                               '── nowhere: the sender is told
//! ```

mod admission;
pub mod maps;
pub mod mesh;
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

pub use self::admission::Admission;
use self::{
    mesh::Mesh,
    session::{QUIET, Session},
    table::{Client, Table, Way, gone},
};
use crate::{
    api::Arrival,
    body::{Answer, text},
    clock::now,
    counted,
    serve::Server,
    ts2021::{switching, visitor_of},
    visitors::{Stage, Visitor},
    web_socket::{self, WebSocket},
};

/// Within this a client has logged in (tailscale `derp/derpserver`).
const LOGIN: Duration = Duration::from_secs(10);
/// A client whose connection takes nothing for so long is not there.
const WRITE: Duration = Duration::from_secs(10);
/// Signs of life, and the interval at which others are asked whether they know a client.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The interval at which a client is looked up in the network.
const LOOK: Duration = Duration::from_secs(5);
/// How much is read at once, in bytes.
const READ: usize = 64 << 10;
/// The longest login, in bytes, with its frame's header.
const LONGEST_LOGIN: usize = 4 << 10;
/// The longest message of a WebSocket, in bytes: a browser sends a datagram of the tunnel in each.
const MESSAGE: usize = 32 << 10;

/// The relay.
pub struct Relay {
    key: RelayKey,
    table: Table,
    mesh: Option<Mesh>,
    admission: Option<Admission>,
    counted: &'static counted::Relay,
    threads: Handle,
}

impl Relay {
    /// One with this key, maybe of a mesh, that maybe asks others which clients it may serve. It relays on
    /// these threads.
    pub fn new(
        key: RelayKey,
        mesh: Option<Mesh>,
        admission: Option<Admission>,
        counted: &'static counted::Relay,
        threads: Handle,
    ) -> Self {
        Self { key, table: Table::default(), mesh, admission, counted, threads }
    }
}

/// Answers a request for the relay, and serves it.
pub fn upgrade(server: &Arc<Server>, request: Request<Incoming>) -> Response<Answer> {
    if let Some(response) = web_socket::accept(&request, "derp") {
        let (server, visitor) = (Arc::clone(server), visitor_of(&request));
        let at = source_of(&request);
        tokio::spawn(async move {
            if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
                let stream = WebSocket::new(TokioIo::new(upgraded), MESSAGE).await;
                serve(server, stream, visitor, at).await;
            }
        });
        return response;
    }
    let asks = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    if !asks.is_some_and(|asks| asks.eq_ignore_ascii_case(b"derp")) {
        return text(StatusCode::UPGRADE_REQUIRED, "here is DERP, by an upgrade\n");
    }
    let (server, visitor) = (Arc::clone(server), visitor_of(&request));
    let at = source_of(&request);
    tokio::spawn(async move {
        if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
            serve(server, TokioIo::new(upgraded), visitor, at).await;
        }
    });
    switching(HeaderValue::from_static("DERP"))
}

fn source_of(request: &Request<Incoming>) -> SocketAddr {
    match request.extensions().get::<Arrival>() {
        Some(Arrival::Network(at)) => *at,
        _ => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Logs a client in. From then on it is served to its end on the relay's threads.
async fn serve(
    server: Arc<Server>,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    visitor: Arc<Visitor>,
    at: SocketAddr,
) {
    let Some(relay) = server.relay.clone() else { return };
    visitor.reaches(Stage::Speaking);
    let (mut from, mut to) = split(stream);
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
    let greeted = async {
        let contents = greet(&relay, &mut decoder, &mut buffer, &mut from, &mut to).await?;
        log_in(&server, &relay, &contents, at, &mut to).await
    };
    let logged_in = tokio::select! {
        logged_in = timeout(LOGIN, greeted) => logged_in,
        () = visitor.must_leave() => return,
    };
    let Ok(Some(client)) = logged_in else { return };
    let machine = server.network.read(|state| state.machine_of(&client.key));
    // A client that another server vouches for is a stranger of this network, but not one by one.
    visitor.belongs_to(machine.unwrap_or(MachinePublic(client.key.0)));
    let client = Arc::new(client);
    // On the threads of the control plane: the network may be locked while it changes.
    let mut known = JoinSet::new();
    known.spawn(stays_known(Arc::clone(&server), Arc::clone(&relay), Arc::clone(&client)));
    let threads = relay.threads.clone();
    threads.spawn(relay_for(relay, client, (visitor, known), (decoder, buffer), (from, to)));
}

/// Relays for a client until its connection ends, or the task in `known`.
async fn relay_for(
    relay: Arc<Relay>,
    client: Arc<Client>,
    (visitor, mut known): (Arc<Visitor>, JoinSet<()>),
    (mut decoder, mut buffer): (Decoder, BytesMut),
    (mut from, mut to): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) {
    relay.table.insert(&client);
    let _held = relay.counted.clients.hold();
    let mut session = Session::new(&relay, &client);
    tokio::select! {
        _ = session.run(&mut decoder, &mut buffer, &mut from) => {}
        _ = write(&client, &mut to) => {}
        _ = known.join_next() => {}
        () = client.closed() => {}
        () = visitor.must_leave() => {}
    }
    if !relay.table.remove(&client) {
        return;
    }
    // Those that it sent to know no way back by this region any more. Those of other relays are told
    // there.
    let words = gone(&client.key, GoneReason::Disconnected);
    for peer in session.noted {
        if let Some(Way::Near(peer)) = relay.table.way(&peer) {
            peer.queue.fill().control(&words);
        }
    }
}

/// Greets a client, and has the contents of its login. Nothing: it has none.
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

/// Answers a login. Nothing: it is none, or the client may not be served.
async fn log_in(
    server: &Server,
    relay: &Relay,
    contents: &[u8],
    at: SocketAddr,
    to: &mut (impl AsyncWrite + Unpin),
) -> Option<Client> {
    let login = relay.key.open_login(contents)?;
    let is_of_mesh = relay.mesh.as_ref().is_some_and(|mesh| mesh.key().is_of(&login));
    let key = login.client;
    let is_known = is_of_mesh || is_known_here(server, &key);
    if !is_known && !is_admitted(relay, &key, at).await {
        server.network.counted().refused.relay.add(1);
        tracing::debug!("the relay does not know {key}");
        return None;
    }
    let mut out = BytesMut::new();
    let info = relay.key.server_info(&key, &mut UnwrapErr(SysRng));
    write_frame(&mut out, kind::SERVER_INFO, &info);
    to.write_all(&out).await.ok()?;
    to.flush().await.ok()?;
    Some(Client::new(key, at, is_of_mesh, relay.counted))
}

/// Ends when a client may be served no longer. It is asked for beside all that is written: what is
/// asked may hang.
async fn stays_known(server: Arc<Server>, relay: Arc<Relay>, client: Arc<Client>) {
    if client.is_of_mesh {
        return pending().await;
    }
    let mut asked = Instant::now();
    let mut was_here = is_known_here(&server, &client.key);
    loop {
        sleep(LOOK).await;
        let is_here = is_known_here(&server, &client.key);
        if !is_here && (was_here || asked.elapsed() >= KEEP_ALIVE) {
            asked = Instant::now();
            if !is_admitted(&relay, &client.key, client.at).await {
                return;
            }
        }
        was_here = is_here;
    }
}

/// Whether the network has a client with this key, and the key is valid.
fn is_known_here(server: &Server, key: &NodePublic) -> bool {
    server.network.read(|state| state.has_valid_key(key, now()))
}

/// Whether another server that is asked knows a client.
async fn is_admitted(relay: &Relay, key: &NodePublic, at: SocketAddr) -> bool {
    match &relay.admission {
        Some(admission) => admission.admits(key, at.ip()).await,
        None => false,
    }
}

/// The next frame, of at most this many bytes; nothing at the end.
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

/// Writes what is queued for a client, and signs of life.
async fn write(client: &Client, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut out = BytesMut::new();
    let mut alive_at = Instant::now() + KEEP_ALIVE;
    loop {
        let is_idle = out.capacity() == 0;
        let wake_at = if is_idle { alive_at } else { alive_at.min(Instant::now() + QUIET) };
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

/// Writes what is ready, and empties it.
async fn write_out(out: &mut BytesMut, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let written = async {
        to.write_all(out).await?;
        to.flush().await
    };
    timeout(WRITE, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
    out.clear();
    Ok(())
}
