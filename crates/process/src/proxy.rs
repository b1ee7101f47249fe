//! The process of `linerate proxy`.

use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use config::{
    conf::{Conf, Dns, SocketAddress, Table, WithOrigin},
    uapi::{Change, Stats},
};
use host::resolve;
use ipc;
use ipnet::IpNet;
use node::{IpSide, Node, tunnel_mtu};
use packet::{IpRecv, IpSend, UdpRecv as _};
use proxy::{
    Identity, InProcessStack, KernelStack, Proxies, ProxiesHandle, ProxyRuntime, ProxyThread,
    Stack, TunnelSide, Users, read_users,
};
use sys::{
    Offloads, SocketFile, Tun, TunInfo, UdpSocket,
    namespace::{Namespace, NamespaceError, Plan},
    netlink::{self, Netlink},
    process::{self, Helper, Signals, helper::Job},
    watch::Watch,
};
use wg::PostQuantum;

use crate::{
    endpoints::Endpoints,
    events::{Event, EventSources},
    lifecycle::{
        Lifecycle, LogStyle, ProcessKind, Resources, StopReason, bind_metrics, register_empty,
        socket_files,
    },
    member::{self, Member},
    metrics::Metrics,
    sandbox::Sandbox,
    supervisor::Supervisor,
    uapi_socket::{ControlSocket, Extras},
};

/// The options of the process.
#[derive(Debug)]
pub struct Options {
    /// The name for `linerate show` and `linerate down`.
    pub name: String,
    /// The configuration.
    pub conf: Conf,
    /// The resources of the machine that it uses.
    pub resources: Resources,
    pub stack: StackChoice,
    /// Whether it runs in a sandbox.
    pub sandbox: bool,
    /// The options of a tailnet node. Then the stack is in the process, and `conf` has only
    /// proxies.
    pub member: Option<member::Options>,
    /// The log style of its child processes.
    pub log_style: LogStyle,
}

/// The TCP/IP stack on the tunnel's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackChoice {
    /// The kernel's stack if it is available, else ours.
    #[default]
    Auto,
    /// The kernel's stack in a private network namespace.
    Namespace,
    /// Our stack.
    InProcess,
}

const IGNORED_SETTINGS: &str =
    "hooks, Table and SaveConfig apply only to `linerate up` and are ignored";

/// Runs a peer and its proxies until their end is requested. `ready` is called when all listeners
/// are open.
///
/// # Errors
/// The process could not be started, or its data plane failed.
pub fn run(options: Options, ready: impl FnOnce()) -> anyhow::Result<()> {
    // Before any thread is started: each thread has its own signal mask and namespaces.
    let signals = Signals::block().context("signals")?;
    let Options { name, mut conf, resources, stack, sandbox, member, log_style } = options;
    check(&conf, member.is_some())?;
    let mut endpoints = Vec::new();
    let mut change = conf.change(|name| {
        let endpoint = resolve(name, |pause| match signals.wait_for(pause)? {
            Some(_) => bail!("a signal was received"),
            None => Ok(()),
        })?;
        endpoints.push(endpoint);
        anyhow::Ok(endpoint)
    })?;
    conf.forget_secrets();
    let plan = Plan { sandbox, ..plan(&conf, &name, &endpoints)? };
    let endpoints = Endpoints::new(&conf, &name, false, sandbox);
    // The addresses of a node are not known yet and may change.
    let stack = if member.is_some() { StackChoice::InProcess } else { stack };
    let namespace = open_namespace(stack, &plan, || change.forget_secrets())?;
    // After the fork, so that the child does not have the passwords.
    let users = read_users(&conf.interface.proxy.users)?;
    process::harden().context("core dumps")?;
    process::raise_file_limit().context("limit of open files")?;

    let metrics = bind_metrics(resources.metrics.as_ref())?;
    let path_mtu = resources.path_mtu.or(conf.interface.features.path_mtu).unwrap_or(true);
    let post_quantum = resources.post_quantum.or(conf.interface.features.post_quantum);
    let post_quantum = post_quantum.unwrap_or(PostQuantum::On);
    let crypto = resources.crypto.or(conf.interface.features.crypto).unwrap_or_default();
    crypto.apply().context("Crypto")?;
    let cores = resources.cores;
    let offloads = Arc::new(resources.offloads);
    let mut start = Start {
        name,
        conf,
        change,
        users,
        signals,
        cores,
        path_mtu,
        post_quantum,
        offloads,
        metrics,
        sandbox,
        member,
        log_style,
        endpoints,
        set_addresses: Box::new(drop),
    };
    if let Some((namespace, tun, info)) = namespace {
        let (recv, send) = Tun::adopt(tun, &start.offloads).context("TUN")?;
        let ip = IpSide { source: Some(recv.source()), recv, send, info };
        start.run(KernelStack::new(namespace), true, ip, ready)
    } else {
        let opened = InProcessStack::open(&plan, &start.offloads);
        let (stack, recv, send) = opened.context("randomness")?;
        let info = TunInfo { name: plan.name, index: 0, mtu: plan.mtu };
        let inside = stack.stack.clone();
        start.set_addresses = Box::new(move |addresses| inside.set_addresses(addresses));
        start.run(stack, false, IpSide { recv, send, info, source: None }, ready)
    }
}

/// Opens the kernel's stack in a namespace, if it is chosen and available. The child process calls
/// `wipe_secrets`, because it has a copy of this process's memory.
fn open_namespace(
    choice: StackChoice,
    plan: &Plan,
    wipe_secrets: impl FnOnce(),
) -> Result<Option<(Namespace, OwnedFd, TunInfo)>, NamespaceError> {
    if choice == StackChoice::InProcess {
        return Ok(None);
    }
    match Namespace::open(plan, wipe_secrets) {
        Err(why) if choice == StackChoice::Auto && why.is_not_permitted() => {
            tracing::info!(%why, "using the in-process TCP/IP stack");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// The parts of the process except for the stack.
struct Start {
    name: String,
    conf: Conf,
    change: Change,
    users: Users,
    signals: Signals,
    cores: usize,
    path_mtu: bool,
    post_quantum: PostQuantum,
    offloads: Arc<Offloads>,
    metrics: Option<Metrics>,
    sandbox: bool,
    member: Option<member::Options>,
    log_style: LogStyle,
    endpoints: Endpoints,
    set_addresses: SetAddresses,
}

/// Sets the addresses of a stack.
type SetAddresses = Box<dyn Fn(Vec<IpAddr>) + Send>;

impl Start {
    fn run<S: Stack>(
        self,
        stack: S,
        is_of_kernel: bool,
        ip: IpSide<impl IpRecv + 'static, impl IpSend>,
        ready: impl FnOnce(),
    ) -> anyhow::Result<()> {
        let Self { name, conf, change, users, signals, .. } = self;
        let Self { cores, path_mtu, post_quantum, offloads, metrics, sandbox, .. } = self;
        let Self { member, log_style, endpoints, set_addresses, .. } = self;
        let supervisor = Supervisor::from_environment();
        let helper = start_helper(sandbox, &conf).context("helper process")?;
        let udp = UdpSocket::unbound_with_helper(&offloads, helper).context("UDP socket")?;
        let open = |options| Member::open(&name, None, options, udp.1.waker());
        let (attached, member) = member.map(open).transpose()?.unzip();
        let front = Proxies::bind(stack, &conf.interface.proxy)?;
        let (control, watch) = control(&name)?.unzip();
        let event_sources = EventSources::open(signals, watch)?;
        let files = process::open_files().context("limit of open files")?;
        let sandbox = if sandbox {
            let files = socket_files(control.as_ref(), metrics.as_ref());
            Sandbox::of_proxy(files, &conf.interface, is_of_kernel, member.is_some())
        } else {
            Sandbox::off()
        };
        let kind = Proxy {
            path_mtu,
            post_quantum,
            change,
            identity: Arc::new(Identity::new(
                conf.interface.addresses.iter().map(IpNet::addr).collect(),
            )),
            member,
            log_style,
            endpoints,
            set_addresses: Some(set_addresses),
            dns: conf.interface.dns,
            front: Some((front, users)),
            files,
            work: None,
            serving: None,
        };
        let life = Lifecycle {
            name,
            ip,
            udp,
            offloads,
            cores,
            attached: attached.unwrap_or_default(),
            control,
            metrics,
            event_sources,
            supervisor,
            sandbox,
            kind,
        };
        life.run(ready)
    }
}

struct Proxy<S: Stack> {
    path_mtu: bool,
    post_quantum: PostQuantum,
    change: Change,
    identity: Arc<Identity>,
    member: Option<Member>,
    log_style: LogStyle,
    endpoints: Endpoints,
    /// `None` after the member has it.
    set_addresses: Option<SetAddresses>,
    dns: Dns,
    /// `None` after it is served.
    front: Option<(Proxies<S>, Users)>,
    /// The open files at the start.
    files: process::OpenFiles,
    work: Option<ProxyRuntime>,
    serving: Option<ProxyThread>,
}

impl<S: Stack> ProcessKind for Proxy<S> {
    fn configure(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        node.search_paths(self.path_mtu);
        node.set_post_quantum(self.post_quantum);
        node.apply(mem::take(&mut self.change)).context("configuration")?;
        self.endpoints.name(node);
        node.link_up().context("UDP socket")
    }

    fn extras(&mut self, node: &Arc<Node>) -> Arc<dyn Extras> {
        let (front, users) = self.front.take().expect("`Lifecycle::run` calls it once");
        let node = node.clone();
        let tunnel = TunnelSide {
            identity: self.identity.clone(),
            dns: mem::take(&mut self.dns),
            peer_of: Arc::new(move |ip| node.peer_of(ip)),
        };
        let (served, work) = front.serve(tunnel, users, self.files);
        self.work = Some(work);
        Arc::new(ProxyExtras(served))
    }

    fn delegate(&mut self) -> anyhow::Result<()> {
        let style = self.log_style;
        self.endpoints.start_resolver(style)?;
        self.member.as_mut().map_or(Ok(()), |member| member.start_steward(style))
    }

    fn serve(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        if let (Some(member), Some(set_addresses)) = (&mut self.member, self.set_addresses.take()) {
            let identity = self.identity.clone();
            let on_identity = move |identity_update: ipc::Identity| {
                set_addresses(identity_update.addresses.clone());
                identity.set(
                    identity_update.addresses,
                    identity_update.names,
                    identity_update.search,
                );
            };
            member.serve(node, Box::new(on_identity))?;
        }
        self.endpoints.watch(node).context("threads")?;
        self.serving = self.work.take().map(ProxyRuntime::start).transpose().context("threads")?;
        Ok(())
    }

    fn handle(&mut self, _: &Node, event: Event) -> Option<StopReason> {
        match event {
            Event::DataPlaneEnded(error) => Some(StopReason::DataPlaneFailed(error)),
            // Other programs cannot change the link of the tunnel.
            Event::Link(_) => None,
        }
    }

    fn handle_changes(&mut self, node: &Node, changes: &[netlink::Event]) {
        if changes.iter().any(netlink::Event::is_network_change) {
            node.routes_changed();
            self.member.iter().for_each(Member::network_changed);
        }
    }

    fn take_down(
        self,
        node: Arc<Node>,
        file: Option<SocketFile>,
        _: Option<&StopReason>,
    ) -> anyhow::Result<()> {
        drop(self.serving);
        if let Some(mut member) = self.member {
            member.end();
        }
        drop(file);
        node.link_down();
        Ok(())
    }
}

/// Starts the process that marks the sockets of this process after it is confined, if they have a
/// mark.
fn start_helper(sandbox: bool, conf: &Conf) -> io::Result<Option<Arc<Helper>>> {
    let is_marked = conf.interface.fwmark.is_some_and(|mark| mark != 0);
    if !sandbox || !is_marked || !process::has_network_capabilities() {
        return Ok(None);
    }
    let job = Job { sockets: true, sandbox, ..Job::default() };
    let helper = Helper::start(&job)?;
    register_empty(&helper)?;
    Ok(Some(Arc::new(helper)))
}

/// Refuses a file that is not suitable for a proxy, and warns about questionable settings.
fn check(conf: &Conf, is_member: bool) -> anyhow::Result<()> {
    let interface = &conf.interface;
    if !is_member {
        conf.private_key()?;
    }
    conf.without_up()?;
    for warning in &conf.warnings {
        tracing::warn!("{warning}");
    }
    if interface.hooks != Default::default()
        || interface.table != Table::Auto
        || interface.save_config
    {
        tracing::warn!("{IGNORED_SETTINGS}");
    }
    if interface.addresses.is_empty() && !is_member {
        bail!("a proxy needs an Address");
    }
    if interface.proxy.is_empty() && !is_member {
        bail!("nothing to do: Socks5, HttpProxy, Forward, Expose and arguments are missing");
    }
    let proxies = interface.proxy.socks.iter().chain(&interface.proxy.http);
    for WithOrigin { origin, value } in proxies.filter(|_| interface.proxy.users.is_empty()) {
        if let SocketAddress::Ip(address) = value
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                "{origin}: the proxy is open to all clients that can reach {address}, because \
                ProxyUser is not set"
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

/// Opens the control socket. A user without a folder for it runs without a socket.
fn control(name: &str) -> anyhow::Result<Option<(ControlSocket, Watch)>> {
    let socket = match ControlSocket::bind_own(name) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("{name}: a peer with this name is already running");
        }
        Err(error) => {
            tracing::warn!(
            %error,
            "cannot open a socket for `linerate show`: set XDG_RUNTIME_DIR to a folder"
            );
            return Ok(None);
        }
    };
    let watch = Watch::new(socket.path()).context("watch of the socket")?;
    Ok(Some((socket, watch)))
}

/// Answers of the control socket about the proxies.
struct ProxyExtras<S: Stack>(ProxiesHandle<S>);

impl<S: Stack> Extras for ProxyExtras<S> {
    fn describe(&self, stats: &mut Stats) {
        stats.proxy = Some(self.0.stats());
    }

    fn offloads_changed(&self) {
        self.0.offloads_changed();
    }

    fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        self.0.ping(host)
    }
}
