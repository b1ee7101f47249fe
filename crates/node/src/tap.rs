//! Captures of packets inside the tunnel.
//!
//! ```text
//!   engine's threads -- Observer::observe, copy --> chunks, at most 4 MiB --> Capture
//! ```
//!
//! While a capture runs, the packets of each batch are copied as pcapng blocks. Packets beyond the
//! memory limit are dropped and counted. The data path waits only for the lock of the list of
//! captures, which is held briefly when one starts or ends.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use engine::{Clock, ObservedPackets, Observer};
use packet::pcapng::{self, CapturedPacket, Statistics};

use config::uapi::CaptureOptions;

/// The most unread bytes of a capture: 10 ms at 3 Gbit/s, so that a reader may lose a core for a
/// while.
const MAX_PENDING_BYTES: usize = 4 << 20;
/// The overhead of a chunk, in bytes.
const CHUNK_OVERHEAD: usize = 128;
/// The most captures at once. Each costs memory and copies.
const MAX_CAPTURES: usize = 4;

/// The limit of captures is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCaptures;

/// The capture point of a data plane.
pub struct Tap {
    on: Arc<AtomicBool>,
    /// Captures that were not dropped, including ended ones.
    open: AtomicUsize,
    clock: Clock,
    captures: RwLock<Vec<ActiveCapture>>,
}

/// The data plane's end of a capture. Dropping it ends the capture for the reader.
struct ActiveCapture {
    options: CaptureOptions,
    chunks: Sender<Chunk>,
    shared: Arc<Shared>,
}

/// The state that both ends of a capture share.
struct Shared {
    /// Bytes that may still be stored.
    room_left: AtomicUsize,
    received: AtomicU64,
    dropped: AtomicU64,
    /// Dropped packets that no block has reported yet.
    unreported: AtomicU64,
    began: Duration,
}

/// The reader's end of a capture. The capture runs until this is dropped or [`CaptureEnd`] ends it.
pub struct Capture {
    chunks: Mutex<Receiver<Chunk>>,
    end: CaptureEnd,
}

/// Ends a capture, from any thread.
#[derive(Clone)]
pub struct CaptureEnd {
    tap: Arc<Tap>,
    shared: Arc<Shared>,
}

/// Blocks of pcapng. Dropping it frees their share of the memory limit.
pub struct Chunk {
    bytes: Vec<u8>,
    reserved: usize,
    shared: Arc<Shared>,
}

impl Tap {
    /// A tap without captures. `clock` provides the timestamps.
    pub fn new(clock: Clock) -> Self {
        Self { on: Arc::default(), open: AtomicUsize::new(0), clock, captures: RwLock::default() }
    }

    /// Starts a capture.
    ///
    /// # Errors
    /// [`TooManyCaptures`].
    pub fn capture(self: &Arc<Self>, options: CaptureOptions) -> Result<Capture, TooManyCaptures> {
        let (sender, chunks) = channel();
        let shared = Arc::new(Shared {
            room_left: AtomicUsize::new(MAX_PENDING_BYTES),
            received: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            began: (self.clock)().wall,
        });
        let capture = ActiveCapture { options, chunks: sender, shared: shared.clone() };
        let mut all = self.captures.write().unwrap_or_else(PoisonError::into_inner);
        if self.open.load(Ordering::Relaxed) >= MAX_CAPTURES {
            return Err(TooManyCaptures);
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        all.push(capture);
        self.on.store(true, Ordering::Relaxed);
        drop(all);
        let end = CaptureEnd { tap: self.clone(), shared };
        Ok(Capture { chunks: Mutex::new(chunks), end })
    }
}

impl Observer for Tap {
    fn wanted(&self) -> &Arc<AtomicBool> {
        &self.on
    }

    fn observe(&self, ObservedPackets { at, direction, peer, packets }: ObservedPackets<'_>) {
        for capture in &*self.captures.read().unwrap_or_else(PoisonError::into_inner) {
            if capture.options.peer.as_ref().is_some_and(|wanted| Some(wanted) != peer) {
                continue;
            }
            // A capture of one peer needs only packets.
            let reported = peer.filter(|_| capture.options.peer.is_none());
            let comment =
                reported.map(|key| format!("peer {}", key.to_base64())).unwrap_or_default();
            let seen = CapturedPacket { at, direction, packet: &[], dropped: 0, comment: &comment };
            capture.store(seen, packets);
        }
    }
}

impl ActiveCapture {
    /// Stores packets up to the memory limit.
    fn store(&self, seen: CapturedPacket<'_>, packets: &[&[u8]]) {
        let (shared, snaplen) = (&self.shared, self.options.snaplen);
        let cost = |packet: &[u8]| {
            pcapng::max_packet_block_len(packet.len().min(snaplen), seen.comment.len())
        };
        let (mut stored, mut bytes, mut all) = (0, 0, 0);
        for packet in packets {
            let next = bytes + cost(packet) + if stored == 0 { CHUNK_OVERHEAD } else { 0 };
            if all == stored && shared.reserve(next - bytes) {
                (stored, bytes) = (stored + 1, next);
            }
            all += 1;
        }
        shared.received.fetch_add(all, Ordering::Relaxed);
        shared.dropped.fetch_add(all - stored, Ordering::Relaxed);
        if stored > 0 {
            let mut chunk = Chunk {
                bytes: Vec::with_capacity(bytes - CHUNK_OVERHEAD),
                reserved: bytes,
                shared: shared.clone(),
            };
            let mut dropped = shared.unreported.swap(0, Ordering::Relaxed);
            for packet in packets.iter().take(stored as usize) {
                pcapng::packet(
                    &mut chunk.bytes,
                    CapturedPacket { packet, dropped, ..seen },
                    snaplen,
                );
                dropped = 0;
            }
            // The reader may be gone; its drop removes the capture from the list.
            let _ = self.chunks.send(chunk);
        }
        shared.unreported.fetch_add(all - stored, Ordering::Relaxed);
    }
}

impl Shared {
    /// Reserves memory, if available.
    fn reserve(&self, bytes: usize) -> bool {
        let less = |room_left: usize| room_left.checked_sub(bytes);
        self.room_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Capture {
    /// Waits for the next packets; `None` when the capture has ended and everything was read.
    pub fn next(&self) -> Option<Chunk> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// The handle that ends it.
    pub fn end(&self) -> &CaptureEnd {
        &self.end
    }

    /// The present statistics.
    pub fn statistics(&self) -> Statistics {
        let Shared { received, dropped, began, .. } = &*self.end.shared;
        Statistics {
            started: *began,
            finished: (self.end.tap.clock)().wall,
            received: received.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end.end();
        self.end.tap.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CaptureEnd {
    /// Stops capturing. Stored packets can still be read.
    pub fn end(&self) {
        let mut all = self.tap.captures.write().unwrap_or_else(PoisonError::into_inner);
        let here = all.iter().position(|capture| Arc::ptr_eq(&capture.shared, &self.shared));
        let ended = here.map(|here| all.swap_remove(here));
        self.tap.on.store(!all.is_empty(), Ordering::Relaxed);
        drop(all);
        // Wakes the reader without the lock.
        drop(ended);
    }
}

impl Chunk {
    /// Complete blocks of pcapng.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.room_left.fetch_add(self.reserved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use packet::pcapng::{Block, Direction};
    use wg::{Now, PublicKey, Time};

    use super::*;

    const ALL: CaptureOptions = CaptureOptions { snaplen: 1 << 18, peer: None };
    const AT: Duration = Duration::from_secs(1_700_000_000);

    fn tap() -> Arc<Tap> {
        Arc::new(Tap::new(Arc::new(move || Now { time: Time::from_nanos(1), wall: AT })))
    }

    fn show(tap: &Tap, peer: Option<&PublicKey>, packets: &[&[u8]]) {
        if tap.wanted().load(Ordering::Relaxed) {
            tap.observe(ObservedPackets { at: AT, direction: Direction::Inbound, peer, packets });
        }
    }

    /// The block of each packet.
    fn blocks(capture: &Capture) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        capture.end().end();
        while let Some(chunk) = capture.next() {
            let mut rest = chunk.bytes();
            while let Some(Block::Packet(len)) = pcapng::parse_block_header(rest) {
                let (this, behind) = rest.split_at(len);
                packets.push(this.to_vec());
                rest = behind;
            }
            assert!(rest.is_empty());
        }
        packets
    }

    fn word(block: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
    }

    /// The original length of each packet, and the number of packets lost before it.
    fn read(capture: &Capture) -> Vec<(u32, u64)> {
        let packet = |block: &Vec<u8>| {
            let options = 28 + word(block, 20).next_multiple_of(4) as usize;
            // The option after the flags.
            let lost = word(block, options + 8) == 0x0008_0004;
            (word(block, 24), if lost { word(block, options + 12).into() } else { 0 })
        };
        blocks(capture).iter().map(packet).collect()
    }

    /// A captured packet.
    #[derive(Debug, PartialEq)]
    struct Frame {
        outbound: bool,
        len: usize,
        bytes: Vec<u8>,
        comment: String,
    }

    fn frame(block: &[u8]) -> Frame {
        let (stored, len) = (word(block, 20) as usize, word(block, 24) as usize);
        let flags = 28 + stored.next_multiple_of(4);
        assert_eq!(word(block, flags), 0x0004_0002);
        let (head, mut comment) = (word(block, flags + 8) as usize, String::new());
        if head & 0xffff == 1 {
            let at = flags + 12;
            comment = String::from_utf8(block[at..at + (head >> 16)].to_vec()).unwrap();
        }
        let bytes = block[28..28 + stored].to_vec();
        Frame { outbound: word(block, flags + 4) == 2, len, bytes, comment }
    }

    #[test]
    fn captured_packet_has_direction_peer_and_at_most_snaplen_bytes() {
        let tap = tap();
        let peer = PublicKey::from([1; 32]);
        let whole = tap.capture(ALL).unwrap();
        let cut = tap.capture(CaptureOptions { snaplen: 40, ..ALL }).unwrap();
        let of_one = tap.capture(CaptureOptions { peer: Some(peer), ..ALL }).unwrap();
        let packet = [7; 1380];
        for direction in [Direction::Outbound, Direction::Inbound] {
            let shown =
                ObservedPackets { at: AT, direction, peer: Some(&peer), packets: &[&packet] };
            tap.observe(shown);
        }
        let comment = format!("peer {}", peer.to_base64());
        for (capture, stored, comment) in
            [(whole, 1380, &*comment), (cut, 40, &comment), (of_one, 1380, "")]
        {
            let frame_of = |outbound| Frame {
                outbound,
                len: 1380,
                bytes: vec![7; stored],
                comment: comment.to_owned(),
            };
            let statistics = capture.statistics();
            assert_eq!((statistics.received, statistics.dropped), (2, 0));
            let frames: Vec<_> = blocks(&capture).iter().map(|block| frame(block)).collect();
            assert_eq!(frames, [frame_of(true), frame_of(false)]);
        }
    }

    #[test]
    fn observer_is_off_without_a_capture() {
        let tap = tap();
        let looks = || tap.wanted().load(Ordering::Relaxed);
        assert!(!looks());
        let captures = [tap.capture(ALL), tap.capture(ALL)].map(Result::unwrap);
        assert!(looks());
        let [first, second] = captures;
        drop(first);
        assert!(looks());
        second.end().end();
        assert!(!looks());
        assert!(second.next().is_none());
    }

    #[test]
    fn each_capture_gets_each_packet_and_a_fifth_is_refused() {
        let tap = tap();
        let mut captures: Vec<_> = (0..MAX_CAPTURES).map(|_| tap.capture(ALL).unwrap()).collect();
        assert_eq!(tap.capture(ALL).err(), Some(TooManyCaptures));
        show(&tap, None, &[&[1; 20], &[2; 30]]);
        for capture in &captures {
            assert_eq!(read(capture), [(20, 0), (30, 0)]);
        }
        captures.clear();
        assert!(tap.capture(ALL).is_ok());
    }

    #[test]
    fn capture_of_one_peer_has_only_its_packets() {
        let tap = tap();
        let [one, other] = [[1; 32], [2; 32]].map(PublicKey::from);
        let of_one = tap.capture(CaptureOptions { peer: Some(one), ..ALL }).unwrap();
        let of_all = tap.capture(ALL).unwrap();
        show(&tap, Some(&one), &[&[1; 21]]);
        show(&tap, Some(&other), &[&[1; 22]]);
        show(&tap, None, &[&[1; 23]]);
        assert_eq!(read(&of_one), [(21, 0)]);
        assert_eq!(read(&of_all), [(21, 0), (22, 0), (23, 0)]);
    }

    #[test]
    fn slow_reader_causes_counted_drops_and_reading_frees_memory() {
        let tap = tap();
        let capture = tap.capture(ALL).unwrap();
        let packet = [0; 60_000];
        let fit = MAX_PENDING_BYTES / 60_500;
        for _ in 0..fit / 2 + 10 {
            show(&tap, None, &[&packet, &packet]);
        }
        let Statistics { received, dropped, .. } = capture.statistics();
        let stored = received - dropped;
        assert!(dropped > 0 && (fit as u64 - 2..=fit as u64 + 2).contains(&stored), "{stored}");
        let first = capture.next().unwrap();
        show(&tap, None, &[&packet]);
        assert_eq!(capture.statistics().dropped, dropped + 1, "it is not read yet");
        drop(first);
        show(&tap, None, &[&packet, &[1; 7]]);
        let packets = read(&capture);
        let reported: u64 = packets.iter().map(|(_, lost)| lost).sum();
        assert_eq!(reported, dropped + 1);
        assert_eq!(packets[packets.len() - 2..], [(60_000, dropped + 1), (7, 0)]);
        assert_eq!(capture.end.shared.room_left.load(Ordering::Relaxed), MAX_PENDING_BYTES);
    }

    #[test]
    fn small_packets_stay_within_the_memory_limit() {
        let tap = tap();
        let capture = tap.capture(CaptureOptions { snaplen: 0, ..ALL }).unwrap();
        for _ in 0..100_000 {
            show(&tap, None, &[&[1; 28]]);
        }
        let taken: usize = std::iter::from_fn(|| {
            capture.end().end();
            capture.next()
        })
        .map(|chunk| chunk.bytes.capacity() + size_of::<Chunk>())
        .sum();
        assert!((MAX_PENDING_BYTES / 4..=MAX_PENDING_BYTES).contains(&taken), "{taken}");
    }
}
