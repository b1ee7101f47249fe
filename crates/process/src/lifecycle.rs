//! Starts, runs and ends a process of any kind. Everything is opened with all privileges. Then the
//! privileges are dropped in an order in which each step still has those that it needs.
//!
//! ```text
//!   Lifecycle { sides, sockets, sandbox, kind }            everything is open; only the main thread runs
//!     `── run
//!          sandbox.start    threads of the node                           files, privileges: confined
//!          kind.configure   the peer, before requests are accepted        the main thread: privileged
//!          sandbox.start    threads of control, metrics, events           files, privileges: confined
//!          kind.bring_up    the host: addresses, routes, hooks            the main thread: privileged
//!          kind.delegate    to a guardian and a helper, which stay privileged
//!          sandbox.enter                                                  the main thread: confined
//!          kind.serve       clients of proxies
//!          sandbox.confine_calls                                          all threads: system calls
//!          ready ──► events ──► kind.handle ... ──► kind.take_down
//! ```

use std::{
    io, iter,
    net::Shutdown,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use anyhow::Context;
use node::{Attachments, IpSide, Node, NodeParts};
use packet::{IpRecv, IpSend};
use sys::{
    Offloads, SocketFile, UdpReceiver, UdpSocket, netlink,
    process::{Helper, survive_parent},
};
use wg::{Crypto, PostQuantum};

use crate::{
    caller,
    events::{Event, EventSources, Message, changes_since, next_event, release_unused},
    log_error::log_error,
    metrics::{self, Metrics},
    sandbox::Sandbox,
    supervisor::Supervisor,
    uapi_socket::{ControlSocket, Extras},
};

/// The format of the log on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStyle {
    /// Whether the process goes to the background when it is ready.
    pub background: bool,
    /// Whether the log consists of lines of JSON.
    pub json: bool,
}

/// Resources of the machine that a peer uses.
#[derive(Debug, Default)]
pub struct Resources {
    /// The initially enabled offloads.
    pub offloads: Offloads,
    /// Number of cores.
    pub cores: usize,
    /// Whether the MTU of the path to each peer is searched for. `None` uses the configuration,
    /// with the default to search.
    pub path_mtu: Option<bool>,
    /// Whether post-quantum secrets are agreed on with peers. `None` uses the configuration, with
    /// the default to agree with each peer that supports it.
    pub post_quantum: Option<PostQuantum>,
    /// The implementation of the cryptography. `None` uses the configuration, with the fastest as
    /// the default.
    pub crypto: Option<Crypto>,
    /// The address at which metrics are served, if any.
    pub metrics: Option<metrics::Address>,
}

/// The steps that differ between the kinds of process, in the order of the calls.
pub(crate) trait ProcessKind: Send {
    /// Configures the peer before the control socket answers, with all privileges.
    fn configure(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// Returns the additional answers of the control socket. Called by a confined thread.
    fn extras(&mut self, node: &Arc<Node>) -> Arc<dyn Extras>;

    /// Configures the host for the peer, with all privileges, after the control socket was
    /// started.
    fn bring_up(&mut self, _: &Arc<Node>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Delegates privileged tasks to other processes.
    fn delegate(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Starts the remaining parts. The thread is confined.
    fn serve(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// The time until [`ProcessKind::catch_up`] must be called, if at all.
    fn wait(&self) -> Option<Duration> {
        None
    }

    /// Executes postponed work.
    fn catch_up(&mut self) {}

    /// Prepares the end that a command requests.
    ///
    /// # Errors
    /// The preparation failed. The process continues.
    fn prepare_down(&mut self, _: &Node) -> anyhow::Result<()> {
        Ok(())
    }

    /// Handles an event. A returned reason ends the process.
    fn handle(&mut self, node: &Node, event: Event) -> Option<StopReason>;

    /// Handles changes of links, addresses, routes or rules of this machine, without duplicates.
    fn handle_changes(&mut self, node: &Node, changes: &[netlink::Event]);

    /// Undoes everything. `file` is that of the control socket; `reason` is `None` if the start
    /// failed.
    ///
    /// # Errors
    /// Something could not be undone.
    fn take_down(
        self,
        node: Arc<Node>,
        file: Option<SocketFile>,
        reason: Option<&StopReason>,
    ) -> anyhow::Result<()>;
}

/// The reason for the end of a process.
pub(crate) enum StopReason {
    /// A signal or command requested it.
    Requested,
    /// The interface was deleted.
    InterfaceDeleted,
    /// The data plane failed.
    DataPlaneFailed(io::Error),
}

/// The opened parts of a process.
pub(crate) struct Lifecycle<K, R, S> {
    pub name: String,
    pub ip: IpSide<R, S>,
    pub udp: (UdpSocket, UdpReceiver),
    pub offloads: Arc<Offloads>,
    pub cores: usize,
    pub attached: Attachments,
    pub control: Option<ControlSocket>,
    pub metrics: Option<Metrics>,
    pub event_sources: EventSources,
    pub supervisor: Supervisor,
    pub sandbox: Sandbox,
    pub kind: K,
}

/// The socket files. They are removed when this is dropped.
struct SocketFiles {
    control: Option<SocketFile>,
    _metrics: Option<SocketFile>,
}

impl<K: ProcessKind, R: IpRecv + 'static, S: IpSend> Lifecycle<K, R, S> {
    /// Runs the process until its end is requested. `ready` is called when it can be used.
    ///
    /// # Errors
    /// The process could not be started, its data plane failed, or something could not be undone.
    pub(crate) fn run(self, ready: impl FnOnce()) -> anyhow::Result<()> {
        let Self { name, sandbox, supervisor, mut kind, .. } = self;
        let Self { ip, udp, offloads, cores, attached, control, metrics, event_sources, .. } = self;
        let parts = NodeParts { ip, udp, offloads, cores, attached };
        let (events, inbox) = mpsc::channel();
        let node = sandbox.start(|| start(parts, &events))?;
        kind.configure(&node)?;
        let sockets = sandbox.start(|| {
            let extras = kind.extras(&node);
            let down = events.clone();
            let down = move |client| {
                let _ = down.send(Message::Down(client));
            };
            let serve = |control: ControlSocket| control.serve(node.clone(), extras, down);
            let file = control.map(serve).transpose().context("socket")?;
            let metrics = metrics.map(|metrics| metrics.serve(node.clone())).transpose();
            let _metrics = metrics.context("threads")?.flatten();
            event_sources.spawn(events).context("threads")?;
            Ok(SocketFiles { control: file, _metrics })
        });
        let SocketFiles { control: file, _metrics } = sockets?;
        let mut settle = || {
            kind.bring_up(&node)?;
            kind.delegate()?;
            survive_parent()?;
            sandbox.enter()?;
            kind.serve(&node)?;
            sandbox.confine_calls()?;
            supervisor.ready(&node).context("threads")
        };
        if let Err(error) = settle() {
            log_error(kind.take_down(node, file, None));
            return Err(error);
        }
        ready();
        release_unused();
        let reason = live(&node, &mut kind, &inbox);
        supervisor.stopping();
        kind.take_down(node, file, Some(&reason))?;
        match reason {
            StopReason::Requested | StopReason::InterfaceDeleted => Ok(()),
            StopReason::DataPlaneFailed(error) => {
                Err(error).with_context(|| format!("{name}: the data plane"))
            }
        }
    }
}

fn start<R: IpRecv + 'static, S: IpSend>(
    parts: NodeParts<R, S>,
    events: &mpsc::Sender<Message>,
) -> anyhow::Result<Arc<Node>> {
    let ended = events.clone();
    let node = Node::start(parts, move |error| {
        let _ = ended.send(Message::Event(Event::DataPlaneEnded(error)));
    });
    Ok(Arc::new(node.context("engine")?))
}

/// Handles events until the end of the process is requested.
fn live(node: &Node, kind: &mut impl ProcessKind, inbox: &mpsc::Receiver<Message>) -> StopReason {
    let mut pending = None;
    while let Some(message) = pending.take().or_else(|| next(kind, inbox)) {
        match message {
            Message::End(why) => {
                tracing::info!(why, "going down");
                break;
            }
            Message::Changed(first) => {
                let (changes, after) = changes_since(first, inbox);
                kind.handle_changes(node, &changes);
                pending = after;
            }
            Message::Down(client) => {
                caller::report_to_client(client.clone());
                let Err(error) = kind.prepare_down(node) else {
                    tracing::info!("going down: linerate down");
                    break;
                };
                tracing::error!("{error:#}");
                caller::stop_reporting();
                // An error means that the client has disconnected.
                let _ = client.shutdown(Shutdown::Both);
            }
            Message::Event(event) => {
                if let Some(reason) = kind.handle(node, event) {
                    return reason;
                }
            }
        }
    }
    StopReason::Requested
}

/// Waits for the next event. Postponed work is executed in the meantime when it is due.
fn next(kind: &mut impl ProcessKind, inbox: &mpsc::Receiver<Message>) -> Option<Message> {
    while let Some(wait) = kind.wait() {
        match inbox.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => kind.catch_up(),
            received => return received.ok(),
        }
    }
    next_event(inbox)
}

/// Binds the address of the metrics.
///
/// # Errors
/// It is in use.
pub(crate) fn bind_metrics(address: Option<&metrics::Address>) -> anyhow::Result<Option<Metrics>> {
    address.map(Metrics::bind).transpose().context("metrics")
}

/// The socket files of a process.
pub(crate) fn socket_files<'a>(
    control: Option<&'a ControlSocket>,
    metrics: Option<&'a Metrics>,
) -> impl Iterator<Item = &'a Path> {
    let control = control.map(ControlSocket::path);
    control.into_iter().chain(iter::once(metrics.and_then(Metrics::path)).flatten())
}

/// Registers an empty list of routes and rules with a helper.
///
/// # Errors
/// The helper has exited.
pub(crate) fn register_empty(helper: &Helper) -> io::Result<()> {
    helper.register(&[], &[])
}
