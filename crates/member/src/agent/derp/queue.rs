//! What waits to be sent through a region: short, so that a relay adds no second to a path.
//!
//! Disco and handshakes go first: they are few, and what waits behind them depends on them.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use tailnet::{
    derp::{MAX_PACKET, SEND_OVERHEAD, write_bundles, write_packet},
    disco,
    keys::NodePublic,
};
use tokio::time::Instant;

/// Data that waited longer is dropped: its sender's congestion control learns of it by that.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// The most bytes of data that wait: 50 ms at 168 Mbit/s, and for faster connections the burst that
/// comes between two writes.
const MOST: usize = 1 << 20;
/// The same of disco and handshakes, and how long they wait. A handshake is repeated after 5 s.
const MOST_URGENT: usize = 64 << 10;
const LONGEST_URGENT: Duration = Duration::from_secs(5);
/// Frames of one write. With 16 KiB throughput was lower by 7 %, and a relay, which keeps 32 datagrams
/// for a receiver, lost as many.
pub const TOGETHER: usize = 64 << 10;
/// The longest urgent datagram: a call with many addresses is longer, and is none of those.
const URGENT: usize = 2 << 10;

/// Datagrams to one peer.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// When they came.
    pub at: Instant,
    /// The peer.
    pub to: NodePublic,
    /// The datagrams, back to back.
    pub bytes: Bytes,
    /// The length of each but the last.
    pub segment: usize,
    /// Whether they go in one frame.
    pub bundled: bool,
}

/// What waits.
#[derive(Debug, Default)]
pub struct Queue {
    urgent: Line,
    data: Line,
    /// So many chunks were dropped.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Line {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Queue {
    /// Adds datagrams, unless there are too many already.
    pub fn push(&mut self, chunk: Chunk) {
        let longest = chunk.segment.min(chunk.bytes.len());
        if longest == 0 || longest > MAX_PACKET {
            return;
        }
        let (line, most) = if is_urgent(&chunk.bytes) {
            (&mut self.urgent, MOST_URGENT)
        } else {
            (&mut self.data, MOST)
        };
        let bytes = chunk.weight();
        if line.bytes + bytes > most {
            self.dropped += 1;
            return;
        }
        line.bytes += bytes;
        line.chunks.push_back(chunk);
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.urgent.chunks.is_empty() && self.data.chunks.is_empty()
    }

    /// Drops what is of no more use, though there was no connection.
    pub fn expire(&mut self, now: Instant) {
        self.drop_old(LONGEST_URGENT, now);
    }

    /// A connection is there at last: what waited for it waits from now on for its turn.
    pub fn begin(&mut self, now: Instant) {
        self.expire(now);
        self.data.chunks.iter_mut().for_each(|chunk| chunk.at = now);
    }

    /// Moves frames to `out` until it has [`TOGETHER`] bytes.
    pub fn take(&mut self, out: &mut BytesMut, now: Instant) {
        self.drop_old(LONGEST_WAIT, now);
        for line in [&mut self.urgent, &mut self.data] {
            while out.len() < TOGETHER
                && let Some(chunk) = line.pop()
            {
                chunk.write(out);
            }
        }
    }

    fn drop_old(&mut self, longest_wait: Duration, now: Instant) {
        for (line, longest) in [(&mut self.urgent, LONGEST_URGENT), (&mut self.data, longest_wait)]
        {
            while let Some(chunk) = line.chunks.front()
                && now.saturating_duration_since(chunk.at) > longest
            {
                line.pop();
                self.dropped += 1;
            }
        }
    }
}

impl Line {
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

    /// What it weighs as frames.
    fn weight(&self) -> usize {
        self.bytes.len() + self.bytes.len().div_ceil(self.segment) * SEND_OVERHEAD
    }
}

/// Whether it is one datagram of disco, or one of WireGuard that carries no data.
fn is_urgent(bytes: &[u8]) -> bool {
    let is_handshake = matches!(bytes.first_chunk(), Some([1..=3, 0, 0, 0]));
    bytes.len() <= URGENT && (is_handshake || bytes.starts_with(&disco::MAGIC))
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
    fn a_chunk_becomes_a_frame_a_datagram() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 2500, 1000));
        let mut expected = BytesMut::new();
        let bytes = chunk(now, 2500, 1000).bytes;
        bytes.chunks(1000).for_each(|datagram| write_packet(&mut expected, &TO, datagram));
        assert_eq!(take(&mut queue, now), expected);
        assert!(queue.is_empty() && queue.data.bytes == 0);
    }

    #[test]
    fn data_that_waited_too_long_is_dropped_and_a_handshake_is_not() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 1000, 1000));
        queue.push(Chunk { bytes: Bytes::from_static(&[1, 0, 0, 0, 9]), ..chunk(now, 9, 9) });
        let later = now + LONGEST_WAIT + Duration::from_millis(1);
        assert_eq!(take(&mut queue, later).len(), SEND_OVERHEAD + 5);
        assert!(queue.is_empty());
        assert_eq!(queue.dropped, 1);
    }

    #[test]
    fn what_waited_for_a_connection_is_sent_unless_it_is_of_no_more_use() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 1000, 1000));
        let later = now + Duration::from_secs(6);
        queue.push(chunk(later - Duration::from_secs(1), 300, 300));
        queue.begin(later);
        assert_eq!(take(&mut queue, later).len(), SEND_OVERHEAD + 300);
    }

    #[test]
    fn what_waits_is_bounded_and_disco_has_room_of_its_own() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for _ in 0..100 {
            queue.push(chunk(now, 60_000, 1200));
        }
        assert!(queue.data.bytes <= MOST && queue.dropped > 0);
        let call = [&disco::MAGIC[..], &[0; 100]].concat();
        for _ in 0..1000 {
            queue.push(Chunk { bytes: call.clone().into(), ..chunk(now, 106, 106) });
        }
        assert!(queue.urgent.bytes <= MOST_URGENT);
        let first = take(&mut queue, now);
        assert_eq!(first[SEND_OVERHEAD..][..6], disco::MAGIC, "first");
    }

    #[test]
    fn what_is_no_datagram_is_not_sent() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(chunk(now, 10, 0));
        queue.push(Chunk { bytes: Bytes::new(), ..chunk(now, 1, 1) });
        queue.push(chunk(now, MAX_PACKET + 1, MAX_PACKET + 1));
        assert!(queue.is_empty());
    }
}
