//! What the data plane does for the agent.
//!
//! ```text
//!   line ── ToPlane ──► hear:   peers, paths, filter, keys ──► Node
//!                               datagrams ──► UDP socket;  from relays ──► engine::Relay
//!                               pings ──► tunnel
//!   line ◄── ToAgent ── watch:  events of peers, activity         ◄── Node
//!                       sort:   disco and STUN                    ◄── engine::ControlReceiver
//!                       relay:  runs to peers behind relays       ◄── engine::Relay
//!                       messages: pongs; pings are answered       ◄── engine::MessageReceiver
//! ```
//!
//! Each is a thread. What they send waits where the agent does not read; the data path does not
//! wait for them, and what finds no room in its queues is counted as dropped there.

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
use node::Node;
use packet::{Endpoint, Local, Waker};
use sys::{Channel, process::release_heap};
use tailnet::{
    disco,
    keys::NodePublic,
    line::{self, Identity, Incoming, Outgoing, PART, Path, Reader, ToAgent, ToPlane},
    peer_relay::{Geneve, Protocol, Vni},
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

/// How long a thread waits that has no reason to wake up.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Datagrams of disco and STUN in one message at most.
const MAX_DATAGRAMS: usize = 32;

/// The data plane's ends of what is attached to it.
pub struct Ends {
    datagrams: ControlReceiver,
    messages: MessageReceiver,
    own_packets: OwnPackets,
    tables: EndpointTables,
}

/// What a member's data plane has attached. `wake_inbound` ends the wait of its UDP side.
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

/// The sending half of the line. Clones are the same.
#[derive(Clone)]
struct LineSender(Arc<Mutex<Channel>>);

/// Everything that a message of the agent may change.
struct Plane {
    node: Arc<Node>,
    tables: EndpointTables,
    keys: Keys,
    peers: Peers,
    sockets: AuxiliarySockets,
    line: LineSender,
    pings: Pings,
    /// Hears who this node is, where it has no interface.
    on_identity: OnIdentity,
}

/// Hears who a node without an interface is.
pub type OnIdentity = Box<dyn FnMut(Identity) + Send>;

/// Starts to serve the agent at the other end of `line`. Also tells it of changes of the network,
/// for as long as [`Telling`] is kept.
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
        // Nobody is left who could say or hear anything.
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

/// Tells the agent what the process hears, and never waits for it.
pub struct PlaneHandle {
    notifier: Arc<Notifier>,
    /// Until the line is closed.
    line_threads: Vec<JoinHandle<()>>,
    /// Until the data plane has ended.
    data_plane_threads: Vec<JoinHandle<()>>,
}

impl PlaneHandle {
    /// Links, addresses or routes of this machine changed.
    pub fn network_changed(&self) {
        self.notifier.notify(|pending| pending.network = true);
    }

    /// What tells the agent that, for another thread.
    pub fn network_changes(&self) -> impl Fn() + Send + use<> {
        let notifier = self.notifier.clone();
        move || notifier.notify(|pending| pending.network = true)
    }

    /// Waits for the threads that have the node, once the agent is gone. A process that ends need
    /// not: it ends its threads.
    pub fn wait_for_agent(&mut self) {
        // One that panicked has ended, too.
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
    /// Nobody will ever read it.
    fn send(&self, message: &ToAgent) -> io::Result<()> {
        let channel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        line::write(message, |part| channel.send(part))
    }
}

impl Plane {
    /// Does what the agent says until nobody is left who could say anything.
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
                Err(error) => tracing::warn!(%error, "the agent sent"),
            }
        }
    }

    fn handle(&mut self, message: ToPlane) {
        match message {
            ToPlane::Hello => {
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
            ToPlane::Peers { complete, changed, removed } => {
                let changed = self.peers.change(complete, &changed, &removed);
                self.apply(changed.change.clone());
                changed.remove_endpoints(&self.tables);
                self.sockets.retain(|peer| self.peers.contains(peer));
                if complete {
                    release_heap();
                }
            }
            ToPlane::Path { peer, path } => self.set_path(peer, path),
            // One that was removed meanwhile, or has no path yet, needs none.
            ToPlane::Handshake(peer) => drop(self.node.handshake_now(&public(peer))),
            ToPlane::Datagrams(datagrams) => {
                datagrams.iter().for_each(|one| self.send_datagram(one));
            }
            ToPlane::Calls(calls) => {
                self.node.count_probes(calls.len() as u64);
                calls.iter().for_each(|one| self.send_datagram(one));
            }
            ToPlane::Open(open) => self.sockets.open(*open),
            ToPlane::Keep(socket) => self.sockets.select(socket),
            ToPlane::Close(number) => self.sockets.close(number),
            ToPlane::Relayed(datagrams) => {
                for one in datagrams {
                    let from = RelayPeer { region: one.region, key: one.from.0 };
                    // A peer's first words may come by a relay that it was not sought at.
                    if self.peers.relay_endpoint(one.from, one.region, &self.tables).is_some() {
                        let _ = self.tables.relay.inject(&from, one.bytes, one.segment as usize);
                    }
                }
            }
            ToPlane::Filter(policy) => self.node.filter().set(&(&policy).into()),
            ToPlane::Login { id, server } => {
                let sealed = self.keys.seal_login(&server);
                self.send(&ToAgent::Login { id, sealed });
            }
            ToPlane::MakeCandidate => {
                let candidate = self.keys.make_candidate();
                self.send(&ToAgent::Candidate(candidate));
            }
            ToPlane::UseCandidate(key) => match self.keys.use_candidate(key, &self.node) {
                Ok(()) => {}
                Err(error) => tracing::error!("the node key could not be kept: {error:#}"),
            },
            ToPlane::Forget => {
                let changed = self.peers.change(true, &[], &[]);
                self.apply(changed.change.clone());
                changed.remove_endpoints(&self.tables);
                self.sockets.retain(|_| false);
                if let Err(error) = self.keys.remove(&self.node) {
                    tracing::error!("the node key could not be removed: {error:#}");
                }
            }
            ToPlane::Report => {
                let all = reporter::activity(&self.node, &self.tables);
                self.send(&ToAgent::Activity(all));
            }
            ToPlane::Identity(identity) => (self.on_identity)(identity),
            ToPlane::TunnelPing(ping) => self.pings.send(ping),
            ToPlane::Port(port) => {
                let change = config::uapi::Change { listen_port: Some(port), ..Default::default() };
                self.apply(change);
                self.send(&ToAgent::Port(self.node.listen_port()));
            }
        }
    }

    fn apply(&self, change: config::uapi::Change) {
        if let Err(error) = self.node.apply(change) {
            tracing::error!(%error, "a change of the tailnet was refused");
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
        // A peer that was removed meanwhile needs no path.
        if let Some(endpoint) = endpoint {
            let _ = self.node.set_endpoint(&public(peer), endpoint);
            self.sockets.handle_path(peer, path);
        }
    }

    /// Sends a datagram that is not WireGuard's.
    fn send_datagram(&self, one: &Outgoing) {
        if let Some(by) = one.by {
            return self.sockets.send(by, one);
        }
        let local = one.source.map(|at| Local { addr: at.addr, interface: at.interface });
        let to = Endpoint { local, ..Endpoint::new(one.to) };
        // Whether it arrives is told by its answer alone.
        let _ = self.node.send_control(&one.bytes, to, one.hops);
    }

    /// Where nobody reads, the next words come from another agent, which asks.
    fn send(&self, message: &ToAgent) {
        let _ = self.line.send(message);
    }
}

/// Passes on what is not WireGuard's.
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
                local: local.map(|at| line::Local { addr: at.addr, interface: at.interface }),
                at: Duration::from_nanos(one.at.as_nanos()),
                bytes: one.bytes,
            })
        });
        if line.send(&ToAgent::Datagrams(incoming.collect())).is_err() {
            return;
        }
    }
}

/// Passes on what goes to peers behind relays.
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
