use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use netstack::{Clock, Config, CongestionControl, Stack, StackRecv, StackSend};
use packet::{
    Batch, Ecn, Endpoint, IpPacket, IpRecv, IpSend, RecvBatch, RecvMeta, Segments, Waker,
};
use tokio::time::Instant;

pub(crate) const A: [&str; 2] = ["10.0.0.1", "fd00::1"];
pub(crate) const B: [&str; 2] = ["10.0.0.2", "fd00::2"];
pub(crate) const MTU: u16 = 1420;

/// Decides whether a packet is delivered. It may change the packet.
pub(crate) type Filter = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// Counters of the wire.
#[derive(Default)]
pub(crate) struct Seen {
    pub packets: AtomicU64,
    pub segments: AtomicU64,
}

/// Two stacks and the threads between them.
pub(crate) struct Wire {
    pub a: Stack,
    pub b: Stack,
    pub from_a: Arc<Seen>,
    pub filter: Arc<Mutex<Filter>>,
    to_a: mpsc::Sender<Vec<u8>>,
    stop: Arc<AtomicBool>,
    wakers: [Waker; 2],
    threads: Vec<JoinHandle<()>>,
}

pub(crate) fn clock() -> Clock {
    let begin = Instant::now();
    Arc::new(move || begin.elapsed())
}

pub(crate) fn config(addresses: [&str; 2], memory: usize) -> Config {
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let control = CongestionControl::default();
    Config { addresses, mtu: MTU, memory, control, secret: 7, clock: clock() }
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self::with(config(A, 64 << 20), config(B, 64 << 20))
    }

    pub(crate) fn with(a: Config, b: Config) -> Self {
        let (a, a_recv, a_send) = Stack::new(a);
        let (b, b_recv, b_send) = Stack::new(b);
        let wakers = [a_recv.waker(), b_recv.waker()];
        let filter: Arc<Mutex<Filter>> = Arc::new(Mutex::new(Box::new(|_| true)));
        let stop = Arc::new(AtomicBool::new(false));
        let (from_a, from_b) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let (to_a, for_a) = mpsc::channel();
        let half = |recv, send, seen: &Arc<Seen>, more| {
            let half = Half { recv, send, filter: filter.clone(), seen: seen.clone(), more };
            let stop = stop.clone();
            let named = thread::Builder::new().name("wire".into());
            named.spawn(move || half.run(&stop)).unwrap()
        };
        let threads =
            vec![half(a_recv, b_send, &from_a, None), half(b_recv, a_send, &from_b, Some(for_a))];
        Self { a, b, from_a, filter, to_a, stop, wakers, threads }
    }

    pub(crate) fn filter(&self, filter: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) {
        *self.filter.lock().unwrap() = Box::new(filter);
    }

    /// Returns a sender for packets that arrive at the first stack together with the next ones from
    /// the wire.
    pub(crate) fn inject_a(&self) -> mpsc::Sender<Vec<u8>> {
        self.to_a.clone()
    }

    /// Stops the engines.
    pub(crate) fn cut(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(|waker| waker());
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cut();
    }
}

struct Half {
    recv: StackRecv,
    send: StackSend,
    filter: Arc<Mutex<Filter>>,
    seen: Arc<Seen>,
    more: Option<mpsc::Receiver<Vec<u8>>>,
}

impl Half {
    fn run(mut self, stop: &AtomicBool) {
        let mut batch = Batch::new(128, 2 * Batch::ROOM);
        let mut out = RecvBatch::new(128);
        while !stop.load(Ordering::Relaxed) {
            batch.clear();
            self.recv.recv(&mut batch, true).unwrap();
            let mut packets = Vec::new();
            for (packet, offload) in batch.iter() {
                let segments = Segments::new(packet, offload).unwrap();
                self.seen.packets.fetch_add(1, Ordering::Relaxed);
                self.seen.segments.fetch_add(segments.count() as u64, Ordering::Relaxed);
                for index in 0..segments.count() {
                    let mut bytes = vec![0; segments.segment_len(index)];
                    segments.write(index, &mut bytes);
                    assert!(bytes.len() <= usize::from(MTU), "longer than the MTU");
                    if (self.filter.lock().unwrap())(&mut bytes) {
                        packets.push(bytes);
                    }
                }
            }
            packets.extend(self.more.iter().flat_map(mpsc::Receiver::try_iter));
            for packets in packets.chunks(128) {
                let read = fill(&mut out, packets);
                self.send.send(&out, &read).unwrap();
            }
        }
    }
}

fn fill(batch: &mut RecvBatch, packets: &[Vec<u8>]) -> Vec<IpPacket> {
    batch.clear();
    for (slot, packet) in batch.slots_mut().zip(packets) {
        slot[..packet.len()].copy_from_slice(packet);
    }
    for packet in packets {
        let endpoint = Endpoint::new(([192, 0, 2, 1], 1).into());
        let len = packet.len();
        batch.commit(RecvMeta { len, stride: len, endpoint, ecn: Ecn::NotEct });
    }
    batch.datagrams().filter_map(|(span, _)| IpPacket::read(batch.bytes(), span).ok()).collect()
}

/// Waits until all packets of a stack so far have arrived. The second of two echo requests leaves
/// the stack in a later batch, and batches arrive in order.
pub(crate) async fn arrived(from: &Stack, to: &str) {
    for _ in 0..2 {
        soon(from.ping(to.parse().unwrap())).await.unwrap();
    }
}

/// Fails a test that hangs.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

/// Data without repetitions.
pub(crate) fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}
