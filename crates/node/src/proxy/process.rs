//! The life of a `linerate proxy` process.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail};
use ipnet::IpNet;
use packet::{IpRecv, IpSend};
use sys::{
    Offloads, Tun, TunInfo, UdpSocket,
    namespace::{Namespace, NamespaceError, Plan},
    netlink::{self, Monitor, Netlink},
    process::{self, Helper, Signals, helper::Charge},
    watch::Watch,
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};

use super::{
    capacity::Capacity,
    connections::{Connections, Source},
    dial::Dialer,
    gate::Gate,
    half_open::Client,
    in_process::InProcessStack,
    namespace::KernelStack,
    reach::Reach,
    services::{self, Bound, Rules},
    stack::Stack,
    users::Users,
};
use crate::{
    Node,
    conf::{Conf, Place, Placed, Table},
    daemon::{self, Event, Means, events, say_started, spawn_listeners},
    metrics::Metrics,
    sandbox::Sandbox,
    server::{Beside, UapiSocket},
    supervisor::Supervisor,
    uapi::Change,
    up::{resolve, tunnel_mtu},
};

/// What a process is started for.
#[derive(Debug)]
pub struct Options {
    /// What it is called, by `linerate show` and `linerate down`.
    pub name: String,
    /// What it is to do.
    pub conf: Conf,
    /// What of the machine it uses.
    pub means: Means,
    /// Whose TCP/IP stack.
    pub stack: StackChoice,
    /// Whether it gives up what it does not need of the kernel.
    pub sandbox: bool,
}

/// Whose TCP/IP stack is on the tunnel's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackChoice {
    /// The kernel's where it is to be had, else our own.
    #[default]
    Auto,
    /// The kernel's, in a private network namespace.
    Namespace,
    /// Our own.
    InProcess,
}

/// What of a file has no meaning for a proxy.
const MEANINGLESS: &str = "hooks, Table and SaveConfig are for `linerate up`: they are ignored";

/// Runs a peer and its proxies until it is told to end. `ready` is called once all
/// listeners listen.
///
/// # Errors
/// It could not be started, or its data plane failed.
pub fn run(options: Options, ready: impl FnOnce()) -> anyhow::Result<()> {
    // Before any thread: signals and namespaces are each thread's own.
    let signals = Signals::block().context("signals")?;
    let Options { name, mut conf, means, stack, sandbox } = options;
    check(&conf)?;
    let mut endpoints = Vec::new();
    let mut change = conf.change(|name| {
        let endpoint = resolve(name)?;
        endpoints.push(endpoint);
        anyhow::Ok(endpoint)
    })?;
    conf.forget_secrets();
    let plan = Plan { sandbox, ..plan(&conf, &name, &endpoints)? };
    let namespace = enter(stack, &plan, || change.forget_secrets())?;
    // Behind the fork, as its child has nothing to do with them.
    let users = services::read_users(&conf.interface.proxy.users)?;
    process::harden().context("core dumps")?;
    process::raise_file_limit().context("limit of open files")?;

    let metrics = daemon::bind(means.metrics.as_ref())?;
    let offloads = Arc::new(means.offloads);
    let path_mtu = means.path_mtu.or(conf.interface.path_mtu).unwrap_or(true);
    let (cores, sandbox) = (means.cores, plan.sandbox);
    let life =
        Life { name, conf, change, users, signals, offloads, cores, path_mtu, metrics, sandbox };
    if let Some((namespace, tun, info)) = namespace {
        let (recv, send) = Tun::adopt(tun, &life.offloads).context("TUN")?;
        life.run((KernelStack::new(namespace), true), (recv, send, info), ready)
    } else {
        let opened = InProcessStack::open(&plan, &life.offloads);
        let (stack, recv, send) = opened.context("randomness")?;
        let info = TunInfo { name: plan.name, index: 0, mtu: plan.mtu };
        life.run((stack, false), (recv, send, info), ready)
    }
}

/// The kernel's stack, where it is wanted and to be had. `forget` is for the child: it takes the
/// secrets away that it has of its parent's memory.
fn enter(
    choice: StackChoice,
    plan: &Plan,
    forget: impl FnOnce(),
) -> Result<Option<(Namespace, OwnedFd, TunInfo)>, NamespaceError> {
    if choice == StackChoice::InProcess {
        return Ok(None);
    }
    match Namespace::open(plan, forget) {
        Err(why) if choice == StackChoice::Auto && why.is_for_want_of_right() => {
            tracing::info!(%why, "with a TCP/IP stack of our own");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// All that a process is to do, whatever its stack.
struct Life {
    name: String,
    conf: Conf,
    change: Change,
    users: Users,
    signals: Signals,
    offloads: Arc<Offloads>,
    cores: usize,
    path_mtu: bool,
    metrics: Option<Metrics>,
    sandbox: bool,
}

impl Life {
    fn run<S: Stack>(
        self,
        (stack, is_of_kernel): (S, bool),
        ip: (impl IpRecv + 'static, impl IpSend, TunInfo),
        ready: impl FnOnce(),
    ) -> anyhow::Result<()> {
        let Self { name, conf, change, users, signals, metrics, .. } = self;
        let supervisor = Supervisor::find();
        let helper = help(self.sandbox, &conf).context("helper process")?;
        let udp = UdpSocket::unbound_by(&self.offloads, helper).context("UDP socket")?;
        let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
        let bound = runtime.block_on(Bound::new(&stack, &conf.interface.proxy))?;
        let control = control(&name)?;
        let monitor = Monitor::open().context("netlink")?;
        let (limit, open) = process::file_limit().context("limit of open files")?;
        let capacity = Capacity::new(limit, open, bound.datagram_services());
        let sockets = control.iter().map(|(socket, _)| socket.path());
        let sockets = sockets.chain(metrics.as_ref().and_then(Metrics::path));
        let sandbox = match self.sandbox {
            true => Sandbox::of_proxy(sockets, &conf.interface, is_of_kernel),
            false => Sandbox::off(),
        };

        let (events, inbox) = mpsc::channel();
        let ended = events.clone();
        let ended = move |error| {
            let _ = ended.send(Event::Gone(error));
        };
        let means = (self.offloads, self.cores);
        let node = sandbox.start(|| Node::start(ip, udp, means, ended).context("engine"))?;
        let node = Arc::new(node);
        node.search_paths(self.path_mtu);
        node.apply(change).context("configuration")?;
        node.link_up().context("UDP socket")?;
        sandbox.enter()?;

        let reach = reach(&conf, &node);
        let dialer = Dialer::new(Arc::new(stack), reach, conf.interface.dns, capacity.dialling);
        let connections = runtime.block_on(async { Connections::new(capacity) });
        let gate = Arc::new(Gate { dialer: Arc::new(dialer), users, connections });
        let rules = Rules { datagrams: capacity.datagrams, source: source(&node) };
        let services = runtime.block_on(async { bound.serve(&gate, &rules) });
        let shown = Arc::new(Shown { gate, services, runtime: runtime.handle().clone() });
        let metrics = metrics.map(|metrics| metrics.serve(node.clone())).transpose();
        let _metrics_file = metrics.context("threads")?;
        let down = events.clone();
        let down = move || {
            let _ = down.send(Event::End("linerate down"));
        };
        let (socket, watch) = control.unzip();
        let serve_control = |socket: UapiSocket| socket.serve(node.clone(), shown, down);
        let socket = socket.map(serve_control).transpose().context("socket")?;
        spawn_listeners(events, signals, watch, monitor).context("threads")?;
        let (stop, thread) = serve_in_background(runtime).context("threads")?;
        sandbox.confine_calls()?;
        supervisor.ready(&node).context("threads")?;
        say_started(ready);
        let ended = serve(&node, &inbox);
        supervisor.stopping();
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the thread of the clients had failed");
        }
        drop(socket);
        node.link_down();
        ended.with_context(|| format!("{name}: the data plane"))
    }
}

/// The process that marks this one's sockets once it is confined, where they have a mark.
fn help(sandbox: bool, conf: &Conf) -> io::Result<Option<Arc<Helper>>> {
    let is_marked = conf.interface.fwmark.is_some_and(|mark| mark != 0);
    if !sandbox || !is_marked || !process::administers_network() {
        return Ok(None);
    }
    let charge = Charge { sockets: true, sandbox, ..Charge::default() };
    let helper = Helper::start(&charge)?;
    helper.tell(&[], &[])?;
    Ok(Some(Arc::new(helper)))
}

/// Refuses and warns of what cannot be meant.
fn check(conf: &Conf) -> anyhow::Result<()> {
    let interface = &conf.interface;
    conf.private_key()?;
    conf.without_up()?;
    for warning in &conf.warnings {
        tracing::warn!("{warning}");
    }
    if interface.hooks != Default::default()
        || interface.table != Table::Auto
        || interface.save_config
    {
        tracing::warn!("{MEANINGLESS}");
    }
    if interface.addresses.is_empty() {
        bail!("a proxy needs an Address to speak from");
    }
    if interface.proxy.is_empty() {
        bail!("nothing to do: there is no Socks5, HttpProxy, Forward or Expose, and no argument");
    }
    let proxies = interface.proxy.socks.iter().chain(&interface.proxy.http);
    for Placed { origin, value } in proxies.filter(|_| interface.proxy.users.is_empty()) {
        if let Place::Ip(address) = value
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                "{origin}: {address} is open to all who reach it: there is no ProxyUser"
            );
        }
    }
    Ok(())
}

fn plan(conf: &Conf, name: &str, endpoints: &[SocketAddr]) -> anyhow::Result<Plan> {
    let netlink = Netlink::open().context("netlink")?;
    let mtu = match conf.interface.mtu {
        Some(mtu) => mtu.into(),
        None => tunnel_mtu(&netlink, endpoints, conf.interface.fwmark.unwrap_or(0))?,
    };
    let addresses = conf.interface.addresses.clone();
    Ok(Plan { name: name.to_owned(), mtu, addresses, sandbox: false })
}

/// The tunnel leads to where the allowed IPs say, also when they change.
fn reach(conf: &Conf, node: &Arc<Node>) -> Reach {
    let own = conf.interface.addresses.iter().map(IpNet::addr).collect();
    let node = node.clone();
    Reach::new(own, move |ip| node.reaches(ip))
}

/// A client of the tunnel is its peer, by any of the addresses that are allowed it.
fn source(node: &Arc<Node>) -> Arc<dyn Fn(IpAddr) -> Source + Send + Sync> {
    let node = node.clone();
    Arc::new(move |ip| node.peer_of(ip).map_or(Source::Client(Client::Ip(ip)), Source::Peer))
}

/// The socket for `linerate show` and the like, which a user without a folder for it
/// does without.
fn control(name: &str) -> anyhow::Result<Option<(UapiSocket, Watch)>> {
    let socket = match UapiSocket::bind_own(name) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("{name}: a peer of this name runs already");
        }
        Err(error) => {
            tracing::warn!(%error, "no socket for `linerate show`: set XDG_RUNTIME_DIR to a folder");
            return Ok(None);
        }
    };
    let watch = Watch::new(socket.path()).context("watch of the socket")?;
    Ok(Some((socket, watch)))
}

/// What clients of the socket are told beside the peer.
struct Shown<S: Stack> {
    gate: Arc<Gate<S>>,
    services: Vec<String>,
    runtime: Handle,
}

impl<S: Stack> Beside for Shown<S> {
    fn describe(&self, lines: &mut String) {
        lines.push_str(&format!("stack={}\n", self.gate.dialer.stack.name()));
        for service in &self.services {
            lines.push_str(&format!("service={service}\n"));
        }
        for (name, count) in self.gate.connections.counters().by_name() {
            lines.push_str(&format!("{name}={count}\n"));
        }
    }

    fn offloads_changed(&self) {
        self.gate.dialer.stack.offloads_changed();
    }

    fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        self.runtime.block_on(self.gate.dialer.ping(host))
    }
}

/// Serves clients in a thread of its own. What is dropped first ends it; then the thread
/// is waited for, as it removes the files of Unix sockets.
fn serve_in_background(runtime: Runtime) -> io::Result<(oneshot::Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = oneshot::channel();
    let serving = move || {
        // It only ever ends by the other end's.
        let _ = runtime.block_on(stopped);
    };
    let thread = thread::Builder::new().name("proxy".into()).spawn(serving)?;
    Ok((stop, thread))
}

/// Handles events until the process is to end.
fn serve(node: &Node, inbox: &mpsc::Receiver<Event>) -> io::Result<()> {
    for event in events(inbox) {
        match event {
            Event::End(why) => {
                tracing::info!(why, "going down");
                return Ok(());
            }
            Event::Gone(error) => return Err(error),
            // Those of the machine: the tunnel's own link nobody else can reach.
            Event::Link(
                netlink::Event::RoutesChanged
                | netlink::Event::RulesChanged
                | netlink::Event::AddressesChanged
                | netlink::Event::Lost,
            ) => {
                node.routes_changed();
            }
            Event::Link(_) | Event::Own(_) => {}
        }
    }
    Ok(())
}
