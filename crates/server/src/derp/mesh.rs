//! Links to the other relays of the region. This relay is a client of each, receives which clients
//! are connected there, and forwards datagrams to them.
//!
//! ```text
//!   connect, TLS, upgrade ── login with the mesh's key, WatchConns ── PeerPresent, PeerGone ─► Table
//!      ▲                                                          '── the link's queue ─► ForwardPacket
//!      '── 1 s after it broke
//! ```

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use bytes::{Bytes, BytesMut};
use getrandom::{SysRng, rand_core::UnwrapErr};
use http_body_util::Empty;
use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{CONNECTION, HOST, UPGRADE},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tailnet::{
    derp::{
        Decoder, FromRelay, kind,
        relay_mesh::{MeshKey, read_present},
        write_frame,
    },
    keys::NodePublic,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, split},
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsConnector;

use super::{Relay, next, table::Client, write_out};
use crate::net::{fetch::connector, remote_url::RemoteUrl};

/// Maximum time for a link to log in.
const LOGIN: Duration = Duration::from_secs(10);
/// The decoder limits the length of each kind of frame.
const LONGEST: usize = usize::MAX;
/// A link that lasted this long counts as established.
const LASTED: Duration = Duration::from_secs(10);
/// Pause before the next attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval of pings, and maximum silence of the other relay. A relay that dies without closing the
/// connection then stops delaying datagrams for it, however many are queued.
const PING: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(6);

/// Key and TLS settings for the relays of a region.
pub struct Mesh {
    key: MeshKey,
    tls: TlsConnector,
}

/// The other end of a link is this relay itself.
struct IsItself;

/// An established link.
struct Link<'r> {
    relay: &'r Relay,
    client: Arc<Client>,
}

impl Mesh {
    /// Creates a mesh without links.
    pub fn new(key: MeshKey) -> Self {
        Self { key, tls: connector() }
    }

    /// The key that its relays share.
    pub fn key(&self) -> &MeshKey {
        &self.key
    }
}

impl Relay {
    /// Maintains links to these relays while the process runs. The list may contain this relay.
    /// Without a mesh key, no links are created.
    pub fn mesh_with(self: &Arc<Self>, others: &[RemoteUrl]) {
        if self.mesh.is_none() {
            return;
        }
        for other in others {
            let (relay, other) = (Arc::clone(self), other.clone());
            self.threads.spawn(async move { relay.maintain_link(&other).await });
        }
    }

    /// Maintains a link to another relay, unless it is this relay itself.
    async fn maintain_link(&self, other: &RemoteUrl) {
        let mut has_warned = false;
        loop {
            let begun = Instant::now();
            match self.link(other).await {
                Ok(IsItself) => {
                    tracing::info!("{other} is this relay itself");
                    return;
                }
                // The end of a link that lasted is logged as a warning, and so is the
                // first of repeated failures.
                Err(error) if has_warned && begun.elapsed() < LASTED => {
                    tracing::debug!("mesh with {other}: {error:#}");
                }
                Err(error) => tracing::warn!("mesh with {other}: {error:#}"),
            }
            has_warned = true;
            sleep(AGAIN).await;
        }
    }

    async fn link(&self, other: &RemoteUrl) -> anyhow::Result<IsItself> {
        let mesh = self.mesh.as_ref().context("the mesh key is missing")?;
        let connected = timeout(LOGIN, connect(other, &mesh.tls)).await;
        self.follow(other, mesh, connected.context("no answer in time")??).await
    }

    /// Runs the protocol with another relay until the connection ends.
    async fn follow(
        &self,
        other: &RemoteUrl,
        mesh: &Mesh,
        stream: impl AsyncRead + AsyncWrite,
    ) -> anyhow::Result<IsItself> {
        let (mut from, mut to) = split(stream);
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let logged_in = self.log_in(mesh, &mut decoder, &mut buffer, &mut from, &mut to);
        let server = timeout(LOGIN, logged_in).await.context("no greeting in time")??;
        if server.0 == self.key.public() {
            return Ok(IsItself);
        }
        let at = ([0, 0, 0, 0], 0).into();
        let client = Arc::new(Client::new(server, at, true, self.counters));
        let link = Link { relay: self, client };
        let received_at = Mutex::new(Instant::now());
        tokio::select! {
            read = link.read(other, &received_at, &mut decoder, &mut buffer, &mut from) => {
                read.context("the link broke")?;
            }
            written = link.write(&mut to) => written.context("the link broke")?,
            () = silence(&received_at) => bail!("the other relay is silent"),
        }
        bail!("the link ended")
    }

    /// Reads the other relay's key, logs in, and subscribes to its clients.
    async fn log_in(
        &self,
        mesh: &Mesh,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> anyhow::Result<NodePublic> {
        let (kind, contents) =
            next(decoder, buffer, from, LONGEST).await?.context("no greeting")?;
        let Some(FromRelay::ServerKey(server)) = FromRelay::read(kind, contents)? else {
            bail!("it does not begin with its key");
        };
        if server != self.key.public() {
            let login = self.key.seal_mesh_login(&server, &mesh.key, &mut UnwrapErr(SysRng));
            let mut out = BytesMut::new();
            write_frame(&mut out, kind::CLIENT_INFO, &login);
            write_frame(&mut out, kind::WATCH_CONNS, &[]);
            to.write_all(&out).await?;
            to.flush().await?;
        }
        Ok(NodePublic(server))
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.relay.table.remove_link(&self.client);
    }
}

impl Link<'_> {
    /// Records which clients are connected to the other relay, until the link ends.
    async fn read(
        &self,
        other: &RemoteUrl,
        received_at: &Mutex<Instant>,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
    ) -> anyhow::Result<()> {
        let mut is_full = false;
        while let Some((kind, contents)) = next(decoder, buffer, from, LONGEST).await? {
            *received_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            if kind == kind::PEER_PRESENT {
                let key = read_present(&contents).filter(|key| !self.is_own(key));
                let has_room = key.is_none_or(|key| self.relay.table.add_remote(&self.client, key));
                if !has_room && !is_full {
                    is_full = true;
                    tracing::warn!(
                        "mesh: too many clients, some clients of {other} cannot be reached"
                    );
                }
                continue;
            }
            match FromRelay::read(kind, contents)? {
                Some(FromRelay::ServerInfo) => tracing::info!("mesh with {other}"),
                // Whatever the reason, it cannot be reached there any more.
                Some(FromRelay::PeerGone { peer, .. }) => {
                    self.relay.table.remove_remote(&self.client, &peer);
                }
                Some(FromRelay::Ping(data)) => {
                    let mut out = BytesMut::new();
                    write_frame(&mut out, kind::PONG, &data);
                    self.client.queue.fill().control(&out);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a key is this relay's, which is a client of the other relay.
    fn is_own(&self, key: &NodePublic) -> bool {
        key.0 == self.relay.key.public()
    }

    /// Writes the queue of forwarded datagrams, and pings.
    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut out = BytesMut::new();
        let mut ping_at = Instant::now() + PING;
        loop {
            tokio::select! {
                taken = self.client.queue.take(&mut out) => {
                    taken.map_err(|_| io::ErrorKind::OutOfMemory)?;
                }
                () = sleep_until(ping_at) => {
                    write_frame(&mut out, kind::PING, b"linerate");
                    ping_at = Instant::now() + PING;
                }
            }
            write_out(&mut out, to).await?;
        }
    }
}

/// Returns when nothing was received for too long.
async fn silence(received_at: &Mutex<Instant>) {
    loop {
        let end = *received_at.lock().unwrap_or_else(PoisonError::into_inner) + SILENCE;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to another relay and upgrades to DERP.
async fn connect(
    other: &RemoteUrl,
    tls: &TlsConnector,
) -> anyhow::Result<impl AsyncRead + AsyncWrite + use<>> {
    let stream = TcpStream::connect((other.host(), other.port())).await?;
    stream.set_nodelay(true)?;
    let stream: Box<dyn Stream> = match other.is_https() {
        true => {
            let name = ServerName::try_from(other.host().to_owned())?;
            Box::new(tls.connect(name, stream).await.context("TLS")?)
        }
        false => Box::new(stream),
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::get("/derp")
        .header(HOST, other.authority())
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "DERP")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    ensure!(status == StatusCode::SWITCHING_PROTOCOLS, "the answer is {status}");
    Ok(TokioIo::new(hyper::upgrade::on(answer).await?))
}

#[cfg(test)]
mod tests {
    use tailnet::derp::{
        RelayKey,
        relay_mesh::{present, write_present},
    };
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    const KEY: &str = "8f0d6e5b4c3a29180716f5e4d3c2b1a08f0d6e5b4c3a29180716f5e4d3c2b1a0";

    fn relay(number: u8) -> Arc<Relay> {
        let (key, mesh) = (RelayKey::new(Box::new([number; 32].into())), KEY.parse().unwrap());
        let (mesh, counters) = (Some(Mesh::new(mesh)), crate::network::counters::for_tests());
        Arc::new(Relay::new(key, mesh, None, counters, tokio::runtime::Handle::current()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_link_ends_after_six_seconds_even_if_it_reads_nothing() {
        for takes in [true, false] {
            let (one, other) = (relay(1), relay(2));
            let (local, mut remote) = duplex(4 << 10);
            let mut greeting = BytesMut::new();
            write_frame(&mut greeting, kind::SERVER_KEY, &other.key.greeting());
            remote.write_all(&greeting).await.unwrap();
            let client = NodePublic([3; 32]);
            let mut present = BytesMut::new();
            write_present(&mut present, &client, ([192, 0, 2, 1], 7).into(), present::REGULAR);
            remote.write_all(&present).await.unwrap();
            let url = "http://localhost".parse().unwrap();
            let begun = Instant::now();
            let link = one.follow(&url, one.mesh.as_ref().unwrap(), local);
            let load = async {
                let mut out = vec![0; 64 << 10];
                loop {
                    if let Some(route) = one.table.route(&client) {
                        route.client().queue.fill().forward(&client, &client, &[0; 1000]);
                    }
                    if takes {
                        let _ = timeout(Duration::ZERO, remote.read(&mut out)).await;
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                ended = link => assert!(ended.is_err()),
                () = load => {}
            }
            let lasted = begun.elapsed();
            assert!(
                lasted >= SILENCE && lasted < SILENCE + Duration::from_millis(50),
                "{lasted:?}"
            );
            assert!(one.table.route(&client).is_none());
        }
    }
}
