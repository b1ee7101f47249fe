//! Packets that the outbound half has for the IP side: answers to what was too long for
//! its path. The inbound half writes them, as all that the IP side gets.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::{Ecn, Endpoint, RecvBatch, RecvMeta, Span, Waker};

use crate::lock;

/// How many wait at most; senders repeat what was not answered.
const MOST: usize = 32;

/// What waits.
pub(crate) struct Returned {
    packets: Mutex<Vec<Vec<u8>>>,
    any: AtomicBool,
    waker: Waker,
}

impl Returned {
    /// Nothing yet; `waker` wakes who writes them.
    pub fn new(waker: Waker) -> Self {
        Self { packets: Mutex::default(), any: AtomicBool::new(false), waker }
    }

    pub fn push(&self, packet: Vec<u8>) {
        let mut packets = lock(&self.packets);
        if packets.len() >= MOST {
            return;
        }
        packets.push(packet);
        self.any.store(true, Ordering::Release);
        drop(packets);
        (self.waker)();
    }

    /// Takes all into a batch as an IP side's half writes it; `None` where there is none.
    pub fn take(&self) -> Option<(RecvBatch, Vec<Span>)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.any.store(false, Ordering::Relaxed);
        let packets = mem::take(&mut *lock(&self.packets));
        let mut batch = RecvBatch::new(1);
        let mut spans = Vec::with_capacity(packets.len());
        let slot = batch.slots_mut().next().expect("a batch of one slot");
        let mut start = 0;
        for packet in packets {
            slot[start..start + packet.len()].copy_from_slice(&packet);
            spans.push(Span { start, len: packet.len() });
            start += packet.len();
        }
        let endpoint = Endpoint::new(([0, 0, 0, 0], 0).into());
        batch.commit(RecvMeta { len: start, stride: start, endpoint, ecn: Ecn::NotEct });
        Some((batch, spans))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU32};

    use super::*;

    #[test]
    fn what_waits_is_bounded_and_the_longest_answers_fit_a_slot() {
        let wakes = Arc::new(AtomicU32::new(0));
        let woken = wakes.clone();
        let returned = Returned::new(Arc::new(move || _ = woken.fetch_add(1, Ordering::Relaxed)));
        assert!(returned.take().is_none());
        (0..100).for_each(|number| returned.push(vec![number; 1280]));
        assert_eq!(wakes.load(Ordering::Relaxed), MOST as u32);
        let (batch, spans) = returned.take().unwrap();
        let numbers: Vec<u8> = spans.iter().map(|span| batch.get(*span)[1279]).collect();
        assert_eq!(numbers, (0..MOST as u8).collect::<Vec<_>>());
        assert!(returned.take().is_none());
    }
}
