//! Answers from the outbound half to the IP side: ICMP errors to packets that exceed their path's
//! MTU. The inbound half writes them, as it writes all packets to the IP side.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::{Ecn, Endpoint, IpPacket, RecvBatch, RecvMeta, Span, Waker};

use crate::lock;

/// Capacity. Senders repeat packets without an answer.
const CAPACITY: usize = 32;

/// The queue of answers.
pub(crate) struct IcmpErrors {
    packets: Mutex<Vec<Vec<u8>>>,
    any: AtomicBool,
    waker: Waker,
}

impl IcmpErrors {
    /// Creates an empty queue. `waker` wakes the inbound half.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { packets: Mutex::default(), any: AtomicBool::new(false), waker }
    }

    pub(crate) fn push(&self, packet: Vec<u8>) {
        let mut packets = lock(&self.packets);
        if packets.len() >= CAPACITY {
            return;
        }
        packets.push(packet);
        self.any.store(true, Ordering::Release);
        drop(packets);
        (self.waker)();
    }

    /// Removes all answers, as a batch for [`packet::IpSend`]. Returns `None` if the queue is
    /// empty.
    pub(crate) fn take(&self) -> Option<(RecvBatch, Vec<IpPacket>)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.any.store(false, Ordering::Relaxed);
        let packets = mem::take(&mut *lock(&self.packets));
        let mut batch = RecvBatch::new(1);
        let mut returned = Vec::with_capacity(packets.len());
        let slot = batch.slots_mut().next().expect("a batch of one slot");
        let mut start = 0;
        for packet in packets {
            slot[start..start + packet.len()].copy_from_slice(&packet);
            returned.extend(IpPacket::read(slot, Span { start, len: packet.len() }));
            start += packet.len();
        }
        let endpoint = Endpoint::new(([0, 0, 0, 0], 0).into());
        batch.commit(RecvMeta { len: start, stride: start, endpoint, ecn: Ecn::NotEct });
        Some((batch, returned))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU32};

    use super::*;

    #[test]
    fn the_queue_is_bounded_and_the_longest_answers_fit_a_slot() {
        let wakes = Arc::new(AtomicU32::new(0));
        let woken = wakes.clone();
        let returned = IcmpErrors::new(Arc::new(move || _ = woken.fetch_add(1, Ordering::Relaxed)));
        assert!(returned.take().is_none());
        let packet = |number| {
            let mut packet = vec![number; 1280];
            packet[..4].copy_from_slice(&[0x45, 0, 5, 0]);
            packet
        };
        (0..100).for_each(|number| returned.push(packet(number)));
        assert_eq!(wakes.load(Ordering::Relaxed), CAPACITY as u32);
        let (batch, packets) = returned.take().unwrap();
        let number = |packet: &IpPacket| batch.get(packet.span)[1279];
        let numbers: Vec<u8> = packets.iter().map(number).collect();
        assert_eq!(numbers, (0..CAPACITY as u8).collect::<Vec<_>>());
        assert!(returned.take().is_none());
    }
}
