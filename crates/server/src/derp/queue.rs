//! What waits for a client of the relay: 32 datagrams or 64 KiB of them, whichever is more, as much
//! of disco, and a few words of the relay's own. Who fills it waits a moment for the client's writer
//! ([`Queue::room`]). Where there is no more room then the oldest makes some: what is late is of the
//! least use.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tailnet::keys::NodePublic;
use tokio::{sync::Notify, time::timeout};

/// Of each kind (tailscale `derp/derpserver`, `perClientSendQueueDepth`).
const DEPTH: usize = 32;
/// Short ones are more: what one read of a sender brings, in bytes.
const ROOM: usize = 64 << 10;
/// How long a sender waits for a receiver that takes nothing; then not again before it takes some, as
/// others wait behind that sender's datagrams.
const PATIENCE: Duration = Duration::from_millis(5);

/// What is to be written to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A datagram, and whose it is.
    Packet(NodePublic, Bytes),
    /// A frame.
    Control(Bytes),
}

/// What waits for a client.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    some: Notify,
    taken: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    control: Line,
    disco: Line,
    data: Line,
    /// Somebody waited for room in vain since it was taken from.
    is_stuck: bool,
}

/// What waits of one kind.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Outgoing>,
    bytes: usize,
}

impl Outgoing {
    fn len(&self) -> usize {
        match self {
            Self::Packet(_, bytes) | Self::Control(bytes) => bytes.len(),
        }
    }
}

impl Line {
    fn is_full(&self) -> bool {
        self.waiting.len() >= DEPTH && self.bytes >= ROOM
    }

    fn put(&mut self, outgoing: Outgoing) {
        while self.is_full() {
            self.bytes -= self.waiting.pop_front().as_ref().map_or(0, Outgoing::len);
        }
        self.bytes += outgoing.len();
        self.waiting.push_back(outgoing);
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        [&self.control, &self.disco, &self.data].iter().all(|line| line.waiting.is_empty())
    }
}

impl Queue {
    /// A datagram comes. Whether whoever sends more waits for [`Queue::room`] first.
    pub fn packet(&self, from: NodePublic, bytes: Bytes, is_disco: bool) -> bool {
        let outgoing = Outgoing::Packet(from, bytes);
        self.put(outgoing, |waiting| if is_disco { &mut waiting.disco } else { &mut waiting.data })
    }

    /// The relay has something to say.
    pub fn control(&self, frame: Bytes) {
        self.put(Outgoing::Control(frame), |waiting| &mut waiting.control);
    }

    fn put(&self, outgoing: Outgoing, of: impl FnOnce(&mut Waiting) -> &mut Line) -> bool {
        let (was_empty, is_full) = {
            let mut waiting = self.waiting();
            let was_empty = waiting.is_empty();
            let line = of(&mut waiting);
            line.put(outgoing);
            let is_full = line.is_full();
            (was_empty, is_full && !waiting.is_stuck)
        };
        // Whoever takes takes all: it knows of what was there before.
        if was_empty {
            self.some.notify_one();
        }
        is_full
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

    /// Waits until there is something, and takes all of it. Nothing is lost when it is given up.
    pub async fn take(&self, into: &mut Vec<Outgoing>) {
        loop {
            let Waiting { control, disco, data, .. } = mem::take(&mut *self.waiting());
            into.extend([control, disco, data].into_iter().flat_map(|line| line.waiting));
            if !into.is_empty() {
                self.taken.notify_waiters();
                return;
            }
            self.some.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8) -> Outgoing {
        Outgoing::Packet(NodePublic([1; 32]), long(number))
    }

    /// A datagram of which the depth is more than there is room for.
    fn long(number: u8) -> Bytes {
        Bytes::from(vec![number; ROOM / DEPTH])
    }

    #[tokio::test]
    async fn the_oldest_makes_room_and_disco_has_its_own() {
        let queue = Queue::default();
        let from = NodePublic([1; 32]);
        for number in 0..100 {
            queue.packet(from, long(number), false);
        }
        queue.packet(from, long(200), true);
        queue.control(Bytes::from_static(b"x"));
        let mut taken = Vec::new();
        queue.take(&mut taken).await;
        assert_eq!(taken.len(), DEPTH + 2);
        assert_eq!(taken[0], Outgoing::Control(Bytes::from_static(b"x")));
        assert_eq!(taken[1..3], [packet(200), packet(100 - DEPTH as u8)]);
        assert_eq!(taken[DEPTH + 1], packet(99));
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let queue = std::sync::Arc::new(Queue::default());
        let waiting = std::sync::Arc::clone(&queue);
        let task = tokio::spawn(async move {
            let mut taken = Vec::new();
            waiting.take(&mut taken).await;
            taken
        });
        tokio::task::yield_now().await;
        queue.packet(NodePublic([1; 32]), long(7), false);
        assert_eq!(task.await.unwrap(), [packet(7)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_waits_for_room_and_for_a_client_that_takes_nothing_once() {
        let (queue, from) = (Queue::default(), NodePublic([1; 32]));
        let fill = || (0..100).filter(|number| queue.packet(from, long(*number), false)).count();
        assert!(fill() > 0);
        let begun = tokio::time::Instant::now();
        queue.room().await;
        assert_eq!((begun.elapsed(), fill()), (PATIENCE, 0), "it is not waited for again");
        queue.take(&mut Vec::new()).await;
        assert!(fill() > 0, "it takes again");
        let mut taken = Vec::new();
        tokio::join!(queue.room(), queue.take(&mut taken));
        assert_eq!((begun.elapsed(), taken.len()), (PATIENCE, DEPTH));
    }

    #[test]
    fn short_datagrams_are_more_than_long_ones() {
        let (queue, from) = (Queue::default(), NodePublic([1; 32]));
        let short = Bytes::from_static(&[7; 64]);
        let held = (0..).take_while(|_| !queue.packet(from, short.clone(), false)).count();
        assert_eq!(held + 1, ROOM / 64);
    }
}
