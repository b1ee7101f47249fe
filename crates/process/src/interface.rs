//! A process with an interface: a TUN device and, with `up`, everything that wg-quick(8)
//! configures. All changes are undone at the end.

use std::{io, os::unix::net::UnixStream, path::Path, sync::Arc};

use anyhow::{Context, bail};
use host::{
    InterfaceLock,
    sockets::{find_socket, socket_path},
};
use node::{DEFAULT_MTU, IpSide, Node};
use packet::{UdpRecv as _, filter::Policy};
use sys::{
    SocketFile, Tun, TunError, UdpSocket,
    errno::{Errno, errno},
    netlink::{self, LinkChange, LinkFollower, Netlink},
    process::{self, Helper, Signals, helper::Job},
    watch::Watch,
};
use wg::PostQuantum;

use crate::{
    closing,
    events::{Event, EventSources},
    interface_extras::InterfaceExtras,
    lifecycle::{
        Lifecycle, LogStyle, ProcessKind, Resources, StopReason, bind_metrics, register_empty,
        socket_files,
    },
    member::{self, Member},
    sandbox::Sandbox,
    supervisor::Supervisor,
    uapi_socket::{ControlSocket, Extras},
    up::{Source, Up},
};

/// The options of the process.
#[derive(Debug, Default)]
pub struct Options {
    /// The interface's name.
    pub name: String,
    /// The user to switch to after everything that needs root is open.
    pub user: Option<String>,
    /// A configuration to bring up.
    pub conf: Option<Source>,
    /// The resources of the machine that it uses.
    pub resources: Resources,
    /// Whether it runs in a sandbox.
    pub sandbox: bool,
    /// The options of a tailnet node, which replace a configuration file.
    pub member: Option<member::Options>,
    /// The filter of packets from peers; all are accepted by default.
    pub filter: Option<Policy>,
    /// The log style.
    pub log_style: LogStyle,
    /// Whether wg-quick(8) started it. Then only wg-quick may take the interface down.
    pub by_wg_quick: bool,
}

/// Runs a peer until its end is requested. `ready` is called when the interface and the socket can
/// be used.
///
/// # Errors
/// The peer could not be started or not be taken down cleanly.
pub fn run(options: Options, ready: impl FnOnce()) -> anyhow::Result<()> {
    process::harden().context("core dumps")?;
    let Options { name, user, conf, resources, sandbox, member, filter, log_style, .. } = options;
    let by_wg_quick = options.by_wg_quick;
    // Before signals are blocked, so that they end a wait for the lock.
    let conf = conf.map(|source| anyhow::Ok((source, lock(&name)?))).transpose()?;
    let members_lock = member.as_ref().map(|_| lock(&name)).transpose()?;
    // Before any thread is started: each thread has its own signal mask and capabilities.
    let signals = Signals::block().context("signals")?;
    let supervisor = Supervisor::from_environment();
    let up = conf.map(|(source, lock)| Up::new(source, &name, lock, sandbox));
    let mut up = up.transpose()?;
    up.iter_mut().for_each(Up::undo_leftovers);
    let Resources { offloads, cores, path_mtu, post_quantum, crypto, metrics } = resources;
    let crypto = crypto.or(up.as_ref().and_then(Up::crypto)).unwrap_or_default();
    crypto.apply().context("Crypto")?;
    let path_mtu = path_mtu.or(up.as_ref().and_then(Up::path_mtu)).unwrap_or(true);
    let post_quantum = post_quantum.or(up.as_ref().and_then(Up::post_quantum));
    let post_quantum = post_quantum.unwrap_or(PostQuantum::On);
    let mut metrics = bind_metrics(metrics.as_ref())?;
    let offloads = Arc::new(offloads);
    let tun = Tun::create(&name, DEFAULT_MTU, &offloads).map_err(|error| match error {
        TunError::NoDevice | TunError::NoPermission if member.is_some() => {
            anyhow::anyhow!("{name}: {error}; `linerate join --userspace` works without it")
        }
        error => explain(&name, error),
    })?;
    let source = Some(tun.0.source());
    let ip = IpSide { recv: tun.0, send: tun.1, info: tun.2, source };
    let index = ip.info.index;
    let mut control = ControlSocket::bind(&ip.info.name)
        .with_context(|| format!("{}", socket_path(&ip.info.name).display()))?;
    let watch = Watch::new(control.path()).context("watch of the socket")?;
    // Before capabilities are dropped: the kernel checks them when the socket is opened.
    let follow = Some(LinkFollower::open(index).context("netlink")?);
    let event_sources = EventSources { follow, ..EventSources::open(signals, Some(watch))? };
    let wanted = HelperConfig { index, sandbox, other_user: user.is_some() };
    let helper = wanted.start(socket_files(Some(&control), metrics.as_ref()));
    let helper = helper.context("helper process")?;
    if let Some(helper) = &helper {
        control.delegate_removal(helper.clone());
        metrics.iter_mut().for_each(|metrics| metrics.delegate_removal(helper.clone()));
    }
    if let Some(helper) = helper.as_ref().filter(|_| !sandbox) {
        register_empty(helper).context("helper process")?;
    }
    // Without a sandbox the process has the capabilities itself.
    let helper = helper.filter(|_| sandbox);
    let udp = UdpSocket::unbound_with_helper(&offloads, helper.clone()).context("UDP socket")?;
    let open = |options| Member::open(&name, Some(index), options, udp.1.waker());
    let (attached, member) = member.map(open).transpose()?.unzip();
    if let Some(lock) = members_lock {
        lock.share().context("interface lock")?;
    }
    if let Some(user) = &user {
        process::drop_privileges(user).with_context(|| format!("becoming {user}"))?;
    }
    if let Some(up) = &mut up {
        up.set_stop_flag(event_sources.stop_flag.clone());
    }
    let sandbox = if sandbox {
        let files = socket_files(Some(&control), metrics.as_ref());
        Sandbox::of_interface(files, helper.is_some(), member.is_some())
    } else {
        Sandbox::off()
    };
    let control = Some(control);
    let index_here = Some(index);
    let kind = Interface {
        up,
        member,
        index,
        index_here,
        path_mtu,
        post_quantum,
        filter,
        helper,
        log_style,
        by_wg_quick,
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

/// The conditions for starting a helper, and its tasks.
struct HelperConfig {
    index: u32,
    sandbox: bool,
    other_user: bool,
}

impl HelperConfig {
    /// Starts the process that retains the capabilities that the peer drops, if it has any. It
    /// executes privileged commands, and removes sockets that the user of `--user` may not remove.
    fn start<'a>(&self, files: impl Iterator<Item = &'a Path>) -> io::Result<Option<Arc<Helper>>> {
        let has_capabilities = self.sandbox && process::has_network_capabilities();
        if !has_capabilities && !self.other_user {
            return Ok(None);
        }
        let job = Job {
            index: if has_capabilities { self.index } else { 0 },
            sockets: has_capabilities,
            removes_on_exit: self.other_user,
            sandbox: self.sandbox,
            files: files.map(Path::to_owned).collect(),
        };
        Helper::start(&job).map(Arc::new).map(Some)
    }
}

/// Waits for the interface lock. The lock is released when the process exits, because only then
/// are its addresses, such as the port of the metrics, free for the next process.
fn lock(name: &str) -> anyhow::Result<&'static InterfaceLock> {
    let lock = InterfaceLock::wait(name)?.ok_or_else(|| explain(name, TunError::Busy))?;
    // An interface that a process uses without the lock is not touched, nor is its undo log. A
    // persistent interface without a process can be attached to; it remains when it is released.
    if let Some(link) = Netlink::open()?.link_by_name(name)? {
        attach(name, link.is_tun).map_err(|error| explain(name, error))?;
    }
    Ok(Box::leak(Box::new(lock)))
}

/// Attaches to an interface for a moment. Waits for the TUN device of an ended process, unless a running
/// process serves it.
fn attach(name: &str, is_tun: bool) -> Result<(), TunError> {
    let is_ending = |error: &TunError| {
        is_tun && matches!(error, TunError::Busy) && UnixStream::connect(find_socket(name)).is_err()
    };
    let create = || Tun::create(name, DEFAULT_MTU, &Arc::default()).map(drop);
    closing::retry(name, is_ending, create)
}

fn explain(name: &str, error: TunError) -> anyhow::Error {
    match error {
        TunError::Busy => anyhow::anyhow!(
            "{name}: the interface exists already; remove it with `linerate down {name}` or `ip \
            link delete {name}`"
        ),
        error => anyhow::Error::new(error).context(name.to_owned()),
    }
}

struct Interface {
    up: Option<Up>,
    member: Option<Member>,
    /// The index at the start.
    index: u32,
    /// The index in this network namespace; `None` while the interface is in another one.
    index_here: Option<u32>,
    path_mtu: bool,
    post_quantum: PostQuantum,
    filter: Option<Policy>,
    helper: Option<Arc<Helper>>,
    log_style: LogStyle,
    by_wg_quick: bool,
}

impl ProcessKind for Interface {
    fn configure(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        node.search_paths(self.path_mtu);
        node.set_post_quantum(self.post_quantum);
        if let Some(policy) = self.filter.take() {
            node.filter().set(&policy);
        }
        Ok(())
    }

    fn extras(&mut self, _: &Arc<Node>) -> Arc<dyn Extras> {
        let networks = self.up.as_ref().map_or_else(Vec::new, Up::offers);
        Arc::new(InterfaceExtras { networks, by_wg_quick: self.by_wg_quick })
    }

    fn bring_up(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        if let Some(member) = &mut self.member {
            member.bring_up(node)?;
        }
        self.up.as_mut().map_or(Ok(()), |up| up.bring_up(node))
    }

    fn delegate(&mut self) -> anyhow::Result<()> {
        if let Some(member) = &mut self.member {
            member.start_steward(self.log_style)?;
        }
        if let Some(up) = &mut self.up {
            up.start_resolver(self.log_style)?;
        }
        match (&mut self.up, &self.helper) {
            (Some(up), helper) => {
                up.start_guardian(self.index, self.log_style)?;
                up.delegate_to(helper.clone()).context("helper process")
            }
            (_, Some(helper)) => register_empty(helper).context("helper process"),
            _ => Ok(()),
        }
    }

    fn prepare_down(&mut self, node: &Node) -> anyhow::Result<()> {
        self.up.as_mut().map_or(Ok(()), |up| up.prepare_down(node))
    }

    fn serve(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        self.resynchronise(node);
        if let Some(up) = &mut self.up {
            up.watch_names(node)?;
        }
        self.member.as_mut().map_or(Ok(()), |member| member.serve(node, Box::new(drop)))
    }

    fn wait(&self) -> Option<std::time::Duration> {
        self.up.as_ref().and_then(Up::rules_wait)
    }

    fn catch_up(&mut self) {
        self.up.iter_mut().for_each(Up::restore_rules);
    }

    fn handle(&mut self, node: &Node, event: Event) -> Option<StopReason> {
        match event {
            // The interface was deleted, in whichever namespace it was.
            Event::DataPlaneEnded(error) if errno(&error) == Some(Errno::EBADFD) => {
                Some(StopReason::InterfaceDeleted)
            }
            Event::DataPlaneEnded(error) => {
                tracing::error!(%error, "the data plane ended");
                Some(StopReason::DataPlaneFailed(error))
            }
            Event::Link(LinkChange::Deleted) => Some(StopReason::InterfaceDeleted),
            Event::Link(event) => {
                self.handle_link_change(node, event);
                None
            }
        }
    }

    fn handle_changes(&mut self, node: &Node, changes: &[netlink::Event]) {
        if let Some(up) = &mut self.up {
            up.handle_changes(changes, self.index);
        }
        if changes.contains(&netlink::Event::Lost) {
            self.resynchronise(node);
        } else if changes.iter().any(netlink::Event::is_network_change) {
            node.routes_changed();
        } else {
            return;
        }
        self.member.iter().for_each(Member::network_changed);
    }

    /// The kernel removes an interface in another network namespace when the process exits.
    fn take_down(
        self,
        node: Arc<Node>,
        file: Option<SocketFile>,
        reason: Option<&StopReason>,
    ) -> anyhow::Result<()> {
        if let Some(mut member) = self.member {
            member.end();
        }
        if let Some(mut up) = self.up {
            match reason {
                Some(StopReason::InterfaceDeleted) => up.clean_up(file),
                _ => up.bring_down(&node, self.index_here, file),
            }
        } else {
            drop(file);
        }
        let Some(index) = self.index_here else { return Ok(()) };
        if let Err(error) = Netlink::open().map_err(io::Error::from).and_then(|netlink| {
            match netlink.link(index)? {
                Some(link) if link.name == node.info().name => delete_link(&node, &netlink, index),
                _ => Ok(()),
            }
        }) {
            bail!("{}: the interface could not be deleted: {error}", node.info().name);
        }
        Ok(())
    }
}

impl Interface {
    /// Handles a change of the interface.
    fn handle_link_change(&mut self, node: &Node, event: LinkChange) {
        match event {
            LinkChange::Up => self.link_up(node),
            LinkChange::Down => node.link_down(),
            LinkChange::Mtu(mtu) => node.set_mtu(mtu),
            LinkChange::MovedAway { is_visible } => {
                self.up.iter_mut().for_each(Up::mark_moved);
                self.index_here = None;
                tracing::info!("the interface was moved to another network namespace");
                if !is_visible {
                    tracing::warn!(
                        "cannot monitor its state and MTU there: that needs CAP_NET_BROADCAST at the \
                        start"
                    );
                }
                // It may be up there. If it is down and visible, an event follows.
                self.link_up(node);
            }
            LinkChange::MovedBack(index) => {
                self.index_here = Some(index);
                tracing::info!("the interface is back in this network namespace");
            }
            LinkChange::Lost => self.resynchronise(node),
            LinkChange::Deleted => {}
        }
    }

    /// Reads the state of the link after lost events, if it is in this network namespace.
    fn resynchronise(&self, node: &Node) {
        node.routes_changed();
        let Some(index) = self.index_here else { return };
        match Netlink::open().and_then(|netlink| netlink.link(index)) {
            Ok(Some(link)) => {
                node.set_mtu(link.mtu);
                if link.up { self.link_up(node) } else { node.link_down() }
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "netlink"),
        }
    }

    /// Opens the UDP socket. Without a socket the interface would lose all packets silently, so it
    /// is set down again if it is in this network namespace.
    fn link_up(&self, node: &Node) {
        let Err(error) = node.link_up() else { return };
        let Some(index) = self.index_here else {
            tracing::error!(%error, "no UDP socket: the interface cannot transport packets");
            return;
        };
        tracing::error!(%error, "no UDP socket: the interface is set down again");
        let set_down = match node.helper().filter(|_| index == node.info().index) {
            Some(helper) => helper.set_down(),
            None => Netlink::open().and_then(|netlink| netlink.set_down(index)).map_err(Into::into),
        };
        if let Err(error) = set_down {
            tracing::error!(%error, "cannot set the interface down");
        }
    }
}

/// Deletes the interface, directly or through the helper. The helper accepts only the index at the
/// start. An interface that returned to this namespace with another index is removed with its TUN
/// device.
pub(crate) fn delete_link(node: &Node, netlink: &Netlink, index: u32) -> io::Result<()> {
    match node.helper() {
        Some(helper) if index == node.info().index => helper.delete_link(),
        Some(_) => Ok(()),
        None => Ok(netlink.delete_link(index)?),
    }
}
