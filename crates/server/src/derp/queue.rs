//! Queue of frames for a client of the relay. It holds 32 datagrams or 64 KiB of them, whichever is
//! more, the same of disco messages, and a few control frames. If it is full, a sender waits a
//! moment for the client's writer ([`Queue::wait_for_room`]). If it is still full, the oldest
//! datagrams are dropped, because late datagrams are the least useful.
//!
//! ```text
//!   read buffer of a sender ── one copy, a run of frames under one lock ──► queue ── swapped ──► writer
//! ```

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use tailnet::{
    derp::{HEADER_LEN, kind, relay_mesh::write_forward},
    disco,
    keys::NodePublic,
};
use tokio::{sync::Notify, time::timeout};

use crate::network::counters;

/// Number of datagrams of each kind (tailscale `derp/derpserver`, `perClientSendQueueDepth`).
const DEPTH: usize = 32;
/// Size for short datagrams, in bytes: one read of a sender.
const ROOM: usize = 64 << 10;
/// The same for another relay, which has many clients.
const ROOM_OF_RELAY: usize = 512 << 10;
/// Maximum size of unsent presence frames for a relay of the mesh, in bytes: about 150,000 clients.
const MOST_PRESENCE: usize = 8 << 20;
/// How long a sender waits for a receiver that reads nothing. It does not wait again before the
/// receiver reads, because other receivers wait for the sender's next datagrams.
const PATIENCE: Duration = Duration::from_millis(5);

/// The queue of a client.
#[derive(Debug)]
pub(super) struct Queue {
    counters: &'static counters::RelayCounters,
    waiting: Mutex<Waiting>,
    ready: Notify,
    taken: Notify,
}

#[derive(Debug)]
struct Waiting {
    control: FrameQueue,
    disco: FrameQueue,
    data: FrameQueue,
    /// Which clients are connected. These frames must not be dropped.
    presence: BytesMut,
    /// A sender waited without success since the queue was last read.
    is_stuck: bool,
    /// The receiving relay is too far behind with presence frames.
    has_overflowed: bool,
}

/// Queued frames of one kind, with the length of each.
#[derive(Debug)]
struct FrameQueue {
    frames: BytesMut,
    lengths: VecDeque<usize>,
    room: usize,
}

/// Exclusive access to a queue while frames are added.
pub(super) struct Filling<'q> {
    queue: &'q Queue,
    waiting: Option<MutexGuard<'q, Waiting>>,
    was_empty: bool,
    /// Number of added datagrams, and their bytes.
    added: [u64; 2],
    /// Number of dropped datagrams.
    dropped: u64,
}

/// A relay of the mesh is too far behind with presence frames.
#[derive(Debug)]
pub(super) struct OverflowError;

impl FrameQueue {
    fn new(room: usize) -> Self {
        Self { frames: BytesMut::new(), lengths: VecDeque::new(), room }
    }

    fn is_full(&self) -> bool {
        self.lengths.len() >= DEPTH && self.frames.len() >= self.room
    }

    /// Adds a frame. Returns the number of dropped frames.
    fn put(&mut self, write: impl FnOnce(&mut BytesMut)) -> u64 {
        let mut dropped = 0;
        while self.is_full() {
            let oldest = self.lengths.pop_front().unwrap_or_default();
            self.frames.advance(oldest);
            dropped += 1;
        }
        let before = self.frames.len();
        write(&mut self.frames);
        self.lengths.push_back(self.frames.len() - before);
        dropped
    }
}

impl Waiting {
    fn frame_queues(&mut self) -> [&mut FrameQueue; 3] {
        [&mut self.control, &mut self.disco, &mut self.data]
    }

    fn is_empty(&mut self) -> bool {
        self.presence.is_empty() && self.frame_queues().iter().all(|line| line.frames.is_empty())
    }
}

impl Queue {
    /// Creates the queue of a client.
    pub(super) fn new(counters: &'static counters::RelayCounters) -> Self {
        Self::with_room(ROOM, counters)
    }

    /// Creates the queue of another relay.
    pub(super) fn of_relay(counters: &'static counters::RelayCounters) -> Self {
        Self::with_room(ROOM_OF_RELAY, counters)
    }

    fn with_room(room: usize, counters: &'static counters::RelayCounters) -> Self {
        let [control, disco, data] = [ROOM, room, room].map(FrameQueue::new);
        let presence = BytesMut::new();
        let waiting =
            Waiting { control, disco, data, presence, is_stuck: false, has_overflowed: false };
        Self { counters, waiting: Mutex::new(waiting), ready: Notify::new(), taken: Notify::new() }
    }

    /// Locks the queue for adding frames.
    pub(super) fn fill(&self) -> Filling<'_> {
        let mut waiting = self.waiting();
        let was_empty = waiting.is_empty();
        Filling { queue: self, waiting: Some(waiting), was_empty, added: [0; 2], dropped: 0 }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queue is read, or for a moment.
    pub(super) async fn wait_for_room(&self) {
        let taken = self.taken.notified();
        if !self.waiting().data.is_full() {
            return;
        }
        if timeout(PATIENCE, taken).await.is_err() {
            self.waiting().is_stuck = true;
        }
    }

    /// Waits until frames are queued, and moves all of them into `out`, which is empty. No frame
    /// is lost if the future is dropped.
    ///
    /// # Errors
    /// The client is too far behind.
    pub(super) async fn take(&self, out: &mut BytesMut) -> Result<(), OverflowError> {
        loop {
            if self.take_some(out)? {
                self.taken.notify_waiters();
                return Ok(());
            }
            self.ready.notified().await;
        }
    }

    fn take_some(&self, out: &mut BytesMut) -> Result<bool, OverflowError> {
        let mut waiting = self.waiting();
        if waiting.has_overflowed {
            return Err(OverflowError);
        }
        waiting.is_stuck = false;
        if !waiting.presence.is_empty() {
            out.unsplit(mem::take(&mut waiting.presence));
        }
        for line in waiting.frame_queues() {
            line.lengths.clear();
            // Usually, only datagrams are queued, and nothing is copied.
            if out.is_empty() {
                mem::swap(out, &mut line.frames);
            } else {
                out.extend_from_slice(&line.frames);
            }
            line.frames.clear();
        }
        Ok(!out.is_empty())
    }

    /// Frees the memory of an empty queue.
    pub(super) fn release(&self) {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            for line in waiting.frame_queues() {
                *line = FrameQueue::new(line.room);
            }
        }
    }
}

impl Filling<'_> {
    /// Adds a datagram for the client. Returns whether its sender should call
    /// [`Queue::wait_for_room`].
    pub(super) fn packet(&mut self, from: &NodePublic, datagram: &[u8]) -> bool {
        self.put(datagram, |out| write_received(out, from, datagram))
    }

    /// Adds a datagram for a client of the relay at the other end.
    pub(super) fn forward(&mut self, from: &NodePublic, to: &NodePublic, datagram: &[u8]) -> bool {
        self.put(datagram, |out| write_forward(out, from, to, datagram))
    }

    /// Adds a control frame.
    pub(super) fn control(&mut self, frame: &[u8]) {
        self.dropped += self.waiting().control.put(|out| out.extend_from_slice(frame));
    }

    /// Adds a frame about clients that connected or disconnected.
    pub(super) fn presence(&mut self, frame: &[u8]) {
        let waiting = self.waiting();
        if waiting.presence.len() + frame.len() > MOST_PRESENCE {
            waiting.has_overflowed = true;
        } else {
            waiting.presence.extend_from_slice(frame);
        }
    }

    fn put(&mut self, datagram: &[u8], write: impl FnOnce(&mut BytesMut)) -> bool {
        self.added = [self.added[0] + 1, self.added[1] + datagram.len() as u64];
        let waiting = self.waiting();
        let is_disco = datagram.starts_with(&disco::MAGIC);
        let line = if is_disco { &mut waiting.disco } else { &mut waiting.data };
        let dropped = line.put(write);
        let must_wait = !is_disco && waiting.data.is_full() && !waiting.is_stuck;
        self.dropped += dropped;
        must_wait
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.as_mut().expect("it is given back at the end")
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let is_empty = self.waiting().is_empty();
        // Reading the queue needs the lock.
        self.waiting = None;
        let counters = self.queue.counters;
        counters.datagrams.add(self.added[0]);
        counters.bytes.add(self.added[1]);
        counters.queue_full.add(self.dropped);
        // Everything is read at once: earlier frames have already woken the reader.
        if self.was_empty && !is_empty {
            self.queue.ready.notify_one();
        }
    }
}

/// Appends a datagram in the form that its receiver reads.
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

    /// A datagram of which [`DEPTH`] exceed the queue's size.
    fn long(number: u8) -> Vec<u8> {
        vec![number; ROOM / DEPTH]
    }

    fn disco(number: u8) -> Vec<u8> {
        [&disco::MAGIC[..], &[number]].concat()
    }

    /// Reads the queue and returns the last byte of each datagram, and 0 for other frames.
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
    async fn a_full_queue_drops_its_oldest_and_disco_has_its_own_queue() {
        let queue = Queue::new(counters::for_tests());
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
        let queue = std::sync::Arc::new(Queue::new(counters::for_tests()));
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
    async fn a_sender_waits_only_once_for_a_stuck_client() {
        let queue = Queue::new(counters::for_tests());
        let fill = || (0..100).filter(|number| queue.fill().packet(&FROM, &long(*number))).count();
        assert!(fill() > 0);
        let begun = tokio::time::Instant::now();
        queue.wait_for_room().await;
        assert_eq!((begun.elapsed(), fill()), (PATIENCE, 0), "it does not wait again");
        taken(&queue).await;
        assert!(fill() > 0, "it reads again");
        let ((), taken) = tokio::join!(queue.wait_for_room(), taken(&queue));
        assert_eq!((begun.elapsed(), taken.len()), (PATIENCE, DEPTH));
    }

    #[test]
    fn a_queue_holds_more_short_datagrams_than_long_ones() {
        let queue = Queue::new(counters::for_tests());
        let held = (0..).take_while(|_| !queue.fill().packet(&FROM, &[7; 64])).count();
        assert!(held * (64 + 37) >= ROOM - (64 + 37) && held > 10 * DEPTH, "{held}");
    }

    #[test]
    fn a_queue_has_bounded_memory_whatever_comes() {
        let long = [&disco::MAGIC[..], &vec![7; (64 << 10) - disco::MAGIC.len()]].concat();
        for queue in [Queue::new(counters::for_tests()), Queue::of_relay(counters::for_tests())] {
            for length in [64 << 10, 1 << 10, 64, 0] {
                for _ in 0..20_000 / (1 + length / 64) + 100 {
                    let mut filling = queue.fill();
                    filling.packet(&FROM, &vec![8; length]);
                    filling.packet(&FROM, &long[..length.max(disco::MAGIC.len())]);
                    filling.control(&[kind::KEEP_ALIVE, 0, 0, 0, 0]);
                }
            }
            let mut waiting = queue.waiting();
            let bytes: usize =
                waiting.frame_queues().iter().map(|line| line.frames.capacity()).sum();
            assert!(bytes <= 9 << 20, "{bytes}");
        }
    }

    #[tokio::test]
    async fn presence_frames_are_never_dropped_silently() {
        let (queue, mut out) = (Queue::new(counters::for_tests()), BytesMut::new());
        let frame = [7; 56];
        (0..10_000).for_each(|_| queue.fill().presence(&frame));
        queue.take(&mut out).await.unwrap();
        assert_eq!(out.len(), 10_000 * frame.len());
        out.clear();
        (0..=(MOST_PRESENCE / 56)).for_each(|_| queue.fill().presence(&frame));
        assert!(queue.take(&mut out).await.is_err());
    }

    #[tokio::test]
    async fn releasing_an_idle_queue_frees_its_memory() {
        let queue = Queue::new(counters::for_tests());
        for number in 0..40 {
            queue.fill().packet(&FROM, &long(number));
        }
        queue.release();
        assert_eq!(taken(&queue).await.len(), DEPTH, "queued frames remain");
        queue.release();
        let mut waiting = queue.waiting();
        assert!(waiting.frame_queues().iter().all(|line| line.frames.capacity() == 0));
    }
}
