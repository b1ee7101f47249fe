//! Packets of this program's own to peers: the outbound half sends them as what the IP side gives,
//! without filter and queue.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::Waker;

use crate::lock;

/// How many wait at most: what is not answered is asked again.
const MOST: usize = 64;

/// What waits to be sent. Clones are the same.
#[derive(Clone, Default)]
pub struct OwnPackets(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    packets: Mutex<Vec<Vec<u8>>>,
    any: AtomicBool,
    waker: OnceLock<Waker>,
}

impl OwnPackets {
    /// Has a whole IP packet sent to the peer whose allowed IPs hold its destination. False where too
    /// many wait.
    pub fn push(&self, packet: Vec<u8>) -> bool {
        let mut packets = lock(&self.0.packets);
        if packets.len() >= MOST {
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

    /// Takes all; `None`, at the cost of one load, where there is none.
    pub(crate) fn take(&self) -> Option<Vec<Vec<u8>>> {
        if !self.0.any.load(Ordering::Acquire) {
            return None;
        }
        self.0.any.store(false, Ordering::Relaxed);
        Some(mem::take(&mut *lock(&self.0.packets)))
    }

    /// Says how to wake the outbound half. Only the first call counts.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let _ = self.0.waker.set(waker);
    }
}

impl fmt::Debug for OwnPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnPackets").field("waiting", &lock(&self.0.packets).len()).finish()
    }
}
