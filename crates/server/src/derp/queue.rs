//! What waits for a client of the relay, as frames that are ready to be written: 32 datagrams or 64
//! KiB of them, whichever is more, as much of disco, and a few words of the relay's own. A sender
//! waits a moment for the client's writer ([`Queue::room`]). Where there is no more room then the
//! oldest makes some: what is late is of the least use.
//!
//! ```text
//!   read buffer of a sender ── one copy, a run of frames under one lock ──► line ── swapped ──► writer
//! ```

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use tailnet::{
    derp::{HEADER_LEN, kind, mesh::write_forward},
    disco,
    keys::NodePublic,
};
use tokio::{sync::Notify, time::timeout};

use crate::counted;

/// Of each kind (tailscale `derp/derpserver`, `perClientSendQueueDepth`).
const DEPTH: usize = 32;
/// Short ones are more: what one read of a sender brings, in bytes.
const ROOM: usize = 64 << 10;
/// The same for another relay, which has many clients.
const ROOM_OF_RELAY: usize = 512 << 10;
/// The most that a relay of the mesh is behind with what clients are connected, in bytes: some
/// 150,000 clients.
const MOST_PRESENCE: usize = 8 << 20;
/// How long a sender waits for a receiver that takes nothing; then not again before it takes some, as
/// others wait behind that sender's datagrams.
const PATIENCE: Duration = Duration::from_millis(5);

/// What waits for a client.
#[derive(Debug)]
pub struct Queue {
    counted: &'static counted::Relay,
    waiting: Mutex<Waiting>,
    some: Notify,
    taken: Notify,
}

#[derive(Debug)]
struct Waiting {
    control: Line,
    disco: Line,
    data: Line,
    /// Which clients are connected: of this nothing may be lost.
    presence: BytesMut,
    /// A sender waited for room in vain since it was taken from.
    is_stuck: bool,
    /// The relay that it is for is too far behind to be told which clients are connected.
    is_lost: bool,
}

/// What waits of one kind: frames, and the length of each.
#[derive(Debug)]
struct Line {
    frames: BytesMut,
    lengths: VecDeque<usize>,
    room: usize,
}

/// A queue while it is filled.
pub struct Filling<'q> {
    queue: &'q Queue,
    waiting: Option<MutexGuard<'q, Waiting>>,
    was_empty: bool,
    /// How many datagrams came, and their bytes.
    came: [u64; 2],
    /// How many made room for them.
    lost: u64,
}

/// A relay of the mesh is too far behind to be told which clients are connected.
#[derive(Debug)]
pub struct Lost;

impl Line {
    fn new(room: usize) -> Self {
        Self { frames: BytesMut::new(), lengths: VecDeque::new(), room }
    }

    fn is_full(&self) -> bool {
        self.lengths.len() >= DEPTH && self.frames.len() >= self.room
    }

    /// How many made room for it.
    fn put(&mut self, write: impl FnOnce(&mut BytesMut)) -> u64 {
        let mut lost = 0;
        while self.is_full() {
            let oldest = self.lengths.pop_front().unwrap_or_default();
            self.frames.advance(oldest);
            lost += 1;
        }
        let before = self.frames.len();
        write(&mut self.frames);
        self.lengths.push_back(self.frames.len() - before);
        lost
    }
}

impl Waiting {
    fn lines(&mut self) -> [&mut Line; 3] {
        [&mut self.control, &mut self.disco, &mut self.data]
    }

    fn is_empty(&mut self) -> bool {
        self.presence.is_empty() && self.lines().iter().all(|line| line.frames.is_empty())
    }
}

impl Queue {
    /// One for a client.
    pub fn new(counted: &'static counted::Relay) -> Self {
        Self::with_room(ROOM, counted)
    }

    /// One for another relay.
    pub fn of_relay(counted: &'static counted::Relay) -> Self {
        Self::with_room(ROOM_OF_RELAY, counted)
    }

    fn with_room(room: usize, counted: &'static counted::Relay) -> Self {
        let [control, disco, data] = [ROOM, room, room].map(Line::new);
        let presence = BytesMut::new();
        let waiting = Waiting { control, disco, data, presence, is_stuck: false, is_lost: false };
        Self { counted, waiting: Mutex::new(waiting), some: Notify::new(), taken: Notify::new() }
    }

    /// Begins to fill it. Nothing is taken from it meanwhile.
    pub fn fill(&self) -> Filling<'_> {
        let mut waiting = self.waiting();
        let was_empty = waiting.is_empty();
        Filling { queue: self, waiting: Some(waiting), was_empty, came: [0; 2], lost: 0 }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all was taken, or for a moment.
    pub async fn room(&self) {
        let taken = self.taken.notified();
        if !self.waiting().data.is_full() {
            return;
        }
        if timeout(PATIENCE, taken).await.is_err() {
            self.waiting().is_stuck = true;
        }
    }

    /// Waits until there is something, and has `out`, which is empty, be all of it. Nothing is lost
    /// when it is given up.
    ///
    /// # Errors
    /// The client is too far behind.
    pub async fn take(&self, out: &mut BytesMut) -> Result<(), Lost> {
        loop {
            if self.take_some(out)? {
                self.taken.notify_waiters();
                return Ok(());
            }
            self.some.notified().await;
        }
    }

    fn take_some(&self, out: &mut BytesMut) -> Result<bool, Lost> {
        let mut waiting = self.waiting();
        if waiting.is_lost {
            return Err(Lost);
        }
        waiting.is_stuck = false;
        if !waiting.presence.is_empty() {
            out.unsplit(mem::take(&mut waiting.presence));
        }
        for line in waiting.lines() {
            line.lengths.clear();
            // Mostly there are but datagrams: then nothing is copied.
            if out.is_empty() {
                mem::swap(out, &mut line.frames);
            } else {
                out.extend_from_slice(&line.frames);
            }
            line.frames.clear();
        }
        Ok(!out.is_empty())
    }

    /// Gives back the memory of a queue that is empty.
    pub fn release(&self) {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            for line in waiting.lines() {
                *line = Line::new(line.room);
            }
        }
    }
}

impl Filling<'_> {
    /// A datagram comes for the client. Whether its sender waits for [`Queue::room`] before more.
    pub fn packet(&mut self, from: &NodePublic, datagram: &[u8]) -> bool {
        self.put(datagram, |out| write_received(out, from, datagram))
    }

    /// A datagram comes for a client of the relay that this one's queue is of.
    pub fn forward(&mut self, from: &NodePublic, to: &NodePublic, datagram: &[u8]) -> bool {
        self.put(datagram, |out| write_forward(out, from, to, datagram))
    }

    /// The relay has something to say.
    pub fn control(&mut self, frame: &[u8]) {
        self.lost += self.waiting().control.put(|out| out.extend_from_slice(frame));
    }

    /// The relay says which clients are connected or not any more.
    pub fn presence(&mut self, frame: &[u8]) {
        let waiting = self.waiting();
        if waiting.presence.len() + frame.len() > MOST_PRESENCE {
            waiting.is_lost = true;
        } else {
            waiting.presence.extend_from_slice(frame);
        }
    }

    fn put(&mut self, datagram: &[u8], write: impl FnOnce(&mut BytesMut)) -> bool {
        self.came = [self.came[0] + 1, self.came[1] + datagram.len() as u64];
        let waiting = self.waiting();
        let is_disco = datagram.starts_with(&disco::MAGIC);
        let line = if is_disco { &mut waiting.disco } else { &mut waiting.data };
        let lost = line.put(write);
        let waits = !is_disco && waiting.data.is_full() && !waiting.is_stuck;
        self.lost += lost;
        waits
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.as_mut().expect("it is given back at the end")
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let is_empty = self.waiting().is_empty();
        // To take from it needs the lock.
        self.waiting = None;
        let counted = self.queue.counted;
        counted.datagrams.add(self.came[0]);
        counted.bytes.add(self.came[1]);
        counted.queue_full.add(self.lost);
        // All is taken at once: what was there before is known of.
        if self.was_empty && !is_empty {
            self.queue.some.notify_one();
        }
    }
}

/// Writes a datagram as its receiver reads it, behind what is in `out`.
fn write_received(out: &mut BytesMut, from: &NodePublic, datagram: &[u8]) {
    let length = from.0.len() + datagram.len();
    out.reserve(HEADER_LEN + length);
    out.put_u8(kind::RECV_PACKET);
    out.put_u32(u32::try_from(length).expect("datagrams that were read are short"));
    out.extend_from_slice(&from.0);
    out.extend_from_slice(datagram);
}

#[cfg(test)]
mod tests {
    use tailnet::derp::{Decoder, FromRelay};

    use super::*;

    const FROM: NodePublic = NodePublic([1; 32]);

    /// A datagram of which the depth is more than there is room for.
    fn long(number: u8) -> Vec<u8> {
        vec![number; ROOM / DEPTH]
    }

    fn disco(number: u8) -> Vec<u8> {
        [&disco::MAGIC[..], &[number]].concat()
    }

    /// The datagrams that were taken, by their last bytes; what is none is a 0.
    async fn taken(queue: &Queue) -> Vec<u8> {
        let (mut out, mut decoder) = (BytesMut::new(), Decoder::default());
        queue.take(&mut out).await.unwrap();
        std::iter::from_fn(|| decoder.poll_frame(&mut out).unwrap())
            .map(|(kind, contents)| match FromRelay::read(kind, contents) {
                Ok(Some(FromRelay::Packet { from: FROM, bytes })) => *bytes.last().unwrap(),
                _ => 0,
            })
            .collect()
    }

    #[tokio::test]
    async fn the_oldest_makes_room_and_disco_has_its_own() {
        let queue = Queue::new(counted::of_tests());
        for number in 0..100 {
            queue.fill().packet(&FROM, &long(number));
        }
        queue.fill().packet(&FROM, &disco(200));
        queue.fill().control(&[kind::KEEP_ALIVE, 0, 0, 0, 0]);
        let taken = taken(&queue).await;
        assert_eq!(taken[..3], [0, 200, 100 - DEPTH as u8]);
        assert_eq!((taken.len(), taken.last()), (DEPTH + 2, Some(&99)));
    }

    #[tokio::test]
    async fn a_writer_that_waits_is_woken() {
        let queue = std::sync::Arc::new(Queue::new(counted::of_tests()));
        let waiting = std::sync::Arc::clone(&queue);
        let task = tokio::spawn(async move { taken(&waiting).await });
        tokio::task::yield_now().await;
        let mut filling = queue.fill();
        filling.packet(&FROM, &long(7));
        filling.packet(&FROM, &long(8));
        drop(filling);
        assert_eq!(task.await.unwrap(), [7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_waits_for_room_and_for_a_client_that_takes_nothing_once() {
        let queue = Queue::new(counted::of_tests());
        let fill = || (0..100).filter(|number| queue.fill().packet(&FROM, &long(*number))).count();
        assert!(fill() > 0);
        let begun = tokio::time::Instant::now();
        queue.room().await;
        assert_eq!((begun.elapsed(), fill()), (PATIENCE, 0), "it is not waited for again");
        taken(&queue).await;
        assert!(fill() > 0, "it takes again");
        let ((), taken) = tokio::join!(queue.room(), taken(&queue));
        assert_eq!((begun.elapsed(), taken.len()), (PATIENCE, DEPTH));
    }

    #[test]
    fn short_datagrams_are_more_than_long_ones() {
        let queue = Queue::new(counted::of_tests());
        let held = (0..).take_while(|_| !queue.fill().packet(&FROM, &[7; 64])).count();
        assert!(held * (64 + 37) >= ROOM - (64 + 37) && held > 10 * DEPTH, "{held}");
    }

    #[test]
    fn a_queue_has_bounded_memory_whatever_comes() {
        let long = [&disco::MAGIC[..], &vec![7; (64 << 10) - disco::MAGIC.len()]].concat();
        for queue in [Queue::new(counted::of_tests()), Queue::of_relay(counted::of_tests())] {
            for length in [64 << 10, 1 << 10, 64, 0] {
                for _ in 0..20_000 / (1 + length / 64) + 100 {
                    let mut filling = queue.fill();
                    filling.packet(&FROM, &vec![8; length]);
                    filling.packet(&FROM, &long[..length.max(disco::MAGIC.len())]);
                    filling.control(&[kind::KEEP_ALIVE, 0, 0, 0, 0]);
                }
            }
            let mut waiting = queue.waiting();
            let bytes: usize = waiting.lines().iter().map(|line| line.frames.capacity()).sum();
            assert!(bytes <= 9 << 20, "{bytes}");
        }
    }

    #[tokio::test]
    async fn of_what_clients_are_connected_nothing_is_lost_without_notice() {
        let (queue, mut out) = (Queue::new(counted::of_tests()), BytesMut::new());
        let frame = [7; 56];
        (0..10_000).for_each(|_| queue.fill().presence(&frame));
        queue.take(&mut out).await.unwrap();
        assert_eq!(out.len(), 10_000 * frame.len());
        out.clear();
        (0..MOST_PRESENCE / 56 + 1).for_each(|_| queue.fill().presence(&frame));
        assert!(queue.take(&mut out).await.is_err());
    }

    #[tokio::test]
    async fn an_idle_queue_has_no_memory() {
        let queue = Queue::new(counted::of_tests());
        for number in 0..40 {
            queue.fill().packet(&FROM, &long(number));
        }
        queue.release();
        assert_eq!(taken(&queue).await.len(), DEPTH, "what waits is kept");
        queue.release();
        let mut waiting = queue.waiting();
        assert!(waiting.lines().iter().all(|line| line.frames.capacity() == 0));
    }
}
