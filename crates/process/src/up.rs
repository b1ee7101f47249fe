//! What wg-quick(8) does around a peer: addresses, MTU, routes, rules, DNS and
//! hooks; and undoing them again.

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
    hooks::{Hook, Surroundings},
    resolve, router,
    routes::{For, MainRoutes, OwnTable, Routes, Wanted},
    rules::{self, KeptRules},
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
    events::Ended,
    guardian::{self, Guardian, Step, StepFailed},
    interface::delete_link,
    life::LogStyle,
    log_error::log_error,
};

/// Why a hook could not run.
const CALLER_GONE: &str = "the command that brings the interface up is gone";

/// A configuration with its file.
#[derive(Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What it contains.
    pub conf: Conf,
    /// The other end of the connection that the command that started this process attends to
    /// ([`crate::attend`]). `None` in the foreground: the process runs hooks itself.
    pub caller: Option<UnixStream>,
}

/// A configuration that is brought up.
pub(crate) struct Up {
    path: PathBuf,
    conf: Conf,
    name: String,
    /// Runs PreUp and PostUp.
    caller: Option<Caller>,
    ended: Ended,
    names: Endpoints,
    netlink: Netlink,
    undo_log: UndoLog,
    /// Whether addresses and networks of IPv6 are left out.
    without_ipv6: bool,
    routes: MainRoutes,
    rules: KeptRules,
    /// Whether it came up: only then is there something to save, and something for PreDown and
    /// PostDown to undo.
    complete: bool,
    /// Whether PreDown has run, and the state was saved.
    may_go_down: bool,
    /// Does what needs rights when the interface goes down.
    guardian: Option<Guardian>,
    /// Whether the interface was ever moved to another namespace. Its addresses and routes are gone
    /// since then, and are no longer managed.
    has_left: bool,
    /// Adds and deletes routes and rules once this process is confined.
    helper: Option<Arc<Helper>>,
    lock: &'static InterfaceLock,
}

impl Up {
    /// # Errors
    /// The file cannot be brought up, or its undo log cannot be read.
    pub fn new(
        source: Source,
        name: &str,
        lock: &'static InterfaceLock,
        sandbox: bool,
    ) -> anyhow::Result<Self> {
        let Source { path, conf, caller } = source;
        let caller = caller.map(Caller::of_start);
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
        let (name, routes, rules) = (name.to_owned(), MainRoutes::default(), KeptRules::default());
        let (guardian, helper) = (None, None);
        Ok(Self {
            path,
            conf,
            name,
            caller,
            ended: Ended::default(),
            names,
            netlink,
            undo_log,
            without_ipv6: false,
            routes,
            rules,
            complete: false,
            may_go_down: false,
            guardian,
            has_left: false,
            helper,
            lock,
        })
    }

    /// Has the wait for name servers end with the process.
    pub fn end_by(&mut self, ended: Ended) {
        self.ended = ended;
    }

    /// The networks that peers may reach behind this host.
    pub fn offers(&self) -> Vec<IpNet> {
        self.conf.interface.router.offered.clone()
    }

    /// Whether the file wants the MTU of paths to be searched for.
    pub fn path_mtu(&self) -> Option<bool> {
        self.conf.interface.features.path_mtu
    }

    /// Whether the file wants secrets to be agreed with peers against quantum computers.
    pub fn post_quantum(&self) -> Option<PostQuantum> {
        self.conf.interface.features.post_quantum
    }

    /// Which code the file wants to compute handshakes and packets.
    pub fn crypto(&self) -> Option<Crypto> {
        self.conf.interface.features.crypto
    }

    /// Reverts the changes of a killed process.
    pub fn undo_former(&mut self) {
        self.undo_log.undo(&self.netlink);
    }

    /// Applies the whole file, in wg-quick's order: settings by PreUp stay unless the file contains
    /// them. After an error, [`Up::bring_down`] undoes the changes.
    pub fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        self.run_hooks("PreUp", &self.conf.interface.hooks.pre_up)?;
        let ended = &self.ended;
        let mut change = self.conf.change(|name| resolve(name, |pause| ended.wait(pause)))?;
        change.device.replace_peers = false;
        self.conf.forget_secrets();
        node.apply(change).context("configuration")?;
        self.names.name(node);
        let state = node.state();
        let index = node.info().index;
        self.look_for_ipv6(index)?;
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
        // Before the first datagram: an answer to one without a mark would be lost.
        let wanted = wanted(&self.conf, &state, self.without_ipv6);
        // It has keys.
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
            error => anyhow::Error::new(error).context("UDP socket"),
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
        log_error(router::tell_uncoalesced(&self.conf.interface.router, &self.netlink));
        self.post_up()?;
        self.complete = true;
        Ok(())
    }

    /// Finds out whether the interface can have IPv6. If it cannot, the file's addresses and
    /// networks of IPv6 are left out, with a warning.
    ///
    /// # Errors
    /// The file lists addresses of IPv6 only.
    fn look_for_ipv6(&mut self, index: u32) -> anyhow::Result<()> {
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
            bail!("{place}: {no_ipv6}, and the file has no address of IPv4");
        }
        // Another interface may have been there before IPv6 was switched off for new ones.
        let [_, elsewhere] = self.netlink.default_routes()?;
        let leaves = match elsewhere.device.filter(|_| net.is_some()) {
            Some(_) => "; packets of IPv6 leave this host outside of the tunnel",
            None => "",
        };
        tracing::warn!(
            "{place}: {no_ipv6}: the addresses, routes and rules of IPv6 are left out{leaves}"
        );
        self.without_ipv6 = true;
        Ok(())
    }

    /// Adds the addresses that the interface can have, and returns them.
    fn add_addresses(&self, index: u32) -> anyhow::Result<Vec<IpNet>> {
        let mut added = Vec::new();
        for (position, &address) in self.conf.interface.addresses.iter().enumerate() {
            if is_possible(&address, self.without_ipv6) {
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
        self.undo_log.forget_rules(&deleted)
    }

    /// Runs PreUp or PostUp as children of the command that started this process.
    fn run_hooks(&self, key: &str, hooks: &[String]) -> anyhow::Result<()> {
        self.surroundings().run_up(key, hooks, |hook| self.run(hook))
    }

    fn run(&self, hook: &Hook) -> io::Result<ExitStatus> {
        let Some(caller) = &self.caller else { return hook.run() };
        let _lent = self.lock.lend(caller.process()?);
        caller.run(hook).unwrap_or_else(|| Err(io::Error::other(CALLER_GONE)))
    }

    fn surroundings(&self) -> Surroundings {
        Surroundings { interface: self.name.clone(), file: self.path.clone() }
    }

    /// Starts a guardian if going down needs rights: for hooks, the undo log or SaveConfig. To be
    /// called when the interface is up, while there are rights to hand over.
    ///
    /// # Errors
    /// The guardian cannot be started.
    pub fn guard(&mut self, index: u32, log_style: LogStyle) -> anyhow::Result<()> {
        // The command waits for that before it returns.
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

    /// Starts the process that resolves names of endpoints again, if there are any. To be called when
    /// the interface is up, while there are rights to hand over.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn hand_over_names(&mut self, log_style: LogStyle) -> anyhow::Result<()> {
        self.names.hand_over(log_style)
    }

    /// Resolves names of endpoints again from now on, if their peers do not answer.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn watch_names(&mut self, node: &Arc<Node>) -> anyhow::Result<()> {
        self.names.watch(node).context("threads")
    }

    /// Leaves its routes and rules to a helper from now on, if there is one.
    ///
    /// # Errors
    /// The helper is gone.
    pub fn leave_to(&mut self, helper: Option<Arc<Helper>>) -> io::Result<()> {
        if let Some(helper) = &helper {
            helper.register(&self.routes.networks(), &self.undo_log.rules().collect::<Vec<_>>())?;
        }
        self.helper = helper;
        Ok(())
    }

    /// Connected networks may have changed, or rules may have been deleted.
    pub fn handle_changes(&mut self, changes: &[Event], own: u32) {
        if self.has_left {
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
            self.keep_rules();
        }
        if changes.iter().any(concerns) {
            log_error(self.routes.settle(&self.netlink, self.helper.as_deref(), own));
        }
    }

    /// The interface was moved to another namespace.
    pub fn leave(&mut self) {
        self.has_left = true;
    }

    /// Restores missing rules, but not too soon after the last time.
    pub fn keep_rules(&mut self) {
        let now = clock::boottime_nanos();
        let helper = self.helper.as_deref();
        log_error(self.rules.settle(&self.undo_log, &self.netlink, helper, now));
    }

    /// The time until [`Up::keep_rules`] is to be called, if it postponed something.
    pub fn rules_wait(&self) -> Option<Duration> {
        self.rules.wait(clock::boottime_nanos()).filter(|_| !self.has_left)
    }

    /// Chooses a routing table of the tunnel's own where it needs one, and has the peer mark its
    /// datagrams.
    fn choose_table(&self, node: &Node, wanted: &Wanted<'_>) -> anyhow::Result<Option<OwnTable>> {
        let own = OwnTable::choose(&self.netlink, wanted, node.fwmark())?;
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
    pub fn prepare_down(&mut self, node: &Node) -> anyhow::Result<()> {
        for step in [Step::PreDown, Step::SaveConfig] {
            let done = match step {
                Step::PreDown => self.pre_down(),
                _ => self.save(node, step),
            };
            match done {
                Err(error) if error.is::<StepFailed>() => {
                    let saves = self.conf.interface.save_config;
                    let (name, how) = (&self.name, if saves { " without saving" } else { "" });
                    bail!("{error}: {name} stays up; `ip link delete {name}` ends it{how}");
                }
                // Without a guardian it would stay for ever.
                done => log_error(done),
            }
        }
        self.may_go_down = true;
        Ok(())
    }

    fn pre_down(&mut self) -> anyhow::Result<()> {
        let hooks = &self.conf.interface.hooks.pre_down;
        match &mut self.guardian {
            Some(guardian) => guardian.tell(Step::PreDown),
            None => self.surroundings().run_down("PreDown", hooks, |hook| hook.run_alone()),
        }
    }

    /// Undoes everything, and goes on after a failure. `home` is the interface's index if it is in
    /// this namespace, and `socket` the file of its control socket.
    pub fn bring_down(&mut self, node: &Node, home: Option<u32>, socket: Option<SocketFile>) {
        if self.complete && !self.may_go_down {
            log_error(self.pre_down());
            if let Err(error) = self.save(node, Step::SaveConfig) {
                tracing::error!("{error:#}");
                log_error(self.save(node, Step::SaveElsewhere));
            }
        }
        node.link_down();
        if let Some(index) = home
            && let Err(error) = delete_link(node, &self.netlink, index)
        {
            tracing::error!(%error, "deleting the interface");
        }
        self.clean_up(socket);
    }

    /// Reverts the changes that outlive the interface. PostDown runs last, after `socket` is removed.
    pub fn clean_up(&mut self, socket: Option<SocketFile>) {
        drop(socket);
        if let Some(guardian) = &mut self.guardian {
            return log_error(guardian.tell(Step::PostDown));
        }
        if !self.undo_log.is_empty() {
            self.undo_log.undo(&self.netlink);
        }
        if self.complete {
            let hooks = &self.conf.interface.hooks.post_down;
            let run = |hook: &Hook| hook.run_alone();
            log_error(self.surroundings().run_down("PostDown", hooks, run));
        }
    }

    /// Has the guardian write the state, if the file asks for it.
    fn save(&mut self, node: &Node, step: Step) -> anyhow::Result<()> {
        match &mut self.guardian {
            Some(guardian) if self.conf.interface.save_config => guardian.save(step, &node.state()),
            _ => Ok(()),
        }
    }
}

/// The routes that a configuration asks for, to the networks of all peers.
fn wanted<'a>(conf: &'a Conf, state: &DeviceState, without_ipv6: bool) -> Wanted<'a> {
    let interface = &conf.interface;
    let nets = state.peers.iter().flat_map(|peer| &peer.allowed_ips).copied();
    Wanted {
        nets: nets.filter(|net| is_possible(net, without_ipv6)).collect(),
        table: interface.table,
        policy: &interface.policy,
    }
}

/// Adds the line that an error of routes and rules comes from.
fn placed(error: anyhow::Error, conf: &Conf, mtu: u32) -> anyhow::Error {
    let Some(For { net, .. }) = error.downcast_ref() else { return error };
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
