//! Starts, runs and ends a process, whatever it is for. Everything is opened with all rights; then
//! the rights are given up, in the one order in which each step still has the rights that it needs.
//!
//! ```text
//!   Lifecycle { sides, sockets, sandbox, kind }            everything is open; no thread but the main one
//!     `── run
//!          sandbox.start    threads of the node                           files, rights: confined
//!          kind.configure   the peer, before anybody can ask              the main thread has all
//!          sandbox.start    threads of control, metrics, events           files, rights: confined
//!          kind.bring_up    the host: addresses, routes, hooks            the main thread has all
//!          kind.delegate   to a guardian and a helper, which keep rights
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
    control::{ControlSocket, Extras},
    events::{Event, EventSources, Message, changes_since, next_event, release_unused},
    log_error::log_error,
    metrics::{self, Metrics},
    sandbox::Sandbox,
    supervisor::Supervisor,
};

/// How a process logs, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStyle {
    /// The process goes to the background once it is ready.
    pub background: bool,
    /// Lines of JSON, for programs.
    pub json: bool,
}

/// What of the machine a peer uses.
#[derive(Debug, Default)]
pub struct Resources {
    /// Which offloads are used from the start.
    pub offloads: Offloads,
    /// How many cores.
    pub cores: usize,
    /// Whether it searches for the MTU of the path to each peer. If `None`, the configuration
    /// decides; the default is to search.
    pub path_mtu: Option<bool>,
    /// Whether secrets are agreed with peers against quantum computers. If `None`, the
    /// configuration decides; the default is to agree with each peer that supports it.
    pub post_quantum: Option<PostQuantum>,
    /// Which code computes handshakes and packets. If `None`, the configuration decides; the default
    /// is the fastest.
    pub crypto: Option<Crypto>,
    /// Where metrics are served; nowhere by default.
    pub metrics: Option<metrics::Address>,
}

/// What differs between the kinds of process, in the order of the calls.
pub(crate) trait ProcessKind: Send {
    /// Configures the peer before the control socket answers, with all rights.
    fn configure(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// What the control socket shows beside the peer. Called by a confined thread.
    fn extras(&mut self, node: &Arc<Node>) -> Arc<dyn Extras>;

    /// Configures the host around the peer, with all rights, once the control socket answers.
    fn bring_up(&mut self, _: &Arc<Node>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Hands to other processes what needs rights from now on.
    fn delegate(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Starts the rest. This thread is confined now.
    fn serve(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// The time until [`ProcessKind::catch_up`] is to be called, if it is.
    fn wait(&self) -> Option<Duration> {
        None
    }

    /// Does what was postponed.
    fn catch_up(&mut self) {}

    /// Prepares the end that a command requests.
    ///
    /// # Errors
    /// The process goes on.
    fn prepare_down(&mut self, _: &Node) -> anyhow::Result<()> {
        Ok(())
    }

    /// Handles an event. `Some` ends the process.
    fn handle(&mut self, node: &Node, event: Event) -> Option<StopReason>;

    /// Links, addresses, routes or rules of this machine changed; each change is there once.
    fn handle_changes(&mut self, node: &Node, changes: &[netlink::Event]);

    /// Undoes everything. `file` is the control socket's; `reason` is `None` if the start failed.
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

/// Why a process ends.
pub(crate) enum StopReason {
    /// It was told to.
    Requested,
    /// The interface is gone.
    InterfaceDeleted,
    /// The data plane failed.
    DataPlaneFailed(io::Error),
}

/// The parts of a process, all opened.
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

/// The files of the sockets, which are removed when these are dropped.
struct SocketFiles {
    control: Option<SocketFile>,
    _metrics: Option<SocketFile>,
}

impl<K: ProcessKind, R: IpRecv + 'static, S: IpSend> Lifecycle<K, R, S> {
    /// Runs it until it is told to end. `ready` is called once it can be used.
    ///
    /// # Errors
    /// It could not be started, its data plane failed, or something could not be undone.
    pub fn run(self, ready: impl FnOnce()) -> anyhow::Result<()> {
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

/// Handles events until the process is to end.
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
                // An error means that the client has left.
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

/// The next event. Meanwhile, what was postponed is done when it is due.
fn next(kind: &mut impl ProcessKind, inbox: &mpsc::Receiver<Message>) -> Option<Message> {
    while let Some(wait) = kind.wait() {
        match inbox.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => kind.catch_up(),
            received => return received.ok(),
        }
    }
    next_event(inbox)
}

/// Binds the metrics' address.
///
/// # Errors
/// It is in use.
pub(crate) fn bind_metrics(address: Option<&metrics::Address>) -> anyhow::Result<Option<Metrics>> {
    address.map(Metrics::bind).transpose().context("metrics")
}

/// The files of a process's sockets.
pub(crate) fn socket_files<'a>(
    control: Option<&'a ControlSocket>,
    metrics: Option<&'a Metrics>,
) -> impl Iterator<Item = &'a Path> {
    let control = control.map(ControlSocket::path);
    control.into_iter().chain(iter::once(metrics.and_then(Metrics::path)).flatten())
}

/// Tells a helper that there are no routes and rules.
///
/// # Errors
/// It is gone.
pub(crate) fn register_empty(helper: &Helper) -> io::Result<()> {
    helper.register(&[], &[])
}
