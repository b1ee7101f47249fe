//! Packets that wait for a session. The outbound half owns them. It alone sends data, so that later
//! packets do not overtake them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{PublicKey, constants::MAX_STAGED_PACKETS, peer::Peer};

/// Maximum number of staged bytes, of all peers together.
const MAX_STAGED_BYTES: usize = 16 << 20;

/// The staged packets of each peer, in order.
#[derive(Debug, Default)]
pub struct StagedPackets {
    queues: HashMap<PublicKey, VecDeque<Box<[u8]>>>,
    bytes: usize,
}

impl StagedPackets {
    /// Stages a copy of `packet`. Returns the number of packets dropped for it: the peer's oldest
    /// one if its queue is full, or the packet itself if the memory limit is reached.
    pub fn push(&mut self, peer: &Arc<Peer>, packet: &[u8]) -> u64 {
        if self.bytes + packet.len() > MAX_STAGED_BYTES {
            return 1;
        }
        let queue = self.queues.entry(*peer.public_key()).or_default();
        let oldest = if queue.len() >= MAX_STAGED_PACKETS { queue.pop_front() } else { None };
        queue.push_back(packet.into());
        self.bytes += packet.len();
        match oldest {
            Some(oldest) => {
                self.bytes -= oldest.len();
                1
            }
            None => 0,
        }
    }

    /// Whether `peer` has staged packets.
    pub fn has(&self, peer: &Peer) -> bool {
        self.queues.contains_key(peer.public_key())
    }

    /// Takes the staged packets of `peer`, oldest first.
    pub fn take(&mut self, peer: &Peer) -> VecDeque<Box<[u8]>> {
        let queue = self.queues.remove(peer.public_key()).unwrap_or_default();
        self.bytes -= queue.iter().map(|packet| packet.len()).sum::<usize>();
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_its_oldest_packets() {
        let peer = Peer::new([1; 32].into());
        let mut staged = StagedPackets::default();
        let dropped: u64 = (0..=u8::MAX).map(|n| staged.push(&peer, &[n])).sum();
        assert_eq!(dropped, 256 - MAX_STAGED_PACKETS as u64);
        let left: Vec<u8> = staged.take(&peer).iter().map(|packet| packet[0]).collect();
        assert_eq!(left, (128..=255).collect::<Vec<u8>>());
        assert!(!staged.has(&peer) && staged.bytes == 0);
    }

    #[test]
    fn staged_packets_of_many_peers_stay_within_the_memory_limit() {
        let mut staged = StagedPackets::default();
        let mut dropped = 0;
        for n in 0..200u8 {
            let peer = Peer::new([n; 32].into());
            dropped += (0..MAX_STAGED_PACKETS).map(|_| staged.push(&peer, &[0; 1420])).sum::<u64>();
        }
        assert!(staged.bytes <= MAX_STAGED_BYTES && dropped > 0);
    }
}
