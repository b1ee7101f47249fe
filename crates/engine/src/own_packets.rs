//! Packets from this program to peers. The outbound half sends them like packets from the IP side,
//! but without filter and queue.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::Waker;

use crate::lock;

/// Capacity. Requests without an answer are repeated.
const CAPACITY: usize = 64;

/// The queue of packets. Clones share it.
#[derive(Clone, Default)]
pub struct OwnPackets(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    packets: Mutex<Vec<Vec<u8>>>,
    any: AtomicBool,
    waker: OnceLock<Waker>,
}

impl OwnPackets {
    /// Queues an IP packet for the peer with the allowed IP of its destination. Returns false if
    /// the queue is full.
    pub fn push(&self, packet: Vec<u8>) -> bool {
        let mut packets = lock(&self.0.packets);
        if packets.len() >= CAPACITY {
            return false;
        }
        packets.push(packet);
        self.0.any.store(true, Ordering::Release);
        drop(packets);
        if let Some(waker) = self.0.waker.get() {
            waker();
        }
        true
    }

    /// Removes all packets. Returns `None`, after one load, if the queue is empty.
    pub(crate) fn take(&self) -> Option<Vec<Vec<u8>>> {
        if !self.0.any.load(Ordering::Acquire) {
            return None;
        }
        self.0.any.store(false, Ordering::Relaxed);
        Some(mem::take(&mut *lock(&self.0.packets)))
    }

    /// Sets the waker of the outbound half. Only the first call has an effect.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let _ = self.0.waker.set(waker);
    }
}

impl fmt::Debug for OwnPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnPackets").field("waiting", &lock(&self.0.packets).len()).finish()
    }
}
