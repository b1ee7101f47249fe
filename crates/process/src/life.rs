//! One way to life, whatever a process is for: what it is made of is opened with all rights, and
//! then these are given up, in the one order that lets each step still be made.
//!
//! ```text
//!   Life { sides, sockets, sandbox, kind }            everything is open; no thread but the main one
//!     `── run
//!          sandbox.start    threads of node, control, metrics, events     files, rights: confined
//!          kind.bring_up    configuration, routes, hooks                  the main thread has all
//!          kind.hand_over   to a guardian and a helper
//!          sandbox.enter                                                  the main thread: confined
//!          kind.serve       clients of proxies
//!          sandbox.confine_calls                                          all threads: system calls
//!          ready ──► events ──► kind.handle ... ──► kind.take_down
//! ```

use std::{
    io, iter,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use anyhow::Context;
use node::{IpSide, Node, NodeParts};
use packet::{IpRecv, IpSend};
use sys::{Offloads, SocketFile, UdpReceiver, UdpSocket, process::Helper};

use crate::{
    control::{ControlSocket, Extras},
    events::{Event, Listeners, events, release_code},
    log_error::log_error,
    metrics::{self, Metrics},
    sandbox::Sandbox,
    supervisor::Supervisor,
};

/// How a process logs, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStyle {
    /// Nobody sees it once the process is ready.
    pub background: bool,
    /// Programs read it: lines of JSON.
    pub json: bool,
}

/// What of the machine a peer uses.
#[derive(Debug, Default)]
pub struct Means {
    /// Which offloads are used from the start.
    pub offloads: Offloads,
    /// How many cores.
    pub cores: usize,
    /// Whether it searches for the MTU of the path to each peer; its configuration says so
    /// where this does not, and it does where neither says.
    pub path_mtu: Option<bool>,
    /// Where counters are to be had; nowhere by default.
    pub metrics: Option<metrics::Address>,
}

/// What a kind of life does of its own, in the order of its calls.
pub(crate) trait Kind: Send {
    /// What the control socket tells of it beside the peer. The thread that asks is confined.
    fn extras(&mut self, node: &Arc<Node>) -> Arc<dyn Extras>;

    /// Configures the peer, and the host around it, with all rights.
    fn bring_up(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// Leaves to other processes what takes rights from now on.
    fn hand_over(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Starts what is left to start. This thread is confined now.
    fn serve(&mut self, node: &Arc<Node>) -> anyhow::Result<()>;

    /// After how long [`Kind::catch_up`] is to be called, where it is.
    fn wait(&self) -> Option<Duration> {
        None
    }

    /// Does what was left for later.
    fn catch_up(&mut self) {}

    /// Heeds an event. `Some` ends the process.
    fn handle(&mut self, node: &Node, event: Event) -> Option<Ending>;

    /// Takes everything back; `file` is the control socket's, and `ending` is absent where it was
    /// not brought up.
    ///
    /// # Errors
    /// Something stays behind.
    fn take_down(
        self,
        node: Arc<Node>,
        file: Option<SocketFile>,
        ending: Option<&Ending>,
    ) -> anyhow::Result<()>;
}

/// Why a process ends.
pub(crate) enum Ending {
    /// It was told to.
    Told,
    /// The interface is gone.
    Gone,
    /// The data plane failed.
    Broken(io::Error),
}

/// Everything that a process is made of, open.
pub(crate) struct Life<K, R, S> {
    pub name: String,
    pub ip: IpSide<R, S>,
    pub udp: (UdpSocket, UdpReceiver),
    pub offloads: Arc<Offloads>,
    pub cores: usize,
    pub control: Option<ControlSocket>,
    pub metrics: Option<Metrics>,
    pub listeners: Listeners,
    pub supervisor: Supervisor,
    pub sandbox: Sandbox,
    pub kind: K,
}

/// What runs, and the files of its sockets.
struct Running {
    node: Arc<Node>,
    file: Option<SocketFile>,
    _metrics: Option<SocketFile>,
}

impl<K: Kind, R: IpRecv + 'static, S: IpSend> Life<K, R, S> {
    /// Runs it until it is told to end. `ready` is called once it can be used.
    ///
    /// # Errors
    /// It could not be started, its data plane failed, or something stays behind.
    pub fn run(self, ready: impl FnOnce()) -> anyhow::Result<()> {
        let Self { name, sandbox, supervisor, mut kind, .. } = self;
        let Self { ip, udp, offloads, cores, control, metrics, listeners, .. } = self;
        let parts = NodeParts { ip, udp, offloads, cores };
        let (events, inbox) = mpsc::channel();
        let running = sandbox.start(|| {
            let node = start(parts, &events)?;
            let extras = kind.extras(&node);
            let down = events.clone();
            let down = move || {
                let _ = down.send(Event::End("linerate down"));
            };
            let serve = |control: ControlSocket| control.serve(node.clone(), extras, down);
            let file = control.map(serve).transpose().context("socket")?;
            let metrics = metrics.map(|metrics| metrics.serve(node.clone())).transpose();
            let _metrics = metrics.context("threads")?.flatten();
            listeners.spawn(events).context("threads")?;
            Ok(Running { node, file, _metrics })
        });
        let Running { node, file, _metrics } = running?;
        let mut settle = || {
            kind.bring_up(&node)?;
            kind.hand_over()?;
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
        release_code();
        let ending = live(&node, &mut kind, &inbox);
        supervisor.stopping();
        kind.take_down(node, file, Some(&ending))?;
        match ending {
            Ending::Told | Ending::Gone => Ok(()),
            Ending::Broken(error) => Err(error).with_context(|| format!("{name}: the data plane")),
        }
    }
}

fn start<R: IpRecv + 'static, S: IpSend>(
    parts: NodeParts<R, S>,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<Arc<Node>> {
    let ended = events.clone();
    let node = Node::start(parts, move |error| {
        let _ = ended.send(Event::Gone(error));
    });
    Ok(Arc::new(node.context("engine")?))
}

/// Handles events until the process is to end.
fn live(node: &Node, kind: &mut impl Kind, inbox: &mpsc::Receiver<Event>) -> Ending {
    while let Some(event) = next(kind, inbox) {
        if let Event::End(why) = event {
            tracing::info!(why, "going down");
            return Ending::Told;
        }
        if let Some(ending) = kind.handle(node, event) {
            return ending;
        }
    }
    Ending::Told
}

/// The next event. Meanwhile what was left for later is done when it is time.
fn next(kind: &mut impl Kind, inbox: &mpsc::Receiver<Event>) -> Option<Event> {
    while let Some(wait) = kind.wait() {
        match inbox.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => kind.catch_up(),
            received => return received.ok(),
        }
    }
    events(inbox).next()
}

/// Binds where counters are to be had.
///
/// # Errors
/// Somebody listens there.
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

/// Has a helper know that there are no routes and rules.
///
/// # Errors
/// It is gone.
pub(crate) fn register_nothing(helper: &Helper) -> io::Result<()> {
    helper.register(&[], &[])
}
