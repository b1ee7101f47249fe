//! What wg-quick(8) does around a peer: addresses, MTU, routes, rules, DNS and
//! hooks; and undoing them again.

use std::{collections::HashMap, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use config::{
    conf::{Conf, EndpointName, Setting, Table},
    uapi::Change,
};
use host::{
    InterfaceLock, NoIpv6, PacketFilter, UndoLog, dns, hooks, resolve, router,
    routes::{For, MainRoutes, OwnTable, Routes, Wanted},
    rules::{self, KeptRules},
};
use ipnet::IpNet;
use node::{Node, tunnel_mtu};
use sys::{
    BindError, clock,
    netlink::{Event, Netlink},
    process::{Helper, Signals},
};
use wg::{Crypto, PostQuantum};

use crate::{
    endpoints::Endpoints,
    guardian::{self, Guardian, Step},
    interface::delete_link,
    life::LogStyle,
    log_error::log_error,
};

/// The least MTU of a link for IPv6 (RFC 8200, section 5). The kernel removes IPv6 from others.
const IPV6_MTU: u32 = 1280;

/// A configuration that is brought up.
pub(crate) struct Up {
    path: PathBuf,
    conf: Conf,
    name: String,
    /// The resolved endpoints of peers.
    endpoints: HashMap<EndpointName, SocketAddr>,
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
        path: PathBuf,
        conf: Conf,
        name: &str,
        lock: &'static InterfaceLock,
        sandbox: bool,
    ) -> anyhow::Result<Self> {
        conf.without_proxy()?;
        conf.without_writable_hooks()?;
        let hooks = &conf.interface.hooks;
        if hooks.pre_up.is_empty() && hooks.post_up.is_empty() {
            conf.private_key()?;
        }
        for warning in &conf.warnings {
            tracing::warn!("{warning}");
        }
        let (undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
        let names = Endpoints::new(&conf, name, true, sandbox);
        let (name, routes, rules) = (name.to_owned(), MainRoutes::default(), KeptRules::default());
        let (endpoints, complete, guardian, helper) = (HashMap::new(), false, None, None);
        Ok(Self {
            path,
            conf,
            name,
            endpoints,
            names,
            netlink,
            undo_log,
            without_ipv6: false,
            routes,
            rules,
            complete,
            guardian,
            has_left: false,
            helper,
            lock,
        })
    }

    /// The networks that peers may reach behind this host.
    pub fn offers(&self) -> Vec<IpNet> {
        self.conf.interface.router.offered.clone()
    }

    /// Whether the file wants the MTU of paths to be searched for.
    pub fn path_mtu(&self) -> Option<bool> {
        self.conf.interface.path_mtu
    }

    /// Whether the file wants secrets to be agreed with peers against quantum computers.
    pub fn post_quantum(&self) -> Option<PostQuantum> {
        self.conf.interface.post_quantum
    }

    /// Which code the file wants to compute handshakes and packets.
    pub fn crypto(&self) -> Option<Crypto> {
        self.conf.interface.crypto
    }

    /// Does what comes before the interface exists. What a killed process left behind is undone.
    pub fn prepare(&mut self) -> anyhow::Result<()> {
        self.undo_log.undo(&self.netlink);
        hooks::run("PreUp", &self.conf.interface.hooks.pre_up, &self.name)
    }

    /// Resolves the host names of endpoints. To be called while all of the host's files can be
    /// read: which of them are needed changes while the network comes up.
    ///
    /// # Errors
    /// A name does not exist, the name servers do not answer, or a signal ends the wait.
    pub fn resolve_endpoints(&mut self, signals: &Signals) -> anyhow::Result<()> {
        for name in self.conf.peers.iter().filter_map(|peer| peer.endpoint.as_ref()) {
            self.endpoints.insert(name.clone(), resolve(name, Some(signals))?);
        }
        Ok(())
    }

    /// Does everything that the file says, in wg-quick's order. After an error,
    /// [`Up::bring_down`] undoes what was done.
    pub fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        let change = self.conf.change(|name| anyhow::Ok(self.endpoints[name]))?;
        self.conf.forget_secrets();
        node.apply(change).context("configuration")?;
        self.names.name(node);
        let index = node.info().index;
        self.look_for_ipv6(index)?;
        let (conf, interface) = (&self.conf, &self.conf.interface);

        let addresses = self.add_addresses(index)?;
        let mtu = match interface.mtu {
            Some(mtu) => mtu.into(),
            None => {
                let endpoints: Vec<_> = self.endpoints.values().copied().collect();
                let mtu = tunnel_mtu(&self.netlink, &endpoints, node.fwmark());
                mtu.with_context(|| conf.place(Setting::Mtu))?
            }
        };
        let set = self.netlink.set_mtu(index, mtu);
        set.with_context(|| format!("{}: {mtu}", conf.place(Setting::Mtu)))?;
        node.set_mtu(mtu);
        // Before the first datagram: an answer to one without a mark would be lost.
        let own = self.choose_table(node)?;
        let filter = PacketFilter {
            interface: &self.name,
            addresses: &addresses,
            router: &interface.router,
            mark: own.map(|own| own.mark),
        };
        filter.set(&mut self.undo_log).with_context(|| conf.place(Setting::Router))?;
        self.netlink.set_up(index).context("setting the interface up")?;
        node.link_up().map_err(|error| match error {
            BindError::InUse | BindError::Permission => {
                anyhow::Error::new(error).context(conf.place(Setting::ListenPort))
            }
            error => anyhow::Error::new(error).context("UDP socket"),
        })?;
        if !interface.dns.servers.is_empty() || !interface.dns.search_domains.is_empty() {
            let set = dns::set(&self.name, &interface.dns, &[], &mut self.undo_log);
            set.with_context(|| conf.place(Setting::Dns))?;
        }
        let wanted = wanted(conf, self.without_ipv6);
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
        let place = conf.place(first);
        if address.is_some() && addresses.iter().all(|address| address.addr().is_ipv6()) {
            bail!("{place}: {no_ipv6}, and the file has no address of IPv4");
        }
        // Another interface may have been there before IPv6 was switched off for new ones.
        let [_, elsewhere] = self.netlink.default_ways()?;
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
                let place = || self.conf.place(Setting::Address(position));
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
        hooks::run("PostUp", hooks, &self.name)?;
        let mut deleted = rules::missing(&self.undo_log, &self.netlink)?;
        deleted.retain(|rule| !before.contains(rule));
        self.undo_log.forget_rules(&deleted)
    }

    /// Starts a guardian if going down needs rights: for hooks, the undo log or SaveConfig. To be
    /// called when the interface is up, while there are rights to hand over.
    ///
    /// # Errors
    /// The guardian cannot be started.
    pub fn guard(&mut self, index: u32, log_style: LogStyle) -> anyhow::Result<()> {
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
    fn choose_table(&self, node: &Node) -> anyhow::Result<Option<OwnTable>> {
        let own =
            OwnTable::choose(&self.netlink, &wanted(&self.conf, self.without_ipv6), node.fwmark())?;
        if let Some(own) = own
            && node.fwmark() == 0
        {
            node.apply(Change { fwmark: Some(own.mark.value), ..Change::default() })?;
        }
        Ok(own)
    }

    /// Undoes everything, and goes on after a failure. `home` is the interface's index if it is in
    /// this namespace.
    pub fn bring_down(&mut self, node: &Node, home: Option<u32>) {
        if self.complete {
            log_error(match &mut self.guardian {
                Some(guardian) => guardian.tell(Step::PreDown),
                None => hooks::run("PreDown", &self.conf.interface.hooks.pre_down, &self.name),
            });
            if self.conf.interface.save_config {
                log_error(self.save(node));
            }
        }
        node.link_down();
        if let Some(index) = home
            && let Err(error) = delete_link(node, &self.netlink, index)
        {
            tracing::error!(%error, "deleting the interface");
        }
        self.clean_up();
    }

    /// Undoes what does not go away with the interface.
    pub fn clean_up(&mut self) {
        if let Some(guardian) = &mut self.guardian {
            return log_error(guardian.tell(Step::PostDown));
        }
        if !self.undo_log.is_empty() {
            self.undo_log.undo(&self.netlink);
        }
        if self.complete {
            let hooks = &self.conf.interface.hooks;
            log_error(hooks::run("PostDown", &hooks.post_down, &self.name));
        }
    }

    /// Writes the state into the file.
    fn save(&mut self, node: &Node) -> anyhow::Result<()> {
        let state = node.state();
        match &mut self.guardian {
            Some(guardian) => guardian.save(&state),
            None => guardian::save_config(&self.path, &self.conf.interface, &state),
        }
    }
}

/// The routes that a configuration asks for.
fn wanted(conf: &Conf, without_ipv6: bool) -> Wanted<'_> {
    let interface = &conf.interface;
    let nets = conf.peers.iter().flat_map(|peer| &peer.allowed_ips).copied();
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
        return error.context(why).context(conf.place(Setting::Mtu));
    }
    let place = conf.place(Setting::AllowedIp(*net));
    error.context(place)
}

/// Whether the interface can have this address, or a route to this network.
fn is_possible(net: &IpNet, without_ipv6: bool) -> bool {
    net.addr().is_ipv4() || !without_ipv6
}
