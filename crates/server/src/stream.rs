//! Streams of maps: a task each, which sleeps until something changes, and reads from the network's
//! log what its client is to be told. A slow client costs nothing: what it was not told waits in the
//! log, and is told once, as it is by then.

use std::{
    cell::RefCell,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coordinator::{Cache, Frame, FrameKey, Part, PollResult, Session};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    body::{Next, Parts},
    clock::now,
    serve::Server,
    visitors::Visitor,
};

/// Signs of life come between these two, as Tailscale's own and headscale's (clients wait 120 s).
const KEEP_ALIVE: [u64; 2] = [50, 59];
/// A client that takes nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between tries to write down that a stream has ended.
const AGAIN: Duration = Duration::from_secs(1);
/// Maps that are being sent whole at once: as many as keep the processors busy, and no more than fit in
/// memory. Clients have signs of life while they wait for theirs.
const WHOLE_MAPS: usize = 64;
/// How long one may take of a client that reads slowly, until it is the next one's turn.
const TURN: Duration = Duration::from_secs(2);
/// Frames that are kept packed for other clients that are to be told the same.
const KEPT: usize = 64;
/// The level of packing: the fastest of the usual ones.
const LEVEL: i32 = 1;

/// The same bytes each time: clients know them without unpacking.
static SIGN_OF_LIFE: LazyLock<Bytes> = LazyLock::new(|| framed(br#"{"KeepAlive":true}"#));

thread_local! {
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Frames that several are told are packed once.
#[derive(Default)]
pub struct Packed(Mutex<Cache<FrameKey, Parts, KEPT>>);

impl Packed {
    fn encode(&self, frame: &Frame) -> Parts {
        let Some(key) = &frame.key else { return encode_frame(frame) };
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parts) = kept().get(key) {
            return parts.clone();
        }
        let parts = encode_frame(frame);
        let bytes = key.bytes() + parts.iter().map(Bytes::len).sum::<usize>();
        kept().insert(key.clone(), parts.clone(), bytes);
        parts
    }
}

/// A frame as clients read it: the text for it alone, and blocks that are packed already, are a frame
/// of zstd each, which clients unpack as one.
pub fn encode_frame(frame: &Frame) -> Parts {
    let (mut parts, mut text) = (Parts::new(), String::new());
    for part in frame.parts.iter() {
        match part {
            Part::Text(own) => text.push_str(own),
            Part::Shared(shared) => text.push_str(shared),
            Part::Block(block) => {
                if !text.is_empty() {
                    parts.push(pack(text.as_bytes()).into());
                    text.clear();
                }
                parts.push(block.packed(|text| pack(text.as_bytes()).into()));
            }
        }
    }
    parts.push(pack(text.as_bytes()).into());
    let length = length(parts.iter().map(Bytes::len).sum());
    parts[0] = [&length[..], &parts[0]].concat().into();
    parts
}

/// A frame of these words alone.
pub fn framed(text: &[u8]) -> Bytes {
    let packed = pack(text);
    [&length(packed.len())[..], &packed].concat().into()
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a map is shorter than 4 GiB").to_le_bytes()
}

fn pack(text: &[u8]) -> Vec<u8> {
    PACKER.with_borrow_mut(|packer| {
        let new = || zstd::bulk::Compressor::new(LEVEL).expect("the level is one");
        let packer = packer.get_or_insert_with(new);
        packer.compress(text).expect("a buffer in memory grows")
    })
}

/// Turns of the clients that are to be sent a whole map.
pub struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(WHOLE_MAPS))
    }
}

/// A stream of maps, and where it leads.
pub struct Stream {
    /// What it is to be told.
    pub session: Session,
    /// The connection that it is told by.
    pub visitor: Arc<Visitor>,
    /// To the client.
    pub to: mpsc::Sender<Next>,
}

impl Stream {
    /// Tells a client what changes, until either end has enough.
    pub async fn follow(mut self, server: Arc<Server>) {
        let (id, _held) = (self.session.node(), server.network.counted().streams.hold());
        let Ok(stream) = server.network.run(move |state, now| state.connect(id, now)).await else {
            return;
        };
        if self.begin(&server).await.is_some() {
            self.tell(&server).await;
        }
        let end = || server.network.run(move |state, now| state.disconnect(id, stream, now));
        // A node is not connected for ever because the database was gone when its stream ended.
        while end().await.is_err() {
            sleep(AGAIN).await;
        }
    }

    /// Tells a client the whole map, when it is its turn, and no more.
    pub async fn once(mut self, server: Arc<Server>) {
        let turn = tokio::select! {
            turn = turn(&self.visitor, &server) => turn,
            () = self.to.closed() => return,
        };
        let polled = server.network.read(|state| self.session.poll(state, now()));
        let (PollResult::Frame(frame) | PollResult::End(Some(frame))) = polled else { return };
        let (taken, mut was_taken) = oneshot::channel();
        if self.send(server.packed.encode(&frame), Some(taken)).await.is_some() {
            let (_own, of_all) = turn;
            // A client that reads slowly is waited for by those of its own connection.
            if timeout(TURN, &mut was_taken).await.is_err() {
                drop(of_all);
                let _ = was_taken.await;
            }
        }
    }

    /// Sends the first frame, when it is this stream's turn. `None`: that was all.
    async fn begin(&mut self, server: &Server) -> Option<()> {
        let mut turn = std::pin::pin!(turn(&self.visitor, server));
        let _turn = loop {
            tokio::select! {
                turn = &mut turn => break turn,
                () = sleep(next_sign()) => self.send(vec![SIGN_OF_LIFE.clone()], None).await?,
                () = self.to.closed() => return None,
            }
        };
        let polled = server.network.read(|state| self.session.poll(state, now()));
        let (taken, was_taken) = oneshot::channel();
        match polled {
            PollResult::Frame(frame) => {
                self.send(server.packed.encode(&frame), Some(taken)).await?;
                // Either way it is the next one's turn.
                let _ = timeout(TURN, was_taken).await;
                Some(())
            }
            PollResult::End(frame) => {
                self.send(server.packed.encode(&frame?), None).await?;
                None
            }
            PollResult::Nothing => Some(()),
        }
    }

    /// Tells what changes from then on, until either end has enough.
    async fn tell(&mut self, server: &Server) -> Option<()> {
        let mut changed = server.network.changed();
        let mut questions = server.pings.follow(self.session.node());
        let mut alive_at = Instant::now() + next_sign();
        loop {
            let end = *changed.borrow_and_update();
            let polled = server.network.read(|state| self.session.poll_until(state, end, now()));
            server.network.note_read();
            match polled {
                PollResult::Nothing => {}
                PollResult::Frame(frame) => {
                    self.send(server.packed.encode(&frame), None).await?;
                    alive_at = Instant::now() + next_sign();
                }
                PollResult::End(frame) => {
                    return self.send(server.packed.encode(&frame?), None).await;
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

/// Waits for leave to send a whole map. Of a connection's streams one at a time waits among those of
/// all.
async fn turn<'a>(
    visitor: &'a Visitor,
    server: &'a Server,
) -> (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>) {
    let own = visitor.first_map().await;
    (own, server.turns.0.acquire().await.ok())
}

/// When the next sign of life is due; not for all clients at once.
fn next_sign() -> Duration {
    let [least, most] = KEEP_ALIVE;
    let mut random = [0; 8];
    // Without randomness they come at the same time.
    let _ = getrandom::fill(&mut random);
    let spread = u64::from_le_bytes(random) % ((most - least) * 1000);
    Duration::from_millis(least * 1000 + spread)
}

#[cfg(test)]
mod tests {
    use tailnet::control::frame::FrameReader;

    use super::*;

    #[test]
    fn members_read_what_is_packed() {
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
