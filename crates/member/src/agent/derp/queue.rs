//! The queue of datagrams to a region. It is short, so that a relay adds little delay to a path.
//!
//! Disco messages and handshakes go first: they are few, and the data depends on them.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use tailnet::{
    derp::{MAX_PACKET, SEND_OVERHEAD, write_bundles, write_packet},
    disco,
    keys::NodePublic,
};
use tokio::time::Instant;

/// The longest wait of data. Older data is dropped, which its sender's congestion control notices.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// The most bytes of data: 50 ms at 168 Mbit/s, and for faster connections the burst between two
/// writes.
const MAX_BYTES: usize = 1 << 20;
/// The limits of disco messages and handshakes. A handshake is repeated after 5 s.
const MAX_URGENT_BYTES: usize = 64 << 10;
const MAX_URGENT_WAIT: Duration = Duration::from_secs(5);
/// The bytes of frames in one write. With 16 KiB, throughput was 7 % lower, and a relay, which
/// queues 32 datagrams per receiver, lost as many.
pub(super) const WRITE_SIZE: usize = 64 << 10;
/// The longest urgent datagram. A longer disco message (CallMeMaybe with many addresses) is data.
const MAX_URGENT_LEN: usize = 2 << 10;

/// Datagrams to one peer.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// The time of their arrival.
    pub at: Instant,
    /// The peer.
    pub to: NodePublic,
    /// The datagrams, back to back.
    pub bytes: Bytes,
    /// The length of each but the last.
    pub segment: usize,
    /// Whether to send them in one frame.
    pub bundled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    urgent: Fifo,
    data: Fifo,
    dropped: u64,
}

#[derive(Debug, Default)]
struct Fifo {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Queue {
    /// Adds datagrams, unless the queue is full.
    pub(super) fn push(&mut self, chunk: Chunk) {
        let longest = chunk.segment.min(chunk.bytes.len());
        if longest == 0 || longest > MAX_PACKET {
            return;
        }
        let (fifo, max_bytes) = if is_urgent(&chunk.bytes) {
            (&mut self.urgent, MAX_URGENT_BYTES)
        } else {
            (&mut self.data, MAX_BYTES)
        };
        let bytes = chunk.weight();
        if fifo.bytes + bytes > max_bytes {
            self.dropped += 1;
            return;
        }
        fifo.bytes += bytes;
        fifo.chunks.push_back(chunk);
    }

    /// The number of dropped chunks.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.urgent.chunks.is_empty() && self.data.chunks.is_empty()
    }

    /// Drops expired chunks before a connection is opened.
    pub(super) fn expire(&mut self, now: Instant) {
        self.drop_old(MAX_URGENT_WAIT, now);
    }

    /// A connection was opened: the wait of the data starts now.
    pub(super) fn begin(&mut self, now: Instant) {
        self.expire(now);
        self.data.chunks.iter_mut().for_each(|chunk| chunk.at = now);
    }

    /// Moves frames to `out` until it has [`WRITE_SIZE`] bytes.
    pub(super) fn take(&mut self, out: &mut BytesMut, now: Instant) {
        self.drop_old(MAX_WAIT, now);
        for fifo in [&mut self.urgent, &mut self.data] {
            while out.len() < WRITE_SIZE
                && let Some(chunk) = fifo.pop()
            {
                chunk.write(out);
            }
        }
    }

    fn drop_old(&mut self, max_wait: Duration, now: Instant) {
        for (fifo, longest) in [(&mut self.urgent, MAX_URGENT_WAIT), (&mut self.data, max_wait)] {
            while let Some(chunk) = fifo.chunks.front()
                && now.saturating_duration_since(chunk.at) > longest
            {
                fifo.pop();
                self.dropped += 1;
            }
        }
    }
}

impl Fifo {
    fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.weight();
        Some(chunk)
    }
}

impl Chunk {
    fn write(&self, out: &mut BytesMut) {
        if self.bundled {
            return write_bundles(out, &self.to, &self.bytes, self.segment);
        }
        for datagram in self.bytes.chunks(self.segment) {
            write_packet(out, &self.to, datagram);
        }
    }

    /// Its length as frames.
    fn weight(&self) -> usize {
        self.bytes.len() + self.bytes.len().div_ceil(self.segment) * SEND_OVERHEAD
    }
}

/// Whether it is a disco message or a WireGuard handshake message.
fn is_urgent(bytes: &[u8]) -> bool {
    let is_handshake = matches!(bytes.first_chunk(), Some([1..=3, 0, 0, 0]));
    bytes.len() <= MAX_URGENT_LEN && (is_handshake || bytes.starts_with(&disco::MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: NodePublic = NodePublic([1; 32]);

    fn chunk(at: Instant, len: usize, segment: usize) -> Chunk {
        let mut bytes = vec![0; len];
        bytes[0] = 4;
        Chunk { at, to: TO, bytes: bytes.into(), segment, bundled: false }
    }

    fn take(queue: &mut Queue, now: Instant) -> BytesMut {
        let mut out = BytesMut::new();
        queue.take(&mut out, now);
        out
    }

    #[test]
    fn chunk_becomes_one_frame_per_datagram() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 2500, 1000));
        let mut expected = BytesMut::new();
        let bytes = chunk(now, 2500, 1000).bytes;
        bytes.chunks(1000).for_each(|datagram| write_packet(&mut expected, &TO, datagram));
        assert_eq!(take(&mut queue, now), expected);
        assert!(queue.is_empty() && queue.data.bytes == 0);
    }

    #[test]
    fn stale_data_is_dropped_and_a_handshake_is_not() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 1000, 1000));
        queue.push(Chunk { bytes: Bytes::from_static(&[1, 0, 0, 0, 9]), ..chunk(now, 9, 9) });
        let later = now + MAX_WAIT + Duration::from_millis(1);
        assert_eq!(take(&mut queue, later).len(), SEND_OVERHEAD + 5);
        assert!(queue.is_empty());
        assert_eq!(queue.dropped, 1);
    }

    #[test]
    fn datagrams_queued_before_a_connection_are_sent_unless_expired() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 1000, 1000));
        let later = now + Duration::from_secs(6);
        queue.push(chunk(later - Duration::from_secs(1), 300, 300));
        queue.begin(later);
        assert_eq!(take(&mut queue, later).len(), SEND_OVERHEAD + 300);
    }

    #[test]
    fn queue_is_bounded_and_disco_has_its_own_limit() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for _ in 0..100 {
            queue.push(chunk(now, 60_000, 1200));
        }
        assert!(queue.data.bytes <= MAX_BYTES && queue.dropped > 0);
        let call = [&disco::MAGIC[..], &[0; 100]].concat();
        for _ in 0..1000 {
            queue.push(Chunk { bytes: call.clone().into(), ..chunk(now, 106, 106) });
        }
        assert!(queue.urgent.bytes <= MAX_URGENT_BYTES);
        let first = take(&mut queue, now);
        assert_eq!(first[SEND_OVERHEAD..][..6], disco::MAGIC, "first");
    }

    #[test]
    fn empty_and_oversized_chunks_are_not_queued() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 10, 0));
        queue.push(Chunk { bytes: Bytes::new(), ..chunk(now, 1, 1) });
        queue.push(chunk(now, MAX_PACKET + 1, MAX_PACKET + 1));
        assert!(queue.is_empty());
    }
}
