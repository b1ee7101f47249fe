//! The data plane's side of a member.
//!
//! ```text
//!   line ── ToDataPlane ──► receive:  peers, paths, filter, keys ──► Node
//!                                 datagrams ──► UDP socket;  relayed ──► engine::RelayQueues
//!                                 pings ──► tunnel
//!   line ◄── ToAgent ── reporter: events of peers, activity         ◄── Node
//!                       disco:    disco and STUN                    ◄── engine::ControlReceiver
//!                       relay:    runs to peers behind relays       ◄── engine::RelayQueues
//!                       messages: pongs; answers pings              ◄── engine::MessageReceiver
//! ```
//!
//! Each row is a thread. If the agent does not read, these threads wait. The data path does not
//! wait for them: it drops and counts datagrams that exceed its queues.

mod auxiliary;
mod endpoint_tables;
mod keys;
mod messages;
mod peers;
mod port;
mod reporter;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use engine::{
    Attachments, ControlProtocols, ControlReceiver, Magic, MessageReceiver, OwnPackets, RelayPeer,
    RelayQueues, RelayRun, control_channel, message_channel,
};
use ipc::{self, Identity, Incoming, Outgoing, PART, Path, Reader, ToAgent, ToDataPlane};
use node::Node;
use packet::{Endpoint, Local, Waker};
use sys::{Channel, process::release_heap};
use tailnet::{
    disco,
    geneve::{Geneve, Protocol, Vni},
    keys::NodePublic,
};
use wg::PublicKey;

use self::{
    auxiliary::AuxiliarySockets,
    endpoint_tables::{EndpointTables, behind_peer_relay},
    keys::Keys,
    messages::Pings,
    peers::Peers,
    reporter::{Notifier, Reporter},
};
pub use self::{keys::KeyFile, port::open_socket};

/// The wait of a thread without a deadline.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// The most disco and STUN datagrams in one message.
const MAX_DATAGRAMS: usize = 32;

/// The data plane's ends of the channels to the engine.
pub struct Ends {
    datagrams: ControlReceiver,
    messages: MessageReceiver,
    own_packets: OwnPackets,
    tables: EndpointTables,
}

/// The attachments of a member's data plane. `wake_inbound` ends the wait of its UDP side.
pub fn attach(wake_inbound: Waker) -> (Attachments, Ends) {
    let magic = Magic::new(&disco::MAGIC).expect("it has six bytes");
    let relayed_headers = [false, true].map(|control| {
        let vni = Vni::new(0).expect("it is small");
        let header = Geneve { control, protocol: Protocol::Disco, vni };
        Magic::new(&header.bytes()[..4]).expect("it has four bytes")
    });
    let magics = relayed_headers.into_iter().chain([magic]).collect();
    let (sender, datagrams) = control_channel(ControlProtocols { magics, stun: true });
    let (message_sender, messages) = message_channel(messages::is_message);
    let own_packets = OwnPackets::default();
    let tables = EndpointTables::new(wake_inbound);
    let attached = Attachments {
        control_datagrams: Some(sender),
        relay: Some(tables.relay.clone()),
        prefixes: tables.prefixes.clone(),
        messages: Some(message_sender),
        own_packets: own_packets.clone(),
        peer_sockets: tables.auxiliaries.clone(),
        ..Attachments::default()
    };
    (attached, Ends { datagrams, messages, own_packets, tables })
}

/// The sending half of the line. Clones share it.
#[derive(Clone)]
struct LineSender(Arc<Mutex<Channel>>);

/// The state that messages of the agent change.
struct Plane {
    node: Arc<Node>,
    tables: EndpointTables,
    keys: Keys,
    peers: Peers,
    sockets: AuxiliarySockets,
    line: LineSender,
    pings: Pings,
    /// Receives this node's identity, if it runs without an interface.
    on_identity: OnIdentity,
}

/// Receives the identity of a node without an interface.
pub type OnIdentity = Box<dyn FnMut(Identity) + Send>;

/// Starts the threads that serve the agent at the other end of `line`. They report network changes
/// until the [`PlaneHandle`] is dropped.
///
/// # Errors
/// The system starts no more threads.
pub fn start(
    node: &Arc<Node>,
    ends: Ends,
    line: Channel,
    keys: KeyFile,
    on_identity: OnIdentity,
) -> io::Result<PlaneHandle> {
    let receiving = Channel::from(std::os::fd::AsFd::as_fd(&line).try_clone_to_owned()?);
    let line_sender = LineSender(Arc::new(Mutex::new(line)));
    let Ends { datagrams, messages, own_packets, tables } = ends;
    let pings = Pings::new(own_packets);
    let keys = Keys::new(keys, node);
    let notifier = Arc::<Notifier>::default();
    let reporter =
        Reporter::new(node.clone(), tables.clone(), line_sender.clone(), notifier.clone());
    let (sorted, relayed, answered) =
        (line_sender.clone(), line_sender.clone(), line_sender.clone());
    let (runs, names) = (tables.relay.clone(), tables.clone());
    let peers = Peers::default();
    let sockets = AuxiliarySockets::new(node.clone(), tables.clone(), line_sender.clone());
    let (line, asking, node) = (line_sender, pings.clone(), node.clone());
    let mut plane = Plane { node, tables, keys, peers, sockets, line, pings, on_identity };
    let ended = notifier.clone();
    let receive = move || {
        plane.receive(&receiving);
        // The line is closed: ends the other threads.
        ended.notify(|pending| pending.ended = true);
        plane.tables.relay.close();
    };
    let line_threads = vec![
        spawn("tailnet line", receive)?,
        spawn("tailnet events", move || reporter.run())?,
        spawn("tailnet relay", move || forward_runs(&runs, &relayed))?,
    ];
    let data_plane_threads = vec![
        spawn("tailnet disco", move || forward_datagrams(&datagrams, &names, &sorted))?,
        spawn("tailnet pings", move || messages::answer(&messages, &asking, &answered))?,
    ];
    Ok(PlaneHandle { notifier, line_threads, data_plane_threads })
}

/// Reports network changes to the agent, without waiting for it.
pub struct PlaneHandle {
    notifier: Arc<Notifier>,
    /// They run until the line is closed.
    line_threads: Vec<JoinHandle<()>>,
    /// They run until the data plane has ended.
    data_plane_threads: Vec<JoinHandle<()>>,
}

impl PlaneHandle {
    /// Reports that links, addresses or routes of this machine changed.
    pub fn network_changed(&self) {
        self.notifier.notify(|pending| pending.network = true);
    }

    /// As [`Self::network_changed`], for another thread.
    pub fn network_changes(&self) -> impl Fn() + Send + use<> {
        let notifier = self.notifier.clone();
        move || notifier.notify(|pending| pending.network = true)
    }

    /// Waits for the threads that use the node, once the agent is gone. A process that ends need
    /// not wait.
    pub fn wait_for_agent(&mut self) {
        // A thread that panicked has ended as well.
        self.line_threads.drain(..).for_each(|thread| drop(thread.join()));
    }

    /// Waits for the last threads, once the data plane has ended.
    pub fn wait_for_plane(self) {
        self.data_plane_threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

impl LineSender {
    /// # Errors
    /// The line is closed.
    fn send(&self, message: &ToAgent) -> io::Result<()> {
        let channel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ipc::write(message, |part| channel.send(part))
    }
}

impl Plane {
    /// Carries out the agent's messages until the line is closed.
    fn receive(&mut self, line: &Channel) {
        let (mut buffer, mut reader) = (vec![0; PART], Reader::default());
        loop {
            let len = match line.receive(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(len) => len,
            };
            match reader.handle_part(&buffer[..len]) {
                Ok(Some(message)) => self.handle(message),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "invalid message from the agent"),
            }
        }
    }

    fn handle(&mut self, message: ToDataPlane) {
        match message {
            ToDataPlane::Hello => {
                self.sockets.handle_agent_restart();
                let info = self.node.info();
                let hello = ToAgent::Hello {
                    node_key: self.keys.public(),
                    port: self.node.listen_port(),
                    interface: info.name.clone(),
                    index: info.index,
                };
                self.send(&hello);
            }
            ToDataPlane::Peers { complete, changed, removed } => {
                let changed = self.peers.change(complete, &changed, &removed);
                self.apply(changed.change.clone());
                changed.remove_endpoints(&self.tables);
                self.sockets.retain(|peer| self.peers.contains(peer));
                if complete {
                    release_heap();
                }
            }
            ToDataPlane::Path { peer, path } => self.set_path(peer, path),
            // Ignores peers that were removed or are without a path.
            ToDataPlane::Handshake(peer) => drop(self.node.handshake_now(&public(peer))),
            ToDataPlane::Datagrams(datagrams) => {
                datagrams.iter().for_each(|one| self.send_datagram(one));
            }
            ToDataPlane::BirthdayProbes(calls) => {
                self.node.count_probes(calls.len() as u64);
                calls.iter().for_each(|one| self.send_datagram(one));
            }
            ToDataPlane::OpenSockets(open) => self.sockets.open(*open),
            ToDataPlane::RetainSocket(socket) => self.sockets.select(socket),
            ToDataPlane::CloseSockets(number) => self.sockets.close(number),
            ToDataPlane::Relayed(datagrams) => {
                for one in datagrams {
                    let from = RelayPeer { region: one.region, key: one.from.0 };
                    // The first packet of a peer may come from a relay that was not used for it.
                    if self.peers.relay_endpoint(one.from, one.region, &self.tables).is_some() {
                        let _ = self.tables.relay.inject(&from, one.bytes, one.segment as usize);
                    }
                }
            }
            ToDataPlane::Filter(policy) => self.node.filter().set(&(&policy).into()),
            ToDataPlane::Login { id, server } => {
                let sealed = self.keys.seal_login(&server);
                self.send(&ToAgent::Login { id, sealed });
            }
            ToDataPlane::MakeCandidate => {
                let candidate = self.keys.make_candidate();
                self.send(&ToAgent::Candidate(candidate));
            }
            ToDataPlane::UseCandidate(key) => match self.keys.use_candidate(key, &self.node) {
                Ok(()) => {}
                Err(error) => tracing::error!("the node key could not be saved: {error:#}"),
            },
            ToDataPlane::Reset => {
                let changed = self.peers.change(true, &[], &[]);
                self.apply(changed.change.clone());
                changed.remove_endpoints(&self.tables);
                self.sockets.retain(|_| false);
                if let Err(error) = self.keys.remove(&self.node) {
                    tracing::error!("the node key could not be removed: {error:#}");
                }
            }
            ToDataPlane::Report => {
                let all = reporter::activity(&self.node, &self.tables);
                self.send(&ToAgent::Activity(all));
            }
            ToDataPlane::Identity(identity) => (self.on_identity)(identity),
            ToDataPlane::TunnelPing(ping) => self.pings.send(ping),
            ToDataPlane::Port(port) => {
                let change = config::uapi::Change { listen_port: Some(port), ..Default::default() };
                self.apply(change);
                self.send(&ToAgent::Port(self.node.listen_port()));
            }
        }
    }

    fn apply(&self, change: config::uapi::Change) {
        if let Err(error) = self.node.apply(change) {
            tracing::error!(%error, "a change of the peers was refused");
        }
    }

    fn set_path(&mut self, peer: NodePublic, path: Path) {
        let endpoint = match path {
            Path::Direct(address) => Some(Endpoint::new(address)),
            Path::PeerRelay { at, vni } => {
                self.peers.peer_relay_endpoint(peer, behind_peer_relay(at, vni), &self.tables)
            }
            Path::Auxiliary { number, .. } => self.sockets.endpoint(peer, number),
            Path::Relay(region) => self.peers.relay_endpoint(peer, region, &self.tables),
        };
        // Ignores removed peers.
        if let Some(endpoint) = endpoint {
            let _ = self.node.set_endpoint(&public(peer), endpoint);
            self.sockets.handle_path(peer, path);
        }
    }

    /// Sends a datagram that does not belong to WireGuard.
    fn send_datagram(&self, one: &Outgoing) {
        if let Some(by) = one.by {
            return self.sockets.send(by, one);
        }
        let local = one.source.map(|at| Local { addr: at.addr, interface: at.interface });
        let to = Endpoint { local, ..Endpoint::new(one.to) };
        // Only an answer shows whether it arrives.
        let _ = self.node.send_control(&one.bytes, to, one.hops);
    }

    /// If the line is closed, the next agent requests the state again.
    fn send(&self, message: &ToAgent) {
        let _ = self.line.send(message);
    }
}

/// Forwards datagrams that do not belong to WireGuard.
fn forward_datagrams(datagrams: &ControlReceiver, tables: &EndpointTables, line: &LineSender) {
    use std::sync::mpsc::RecvTimeoutError;
    loop {
        let first = match datagrams.recv_timeout(FOREVER) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let more = std::iter::from_fn(|| datagrams.try_recv().ok());
        let all = std::iter::once(first).chain(more).take(MAX_DATAGRAMS);
        let incoming = all.filter_map(|one| {
            let local = one.from.local;
            let (from, to) = match one.from.remote.direct() {
                Some(from) => (from, None),
                None => tables.auxiliary(&one.from).map(|(at, socket)| (at, Some(socket)))?,
            };
            Some(Incoming {
                from,
                to,
                local: local.map(|at| ipc::LocalAddress { addr: at.addr, interface: at.interface }),
                at: Duration::from_nanos(one.at.as_nanos()),
                bytes: one.bytes,
            })
        });
        if line.send(&ToAgent::Datagrams(incoming.collect())).is_err() {
            return;
        }
    }
}

/// Forwards datagrams for peers behind relays.
fn forward_runs(relay: &RelayQueues, line: &LineSender) {
    loop {
        let Some(RelayRun { to, bytes, segment }) = relay.recv_timeout(FOREVER) else {
            match relay.is_closed() {
                true => return,
                false => continue,
            }
        };
        let segment = u32::try_from(segment).unwrap_or(u32::MAX);
        let to_relay =
            ToAgent::ToRelay { region: to.region, to: NodePublic(to.key), bytes, segment };
        if line.send(&to_relay).is_err() {
            return;
        }
    }
}

fn public(key: NodePublic) -> PublicKey {
    PublicKey::from(key.0)
}
