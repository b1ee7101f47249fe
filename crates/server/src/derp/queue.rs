//! What waits for a client of the relay: 32 datagrams, 32 of disco, and a few words of the relay's
//! own. Where there is no more room the oldest makes some: what is late is of the least use.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use tailnet::keys::NodePublic;
use tokio::sync::Notify;

/// Of each kind (tailscale `derp/derpserver`, `perClientSendQueueDepth`).
const DEPTH: usize = 32;

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
}

#[derive(Debug, Default)]
struct Waiting {
    control: VecDeque<Outgoing>,
    disco: VecDeque<Outgoing>,
    data: VecDeque<Outgoing>,
}

impl Queue {
    /// A datagram comes.
    pub fn packet(&self, from: NodePublic, bytes: Bytes, is_disco: bool) {
        let outgoing = Outgoing::Packet(from, bytes);
        self.put(outgoing, |waiting| if is_disco { &mut waiting.disco } else { &mut waiting.data });
    }

    /// The relay has something to say.
    pub fn control(&self, frame: Bytes) {
        self.put(Outgoing::Control(frame), |waiting| &mut waiting.control);
    }

    fn put(&self, outgoing: Outgoing, of: impl FnOnce(&mut Waiting) -> &mut VecDeque<Outgoing>) {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = of(&mut waiting);
            if queue.len() >= DEPTH {
                queue.pop_front();
            }
            queue.push_back(outgoing);
        }
        self.some.notify_one();
    }

    /// Waits until there is something, and takes all of it. Nothing is lost when it is given up.
    pub async fn take(&self, into: &mut Vec<Outgoing>) {
        loop {
            let taken = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                mem::take(&mut *waiting)
            };
            let Waiting { control, disco, data } = taken;
            into.extend(control.into_iter().chain(disco).chain(data));
            if !into.is_empty() {
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
        Outgoing::Packet(NodePublic([1; 32]), Bytes::from(vec![number]))
    }

    #[tokio::test]
    async fn the_oldest_makes_room_and_disco_has_its_own() {
        let queue = Queue::default();
        let from = NodePublic([1; 32]);
        for number in 0..100 {
            queue.packet(from, Bytes::from(vec![number]), false);
        }
        queue.packet(from, Bytes::from(vec![200]), true);
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
        queue.packet(NodePublic([1; 32]), Bytes::from_static(&[7]), false);
        assert_eq!(task.await.unwrap(), [packet(7)]);
    }
}
