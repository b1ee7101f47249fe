//! Links to the other relays of the region: this relay is a client of each, is told which clients are
//! connected there, and forwards what is for them.
//!
//! ```text
//!   connect, TLS, upgrade ── login with the mesh's key, WatchConns ── heard: PeerPresent, PeerGone ─► Table
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
        mesh::{MeshKey, read_present},
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
use crate::{fetch::connector, remote_url::RemoteUrl};

/// Within this a link has logged in.
const LOGIN: Duration = Duration::from_secs(10);
/// The longest frame, in bytes: the decoder has a limit for each kind.
const LONGEST: usize = usize::MAX;
/// A link that lasted so long was one.
const LASTED: Duration = Duration::from_secs(10);
/// Until the next try.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the other relay is asked for a pong, and how long it may be silent: a relay that dies
/// without a word holds up what is forwarded to it no longer, however much of that there is.
const PING: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(6);

/// What the relays of a region have in common.
pub struct Mesh {
    key: MeshKey,
    tls: TlsConnector,
}

/// Why a link ends for good.
struct IsItself;

/// A link while it lasts.
struct Link<'r> {
    relay: &'r Relay,
    client: Arc<Client>,
}

impl Mesh {
    /// One without links yet.
    pub fn new(key: MeshKey) -> Self {
        Self { key, tls: connector() }
    }

    /// What its relays know.
    pub fn key(&self) -> &MeshKey {
        &self.key
    }
}

impl Relay {
    /// Has links to these relays, for good. It may be among them itself. Without a key of a mesh
    /// there are none.
    pub fn mesh_with(self: &Arc<Self>, others: &[RemoteUrl]) {
        if self.mesh.is_none() {
            return;
        }
        for other in others {
            let (relay, other) = (Arc::clone(self), other.clone());
            self.threads.spawn(async move { relay.keep_link(&other).await });
        }
    }

    /// Has a link to another relay, unless that is this one.
    async fn keep_link(&self, other: &RemoteUrl) {
        let mut is_told = false;
        loop {
            let begun = Instant::now();
            match self.link(other).await {
                Ok(IsItself) => {
                    tracing::info!("{other} is this relay itself");
                    return;
                }
                // One that lasted is told of, and what keeps it from lasting again, once.
                Err(error) if is_told && begun.elapsed() < LASTED => {
                    tracing::debug!("mesh with {other}: {error:#}")
                }
                Err(error) => tracing::warn!("mesh with {other}: {error:#}"),
            }
            is_told = true;
            sleep(AGAIN).await;
        }
    }

    async fn link(&self, other: &RemoteUrl) -> anyhow::Result<IsItself> {
        let mesh = self.mesh.as_ref().context("there is no key of a mesh")?;
        let connected = timeout(LOGIN, connect(other, &mesh.tls)).await;
        self.follow(other, mesh, connected.context("no answer in time")??).await
    }

    /// Speaks with another relay to the connection's end.
    async fn follow(
        &self,
        other: &RemoteUrl,
        mesh: &Mesh,
        stream: impl AsyncRead + AsyncWrite,
    ) -> anyhow::Result<IsItself> {
        let (mut from, mut to) = split(stream);
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let introduced = self.introduce(mesh, &mut decoder, &mut buffer, &mut from, &mut to);
        let server = timeout(LOGIN, introduced).await.context("no greeting in time")??;
        if server.0 == self.key.public() {
            return Ok(IsItself);
        }
        let at = ([0, 0, 0, 0], 0).into();
        let client = Arc::new(Client::new(server, at, true, self.counted));
        let link = Link { relay: self, client };
        let heard = Mutex::new(Instant::now());
        tokio::select! {
            read = link.read(other, &heard, &mut decoder, &mut buffer, &mut from) => {
                read.context("the link broke")?;
            }
            written = link.write(&mut to) => written.context("the link broke")?,
            () = silence(&heard) => bail!("the other relay is silent"),
        }
        bail!("the link ended")
    }

    /// Reads the other's key, logs in, and asks which clients are connected there.
    async fn introduce(
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
        self.relay.table.lose(&self.client);
    }
}

impl Link<'_> {
    /// Notes which clients are connected there, to the link's end.
    async fn read(
        &self,
        other: &RemoteUrl,
        heard: &Mutex<Instant>,
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
        from: &mut (impl AsyncRead + Unpin),
    ) -> anyhow::Result<()> {
        let mut is_full = false;
        while let Some((kind, contents)) = next(decoder, buffer, from, LONGEST).await? {
            *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            if kind == kind::PEER_PRESENT {
                let key = read_present(&contents).filter(|key| !self.is_own(key));
                let has_room = key.is_none_or(|key| self.relay.table.arrive(&self.client, key));
                if !has_room && !is_full {
                    is_full = true;
                    tracing::warn!("mesh: too many clients, some of {other} are not reached");
                }
                continue;
            }
            match FromRelay::read(kind, contents)? {
                Some(FromRelay::ServerInfo) => tracing::info!("mesh with {other}"),
                // Whatever the reason, it is reached there no more.
                Some(FromRelay::PeerGone { peer, .. }) => {
                    self.relay.table.leave(&self.client, &peer);
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

    /// This relay is a client of the other.
    fn is_own(&self, key: &NodePublic) -> bool {
        key.0 == self.relay.key.public()
    }

    /// Writes what is forwarded, and asks whether the other relay is there.
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

/// Ends when nothing was heard for too long.
async fn silence(heard: &Mutex<Instant>) {
    loop {
        let end = *heard.lock().unwrap_or_else(PoisonError::into_inner) + SILENCE;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end).await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to another relay that speaks DERP.
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
    ensure!(status == StatusCode::SWITCHING_PROTOCOLS, "it answers {status}");
    Ok(TokioIo::new(hyper::upgrade::on(answer).await?))
}

#[cfg(test)]
mod tests {
    use tailnet::derp::{
        RelayKey,
        mesh::{present, write_present},
    };
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    const KEY: &str = "8f0d6e5b4c3a29180716f5e4d3c2b1a08f0d6e5b4c3a29180716f5e4d3c2b1a0";

    fn relay(number: u8) -> Arc<Relay> {
        let (key, mesh) = (RelayKey::new(Box::new([number; 32].into())), KEY.parse().unwrap());
        let (mesh, counted) = (Some(Mesh::new(mesh)), crate::counted::of_tests());
        Arc::new(Relay::new(key, mesh, None, counted, tokio::runtime::Handle::current()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_ends_after_six_seconds_of_silence_also_where_nothing_is_taken_from_it() {
        for takes in [true, false] {
            let (one, other) = (relay(1), relay(2));
            let (near, mut far) = duplex(4 << 10);
            let mut greeting = BytesMut::new();
            write_frame(&mut greeting, kind::SERVER_KEY, &other.key.greeting());
            far.write_all(&greeting).await.unwrap();
            let client = NodePublic([3; 32]);
            let mut present = BytesMut::new();
            write_present(&mut present, &client, ([192, 0, 2, 1], 7).into(), present::REGULAR);
            far.write_all(&present).await.unwrap();
            let url = "http://localhost".parse().unwrap();
            let begun = Instant::now();
            let link = one.follow(&url, one.mesh.as_ref().unwrap(), near);
            let load = async {
                let mut out = vec![0; 64 << 10];
                loop {
                    if let Some(way) = one.table.way(&client) {
                        way.client().queue.fill().forward(&client, &client, &[0; 1000]);
                    }
                    if takes {
                        let _ = timeout(Duration::ZERO, far.read(&mut out)).await;
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
            assert!(one.table.way(&client).is_none());
        }
    }
}
