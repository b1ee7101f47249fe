//! Configures the host for a peer like wg-quick(8): addresses, MTU, routes, rules, DNS and hooks.
//! At the end these changes are undone.

use std::{
    fs, io, os::unix::net::UnixStream, path::PathBuf, process::ExitStatus, sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use config::{
    conf::{Conf, Setting, Table},
    uapi::{Change, DeviceState},
};
use host::{
    IPV6_MTU, InterfaceLock, NoIpv6, PacketFilter, UndoLog, dns,
    hooks::{Hook, HookEnvironment},
    resolve, router,
    routes::{MainRoutes, RouteTarget, Routes, TunnelTable, WantedRoutes},
    rules::{self, RuleRestorer},
};
use ipnet::IpNet;
use node::{Node, tunnel_mtu};
use sys::{
    BindError, SocketFile, clock,
    netlink::{Event, Netlink},
    process::Helper,
};
use wg::{Crypto, PostQuantum};

use crate::{
    caller::Caller,
    endpoints::Endpoints,
    events::StopFlag,
    guardian::{self, Guardian, Step, StepFailed},
    interface::delete_link,
    lifecycle::LogStyle,
    log_error::log_error,
};

/// The error if a hook could not run.
const CALLER_GONE: &str = "the command that brings the interface up has exited";

/// A configuration with its file.
#[derive(Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The contents of the file.
    pub conf: Conf,
    /// The connection to the command that started this process ([`crate::serve_background`]).
    /// `None` in the foreground: the process runs hooks itself.
    pub caller: Option<UnixStream>,
}

/// A configuration that is brought up.
pub(crate) struct Up {
    path: PathBuf,
    conf: Conf,
    name: String,
    /// Runs PreUp and PostUp.
    caller: Option<Caller>,
    stop_flag: StopFlag,
    names: Endpoints,
    netlink: Netlink,
    undo_log: UndoLog,
    routes: MainRoutes,
    rules: RuleRestorer,
    progress: Progress,
    /// The privileged process that takes the interface down.
    guardian: Option<Guardian>,
    /// Changes routes and rules after this process is confined.
    helper: Option<Arc<Helper>>,
    lock: &'static InterfaceLock,
}

/// The state of the interface during its start.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Addresses and networks of IPv6 are left out.
    without_ipv6: bool,
    /// Bring-up succeeded. Only then are PreDown and PostDown run and the state saved.
    complete: bool,
    /// PreDown has run and the state was saved.
    may_go_down: bool,
    /// The interface was moved to another namespace. It lost its addresses and routes, and this process
    /// stopped managing them.
    has_left: bool,
}

impl Up {
    /// # Errors
    /// The file cannot be brought up, or its undo log cannot be read.
    pub(crate) fn new(
        source: Source,
        name: &str,
        lock: &'static InterfaceLock,
        sandbox: bool,
    ) -> anyhow::Result<Self> {
        let Source { path, conf, caller } = source;
        let caller = caller.map(Caller::from_start);
        conf.without_proxy()?;
        conf.without_writable_hooks()?;
        let hooks = &conf.interface.hooks;
        if hooks.pre_up.is_empty() && hooks.post_up.is_empty() {
            conf.private_key()?;
        }
        if conf.interface.save_config {
            let is_file = fs::canonicalize(&path).is_ok_and(|path| path.is_file());
            ensure!(is_file, "{}: SaveConfig: this is not a file to write to", path.display());
        }
        for warning in &conf.warnings {
            tracing::warn!("{warning}");
        }
        let (undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
        let names = Endpoints::new(&conf, name, true, sandbox);
        let (name, routes, rules) =
            (name.to_owned(), MainRoutes::default(), RuleRestorer::default());
        let (guardian, helper) = (None, None);
        Ok(Self {
            path,
            conf,
            name,
            caller,
            stop_flag: StopFlag::default(),
            names,
            netlink,
            undo_log,
            routes,
            rules,
            progress: Progress::default(),
            guardian,
            helper,
            lock,
        })
    }

    /// Sets the flag that ends the wait for name servers.
    pub(crate) fn set_stop_flag(&mut self, stop_flag: StopFlag) {
        self.stop_flag = stop_flag;
    }

    /// Networks behind this host that peers may reach.
    pub(crate) fn offers(&self) -> Vec<IpNet> {
        self.conf.interface.router.offered.clone()
    }

    /// Whether the file enables the search for path MTUs.
    pub(crate) fn path_mtu(&self) -> Option<bool> {
        self.conf.interface.features.path_mtu
    }

    /// The setting of the file for post-quantum secrets.
    pub(crate) fn post_quantum(&self) -> Option<PostQuantum> {
        self.conf.interface.features.post_quantum
    }

    /// The setting of the file for the implementation of the cryptography.
    pub(crate) fn crypto(&self) -> Option<Crypto> {
        self.conf.interface.features.crypto
    }

    /// Undoes the changes of a killed process.
    pub(crate) fn undo_leftovers(&mut self) {
        self.undo_log.undo(&self.netlink);
    }

    /// Applies the file in the order of wg-quick. Settings by PreUp hooks remain unless the file
    /// has them, too. After an error, [`Up::bring_down`] undoes the changes.
    pub(crate) fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        self.run_hooks("PreUp", &self.conf.interface.hooks.pre_up)?;
        let stop_flag = &self.stop_flag;
        let mut change = self.conf.change(|name| resolve(name, |pause| stop_flag.wait(pause)))?;
        change.device.replace_peers = false;
        self.conf.forget_secrets();
        node.apply(change).context("configuration")?;
        self.names.name(node);
        let state = node.state();
        let index = node.info().index;
        self.check_ipv6(index)?;
        let (conf, interface) = (&self.conf, &self.conf.interface);

        let addresses = self.add_addresses(index)?;
        let mtu = match interface.mtu {
            Some(mtu) => mtu.into(),
            None => {
                let endpoints = state.peers.iter().filter_map(|peer| peer.endpoint);
                let endpoints: Vec<_> = endpoints.collect();
                let mtu = tunnel_mtu(&self.netlink, &endpoints, node.fwmark());
                mtu.with_context(|| conf.location(Setting::Mtu))?
            }
        };
        let set = self.netlink.set_mtu(index, mtu);
        set.with_context(|| format!("{}: {mtu}", conf.location(Setting::Mtu)))?;
        node.set_mtu(mtu);
        // Before the first datagram is sent: an answer to an unmarked datagram would be lost.
        let wanted = wanted(&self.conf, &state, self.progress.without_ipv6);
        // The state contains keys.
        drop(state);
        let own = self.choose_table(node, &wanted)?;
        let filter = PacketFilter {
            interface: &self.name,
            addresses: &addresses,
            router: &interface.router,
            mark: own.map(|own| own.mark),
        };
        filter.set(&mut self.undo_log).with_context(|| conf.location(Setting::Router))?;
        self.netlink.set_up(index).context("setting the interface up")?;
        node.link_up().map_err(|error| match error {
            BindError::InUse | BindError::Permission => {
                anyhow::Error::new(error).context(conf.location(Setting::ListenPort))
            }
            error @ BindError::Os(_) => anyhow::Error::new(error).context("UDP socket"),
        })?;
        if !interface.dns.servers.is_empty() || !interface.dns.search_domains.is_empty() {
            let set = dns::set(&self.name, &interface.dns, &[], &mut self.undo_log);
            set.with_context(|| conf.location(Setting::Dns))?;
        }
        let (netlink, interface) = (&self.netlink, &self.name);
        let log = &mut self.undo_log;
        let routes = Routes { netlink, wanted, log, interface, device: index, own }.add();
        self.routes = routes.map_err(|error| placed(error, conf, mtu))?;
        router::forward(&self.name, &self.conf.interface.router, &mut self.undo_log)?;
        log_error(router::log_uncoalesced(&self.conf.interface.router, &self.netlink));
        self.post_up()?;
        self.progress.complete = true;
        Ok(())
    }

    /// Checks whether the interface can have IPv6. If not, IPv6 addresses and networks of the file
    /// are skipped with a warning.
    ///
    /// # Errors
    /// The file has only IPv6 addresses.
    fn check_ipv6(&mut self, index: u32) -> anyhow::Result<()> {
        let conf = &self.conf;
        let addresses = &conf.interface.addresses;
        let address = addresses.iter().position(|address| address.addr().is_ipv6());
        let mut nets = conf.peers.iter().flat_map(|peer| &peer.allowed_ips);
        let has_routes = conf.interface.table != Table::Off;
        let net = nets.find(|net| has_routes && net.addr().is_ipv6());
        let first = match (address, net) {
            (Some(position), _) => Setting::Address(position),
            (None, Some(net)) => Setting::AllowedIp(*net),
            (None, None) => return Ok(()),
        };
        let Some(no_ipv6) = NoIpv6::of(&self.netlink, index)? else { return Ok(()) };
        let place = conf.location(first);
        if address.is_some() && addresses.iter().all(|address| address.addr().is_ipv6()) {
            bail!("{place}: {no_ipv6}, and the file does not have an IPv4 address");
        }
        // Another interface may have been created before IPv6 was disabled for new ones.
        let [_, elsewhere] = self.netlink.default_routes()?;
        let leaves = match elsewhere.device.filter(|_| net.is_some()) {
            Some(_) => "; IPv6 packets leave this host outside of the tunnel",
            None => "",
        };
        tracing::warn!("{place}: {no_ipv6}: IPv6 addresses, routes and rules are skipped{leaves}");
        self.progress.without_ipv6 = true;
        Ok(())
    }

    /// Adds the addresses that the interface can have, and returns them.
    fn add_addresses(&self, index: u32) -> anyhow::Result<Vec<IpNet>> {
        let mut added = Vec::new();
        for (position, &address) in self.conf.interface.addresses.iter().enumerate() {
            if is_possible(&address, self.progress.without_ipv6) {
                let place = || self.conf.location(Setting::Address(position));
                let done = self.netlink.add_address(index, address);
                done.with_context(|| format!("{}: {address}", place()))?;
                added.push(address);
            }
        }
        Ok(added)
    }

    /// Runs PostUp. Rules that it deletes are not restored.
    fn post_up(&mut self) -> anyhow::Result<()> {
        let hooks = &self.conf.interface.hooks.post_up;
        if hooks.is_empty() {
            return Ok(());
        }
        let before = rules::missing(&self.undo_log, &self.netlink)?;
        self.run_hooks("PostUp", hooks)?;
        let mut deleted = rules::missing(&self.undo_log, &self.netlink)?;
        deleted.retain(|rule| !before.contains(rule));
        self.undo_log.remove_rules(&deleted)
    }

    /// Runs PreUp or PostUp as children of the command that started this process.
    fn run_hooks(&self, key: &str, hooks: &[String]) -> anyhow::Result<()> {
        self.environment().run_up(key, hooks, |hook| self.run(hook))
    }

    fn run(&self, hook: &Hook) -> io::Result<ExitStatus> {
        let Some(caller) = &self.caller else { return hook.run() };
        let _runner = self.lock.record_hook_runner(caller.process()?);
        caller.run(hook).unwrap_or_else(|| Err(io::Error::other(CALLER_GONE)))
    }

    fn environment(&self) -> HookEnvironment {
        HookEnvironment { interface: self.name.clone(), file: self.path.clone() }
    }

    /// Starts a guardian if going down needs privileges: for hooks, the undo log or SaveConfig.
    /// Call it when the interface is up, before privileges are dropped.
    ///
    /// # Errors
    /// The guardian cannot be started.
    pub(crate) fn start_guardian(&mut self, index: u32, log_style: LogStyle) -> anyhow::Result<()> {
        // The command returns when this connection is closed.
        self.caller = None;
        let interface = &self.conf.interface;
        let hooks = &interface.hooks;
        let is_plain = hooks.pre_down.is_empty() && hooks.post_down.is_empty();
        if is_plain && self.undo_log.is_empty() && !interface.save_config {
            return Ok(());
        }
        self.lock.share().context("interface lock")?;
        let job = guardian::Job {
            interface: self.name.clone(),
            index,
            path: self.path.clone(),
            conf: interface.clone(),
        };
        self.guardian = Some(Guardian::start(&job, log_style).context("guardian")?);
        Ok(())
    }

    /// Starts the process that resolves endpoint names again, if the file has any. Call it when
    /// the interface is up, before privileges are dropped.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn start_resolver(&mut self, log_style: LogStyle) -> anyhow::Result<()> {
        self.names.start_resolver(log_style)
    }

    /// Starts to resolve endpoint names again if their peers do not answer.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn watch_names(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        self.names.watch(node).context("threads")
    }

    /// Delegates changes of routes and rules to a helper, if present.
    ///
    /// # Errors
    /// The helper has exited.
    pub(crate) fn delegate_to(&mut self, helper: Option<Arc<Helper>>) -> io::Result<()> {
        if let Some(helper) = &helper {
            helper.register(&self.routes.networks(), &self.undo_log.rules().collect::<Vec<_>>())?;
        }
        self.helper = helper;
        Ok(())
    }

    /// Handles changes of the connected networks or of rules.
    pub(crate) fn handle_changes(&mut self, changes: &[Event], own: u32) {
        if self.progress.has_left {
            return;
        }
        let concerns = |event: &Event| match *event {
            Event::AddressesChanged | Event::Lost => true,
            Event::LinkUp { index } | Event::LinkDown { index } | Event::LinkDeleted { index } => {
                index != own
            }
            Event::MtuChanged { .. } | Event::RoutesChanged | Event::RulesChanged => false,
        };
        if changes.iter().any(|event| matches!(event, Event::RulesChanged | Event::Lost)) {
            self.restore_rules();
        }
        if changes.iter().any(concerns) {
            log_error(self.routes.sync(&self.netlink, self.helper.as_deref(), own));
        }
    }

    /// Records that the interface was moved to another namespace.
    pub(crate) fn mark_moved(&mut self) {
        self.progress.has_left = true;
    }

    /// Restores missing rules at a limited rate.
    pub(crate) fn restore_rules(&mut self) {
        let now = clock::boottime_nanos();
        let helper = self.helper.as_deref();
        log_error(self.rules.restore_missing(&self.undo_log, &self.netlink, helper, now));
    }

    /// The time until [`Up::restore_rules`] must be called, if it postponed rules.
    pub(crate) fn rules_wait(&self) -> Option<Duration> {
        self.rules.wait(clock::boottime_nanos()).filter(|_| !self.progress.has_left)
    }

    /// Chooses a routing table for the tunnel if needed, and sets the mark of the peer's
    /// datagrams.
    fn choose_table(
        &self,
        node: &Node,
        wanted: &WantedRoutes<'_>,
    ) -> anyhow::Result<Option<TunnelTable>> {
        let own = TunnelTable::choose(&self.netlink, wanted, node.fwmark())?;
        if let Some(own) = own
            && node.fwmark() == 0
        {
            node.apply(Change { fwmark: Some(own.mark.value), ..Change::default() })?;
        }
        Ok(own)
    }

    /// Runs PreDown and saves the state.
    ///
    /// # Errors
    /// As in wg-quick(8), the interface stays if one of them fails.
    pub(crate) fn prepare_down(&mut self, node: &Node) -> anyhow::Result<()> {
        for step in [Step::PreDown, Step::SaveConfig] {
            let done = match step {
                Step::PreDown => self.pre_down(),
                _ => self.save(node, step),
            };
            match done {
                Err(error) if error.is::<StepFailed>() => {
                    let saves = self.conf.interface.save_config;
                    let (name, how) = (&self.name, if saves { " without saving" } else { "" });
                    bail!("{error}: {name} stays up; `ip link delete {name}` removes it{how}");
                }
                // Without a guardian the interface would stay forever.
                done => log_error(done),
            }
        }
        self.progress.may_go_down = true;
        Ok(())
    }

    fn pre_down(&mut self) -> anyhow::Result<()> {
        let hooks = &self.conf.interface.hooks.pre_down;
        match &mut self.guardian {
            Some(guardian) => guardian.run_step(Step::PreDown),
            None => self.environment().run_down("PreDown", hooks, host::hooks::Hook::run_alone),
        }
    }

    /// Undoes everything, also after failures. `index_here` is the interface's index if it is in
    /// this namespace, and `socket` the file of its control socket.
    pub(crate) fn bring_down(
        &mut self,
        node: &Node,
        index_here: Option<u32>,
        socket: Option<SocketFile>,
    ) {
        if self.progress.complete && !self.progress.may_go_down {
            log_error(self.pre_down());
            if let Err(error) = self.save(node, Step::SaveConfig) {
                tracing::error!("{error:#}");
                log_error(self.save(node, Step::SaveElsewhere));
            }
        }
        node.link_down();
        if let Some(index) = index_here
            && let Err(error) = delete_link(node, &self.netlink, index)
        {
            tracing::error!(%error, "deleting the interface");
        }
        self.clean_up(socket);
    }

    /// Undoes the changes that outlive the interface. PostDown runs last, after `socket` is
    /// removed.
    pub(crate) fn clean_up(&mut self, socket: Option<SocketFile>) {
        drop(socket);
        if let Some(guardian) = &mut self.guardian {
            return log_error(guardian.run_step(Step::PostDown));
        }
        if !self.undo_log.is_empty() {
            self.undo_log.undo(&self.netlink);
        }
        if self.progress.complete {
            let hooks = &self.conf.interface.hooks.post_down;
            let run = |hook: &Hook| hook.run_alone();
            log_error(self.environment().run_down("PostDown", hooks, run));
        }
    }

    /// Requests that the guardian writes the state, if SaveConfig is set.
    fn save(&mut self, node: &Node, step: Step) -> anyhow::Result<()> {
        match &mut self.guardian {
            Some(guardian) if self.conf.interface.save_config => guardian.save(step, &node.state()),
            _ => Ok(()),
        }
    }
}

/// The routes of a configuration, to the networks of all peers.
fn wanted<'a>(conf: &'a Conf, state: &DeviceState, without_ipv6: bool) -> WantedRoutes<'a> {
    let interface = &conf.interface;
    let nets = state.peers.iter().flat_map(|peer| &peer.allowed_ips).copied();
    WantedRoutes {
        nets: nets.filter(|net| is_possible(net, without_ipv6)).collect(),
        table: interface.table,
        policy: &interface.policy,
    }
}

/// Adds the line of the file to an error of routes and rules.
fn placed(error: anyhow::Error, conf: &Conf, mtu: u32) -> anyhow::Error {
    let Some(RouteTarget { net, .. }) = error.downcast_ref() else { return error };
    if net.addr().is_ipv6() && mtu < IPV6_MTU {
        let why = format!("IPv6 takes an MTU of {IPV6_MTU} or more");
        return error.context(why).context(conf.location(Setting::Mtu));
    }
    let place = conf.location(Setting::AllowedIp(*net));
    error.context(place)
}

/// Whether the interface can have this address, or a route to this network.
fn is_possible(net: &IpNet, without_ipv6: bool) -> bool {
    net.addr().is_ipv4() || !without_ipv6
}
