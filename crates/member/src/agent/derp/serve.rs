//! A connection after the login: frames in both directions, and liveness.
//!
//! Read, write and watch take turns in one task. A write sends all pending frames. A read takes all
//! received bytes and reports their datagrams as one event.

use std::{
    future::{Future as _, poll_fn},
    io,
    net::{SocketAddr, UdpSocket},
    pin::pin,
    task::Poll,
    time::Duration,
};

use anyhow::{Context, bail};
use bytes::BytesMut;
use tailnet::derp::{Decoder, FromRelay};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Event,
    connect::Connection,
    queue::WRITE_SIZE,
    state::{PONG_TIMEOUT, SILENCE_TIMEOUT, Shared, Watch},
};

/// The time limit of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of a TLS record.
const TLS_RECORD: usize = 16 << 10;
/// The most bytes of one event.
const MAX_READ: usize = 64 << 10;

/// The reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was idle.
    Idle,
    /// Another connection is needed.
    Reconnect,
    /// The relay closed it.
    Broken,
}

/// Serves a connection until it ends. `login_sent` is the time at which the login was sent.
pub(super) async fn serve(
    connection: Connection,
    login_sent: Instant,
    region: u16,
    shared: &Shared,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<End> {
    let Connection { stream, buffer, decoder, local, latency, .. } = connection;
    let (input, output) = tokio::io::split(stream);
    let reader = Reader { buffer, decoder, region, shared, events, login_sent, latency };
    tokio::select! {
        ended = reader.run(input) => ended,
        ended = write(output, shared) => ended,
        ended = watch(shared, local) => ended,
    }
}

struct Reader<'a> {
    buffer: BytesMut,
    decoder: Decoder,
    region: u16,
    shared: &'a Shared,
    events: &'a mpsc::Sender<Event>,
    login_sent: Instant,
    latency: Option<Duration>,
}

impl Reader<'_> {
    async fn run(mut self, mut input: impl AsyncRead + Unpin) -> anyhow::Result<End> {
        loop {
            self.handle_frames().await?;
            match read(&mut input, &mut self.buffer).await {
                Ok(0) => return Ok(End::Broken),
                // Relays close connections without a TLS close_notify.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(End::Broken);
                }
                read => read?,
            };
        }
    }

    /// Handles the frames in the buffer.
    async fn handle_frames(&mut self) -> anyhow::Result<()> {
        let mut datagrams = Vec::new();
        let mut has_frames = false;
        while let Some((kind, contents)) = self.decoder.poll_frame(&mut self.buffer)? {
            has_frames = true;
            match FromRelay::read(kind, contents)? {
                Some(FromRelay::Packet { from, bytes }) => datagrams.push((from, bytes)),
                Some(other) => self.handle(other).await?,
                None => {}
            }
        }
        if has_frames {
            self.shared.handle_frames(!datagrams.is_empty(), Instant::now());
        }
        if !datagrams.is_empty() {
            self.emit(Event::Received { region: self.region, datagrams }).await?;
        }
        Ok(())
    }

    async fn handle(&mut self, frame: FromRelay) -> anyhow::Result<()> {
        let region = self.region;
        match frame {
            FromRelay::ServerInfo => {
                let latency = self.latency.unwrap_or_else(|| self.login_sent.elapsed());
                if self.shared.accept() {
                    self.emit(Event::Connected { region, latency }).await?;
                }
            }
            FromRelay::PeerGone { peer, reason } => {
                let reason = reason.byte();
                self.emit(Event::PeerGone { region, peer, reason }).await?;
            }
            FromRelay::Ping(ping) => {
                self.shared.add_pong(ping);
            }
            FromRelay::Health(text) => self.emit(Event::Health { region, text }).await?,
            FromRelay::Restarting { reconnect_in, .. } => {
                self.shared.set_restart(reconnect_in);
            }
            // A relay sends its key again after a fast start.
            FromRelay::Packet { .. }
            | FromRelay::KeepAlive
            | FromRelay::Pong(_)
            | FromRelay::ServerKey(_) => {}
        }
        Ok(())
    }

    async fn emit(&self, event: Event) -> anyhow::Result<()> {
        self.events.send(event).await.context("the agent has ended")
    }
}

/// Reads available data, up to [`MAX_READ`] bytes; 0 at the end.
async fn read(input: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<usize> {
    let mut read = 0;
    poll_fn(|cx| {
        while read < MAX_READ {
            buffer.reserve(TLS_RECORD);
            match pin!(input.read_buf(buffer)).poll(cx) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(len)) => read += len,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if read == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(read))
    })
    .await
}

async fn write(mut output: impl AsyncWrite + Unpin, shared: &Shared) -> anyhow::Result<End> {
    let mut out = BytesMut::with_capacity(2 * WRITE_SIZE);
    loop {
        shared.take(&mut out, Instant::now());
        if out.is_empty() {
            shared.wait_to_write().await;
            continue;
        }
        let written = async {
            output.write_all(&out).await?;
            // Data left in the TLS buffers would be older than any in the queue.
            output.flush().await
        };
        timeout(WRITE_TIMEOUT, written).await.context("the relay does not read")??;
        out.clear();
    }
}

/// Returns when the connection must be closed.
pub(super) async fn watch(shared: &Shared, local: Option<SocketAddr>) -> anyhow::Result<End> {
    loop {
        let deadline = match shared.watch(Instant::now(), || is_ours(local)) {
            Watch::Until(deadline) => deadline,
            Watch::Reconnect => return Ok(End::Reconnect),
            Watch::Idle => return Ok(End::Idle),
            Watch::Unanswered => bail!("no answer for {} ms", PONG_TIMEOUT.as_millis()),
            Watch::Silent => bail!("no data for {} s", SILENCE_TIMEOUT.as_secs()),
        };
        tokio::select! {
            () = sleep_until(deadline) => {}
            () = shared.wait_to_check() => {}
        }
    }
}

fn is_ours(local: Option<SocketAddr>) -> bool {
    let bound = local.map(|local| UdpSocket::bind((local.ip(), 0)));
    !matches!(bound, Some(Err(error)) if error.kind() == io::ErrorKind::AddrNotAvailable)
}
