//! The UDP side: sockets on one network whose links delay, reorder, lose and
//! duplicate, by a seed.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packet::{
    ControlSend, Ecn, Endpoint, Local, RecvBatch, RecvMeta, SendBatch, SendError, UdpRecv, UdpSend,
    Waker,
};
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

/// Routers between any two sockets.
const ROUTERS: u8 = 8;

/// What the network does to a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The least time on the way.
    pub delay: Duration,
    /// The most that is added to it, which reorders.
    pub jitter: Duration,
    /// Of 1,000 datagrams, how many are lost.
    pub loss: u32,
    /// Of 1,000 datagrams, how many arrive twice.
    pub duplication: u32,
    /// Whether every ECN-capable datagram is marked.
    pub congested: bool,
    /// Longer datagrams are lost.
    pub longest: usize,
}

impl Link {
    /// A millisecond, and nothing happens on the way.
    pub const CLEAN: Self = Self {
        delay: Duration::from_millis(1),
        jitter: Duration::ZERO,
        loss: 0,
        duplication: 0,
        congested: false,
        longest: usize::MAX,
    };
}

/// A network; clones are the same one.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    link: Link,
    rng: ChaCha20Rng,
    now: Duration,
    serial: u64,
    /// What is on the way, by when it arrives.
    flying: BTreeMap<(Duration, u64), Datagram>,
    /// What waits in the sockets, and since when.
    arrived: HashMap<SocketAddr, VecDeque<(Duration, Datagram)>>,
    /// Datagrams that a socket's queue holds.
    room: usize,
    /// Datagrams that found no room and were not told of yet.
    lost: HashMap<SocketAddr, u32>,
}

#[derive(Clone, Debug)]
struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    ecn: Ecn,
    bytes: Vec<u8>,
}

/// A socket's receiving half.
#[derive(Debug)]
pub struct NetRecv {
    network: Network,
    address: SocketAddr,
}

/// A socket's sending half.
#[derive(Clone, Debug)]
pub struct NetSend {
    network: Network,
    address: SocketAddr,
}

impl Network {
    /// A network that does the same with the same seed.
    pub fn new(seed: u64, link: Link) -> Self {
        Self(Arc::new(Mutex::new(State {
            link,
            rng: ChaCha20Rng::seed_from_u64(seed),
            now: Duration::from_secs(1_000),
            serial: 0,
            flying: BTreeMap::new(),
            arrived: HashMap::new(),
            room: usize::MAX,
            lost: HashMap::new(),
        })))
    }

    /// A socket at `address`.
    pub fn socket(&self, address: SocketAddr) -> (NetRecv, NetSend) {
        let recv = NetRecv { network: self.clone(), address };
        (recv, NetSend { network: self.clone(), address })
    }

    /// Changes what happens to datagrams sent from now on.
    pub fn set_link(&self, link: Link) {
        self.lock().link = link;
    }

    /// Bounds the queue of every socket to so many datagrams.
    pub fn set_room(&self, datagrams: usize) {
        self.lock().room = datagrams;
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets `duration` pass.
    pub fn pass(&self, duration: Duration) {
        let mut state = self.lock();
        state.now += duration;
        let behind = (state.now, u64::MAX);
        let later = state.flying.split_off(&behind);
        for ((at, _), datagram) in std::mem::replace(&mut state.flying, later) {
            let (to, room) = (datagram.to, state.room);
            let queue = state.arrived.entry(to).or_default();
            if queue.len() < room {
                queue.push_back((at, datagram));
            } else {
                *state.lost.entry(to).or_default() += 1;
            }
        }
    }

    /// Sends bytes that no engine made.
    pub fn inject(&self, from: SocketAddr, to: SocketAddr, ecn: Ecn, bytes: &[u8]) {
        self.lock().launch(Datagram { from, to, ecn, bytes: bytes.to_vec() });
    }

    /// Takes everything that is on the way off the network.
    pub fn take_flying(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().flying)
            .into_values()
            .map(|datagram| datagram.bytes)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn launch(&mut self, mut datagram: Datagram) {
        if datagram.bytes.len() > self.link.longest || self.chance(self.link.loss) {
            return;
        }
        if self.link.congested && datagram.ecn != Ecn::NotEct {
            datagram.ecn = Ecn::Ce;
        }
        let copies = 1 + usize::from(self.chance(self.link.duplication));
        for _ in 0..copies {
            let jitter = self.link.jitter.mul_f64(f64::from(self.rng.next_u32()) / 2f64.powi(32));
            self.serial += 1;
            let arrival = (self.now + self.link.delay + jitter, self.serial);
            self.flying.insert(arrival, datagram.clone());
        }
    }

    fn chance(&mut self, of_thousand: u32) -> bool {
        self.rng.next_u32() % 1_000 < of_thousand
    }
}

impl UdpRecv for NetRecv {
    fn recv(&mut self, batch: &mut RecvBatch, _drain: bool) -> io::Result<()> {
        batch.clear();
        let mut state = self.network.lock();
        batch.note_lost(state.lost.remove(&self.address).unwrap_or(0));
        let now = state.now;
        let Some(queue) = state.arrived.get_mut(&self.address) else { return Ok(()) };
        let local = Some(Local { addr: self.address.ip(), interface: 1 });
        let count = queue.len().min(batch.capacity());
        let last = (count == batch.capacity()).then(|| &queue[count - 1]);
        batch.note_waited(last.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(*since)));
        let datagrams: Vec<_> = queue.drain(..count).map(|(_, datagram)| datagram).collect();
        for (slot, datagram) in batch.slots_mut().zip(&datagrams) {
            slot[..datagram.bytes.len()].copy_from_slice(&datagram.bytes);
        }
        for datagram in &datagrams {
            let len = datagram.bytes.len();
            let endpoint = Endpoint { local, ..Endpoint::new(datagram.from) };
            batch.commit(RecvMeta { len, stride: len, endpoint, ecn: datagram.ecn });
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
}

impl UdpSend for NetSend {
    fn send(&mut self, batch: &mut SendBatch) {
        let mut state = self.network.lock();
        for transmit in batch.transmits() {
            let Some(to) = transmit.endpoint.remote.direct() else { continue };
            for bytes in batch.datagrams(transmit) {
                state.launch(Datagram {
                    from: self.address,
                    to,
                    ecn: transmit.tos.ecn(),
                    bytes: bytes.to_vec(),
                });
            }
        }
    }

    fn send_whole(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        self.network.lock().launch(Datagram {
            from: self.address,
            to: endpoint.remote.direct().ok_or(SendError::Unreachable)?,
            ecn: Ecn::NotEct,
            bytes: datagram.to_vec(),
        });
        Ok(())
    }
}

impl ControlSend for NetSend {
    fn send_control(
        &self,
        datagram: &[u8],
        to: Endpoint,
        hops: Option<u8>,
    ) -> Result<(), SendError> {
        let to = to.remote.direct().ok_or(SendError::Unreachable)?;
        if hops.is_none_or(|hops| hops > ROUTERS) {
            self.network.lock().launch(Datagram {
                from: self.address,
                to,
                ecn: Ecn::NotEct,
                bytes: datagram.to_vec(),
            });
        }
        Ok(())
    }
}
