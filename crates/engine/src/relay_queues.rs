//! Queues of datagrams to and from peers behind relays.
//!
//! ```text
//!   outbound, slow path -- runs to relayed endpoints --> RelayQueues -- recv ---> relay
//!   inbound <-- slots of the batch, after the socket's --- RelayQueues <- inject -- client
//! ```
//!
//! A relayed endpoint is an index into this table, which keeps endpoints small. Only the relay
//! client adds entries; datagrams from the network cannot. Both queues are bounded in bytes, and
//! the data plane waits for neither.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use packet::{
    Ecn, Endpoint, RecvBatch, RecvMeta, RelayId, Remote, SendBatch, SendError, Transmit, Waker,
};

use crate::lock;

/// Capacity of each queue in bytes: 50 ms at 168 Mbit/s. For faster relays it must hold the TCP
/// bursts between two turns of a thread (256 KiB lost 4 % at 950 Mbit/s). A longer queue would only
/// drop older datagrams.
const CAPACITY: usize = 1 << 20;
/// Overhead of a queued run, in bytes.
const OVERHEAD: usize = 128;
/// Capacity of the table.
const MAX_ENTRIES: usize = 1 << 16;

/// A peer behind a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayPeer {
    /// Number of the relay's region, known to both peers.
    pub region: u16,
    /// The peer's key, which addresses it at the relay.
    pub key: [u8; 32],
}

/// A run of datagrams to one peer behind a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayRun {
    /// The receiver.
    pub to: RelayPeer,
    /// The datagrams, back to back.
    pub bytes: Vec<u8>,
    /// Length of each datagram except the last, in bytes.
    pub segment: usize,
}

/// Reason for which datagrams from a relay were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectError {
    /// The sender is not in the table.
    Unknown,
    /// They are longer than a slot of a batch.
    TooLong,
    /// The queue is full.
    Full,
}

/// The queues and the table between a data plane and the relay client. Clones share them.
#[derive(Clone)]
pub struct RelayQueues(Arc<State>);

struct State {
    table: Mutex<Table>,
    to_relays: Mutex<ToRelays>,
    filled: Condvar,
    from_relays: Mutex<FromRelays>,
    /// Whether datagrams from relays are waiting.
    any: AtomicBool,
    wake_inbound: Waker,
}

#[derive(Default)]
struct Table {
    peers: Vec<Option<RelayPeer>>,
    ids: HashMap<RelayPeer, RelayId>,
    free: Vec<RelayId>,
}

#[derive(Default)]
struct ToRelays {
    runs: VecDeque<RelayRun>,
    bytes: usize,
    /// Set when no client receives any more.
    closed: bool,
}

#[derive(Default)]
struct FromRelays {
    runs: VecDeque<Injected>,
    bytes: usize,
    /// Datagrams that did not fit and are not reported yet.
    dropped: u64,
}

/// A run of datagrams from one peer behind a relay.
struct Injected {
    from: RelayId,
    /// Back to back.
    bytes: Vec<u8>,
    /// Length of each datagram except the last, in bytes.
    segment: usize,
    ecn: Ecn,
}

impl Injected {
    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }

    fn datagrams(&self) -> u64 {
        self.bytes.len().div_ceil(self.segment).max(1) as u64
    }
}

impl RelayQueues {
    /// Creates empty queues. `wake_inbound` ends the wait of the inbound half.
    pub fn new(wake_inbound: Waker) -> Self {
        Self(Arc::new(State {
            table: Mutex::default(),
            to_relays: Mutex::default(),
            filled: Condvar::new(),
            from_relays: Mutex::default(),
            any: AtomicBool::new(false),
            wake_inbound,
        }))
    }

    /// The endpoint of a peer, which is added to the table if absent. Returns `None` if the table
    /// is full.
    pub fn endpoint(&self, peer: RelayPeer) -> Option<Endpoint> {
        let mut table = lock(&self.0.table);
        if let Some(id) = table.ids.get(&peer) {
            return Some(Endpoint::relayed(*id));
        }
        let id = match table.free.pop() {
            Some(id) => id,
            None if table.peers.len() >= MAX_ENTRIES => return None,
            None => {
                table.peers.push(None);
                RelayId::new(table.peers.len() as u32 - 1)
            }
        };
        table.peers[id.index()] = Some(peer);
        table.ids.insert(peer, id);
        Some(Endpoint::relayed(id))
    }

    /// Removes a peer from the table. Its endpoint must not be in use any more, because another
    /// peer may get it.
    pub fn remove(&self, peer: &RelayPeer) {
        let mut table = lock(&self.0.table);
        if let Some(id) = table.ids.remove(peer) {
            table.peers[id.index()] = None;
            table.free.push(id);
        }
    }

    /// The peer of an endpoint in this table.
    pub fn peer(&self, endpoint: &Endpoint) -> Option<RelayPeer> {
        let Remote::Relayed(id) = endpoint.remote else { return None };
        lock(&self.0.table).peers.get(id.index()).copied().flatten()
    }

    /// Waits for datagrams to send through a relay. Returns `None` after the timeout, or if the
    /// queues are closed.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<RelayRun> {
        let queue = lock(&self.0.to_relays);
        let (mut queue, _) = self
            .0
            .filled
            .wait_timeout_while(queue, timeout, |queue| queue.runs.is_empty() && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let run = queue.runs.pop_front()?;
        queue.bytes -= run.bytes.len() + OVERHEAD;
        Some(run)
    }

    /// Ends the wait of the relay client permanently.
    pub fn close(&self) {
        lock(&self.0.to_relays).closed = true;
        self.0.filled.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        lock(&self.0.to_relays).closed
    }

    /// Passes datagrams from a relay to the data plane, back to back. Each except the last has
    /// `segment` bytes.
    ///
    /// # Errors
    /// The datagrams were not accepted. The data plane counts those that did not fit.
    pub fn inject(
        &self,
        from: &RelayPeer,
        bytes: Vec<u8>,
        segment: usize,
    ) -> Result<(), InjectError> {
        let from = lock(&self.0.table).ids.get(from).copied().ok_or(InjectError::Unknown)?;
        if bytes.len() > packet::MAX_PACKET {
            return Err(InjectError::TooLong);
        }
        let run = Injected { from, bytes, segment: segment.max(1), ecn: Ecn::NotEct };
        let mut queue = lock(&self.0.from_relays);
        let fits = queue.push(run);
        self.0.any.store(true, Ordering::Release);
        drop(queue);
        (self.0.wake_inbound)();
        if fits { Ok(()) } else { Err(InjectError::Full) }
    }

    /// Passes datagrams from a peer's own socket ([`crate::PeerSockets`]) to the data plane, as if
    /// they came from the endpoint `from`. Datagrams from other addresses than `at` are ignored.
    /// The data plane counts those that did not fit.
    pub fn inject_batch(&self, from: &Endpoint, at: SocketAddr, batch: &RecvBatch) {
        let Remote::Relayed(from) = from.remote else { return };
        let is_its = |meta: &RecvMeta| meta.endpoint.remote == Remote::Direct(at);
        let mut queue = lock(&self.0.from_relays);
        let mut any = false;
        for (span, meta) in batch.filled().filter(|(_, meta)| is_its(meta)) {
            any = true;
            let (bytes, segment) = (batch.get(span).to_vec(), meta.stride.max(1));
            queue.push(Injected { from, bytes, segment, ecn: meta.ecn });
        }
        if !any {
            return;
        }
        self.0.any.store(true, Ordering::Release);
        drop(queue);
        (self.0.wake_inbound)();
    }

    /// Queues as many datagrams of a run as fit. The error has the number of the others, and the
    /// reason.
    pub(crate) fn send(&self, batch: &SendBatch, run: &Transmit) -> Result<(), (usize, SendError)> {
        let all = run.datagrams();
        let to = self.peer(&run.endpoint).ok_or((all, SendError::Unreachable))?;
        let mut queue = lock(&self.0.to_relays);
        let room = queue.room();
        let fit = if run.span.len <= room { all } else { room / run.segment };
        if fit > 0 {
            let bytes = batch.datagram_bytes(run, 0, fit).to_vec();
            queue.push(RelayRun { to, bytes, segment: run.segment });
            self.0.filled.notify_one();
        }
        if fit < all { Err((all - fit, SendError::RelayFull)) } else { Ok(()) }
    }

    /// Queues one datagram.
    pub(crate) fn send_one(&self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        let to = self.peer(&endpoint).ok_or(SendError::Unreachable)?;
        let mut queue = lock(&self.0.to_relays);
        if datagram.len() > queue.room() {
            return Err(SendError::RelayFull);
        }
        queue.push(RelayRun { to, bytes: datagram.to_vec(), segment: datagram.len() });
        self.0.filled.notify_one();
        Ok(())
    }

    /// Appends datagrams from relays to a batch until it is full. Returns the number of dropped
    /// datagrams since the last call.
    pub(crate) fn fill(&self, batch: &mut RecvBatch) -> u64 {
        if self.0.any.load(Ordering::Acquire) { self.fill_from_queue(batch) } else { 0 }
    }

    #[cold]
    fn fill_from_queue(&self, batch: &mut RecvBatch) -> u64 {
        let mut queue = lock(&self.0.from_relays);
        while batch.len() < batch.capacity()
            && let Some(Injected { from, bytes, segment, ecn }) = queue.runs.pop_front()
        {
            let len = bytes.len();
            queue.bytes -= len + OVERHEAD;
            let at = batch.len();
            let slot = batch.slots_mut().nth(at).expect("the batch is not full");
            slot[..len].copy_from_slice(&bytes);
            let endpoint = Endpoint::relayed(from);
            batch.commit(RecvMeta { len, stride: segment, endpoint, ecn });
        }
        let dropped = std::mem::take(&mut queue.dropped);
        let rest = !queue.runs.is_empty();
        self.0.any.store(rest, Ordering::Relaxed);
        drop(queue);
        if rest {
            // The next receive must not wait while datagrams are queued.
            (self.0.wake_inbound)();
        }
        dropped
    }

    /// Whether datagrams from relays wait.
    pub(crate) fn waits(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }
}

impl FromRelays {
    /// Returns whether the run fits.
    fn push(&mut self, run: Injected) -> bool {
        let fits = self.bytes + run.cost() <= CAPACITY;
        if fits {
            self.bytes += run.cost();
            self.runs.push_back(run);
        } else {
            self.dropped += run.datagrams();
        }
        fits
    }
}

impl ToRelays {
    /// Bytes that the next run may have.
    fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.bytes + OVERHEAD)
    }

    fn push(&mut self, run: RelayRun) {
        self.bytes += run.bytes.len() + OVERHEAD;
        self.runs.push_back(run);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn peer(number: u32) -> RelayPeer {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        RelayPeer { region: 9, key }
    }

    fn relay() -> (RelayQueues, Arc<AtomicU32>) {
        let wakes = Arc::new(AtomicU32::new(0));
        let woken = wakes.clone();
        (RelayQueues::new(Arc::new(move || _ = woken.fetch_add(1, Ordering::Relaxed))), wakes)
    }

    #[test]
    fn a_peer_has_one_endpoint_while_it_is_in_the_table() {
        let (relay, _) = relay();
        let first = relay.endpoint(peer(1)).unwrap();
        let second = relay.endpoint(peer(2)).unwrap();
        assert_ne!(first, second);
        assert_eq!(relay.endpoint(peer(1)), Some(first));
        let elsewhere = RelayPeer { region: 10, ..peer(1) };
        assert_ne!(relay.endpoint(elsewhere), Some(first));
        assert_eq!(relay.peer(&second), Some(peer(2)));
        relay.remove(&peer(2));
        assert_eq!(relay.peer(&second), None);
        assert_eq!(relay.inject(&peer(2), vec![0], 1), Err(InjectError::Unknown));
        assert_eq!(relay.endpoint(peer(3)), Some(second), "its index is free");
        assert_eq!(relay.peer(&Endpoint::new(([192, 0, 2, 1], 1).into())), None);
        assert_eq!(relay.peer(&Endpoint::relayed(RelayId::new(u32::MAX))), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let (relay, _) = relay();
        let put =
            (0..MAX_ENTRIES as u32 + 10).filter(|number| relay.endpoint(peer(*number)).is_some());
        assert_eq!(put.count(), MAX_ENTRIES);
        relay.remove(&peer(0));
        assert!(relay.endpoint(peer(MAX_ENTRIES as u32)).is_some());
    }

    #[test]
    fn datagrams_that_do_not_fit_a_batch_wake_for_the_next_one() {
        let (relay, wakes) = relay();
        relay.endpoint(peer(1)).unwrap();
        let mut batch = RecvBatch::new(2);
        assert_eq!((relay.fill(&mut batch), batch.len()), (0, 0));
        for number in 0..3 {
            relay.inject(&peer(1), vec![number; 40], 40).unwrap();
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 3);
        let mut seen = Vec::new();
        for (len, woken) in [(2, 4), (1, 4), (0, 4)] {
            batch.clear();
            assert_eq!((relay.fill(&mut batch), batch.len()), (0, len));
            assert_eq!(wakes.load(Ordering::Relaxed), woken);
            seen.extend(batch.datagrams().map(|(span, _)| batch.get(span)[0]));
        }
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn injected_batches_wake_only_for_datagrams_of_the_peers_address() {
        let (relay, wakes) = relay();
        let endpoint = relay.endpoint(peer(1)).unwrap();
        let [its, other] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let mut batch = RecvBatch::new(1);
        let meta = RecvMeta { len: 8, stride: 8, endpoint: Endpoint::new(its), ecn: Ecn::NotEct };
        batch.commit(meta);
        relay.inject_batch(&endpoint, other, &batch);
        assert_eq!((wakes.load(Ordering::Relaxed), relay.waits()), (0, false));
        relay.inject_batch(&endpoint, its, &batch);
        assert_eq!((wakes.load(Ordering::Relaxed), relay.waits()), (1, true));
    }

    #[test]
    fn a_run_from_a_relay_is_one_slot_of_datagrams() {
        let (relay, _) = relay();
        relay.endpoint(peer(1)).unwrap();
        relay.inject(&peer(1), (0..100).collect(), 40).unwrap();
        let mut batch = RecvBatch::new(2);
        relay.fill(&mut batch);
        assert_eq!(batch.len(), 1);
        let got: Vec<_> = batch.datagrams().map(|(span, _)| batch.get(span)[0]).collect();
        assert_eq!(got, [0, 40, 80]);
        let lost = (0..20).filter(|_| relay.inject(&peer(1), vec![0; 60_000], 1000).is_err());
        let lost = lost.count() as u64;
        batch.clear();
        assert_eq!((lost > 0, relay.fill(&mut batch)), (true, lost * 60));
    }

    #[test]
    fn the_queue_from_relays_is_bounded_and_reports_drops_once() {
        let (relay, _) = relay();
        relay.endpoint(peer(1)).unwrap();
        assert_eq!(relay.inject(&peer(1), vec![0; 65_536], 1000), Err(InjectError::TooLong));
        assert_eq!(relay.inject(&peer(1), vec![], 0), Ok(()));
        let taken =
            (0..1000).filter(|_| relay.inject(&peer(1), vec![0; 1000], 1000).is_ok()).count();
        assert!((200..=CAPACITY / 1000).contains(&taken), "{taken}");
        let mut batch = RecvBatch::new(1);
        assert_eq!(relay.fill(&mut batch), 1000 - taken as u64);
        for _ in 0..taken {
            batch.clear();
            assert_eq!((relay.fill(&mut batch), batch.len()), (0, 1));
        }
        assert!(!relay.waits());
        assert_eq!(lock(&relay.0.from_relays).bytes, 0);
    }

    #[test]
    fn the_queue_to_relays_is_bounded_datagram_by_datagram() {
        let (relay, _) = relay();
        let endpoint = relay.endpoint(peer(1)).unwrap();
        let mut batch = SendBatch::default();
        for _ in 0..100 {
            batch.push(1000, endpoint, Ecn::NotEct).fill(7);
        }
        let mut sent = 0;
        for _ in 0..12 {
            let lost = relay.send(&batch, &batch.transmits()[0]).err();
            sent += 100
                - lost.map_or(0, |(lost, error)| {
                    assert_eq!(error, SendError::RelayFull);
                    lost
                });
        }
        assert_eq!(sent, 1047, "1 MiB without the overhead of the runs");
        assert_eq!(relay.send_one(&[0; 1000], endpoint), Err(SendError::RelayFull));
        let runs: Vec<_> = std::iter::from_fn(|| relay.recv_timeout(Duration::ZERO)).collect();
        let lens: Vec<_> = runs.iter().map(|run| (run.to, run.segment, run.bytes.len())).collect();
        let run = |datagrams: usize| (peer(1), 1000, 1000 * datagrams);
        assert_eq!(lens, [[run(100); 10].as_slice(), &[run(47)]].concat());
        assert_eq!(lock(&relay.0.to_relays).bytes, 0);
        let unknown = Endpoint::relayed(RelayId::new(5));
        assert_eq!(relay.send_one(b"x", unknown), Err(SendError::Unreachable));
    }
}
