//! The sockets by which a peer is met by chance (docs/decisions/0013): many for some seconds, then the
//! one that was met.
//!
//! ```text
//!   Open ── a thread: opens, sends by each, ── Opened ──► agent
//!           waits for what comes from the peer ── datagrams ──► agent
//!   Keep ── one goes on: its sender to the engine's table, and a thread that hands over what it
//!           receives; all others are closed
//!   Close ─ the one, or all
//! ```

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use engine::RelayQueues;
use node::Node;
use packet::{ControlSend as _, Endpoint, RecvBatch, UdpRecv as _, Waker};
use sys::{ProbeDatagram, ProbeSockets, UdpReceiver, UdpSocket, clock};
use tailnet::{
    disco,
    keys::NodePublic,
    line::{Auxiliary, Incoming, Open, Outgoing, Path, ToAgent},
};

use super::{ToLine, places::Places, spawn};

/// How long sockets wait for a call, whatever the agent does: longer than it lets them.
const OPEN: Duration = Duration::from_secs(30);
/// Datagrams that are passed on of all of them: a call is one.
const PASSED_ON: usize = 64;
/// The most that are opened for a peer.
const MOST: u16 = 256;
/// Slots of a batch: less than those of the data plane's socket, as it is for one peer.
const SLOTS: usize = 16;

/// The sockets that there are, by their number.
pub(super) struct Sockets {
    node: Arc<Node>,
    places: Places,
    line: ToLine,
    all: HashMap<u32, One>,
}

struct One {
    peer: NodePublic,
    to: SocketAddr,
    /// Opened for a former agent, which knew what for.
    is_former: bool,
    stop: Arc<Stop>,
    stage: Stage,
}

enum Stage {
    /// Until one is met.
    Many(JoinHandle<Option<ProbeSockets>>),
    Kept(Kept),
}

struct Kept {
    socket: Auxiliary,
    udp: UdpSocket,
    endpoint: Endpoint,
}

/// Ends a thread.
#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker();
        }
    }

    fn wakes(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

impl Sockets {
    pub fn new(node: Arc<Node>, places: Places, line: ToLine) -> Self {
        Self { node, places, line, all: HashMap::new() }
    }

    /// Opens sockets, and tells the agent how many.
    pub fn open(&mut self, open: Open) {
        self.close(open.number);
        // One peer at a time is tried for.
        let many = self.all.iter().filter(|(_, one)| matches!(one.stage, Stage::Many(_)));
        let many: Vec<u32> = many.map(|(number, _)| *number).collect();
        many.into_iter().for_each(|number| self.close(number));
        let (number, peer, to) = (open.number, open.peer, open.to);
        let stop = Arc::<Stop>::default();
        let (node, line, stops) = (self.node.clone(), self.line.clone(), stop.clone());
        let thread = spawn("tailnet chance", move || look_out(&node, open, &stops, &line));
        match thread {
            Ok(thread) => {
                let stage = Stage::Many(thread);
                self.all.insert(number, One { peer, to, is_former: false, stop, stage });
            }
            Err(error) => {
                tracing::warn!(%error, "no peer is met by chance");
                let _ = self.line.send(&ToAgent::Opened { number, count: 0 });
            }
        }
    }

    /// Keeps one, and closes the others that were opened with it.
    pub fn keep(&mut self, socket: Auxiliary) {
        let Some(one) = self.all.remove(&socket.number) else { return };
        let One { peer, to, is_former, stop, stage: Stage::Many(thread) } = one else {
            self.all.insert(socket.number, one);
            return;
        };
        stop.set();
        let flows = thread.join().ok().flatten();
        let Some((udp, receiver)) = flows.and_then(|flows| flows.into_socket(socket.index)) else {
            return;
        };
        let Some(endpoint) = self.places.auxiliaries.add(to, Box::new(udp.sender())) else {
            tracing::warn!("too many peers are met by chance");
            return;
        };
        let stop = Arc::<Stop>::default();
        stop.wakes(receiver.waker());
        let (relay, stops) = (self.places.relay.clone(), stop.clone());
        let receives =
            spawn("tailnet socket", move || receive(receiver, &relay, (&endpoint, to), &stops));
        if let Err(error) = receives {
            tracing::warn!(%error, "a peer that was met by chance is left");
            self.places.auxiliaries.remove(&endpoint);
            return;
        }
        self.node.note_met();
        self.places.name(endpoint, to, socket);
        let stage = Stage::Kept(Kept { socket, udp, endpoint });
        self.all.insert(socket.number, One { peer, to, is_former, stop, stage });
    }

    /// Closes all of a number. No peer's path is there any more.
    pub fn close(&mut self, number: u32) {
        let Some(one) = self.all.remove(&number) else { return };
        one.stop.set();
        match one.stage {
            // It drops them.
            Stage::Many(thread) => drop(thread),
            Stage::Kept(Kept { udp, endpoint, .. }) => {
                self.places.forget_name(&endpoint);
                self.places.auxiliaries.remove(&endpoint);
                udp.close();
            }
        }
    }

    /// Sends a datagram by one of them.
    pub fn send(&self, by: Auxiliary, datagram: &Outgoing) {
        let kept = self.all.get(&by.number).and_then(|one| match &one.stage {
            Stage::Kept(kept) if kept.socket == by => Some(kept),
            _ => None,
        });
        if let Some(kept) = kept {
            // Whether it arrives is told by its answer alone.
            let _ = kept.udp.send_control(&datagram.bytes, Endpoint::new(datagram.to), None);
        }
    }

    /// The endpoint of a peer that is reached by the kept one of these.
    pub fn endpoint(&self, peer: NodePublic, number: u32) -> Option<Endpoint> {
        match self.all.get(&number)? {
            One { peer: its, stage: Stage::Kept(kept), .. } if *its == peer => Some(kept.endpoint),
            _ => None,
        }
    }

    /// Another agent begins, which knows of none of them: what works goes on until it knows a path.
    pub fn begin_anew(&mut self) {
        self.all.values_mut().for_each(|one| one.is_former = true);
        let is_many = |one: &One| matches!(one.stage, Stage::Many(_));
        let many = self.all.iter().filter(|(_, one)| is_many(one)).map(|(number, _)| *number);
        many.collect::<Vec<_>>().into_iter().for_each(|number| self.close(number));
    }

    /// A peer has another path.
    pub fn handle_path(&mut self, peer: NodePublic, path: Path) {
        let is_it =
            |number: u32| matches!(path, Path::Auxiliary { number: its, .. } if its == number);
        let left = self
            .all
            .iter()
            .filter(|(number, one)| one.is_former && one.peer == peer && !is_it(**number));
        let left: Vec<u32> = left.map(|(number, _)| *number).collect();
        left.into_iter().for_each(|number| self.close(number));
    }

    /// A peer is gone.
    pub fn keep_those_of(&mut self, stays: impl Fn(&NodePublic) -> bool) {
        let gone = self.all.iter().filter(|(_, one)| !stays(&one.peer));
        let gone: Vec<u32> = gone.map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.close(number));
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let all: Vec<u32> = self.all.keys().copied().collect();
        all.into_iter().for_each(|number| self.close(number));
    }
}

/// Opens sockets, sends by each, and passes on what comes, until one is kept or all are closed.
fn look_out(node: &Node, open: Open, stop: &Stop, line: &ToLine) -> Option<ProbeSockets> {
    let Open { number, to, count, hops, bytes, .. } = open;
    let flows = match node.open_flows(count.clamp(1, MOST)) {
        Ok(flows) => flows,
        Err(error) => {
            tracing::warn!(%error, "no socket to meet a peer by chance");
            let _ = line.send(&ToAgent::Opened { number, count: 0 });
            return None;
        }
    };
    stop.wakes(flows.waker());
    for index in 0..flows.count() {
        // Those of which none goes are as if they were not there.
        let _ = flows.send(index, &bytes, Endpoint::new(to), Some(hops));
    }
    let _ = line.send(&ToAgent::Opened { number, count: flows.count() });
    let now = || clock::boottime();
    let (ends, mut left) = (now() + OPEN, PASSED_ON);
    while !stop.is_set() {
        let came = flows.receive(ends.checked_sub(now())?).ok()?;
        let expected = came.into_iter().filter(|one| one.from == to && is_disco(&one.bytes));
        let datagrams: Vec<_> = expected.take(left).map(|one| incoming(number, one)).collect();
        left -= datagrams.len();
        if !datagrams.is_empty() && line.send(&ToAgent::Datagrams(datagrams)).is_err() {
            return None;
        }
        if left == 0 {
            return None;
        }
    }
    Some(flows)
}

fn is_disco(datagram: &[u8]) -> bool {
    disco::sender(datagram).is_some()
}

fn incoming(number: u32, one: ProbeDatagram) -> Incoming {
    Incoming {
        from: one.from,
        local: None,
        at: clock::boottime(),
        to: Some(Auxiliary { number, index: one.index }),
        bytes: one.bytes,
    }
}

/// Hands over what the kept socket receives from the peer.
fn receive(
    mut receiver: UdpReceiver,
    relay: &RelayQueues,
    (from, at): (&Endpoint, SocketAddr),
    stop: &Stop,
) {
    let mut batch = RecvBatch::new(SLOTS);
    while !stop.is_set() {
        if let Err(error) = receiver.recv(&mut batch, false, true) {
            // The path shows no life from now on, and is left.
            tracing::warn!(%error, "an auxiliary socket");
            return;
        }
        relay.inject_batch(from, at, &batch);
    }
}
