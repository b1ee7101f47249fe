//! The relay: passes datagrams on by node key, between clients that the network knows.
//!
//! ```text
//!   upgrade ── greeting, login ── reader ── Table ── the receiver's queues ── writer
//!                                              '── not here: the sender is told
//! ```

mod queue;
mod table;

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use getrandom::{SysRng, rand_core::UnwrapErr};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{HeaderValue, UPGRADE},
};
use hyper_util::rt::TokioIo;
use tailnet::{
    derp::{Decoder, FromClient, GoneReason, RelayKey, kind, write_frame},
    disco,
    keys::NodePublic,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    time::{Instant, sleep_until, timeout},
};

use self::{
    queue::Outgoing,
    table::{Client, Table},
};
use crate::{
    body::{Answer, text},
    serve::Server,
    ts2021::{switching, visitor_of},
    visitors::Visitor,
    web_socket::{self, WebSocket},
};

/// Within this a client has logged in (tailscale `derp/derpserver`).
const LOGIN: Duration = Duration::from_secs(10);
/// A client whose connection takes nothing for so long is not there.
const WRITE: Duration = Duration::from_secs(10);
/// Signs of life, and whether the network still knows a client.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// How much is read at once, in bytes.
const READ: usize = 64 << 10;
/// The most receivers that a client is noted to have sent to, who are told when it goes.
const NOTED: usize = 4096;
/// How often a client is told that a peer is not here.
const NOT_HERE_PAUSE: Duration = Duration::from_millis(333);

/// The relay.
pub struct Relay {
    key: RelayKey,
    table: Table,
}

impl Relay {
    /// One with this key.
    pub fn new(key: RelayKey) -> Self {
        Self { key, table: Table::default() }
    }
}

/// Answers a request for the relay, and serves it.
pub fn upgrade(server: &Arc<Server>, request: Request<Incoming>) -> Response<Answer> {
    if let Some(response) = web_socket::accept(&request, "derp") {
        let (server, visitor) = (Arc::clone(server), visitor_of(&request));
        tokio::spawn(async move {
            if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
                let stream = WebSocket::new(TokioIo::new(upgraded)).await;
                serve(&server, stream, &visitor).await;
            }
        });
        return response;
    }
    let asks = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    if !asks.is_some_and(|asks| asks.eq_ignore_ascii_case(b"derp")) {
        return text(StatusCode::UPGRADE_REQUIRED, "here is DERP, by an upgrade\n");
    }
    let (server, visitor) = (Arc::clone(server), visitor_of(&request));
    tokio::spawn(async move {
        if let Ok(Ok(upgraded)) = timeout(LOGIN, hyper::upgrade::on(request)).await {
            serve(&server, TokioIo::new(upgraded), &visitor).await;
        }
    });
    switching(HeaderValue::from_static("DERP"))
}

/// Serves a client to its end.
async fn serve(
    server: &Server,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    visitor: &Visitor,
) {
    let Some(relay) = &server.relay else { return };
    let (mut from, mut to) = split(stream);
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::with_capacity(READ));
    let login = log_in(server, relay, &mut decoder, &mut buffer, &mut from, &mut to);
    let logged_in = tokio::select! {
        logged_in = timeout(LOGIN, login) => logged_in,
        () = visitor.must_leave() => return,
    };
    let Ok(Some(key)) = logged_in else { return };
    if let Some(machine) = server.network.read(|state| state.machine_of(&key)) {
        visitor.belongs_to(machine);
    }
    let client = Arc::new(Client::new(key));
    relay.table.insert(&client);
    let (noted, told_at, last) = (HashSet::new(), None, None);
    let mut session = Session { relay, client: &client, noted, told_at, last };
    tokio::select! {
        _ = session.read(&mut decoder, &mut buffer, &mut from) => {}
        _ = write(server, &client, &mut to) => {}
        () = visitor.must_leave() => {}
    }
    if !relay.table.remove(&client) {
        return;
    }
    // Those that it sent to know no way back by this relay any more.
    for peer in session.noted {
        if let Some(peer) = relay.table.of(&peer) {
            peer.queue.control(gone(&key, GoneReason::Disconnected));
        }
    }
}

/// Greets a client and takes its login. Nothing: it has none, or the network does not know it.
async fn log_in(
    server: &Server,
    relay: &Relay,
    decoder: &mut Decoder,
    buffer: &mut BytesMut,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Option<NodePublic> {
    let mut out = BytesMut::new();
    write_frame(&mut out, kind::SERVER_KEY, &relay.key.greeting());
    to.write_all(&out).await.ok()?;
    to.flush().await.ok()?;
    let (kind, contents) = next(decoder, buffer, from).await.ok()??;
    let login = relay.key.open_login(&contents).filter(|_| kind == kind::CLIENT_INFO)?;
    if !server.network.read(|state| state.has_key(&login.client)) {
        tracing::debug!("the relay does not know {}", login.client);
        return None;
    }
    out.clear();
    let info = relay.key.server_info(&login.client, &mut UnwrapErr(SysRng));
    write_frame(&mut out, kind::SERVER_INFO, &info);
    to.write_all(&out).await.ok()?;
    to.flush().await.ok()?;
    Some(login.client)
}

/// The next frame; nothing at the end.
async fn next(
    decoder: &mut Decoder,
    buffer: &mut BytesMut,
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(u8, Bytes)>> {
    loop {
        if let Some(frame) = decoder.poll_frame(buffer).map_err(io::Error::other)? {
            return Ok(Some(frame));
        }
        buffer.reserve(READ / 2);
        if from.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

struct Session<'a> {
    relay: &'a Relay,
    client: &'a Arc<Client>,
    /// Whom it sent to.
    noted: HashSet<NodePublic>,
    /// When it was last told that a peer is not here.
    told_at: Option<Instant>,
    /// To whom it sent last: mostly the next is for the same.
    last: Option<Arc<Client>>,
}

impl Session<'_> {
    async fn read(
        &mut self,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        while let Some((kind, contents)) = next(decoder, buffer, from).await? {
            match FromClient::read(kind, contents) {
                Some(FromClient::Packet { to, bytes }) => self.pass(to, bytes).await,
                Some(FromClient::Ping(data)) => {
                    let mut out = BytesMut::new();
                    write_frame(&mut out, kind::PONG, &data);
                    self.client.queue.control(out.freeze());
                }
                // What later clients say, and older ones said.
                Some(FromClient::Preferred(_) | FromClient::Pong(_) | FromClient::KeepAlive)
                | None => {}
            }
        }
        Ok(())
    }

    async fn pass(&mut self, to: NodePublic, bytes: Bytes) {
        let from = self.client.key;
        self.relay.table.note_active(self.client);
        let is_disco = bytes.starts_with(&disco::MAGIC);
        let Some(peer) = self.receiver(&to) else {
            let now = Instant::now();
            let is_due = self.told_at.is_none_or(|at| now >= at + NOT_HERE_PAUSE);
            // Only who looks for a path learns by this that it is another one.
            if is_disco && is_due {
                self.told_at = Some(now);
                self.client.queue.control(gone(&to, GoneReason::NotHere));
            }
            return;
        };
        if peer.queue.packet(from, bytes, is_disco) {
            peer.queue.room().await;
        }
    }

    /// The client with this key, which is noted.
    fn receiver(&mut self, key: &NodePublic) -> Option<&Client> {
        let is_same = |last: &Arc<Client>| last.key == *key && last.is_active();
        if !self.last.as_ref().is_some_and(is_same) {
            self.last = self.relay.table.of(key);
            if self.last.is_some() && self.noted.len() < NOTED {
                self.noted.insert(*key);
            }
        }
        self.last.as_deref()
    }
}

/// Writes what is queued for a client, and signs of life.
async fn write(
    server: &Server,
    client: &Client,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut out, mut batch) = (BytesMut::new(), Vec::new());
    let mut alive_at = Instant::now() + KEEP_ALIVE;
    loop {
        tokio::select! {
            () = client.queue.take(&mut batch) => {}
            () = sleep_until(alive_at) => {
                if !server.network.read(|state| state.has_key(&client.key)) {
                    return Ok(());
                }
                write_frame(&mut out, kind::KEEP_ALIVE, &[]);
            }
        }
        for outgoing in batch.drain(..) {
            match outgoing {
                Outgoing::Packet(from, bytes) => table::write_received(&mut out, &from, &bytes),
                Outgoing::Control(frame) => out.extend_from_slice(&frame),
            }
        }
        let written = async {
            to.write_all(&out).await?;
            to.flush().await
        };
        timeout(WRITE, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
        out.clear();
        alive_at = Instant::now() + KEEP_ALIVE;
    }
}

/// The frame that says that a peer is not connected.
fn gone(peer: &NodePublic, reason: GoneReason) -> Bytes {
    let reason = match reason {
        GoneReason::Disconnected => 0,
        GoneReason::NotHere => 1,
        GoneReason::Other(other) => other,
    };
    let mut out = BytesMut::new();
    write_frame(&mut out, kind::PEER_GONE, &[&peer.0[..], &[reason]].concat());
    out.freeze()
}
