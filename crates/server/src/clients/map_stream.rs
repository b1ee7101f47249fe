//! Streams of maps. Each stream is a task, which waits for changes and reads from the network's log
//! the frames to send. A slow client costs nothing: unsent changes stay in the log, and are sent once, in
//! their current form.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use coordinator::{PollResult, Session};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    clients::{
        frames::{PackedFrames, framed},
        pings::Pings,
    },
    clock::now,
    http::body::{Next, Parts},
    net::connections::Connection,
    network::NetworkState,
};

/// Range of the keepalive interval, in seconds, as in Tailscale and headscale. Clients time out
/// after 120 s.
const KEEP_ALIVE: [u64; 2] = [50, 59];
/// A client that reads nothing for this time is disconnected.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts to store that a stream has ended.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of whole maps that are sent at the same time: enough to keep all cores busy, and
/// few enough to fit in memory. Waiting clients receive keepalives.
const WHOLE_MAPS: usize = 64;
/// How long a client that reads slowly can hold a permit.
const TURN: Duration = Duration::from_secs(2);

/// Always the same bytes, which clients recognize without unpacking.
static SIGN_OF_LIFE: LazyLock<Bytes> = LazyLock::new(|| framed(br#"{"KeepAlive":true}"#));

/// Permits to send a whole map.
pub(crate) struct MapPermits(Semaphore);

impl Default for MapPermits {
    fn default() -> Self {
        Self(Semaphore::new(WHOLE_MAPS))
    }
}

impl MapPermits {
    /// Waits for a permit.
    pub(crate) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

/// Parts of a network that its streams of maps use.
pub(crate) struct MapSource {
    network: Arc<NetworkState>,
    pings: Arc<Pings>,
    packed: PackedFrames,
    permits: MapPermits,
}

impl MapSource {
    /// Creates the source of a network.
    pub(crate) fn new(network: Arc<NetworkState>, pings: Arc<Pings>) -> Self {
        Self { network, pings, packed: PackedFrames::default(), permits: MapPermits::default() }
    }
}

/// A stream of maps to a client.
pub(crate) struct MapStream {
    /// The frames to send.
    pub session: Session,
    /// The client's connection.
    pub connection: Arc<Connection>,
    /// The body of the answer.
    pub to: mpsc::Sender<Next>,
}

impl MapStream {
    /// Sends changes to the client until either side ends the stream.
    pub(crate) async fn follow(mut self, source: Arc<MapSource>) {
        let (id, _guard) = (self.session.node(), source.network.counters().streams.increment());
        let Ok(stream) = source.network.run(move |state, now| state.connect(id, now)).await else {
            return;
        };
        if self.begin(&source).await.is_some() {
            self.send_changes(&source).await;
        }
        let end = || source.network.run(move |state, now| state.disconnect(id, stream, now));
        // Retried, so that the node does not stay connected because the database was
        // unavailable.
        while end().await.is_err() {
            sleep(AGAIN).await;
        }
    }

    /// Sends the whole map once, when a permit is available.
    pub(crate) async fn once(mut self, source: Arc<MapSource>) {
        let turn = tokio::select! {
            turn = turn(&self.connection, &source) => turn,
            () = self.to.closed() => return,
        };
        let polled = source.network.read(|state| self.session.poll(state, now()));
        let (PollResult::Frame(frame) | PollResult::End(Some(frame))) = polled else { return };
        let (taken, mut was_taken) = oneshot::channel();
        if self.send(source.packed.encode(&frame), Some(taken)).await.is_some() {
            let (_own, of_all) = turn;
            // A slow client delays only the other streams of its connection.
            if timeout(TURN, &mut was_taken).await.is_err() {
                drop(of_all);
                let _ = was_taken.await;
            }
        }
    }

    /// Sends the first frame, when a permit is available. `None` if the stream has ended.
    async fn begin(&mut self, source: &MapSource) -> Option<()> {
        let mut turn = std::pin::pin!(turn(&self.connection, source));
        let _turn = loop {
            tokio::select! {
                turn = &mut turn => break turn,
                () = sleep(next_sign()) => self.send(vec![SIGN_OF_LIFE.clone()], None).await?,
                () = self.to.closed() => return None,
            }
        };
        let polled = source.network.read(|state| self.session.poll(state, now()));
        let (taken, was_taken) = oneshot::channel();
        match polled {
            PollResult::Frame(frame) => {
                self.send(source.packed.encode(&frame), Some(taken)).await?;
                // The permit is released in either case.
                let _ = timeout(TURN, was_taken).await;
                Some(())
            }
            PollResult::End(frame) => {
                self.send(source.packed.encode(&frame?), None).await?;
                None
            }
            PollResult::Nothing => Some(()),
        }
    }

    /// Sends changes after the first frame, until either side ends the stream.
    async fn send_changes(&mut self, source: &MapSource) -> Option<()> {
        let mut changed = source.network.changed();
        let mut questions = source.pings.subscribe(self.session.node());
        let mut alive_at = Instant::now() + next_sign();
        loop {
            let end = *changed.borrow_and_update();
            let polled = source.network.read(|state| self.session.poll_until(state, end, now()));
            source.network.note_read();
            match polled {
                PollResult::Nothing => {}
                PollResult::Frame(frame) => {
                    self.send(source.packed.encode(&frame), None).await?;
                    alive_at = Instant::now() + next_sign();
                }
                PollResult::End(frame) => {
                    return self.send(source.packed.encode(&frame?), None).await;
                }
            }
            let words = tokio::select! {
                outcome = changed.changed() => {
                    outcome.ok()?;
                    continue;
                }
                () = sleep_until(alive_at) => vec![SIGN_OF_LIFE.clone()],
                question = questions.next() => question,
                () = self.to.closed() => return None,
            };
            self.send(words, None).await?;
            alive_at = Instant::now() + next_sign();
        }
    }

    async fn send(&self, parts: Parts, taken: Option<oneshot::Sender<()>>) -> Option<()> {
        let sent = timeout(PATIENCE, self.to.send(Next { parts, taken })).await;
        matches!(sent, Ok(Ok(()))).then_some(())
    }
}

/// Waits for a permit to send a whole map. Of each connection, only one stream at a time waits for
/// it.
async fn turn<'a>(
    connection: &'a Connection,
    source: &'a MapSource,
) -> (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>) {
    let own = connection.first_map_permit().await;
    (own, source.permits.acquire().await)
}

/// Time until the next keepalive, randomized for each client.
fn next_sign() -> Duration {
    let [least, most] = KEEP_ALIVE;
    let mut random = [0; 8];
    // Without randomness, all clients use the same time.
    let _ = getrandom::fill(&mut random);
    let spread = u64::from_le_bytes(random) % ((most - least) * 1000);
    Duration::from_millis(least * 1000 + spread)
}

#[cfg(test)]
mod tests {
    use tailnet::ts2021::map_frames::FrameReader;

    use super::*;

    #[test]
    fn members_can_decode_packed_frames() {
        let mut reader = FrameReader::default();
        let long = format!("{{\"x\":\"{}\"}}", "y".repeat(1 << 20));
        reader.handle_bytes(&SIGN_OF_LIFE);
        reader.handle_bytes(&framed(long.as_bytes()));
        assert_eq!(reader.poll_frame().unwrap().unwrap(), br#"{"KeepAlive":true}"#);
        assert_eq!(reader.poll_frame().unwrap().unwrap(), long.as_bytes());
        let signs: Vec<Duration> = (0..100).map(|_| next_sign()).collect();
        let range = Duration::from_secs(KEEP_ALIVE[0])..Duration::from_secs(KEEP_ALIVE[1]);
        assert!(signs.iter().all(|sign| range.contains(sign)));
    }
}
