//! Sockets for birthday probing (docs/decisions/0013): many for some seconds, then the
//! one at which a peer's probe arrived.
//!
//! ```text
//!   Open ── a thread: opens sockets, sends from each, ── Opened ──► agent
//!           forwards datagrams of the peer ── datagrams ──► agent
//!   Keep ── selects one: its sender joins the engine's table, and a thread forwards its
//!           received data; the others are closed
//!   Close ─ closes one, or all
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
use ipc::{AuxiliarySocket, Incoming, OpenSockets, Outgoing, Path, ToAgent};
use node::Node;
use packet::{ControlSend as _, Endpoint, RecvBatch, UdpRecv as _, Waker};
use sys::{ProbeDatagram, ProbeSockets, UdpReceiver, UdpSocket, clock};
use tailnet::{disco, keys::NodePublic};

use super::{LineSender, endpoint_tables::EndpointTables, spawn};

/// The time limit of probing, longer than that of the agent.
const PROBING_TIME: Duration = Duration::from_secs(30);
/// The most datagrams that are forwarded from all of them. A probe is one.
const MAX_FORWARDED: usize = 64;
/// The most sockets for a peer.
const MAX_SOCKETS: u16 = 256;
/// The slots of a batch. They are fewer than those of the main socket, because one peer uses it.
const SLOTS: usize = 16;

/// The groups of sockets, by number.
pub(super) struct AuxiliarySockets {
    node: Arc<Node>,
    tables: EndpointTables,
    line: LineSender,
    groups: HashMap<u32, Group>,
}

struct Group {
    peer: NodePublic,
    to: SocketAddr,
    /// Whether the previous agent opened it.
    is_from_previous_agent: bool,
    stop: Arc<Stop>,
    stage: Stage,
}

enum Stage {
    /// Before one is selected.
    Probing(JoinHandle<Option<ProbeSockets>>),
    Connected(Connected),
}

struct Connected {
    socket: AuxiliarySocket,
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

    fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

impl AuxiliarySockets {
    pub(super) fn new(node: Arc<Node>, tables: EndpointTables, line: LineSender) -> Self {
        Self { node, tables, line, groups: HashMap::new() }
    }

    /// Opens sockets, and reports their number to the agent.
    pub(super) fn open(&mut self, open: OpenSockets) {
        self.close(open.number);
        // One peer at a time is probed.
        let probing = self.groups.iter().filter(|(_, one)| matches!(one.stage, Stage::Probing(_)));
        let probing: Vec<u32> = probing.map(|(number, _)| *number).collect();
        probing.into_iter().for_each(|number| self.close(number));
        let (number, peer, to) = (open.number, open.peer, open.to);
        let stop = Arc::<Stop>::default();
        let (node, line, stops) = (self.node.clone(), self.line.clone(), stop.clone());
        let thread = spawn("tailnet probes", move || probe(&node, open, &stops, &line));
        match thread {
            Ok(thread) => {
                let stage = Stage::Probing(thread);
                self.groups
                    .insert(number, Group { peer, to, is_from_previous_agent: false, stop, stage });
            }
            Err(error) => {
                tracing::warn!(%error, "birthday probing cannot start");
                let _ = self.line.send(&ToAgent::SocketsOpened { number, count: 0 });
            }
        }
    }

    /// Selects one socket, and closes the others of its group.
    pub(super) fn select(&mut self, socket: AuxiliarySocket) {
        let Some(one) = self.groups.remove(&socket.number) else { return };
        let Group { peer, to, is_from_previous_agent, stop, stage: Stage::Probing(thread) } = one
        else {
            self.groups.insert(socket.number, one);
            return;
        };
        stop.set();
        let flows = thread.join().ok().flatten();
        let Some((udp, receiver)) = flows.and_then(|flows| flows.into_socket(socket.index)) else {
            return;
        };
        let Some(endpoint) = self.tables.auxiliaries.add(to, Box::new(udp.sender())) else {
            tracing::warn!("too many peers use auxiliary sockets");
            return;
        };
        let stop = Arc::<Stop>::default();
        stop.set_waker(receiver.waker());
        let (relay, stops) = (self.tables.relay.clone(), stop.clone());
        let thread =
            spawn("tailnet socket", move || receive(receiver, &relay, (&endpoint, to), &stops));
        if let Err(error) = thread {
            tracing::warn!(%error, "an auxiliary socket cannot be used");
            self.tables.auxiliaries.remove(&endpoint);
            return;
        }
        self.node.count_connected();
        self.tables.add_auxiliary(endpoint, to, socket);
        let stage = Stage::Connected(Connected { socket, udp, endpoint });
        self.groups.insert(socket.number, Group { peer, to, is_from_previous_agent, stop, stage });
    }

    /// Closes a group. The path of its peer must already be another one.
    pub(super) fn close(&mut self, number: u32) {
        let Some(one) = self.groups.remove(&number) else { return };
        one.stop.set();
        match one.stage {
            // The thread drops the sockets.
            Stage::Probing(thread) => drop(thread),
            Stage::Connected(Connected { udp, endpoint, .. }) => {
                self.tables.remove_auxiliary(&endpoint);
                self.tables.auxiliaries.remove(&endpoint);
                udp.close();
            }
        }
    }

    /// Sends a datagram from a selected socket.
    pub(super) fn send(&self, by: AuxiliarySocket, datagram: &Outgoing) {
        let connected = self.groups.get(&by.number).and_then(|one| match &one.stage {
            Stage::Connected(connected) if connected.socket == by => Some(connected),
            _ => None,
        });
        if let Some(connected) = connected {
            // Only an answer shows whether it arrives.
            let _ = connected.udp.send_control(&datagram.bytes, Endpoint::new(datagram.to), None);
        }
    }

    /// The endpoint of a peer at the selected socket of a group.
    pub(super) fn endpoint(&self, peer: NodePublic, number: u32) -> Option<Endpoint> {
        match self.groups.get(&number)? {
            Group { peer: other, stage: Stage::Connected(connected), .. } if *other == peer => {
                Some(connected.endpoint)
            }
            _ => None,
        }
    }

    /// The new agent does not know these sockets. Selected ones remain until it sends another path.
    pub(super) fn handle_agent_restart(&mut self) {
        self.groups.values_mut().for_each(|one| one.is_from_previous_agent = true);
        let is_probing = |one: &Group| matches!(one.stage, Stage::Probing(_));
        let probing =
            self.groups.iter().filter(|(_, one)| is_probing(one)).map(|(number, _)| *number);
        probing.collect::<Vec<_>>().into_iter().for_each(|number| self.close(number));
    }

    /// A peer got another path: closes unused groups of the previous agent.
    pub(super) fn handle_path(&mut self, peer: NodePublic, path: Path) {
        let is_current =
            |number: u32| matches!(path, Path::Auxiliary { number: other, .. } if other == number);
        let unused = self.groups.iter().filter(|(number, one)| {
            one.is_from_previous_agent && one.peer == peer && !is_current(**number)
        });
        let unused: Vec<u32> = unused.map(|(number, _)| *number).collect();
        unused.into_iter().for_each(|number| self.close(number));
    }

    /// Closes the groups of removed peers.
    pub(super) fn retain(&mut self, is_present: impl Fn(&NodePublic) -> bool) {
        let gone = self.groups.iter().filter(|(_, one)| !is_present(&one.peer));
        let gone: Vec<u32> = gone.map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.close(number));
    }
}

impl Drop for AuxiliarySockets {
    fn drop(&mut self) {
        let groups: Vec<u32> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|number| self.close(number));
    }
}

/// Opens sockets, sends from each, and forwards received datagrams, until one is selected or all
/// are closed.
fn probe(node: &Node, open: OpenSockets, stop: &Stop, line: &LineSender) -> Option<ProbeSockets> {
    let OpenSockets { number, to, count, hops, bytes, .. } = open;
    let flows = match node.open_flows(count.clamp(1, MAX_SOCKETS)) {
        Ok(flows) => flows,
        Err(error) => {
            tracing::warn!(%error, "no sockets for birthday probing");
            let _ = line.send(&ToAgent::SocketsOpened { number, count: 0 });
            return None;
        }
    };
    stop.set_waker(flows.waker());
    for index in 0..flows.count() {
        // A socket that cannot send counts as absent.
        let _ = flows.send(index, &bytes, Endpoint::new(to), Some(hops));
    }
    let _ = line.send(&ToAgent::SocketsOpened { number, count: flows.count() });
    let now = || clock::boottime();
    let (ends, mut left) = (now() + PROBING_TIME, MAX_FORWARDED);
    while !stop.is_set() {
        let received = flows.receive(ends.checked_sub(now())?).ok()?;
        let expected = received.into_iter().filter(|one| one.from == to && is_disco(&one.bytes));
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
        to: Some(AuxiliarySocket { number, index: one.index }),
        bytes: one.bytes,
    }
}

/// Forwards data that the selected socket receives from the peer.
fn receive(
    mut receiver: UdpReceiver,
    relay: &RelayQueues,
    (from, at): (&Endpoint, SocketAddr),
    stop: &Stop,
) {
    let mut batch = RecvBatch::new(SLOTS);
    while !stop.is_set() {
        if let Err(error) = receiver.recv(&mut batch, false, true) {
            // The path times out.
            tracing::warn!(%error, "an auxiliary socket failed");
            return;
        }
        relay.inject_batch(from, at, &batch);
    }
}
