//! A connection that is logged in: frames in both directions, and whether it is alive.
//!
//! Read, write and watch take turns in one task. A write takes all that waits; a read takes all that
//! came, and brings its datagrams as one event.

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
    region::{Shared, State},
};

/// A relay says something at least every 65 s (stock).
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// A region that is not home is left after so long without a datagram (stock).
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a pong may take where it is doubted that the connection works. A relay that is dead is
/// left within 2.5 s of the first datagram that it did not pass on.
const PONG_TIMEOUT: Duration = Duration::from_millis(1500);
/// What was sent has a relay say something within this time, or it is asked for a pong.
const ANSWER_DELAY: Duration = Duration::from_millis(500);
/// A relay that takes nothing for so long is dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// One record of TLS.
const TLS_RECORD: usize = 16 << 10;
/// What is taken from the socket for one event.
const MAX_READ: usize = 64 << 10;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There was nothing to say.
    Idle,
    /// It is to be connected anew.
    Reconnect,
    /// The relay ended it.
    Broken,
}

/// Serves a connection until it ends. `asked`: when the login was sent.
pub async fn serve(
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
                // Relays leave without a farewell of TLS.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(End::Broken);
                }
                read => read?,
            };
        }
    }

    /// Takes the frames that are there.
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
            self.shared.state().handle_frames(!datagrams.is_empty(), Instant::now());
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
                let is_first = !std::mem::replace(&mut self.shared.state().accepted, true);
                if is_first {
                    self.emit(Event::Connected { region, latency }).await?;
                }
            }
            FromRelay::PeerGone { peer, reason } => {
                let reason = reason.byte();
                self.emit(Event::PeerGone { region, peer, reason }).await?;
            }
            FromRelay::Ping(ping) => {
                self.shared.state().add_pong(ping);
                self.shared.to_write.notify_one();
            }
            FromRelay::Health(text) => self.emit(Event::Health { region, text }).await?,
            FromRelay::Restarting { reconnect_in, .. } => {
                self.shared.state().restart = Some(reconnect_in);
            }
            // The last comes by a fast start, where the key was known before.
            FromRelay::Packet { .. }
            | FromRelay::KeepAlive
            | FromRelay::Pong(_)
            | FromRelay::ServerKey(_) => {}
        }
        Ok(())
    }

    async fn emit(&self, event: Event) -> anyhow::Result<()> {
        self.events.send(event).await.context("the agent ends")
    }
}

/// Reads what is there, up to [`READ`] bytes; 0 at the end.
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
        if shared.state().take(&mut out, Instant::now()) {
            shared.to_check.notify_one();
        }
        if out.is_empty() {
            shared.to_write.notified().await;
            continue;
        }
        let written = async {
            output.write_all(&out).await?;
            // What TLS keeps would be older than anything in the queue.
            output.flush().await
        };
        timeout(WRITE_TIMEOUT, written).await.context("the relay takes nothing")??;
        out.clear();
    }
}

/// Ends when the connection is of no more use.
pub(super) async fn watch(shared: &Shared, local: Option<SocketAddr>) -> anyhow::Result<End> {
    let mut doubted: Option<Instant> = None;
    loop {
        let deadline = {
            let mut state = shared.state();
            let now = Instant::now();
            if state.reconnect {
                return Ok(End::Reconnect);
            }
            if std::mem::take(&mut state.check) {
                if !is_ours(local) {
                    return Ok(End::Reconnect);
                }
                doubted = Some(now);
                state.ping = true;
                shared.to_write.notify_one();
            }
            doubted = doubted.filter(|since| state.last_received <= *since);
            if doubted.is_some_and(|since| now >= since + PONG_TIMEOUT) {
                bail!("no answer for {} ms", PONG_TIMEOUT.as_millis());
            }
            let quiet = state.watch_answers(now);
            if doubted.is_none() && quiet.is_some_and(|at| now >= at) {
                doubted = Some(now);
                state.ping = true;
                shared.to_write.notify_one();
            }
            if now >= state.last_received + SILENCE_TIMEOUT {
                bail!("nothing was heard for {} s", SILENCE_TIMEOUT.as_secs());
            }
            if !state.is_home && now >= state.last_datagram + IDLE_TIMEOUT {
                return Ok(End::Idle);
            }
            let idle = (!state.is_home).then(|| state.last_datagram + IDLE_TIMEOUT);
            let answer = doubted.map(|since| since + PONG_TIMEOUT).or(quiet);
            let deadlines = [Some(state.last_received + SILENCE_TIMEOUT), idle, answer];
            deadlines.into_iter().flatten().min().unwrap_or(now + SILENCE_TIMEOUT)
        };
        tokio::select! {
            () = sleep_until(deadline) => {}
            () = shared.to_check.notified() => {}
        }
    }
}

impl State {
    /// When to look again whether what was sent has an answer, while something is sent.
    fn watch_answers(&mut self, now: Instant) -> Option<Instant> {
        self.is_watched = self.unanswered_since.is_some() || now < self.last_sent + ANSWER_DELAY;
        self.is_watched.then(|| self.unanswered_since.unwrap_or(now) + ANSWER_DELAY)
    }
}

/// Whether this machine still has the address.
fn is_ours(local: Option<SocketAddr>) -> bool {
    let bound = local.map(|local| UdpSocket::bind((local.ip(), 0)));
    !matches!(bound, Some(Err(error)) if error.kind() == io::ErrorKind::AddrNotAvailable)
}
