//! The life of a `linerate` process: make the interface, serve, and leave
//! nothing behind.
//!
//! ```text
//!   signals, socket file, link and routes, engine, UAPI
//!        `------> Event ------> main thread ------> Node
//! ```

use std::{
    io, iter,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use sys::{
    Offloads, Tun, TunError, TunInfo, TunRecv, TunSend, UdpReceiver, UdpSocket,
    netlink::{self, Follow, Followed, Monitor, Netlink},
    process::{self, Helper, Signals, helper::Charge},
    watch::{Watch, Watched},
};

use crate::{
    Node,
    conf::Conf,
    metrics::{self, Metrics},
    sandbox::Sandbox,
    server::{SocketFile, UapiSocket, socket_path},
    supervisor::Supervisor,
    up::{Offers, Turn, Up},
};

/// The MTU of an interface that is told none: 1500 of Ethernet, less 80 for the
/// outer IPv6 and UDP headers and our own.
pub(crate) const DEFAULT_MTU: u32 = 1420;

/// `EBADFD` of Linux: what a TUN answers whose interface was deleted.
const EBADFD: i32 = 77;

/// Without an event for so long, the work of the last ones is over.
const QUIET: Duration = Duration::from_secs(1);

/// What a process is started for.
#[derive(Debug, Default)]
pub struct Options {
    /// The interface's name.
    pub name: String,
    /// Whom to become once everything that takes root is open.
    pub user: Option<String>,
    /// A configuration to bring up, and the path it came from.
    pub conf: Option<(std::path::PathBuf, Conf)>,
    /// What of the machine it uses.
    pub means: Means,
    /// Whether it gives up what it does not need of the kernel.
    pub sandbox: bool,
    /// How it tells what it does.
    pub voice: Voice,
}

/// How a process tells what it does, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voice {
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

/// What the main thread hears.
pub(crate) enum Event {
    Link(netlink::Event),
    /// What became of the interface itself.
    Own(Followed),
    /// The process is to end.
    End(&'static str),
    /// The interface is gone.
    Gone(io::Error),
}

/// Runs a peer until it is told to end. `ready` is called once the interface
/// and the socket can be used.
///
/// # Errors
/// It could not be started, or not be brought down in order.
pub fn run(options: Options, ready: impl FnOnce()) -> anyhow::Result<()> {
    process::harden().context("core dumps")?;
    let name = &options.name;
    // While signals still end the process.
    let conf =
        options.conf.map(|(path, conf)| anyhow::Ok((path, conf, turn(name)?))).transpose()?;
    // Before any thread: signals and rights are each thread's own.
    let signals = Signals::block().context("signals")?;
    let supervisor = Supervisor::find();
    let up = conf.map(|(path, conf, turn)| Up::new(path, conf, name, turn));
    let mut up = up.transpose()?;
    if let Some(up) = &mut up {
        up.prepare()?;
    }
    let Means { offloads, cores, path_mtu, metrics } = options.means;
    let path_mtu = path_mtu.or(up.as_ref().and_then(Up::path_mtu));
    let mut metrics = bind(metrics.as_ref())?;
    let offloads = Arc::new(offloads);
    let tun = Tun::create(name, DEFAULT_MTU, &offloads).map_err(|error| explain(name, error))?;
    let index = tun.2.index;
    let mut socket = UapiSocket::bind(&tun.2.name)
        .with_context(|| format!("{}", socket_path(&tun.2.name).display()))?;
    let watch = Watch::new(socket.path()).context("watch of the socket")?;
    let monitor = Monitor::open().context("netlink")?;
    // Before rights are given up: it hears what it might hear when it was opened.
    let follow = Follow::open(index).context("netlink")?;
    let files = iter::once(socket.path()).chain(metrics.as_ref().and_then(Metrics::path));
    let helper = help(index, files, (options.sandbox, options.user.is_some()));
    let helper = helper.context("helper process")?;
    if let Some(helper) = &helper {
        socket.hand_over(helper.clone());
        metrics.iter_mut().for_each(|metrics| metrics.hand_over(helper.clone()));
    }
    if let Some(helper) = helper.as_ref().filter(|_| !options.sandbox) {
        helper.tell(&[], &[]).context("helper process")?;
    }
    // Without a sandbox it has its rights itself.
    let helper = helper.filter(|_| options.sandbox);
    let udp = UdpSocket::unbound_by(&offloads, helper.clone()).context("UDP socket")?;
    if let Some(user) = &options.user {
        process::drop_privileges(user).with_context(|| format!("becoming {user}"))?;
    }
    if let Some(up) = &mut up {
        up.resolve_endpoints()?;
    }
    let sockets = iter::once(socket.path()).chain(metrics.as_ref().and_then(Metrics::path));
    let sandbox = match options.sandbox {
        true => Sandbox::of_interface(sockets, helper.is_some()),
        false => Sandbox::off(),
    };

    let offers = up.as_ref().map(Up::offers).unwrap_or_default();
    let (events, inbox) = mpsc::channel();
    let running = sandbox.start(|| {
        let listeners = (signals, Some(watch), monitor, follow);
        let sockets = (socket, metrics, offers);
        start((tun, udp), (offloads, cores), sockets, listeners, events)
    });
    let Running { node, file, metrics: _metrics } = running?;
    node.search_paths(path_mtu.unwrap_or(true));
    let confine = |up: Option<&mut Up>| {
        if options.sandbox
            && let Some(up) = up
        {
            up.guard(index, options.voice)?;
            up.leave_to(helper.clone()).context("helper process")?;
        } else if let Some(helper) = &helper {
            helper.tell(&[], &[]).context("helper process")?;
        }
        sandbox.enter()?;
        resynchronise(&node, Some(index));
        sandbox.confine_calls()?;
        supervisor.ready(&node).context("threads")
    };
    let is_up = up.as_mut().map_or(Ok(()), |up| up.bring_up(&node));
    if let Err(error) = is_up.and_then(|()| confine(up.as_mut())) {
        if let Err(error) = shut_down(node, file, up, (Some(index), false)) {
            tracing::error!("{error:#}");
        }
        return Err(error);
    }
    say_started(ready);
    let mut home = Some(index);
    let ending = serve(&node, &mut home, up.as_mut(), &inbox);
    supervisor.stopping();
    shut_down(node, file, up, (home, matches!(ending, Ending::Gone)))?;
    match ending {
        Ending::Told | Ending::Gone => Ok(()),
        Ending::Broken(error) => Err(error).with_context(|| format!("{name}: the data plane")),
    }
}

/// The process that keeps what rights the peer gives up, where there is any: for what needs them
/// from time to time, and for the files of sockets once another user runs the peer.
fn help<'a>(
    index: u32,
    files: impl Iterator<Item = &'a Path>,
    (sandbox, other_user): (bool, bool),
) -> io::Result<Option<Arc<Helper>>> {
    let keeps_rights = sandbox && process::administers_network();
    if !keeps_rights && !other_user {
        return Ok(None);
    }
    let charge = Charge {
        index: if keeps_rights { index } else { 0 },
        sockets: keeps_rights,
        removes_at_end: other_user,
        sandbox,
        files: files.map(Path::to_owned).collect(),
    };
    Helper::start(&charge).map(Arc::new).map(Some)
}

/// Waits for this process's turn, which ends with it: what it serves at, such as the port of the
/// metrics, is free no earlier for the next one.
fn turn(name: &str) -> anyhow::Result<&'static Turn> {
    let turn = Turn::wait(name)?.ok_or_else(|| explain(name, TunError::Busy))?;
    // Who has an interface without a turn keeps it, and what its ledger tells of; one that waits
    // for a process can be had, and is there when it was let go of again.
    if Netlink::open()?.link_by_name(name)?.is_some() {
        Tun::create(name, DEFAULT_MTU, &Arc::default()).map_err(|error| explain(name, error))?;
    }
    Ok(Box::leak(Box::new(turn)))
}

/// What runs, and the files of its sockets.
struct Running {
    node: Arc<Node>,
    file: SocketFile,
    metrics: Option<SocketFile>,
}

/// Starts all threads.
fn start(
    (tun, udp): ((TunRecv, TunSend, TunInfo), (UdpSocket, UdpReceiver)),
    means: (Arc<Offloads>, usize),
    (socket, metrics, offers): (UapiSocket, Option<Metrics>, Offers),
    (signals, watch, monitor, follow): (Signals, Option<Watch>, Monitor, Follow),
    events: mpsc::Sender<Event>,
) -> anyhow::Result<Running> {
    let ended = events.clone();
    let node = Node::start(tun, udp, means, move |error| {
        let _ = ended.send(Event::Gone(error));
    });
    let node = Arc::new(node.context("engine")?);
    let down = events.clone();
    let down = move || {
        let _ = down.send(Event::End("linerate down"));
    };
    let file = socket.serve(node.clone(), Arc::new(offers), down).context("socket")?;
    let metrics = metrics.map(|metrics| metrics.serve(node.clone())).transpose();
    let metrics = metrics.context("threads")?.flatten();
    spawn_follower(events.clone(), follow).context("threads")?;
    spawn_listeners(events, signals, watch, monitor).context("threads")?;
    Ok(Running { node, file, metrics })
}

/// Calls `ready`, and gives back what memory only the start took.
pub(crate) fn say_started(ready: impl FnOnce()) {
    ready();
    release_code();
}

/// The events, one after the other. What code it took to answer them, and to configure a
/// peer that has just started, is let go of when no more came for a while.
pub(crate) fn events(inbox: &mpsc::Receiver<Event>) -> impl Iterator<Item = Event> {
    iter::from_fn(move || match inbox.recv_timeout(QUIET) {
        Err(RecvTimeoutError::Timeout) => {
            release_code();
            inbox.recv().ok()
        }
        received => received.ok(),
    })
}

fn release_code() {
    if let Err(error) = process::release_code() {
        tracing::debug!(%error, "code that is not used stays resident");
    }
}

/// Binds where counters are to be had.
pub(crate) fn bind(metrics: Option<&metrics::Address>) -> anyhow::Result<Option<Metrics>> {
    metrics.map(Metrics::bind).transpose().context("metrics")
}

/// Why a process ends.
enum Ending {
    /// It was told to.
    Told,
    /// The interface is gone.
    Gone,
    /// The data plane failed while there is an interface.
    Broken(io::Error),
}

fn explain(name: &str, error: TunError) -> anyhow::Error {
    match error {
        TunError::Busy => anyhow::anyhow!(
            "{name}: the interface exists already; `linerate down {name}` or `ip link delete \
             {name}` ends what holds it"
        ),
        error => anyhow::Error::new(error).context(name.to_owned()),
    }
}

/// Handles events until the process is to end. `home` is the interface's index in this namespace,
/// while it is here.
fn serve(
    node: &Node,
    home: &mut Option<u32>,
    mut up: Option<&mut Up>,
    inbox: &mpsc::Receiver<Event>,
) -> Ending {
    let own = node.info().index;
    while let Some(event) = next(inbox, up.as_deref_mut()) {
        match event {
            Event::End(why) => {
                tracing::info!(why, "going down");
                return Ending::Told;
            }
            // Wherever the interface was, it is deleted.
            Event::Gone(error) if error.raw_os_error() == Some(EBADFD) => return Ending::Gone,
            Event::Gone(error) => {
                tracing::error!(%error, "the data plane ended");
                return Ending::Broken(error);
            }
            Event::Own(Followed::Deleted) => return Ending::Gone,
            Event::Own(event) => {
                if let (Some(up), Followed::Away { .. }) = (&mut up, event) {
                    up.leave();
                }
                follow(node, home, event);
            }
            Event::Link(event) => {
                if let Some(up) = &mut up {
                    up.handle_event(event, own);
                }
                match event {
                    netlink::Event::RoutesChanged
                    | netlink::Event::RulesChanged
                    | netlink::Event::AddressesChanged => node.routes_changed(),
                    netlink::Event::Lost => resynchronise(node, *home),
                    _ => {}
                }
            }
        }
    }
    Ending::Told
}

/// Does what the interface does.
fn follow(node: &Node, home: &mut Option<u32>, event: Followed) {
    match event {
        Followed::Up => link_up(node, *home),
        Followed::Down => node.link_down(),
        Followed::Mtu(mtu) => node.set_mtu(mtu),
        Followed::Away { is_seen } => {
            *home = None;
            tracing::info!("the interface was moved to another network namespace");
            if !is_seen {
                tracing::warn!(
                    "whether the interface is up there, and its MTU, is not seen: that takes \
                     CAP_NET_BROADCAST at the start"
                );
            }
            // It may be up there and never be seen; where it is seen to be down that comes next.
            link_up(node, None);
        }
        Followed::Home(index) => {
            *home = Some(index);
            tracing::info!("the interface is back in this network namespace");
        }
        Followed::Lost => resynchronise(node, *home),
        Followed::Deleted => {}
    }
}

/// The next event. Meanwhile what rules are missing is put back when it is time.
fn next(inbox: &mpsc::Receiver<Event>, mut up: Option<&mut Up>) -> Option<Event> {
    while let Some(up) = &mut up
        && let Some(wait) = up.rules_wait()
    {
        match inbox.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => up.keep_rules(),
            received => return received.ok(),
        }
    }
    events(inbox).next()
}

/// The news were more than their buffer holds: look at the link itself, where it is here.
fn resynchronise(node: &Node, home: Option<u32>) {
    node.routes_changed();
    let Some(index) = home else { return };
    match Netlink::open().and_then(|netlink| netlink.link(index)) {
        Ok(Some(link)) => {
            node.set_mtu(link.mtu);
            if link.up { link_up(node, home) } else { node.link_down() }
        }
        Ok(None) => {}
        Err(error) => tracing::error!(%error, "netlink"),
    }
}

/// An interface without a socket would lose everything in silence: it goes down
/// again, where it is here.
fn link_up(node: &Node, home: Option<u32>) {
    let Err(error) = node.link_up() else { return };
    let Some(index) = home else {
        tracing::error!(%error, "no UDP socket: the interface carries nothing");
        return;
    };
    tracing::error!(%error, "no UDP socket: the interface goes down again");
    let set_down = match node.helper().filter(|_| index == node.info().index) {
        Some(helper) => helper.set_down(),
        None => Netlink::open().and_then(|netlink| netlink.set_down(index)).map_err(Into::into),
    };
    if let Err(error) = set_down {
        tracing::error!(%error, "the interface stays up");
    }
}

/// Takes everything back. An interface that is not here goes with the process, as does its TUN.
fn shut_down(
    node: Arc<Node>,
    file: SocketFile,
    up: Option<Up>,
    (home, gone): (Option<u32>, bool),
) -> anyhow::Result<()> {
    if let Some(mut up) = up {
        if gone {
            up.clean_up();
        } else {
            up.bring_down(&node, home);
        }
    }
    drop(file);
    let Some(index) = home else { return Ok(()) };
    if let Err(error) =
        Netlink::open().map_err(io::Error::from).and_then(|netlink| match netlink.link(index)? {
            Some(link) if link.name == node.info().name => delete_link(&node, &netlink, index),
            _ => Ok(()),
        })
    {
        bail!("{}: the interface could not be deleted: {error}", node.info().name);
    }
    Ok(())
}

/// Deletes the interface, or has the helper do so. One that came back to this namespace under
/// another index goes with its TUN device: the helper acts on the index of the start alone.
pub(crate) fn delete_link(node: &Node, netlink: &Netlink, index: u32) -> io::Result<()> {
    match node.helper() {
        Some(helper) if index == node.info().index => helper.delete_link(),
        Some(_) => Ok(()),
        None => Ok(netlink.delete_link(index)?),
    }
}

/// Starts the thread that tells the main thread what becomes of the interface.
fn spawn_follower(events: mpsc::Sender<Event>, mut follow: Follow) -> io::Result<()> {
    thread::Builder::new().name("interface".into()).spawn(move || {
        while let Ok(event) = follow.next() {
            let _ = events.send(Event::Own(event));
        }
    })?;
    Ok(())
}

/// Starts the threads that tell the main thread of signals, of the end of the socket's
/// file and of the kernel's network configuration.
pub(crate) fn spawn_listeners(
    events: mpsc::Sender<Event>,
    signals: Signals,
    watch: Option<Watch>,
    mut monitor: Monitor,
) -> io::Result<()> {
    let sender = events.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        while signals.wait().is_ok() {
            let _ = sender.send(Event::End("signal"));
        }
    })?;
    if let Some(mut watch) = watch {
        let sender = events.clone();
        thread::Builder::new().name("socket watch".into()).spawn(move || {
            if matches!(watch.wait(), Ok(Watched::Gone)) {
                let _ = sender.send(Event::End("the socket's file was removed"));
            }
        })?;
    }
    thread::Builder::new().name("netlink".into()).spawn(move || {
        while let Ok(Some(event)) = monitor.next() {
            let _ = events.send(Event::Link(event));
        }
    })?;
    Ok(())
}
