//! What the steward did to the host, and the way from there to what the agent wishes.
//!
//! Each part is compared with the last wish, and only what differs is done. What fails is told, and
//! tried again with the next wish, whatever that is. What may be wished at all is in
//! `tailnet::desired_host`.

mod name_files;

use std::{cell::LazyCell, collections::BTreeSet, net::IpAddr};

use anyhow::Context;
use config::conf::{Dns, Policy, Router, Table};
use host::{
    NoIpv6, PacketFilter, UndoLog, dns, router,
    routes::{Routes, TunnelTable, WantedRoutes},
};
use ipnet::IpNet;
use sys::{
    Errno,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route},
    process::release_heap,
};
use tailnet::{
    desired_host,
    ipc::{DesiredDns, DesiredHost, FromSteward},
};

pub(super) use self::name_files::NameFiles;
use super::steward::Job;
use crate::log_error::log_error;

/// The metric of routes to peers' networks: the host's own, which have smaller ones, win.
const METRIC: u32 = 5_270;

pub(super) struct HostState {
    name: String,
    index: u32,
    /// The user accepts addresses of these networks, in addition to tailnet addresses.
    ranges: Vec<IpNet>,
    table: TunnelTable,
    netlink: Netlink,
    undo_log: UndoLog,
    addresses: Applied<Vec<IpNet>>,
    routes: BTreeSet<IpNet>,
    forwarding: Applied<Forwarding>,
    names: Applied<Option<DesiredDns>>,
    /// Who answers without us.
    servers: Vec<IpAddr>,
    /// The last.
    wish: Option<DesiredHost>,
}

/// What rules, the packet filter and the kernel's settings follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Forwarding {
    exit: bool,
    local_networks: bool,
    offered: Vec<IpNet>,
    masquerade: bool,
    /// Only beside an exit node.
    addresses: Vec<IpNet>,
}

/// What was done; nobody knows after a step that failed.
#[derive(Debug)]
struct Applied<T>(Option<T>);

impl<T: Default> Default for Applied<T> {
    fn default() -> Self {
        Self(Some(T::default()))
    }
}

impl<T: Clone + PartialEq> Applied<T> {
    fn is(&self, wished: &T) -> bool {
        self.0.as_ref() == Some(wished)
    }

    /// Takes the outcome of the step that was to bring `wished` about.
    fn set(&mut self, wished: &T, done: anyhow::Result<()>) -> anyhow::Result<()> {
        self.0 = done.is_ok().then(|| wished.clone());
        done
    }
}

impl HostState {
    /// What a killed process left behind is undone.
    ///
    /// # Errors
    /// The undo log cannot be read.
    pub fn open(job: &Job) -> anyhow::Result<Self> {
        let Job { name, index, mark, .. } = job;
        let (mut undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
        undo_log.undo(&netlink);
        Ok(Self {
            name: name.clone(),
            index: *index,
            ranges: job.address_ranges.clone(),
            table: TunnelTable::with_number(*mark),
            netlink,
            undo_log,
            addresses: Applied::default(),
            routes: BTreeSet::new(),
            forwarding: Applied::default(),
            names: Applied::default(),
            servers: dns::other_servers(name, &[]),
            wish: None,
        })
    }

    /// Does what differs from the last wish, as far as it may be done.
    pub fn apply(&mut self, wish: &DesiredHost) -> FromSteward {
        self.wish = Some(wish.clone());
        let in_use = LazyCell::new(|| self.netlink.networks_in_use(self.index));
        let is_in_use = |address: &IpNet| match &*in_use {
            Ok(networks) => networks.iter().any(|network| network.contains(address)),
            // It is not known, so no private address is accepted.
            Err(_) => true,
        };
        let (wish, mut problems) = desired_host::accept(wish, &self.ranges, is_in_use);
        let mut told = |what: &str, done: anyhow::Result<()>| {
            if let Err(error) = done {
                problems.push(format!("{what}: {error:#}"));
            }
        };
        if !self.addresses.is(&wish.addresses) {
            let done = self.set_addresses(&wish);
            told("addresses", self.addresses.set(&wish.addresses, done));
        }
        told("routes", self.set_routes(&wish));
        let forwarding = Forwarding {
            exit: wish.exit,
            local_networks: wish.local_networks,
            offered: wish.offered.clone(),
            masquerade: wish.masquerade,
            addresses: if wish.exit { wish.addresses.clone() } else { Vec::new() },
        };
        if !self.forwarding.is(&forwarding) {
            let done = self.set_forwarding(&wish);
            told("exit node and offered routes", self.forwarding.set(&forwarding, done));
        }
        if !self.names.is(&wish.names) {
            let done = self.set_names(&wish);
            told("names", self.names.set(&wish.names, done));
        }
        release_heap();
        FromSteward::Done { problems, servers: self.servers.clone() }
    }

    /// Does again what went when the interface went down: its routes, and IPv6 addresses. `None`
    /// where nothing was wished.
    pub fn restore(&mut self) -> Option<FromSteward> {
        let wish = self.wish.clone()?;
        (self.addresses, self.forwarding) = (Applied(None), Applied(None));
        self.routes.clear();
        Some(self.apply(&wish))
    }

    /// Looks at who answers questions about names, which others may have changed, and makes it again
    /// what was wished. Whether they wrote over that, and what to tell; `None` where nothing changed.
    pub fn follow_names(&mut self) -> Option<(bool, FromSteward)> {
        let wish = self.wish.clone()?;
        let own = wish.names.as_ref().map_or(&[][..], |names| &names.servers);
        let servers = dns::other_servers(&self.name, own);
        let overwritten = self.undo_log.names_are_overwritten();
        if overwritten {
            self.names = Applied(None);
        }
        // resolvconf(8) shows nobody but us.
        let others = !servers.is_empty() && servers != self.servers;
        if others {
            self.servers = servers;
        }
        (overwritten || others).then(|| (overwritten, self.apply(&wish)))
    }

    /// Undoes everything that does not go with the interface.
    pub fn undo(&mut self) {
        self.undo_log.undo(&self.netlink);
        log_error(self.undo_log.rewrite_if_removed());
    }

    /// The addresses or networks that the interface can have: without those of IPv6 if that is off.
    fn possible(&self, nets: &[IpNet]) -> Vec<IpNet> {
        let without_ipv6 = matches!(NoIpv6::of(&self.netlink, self.index), Ok(Some(_)));
        nets.iter().copied().filter(|net| net.addr().is_ipv4() || !without_ipv6).collect()
    }

    fn set_addresses(&mut self, wish: &DesiredHost) -> anyhow::Result<()> {
        let there = self.netlink.addresses(self.index)?;
        for address in there.iter().filter(|one| !wish.addresses.contains(one)) {
            if !is_link_local(address.addr()) {
                self.netlink.delete_address(self.index, *address)?;
            }
        }
        let mut all = Ok(());
        let wanted = self.possible(&wish.addresses);
        for address in wanted.iter().filter(|one| !there.contains(one)) {
            let added = self.netlink.add_address(self.index, *address);
            all = all.and(added.with_context(|| address.to_string()));
        }
        all
    }

    fn set_routes(&mut self, wish: &DesiredHost) -> anyhow::Result<()> {
        let route = |net: &IpNet| Route {
            destination: *net,
            device: self.index,
            table: MAIN_TABLE,
            metric: Some(METRIC),
        };
        let netlink = &self.netlink;
        let delete = |net: &IpNet| {
            let deleted = unless(netlink.delete_route(&route(net)), Errno::ESRCH);
            deleted.with_context(|| net.to_string())
        };
        let add = |net: &IpNet| {
            let added = unless(netlink.add_route(&route(net)), Errno::EEXIST);
            added.with_context(|| net.to_string())
        };
        let wanted = self.possible(&wish.routes);
        change(&mut self.routes, &wanted, delete, add)
    }

    /// Begins anew: it changes seldom.
    fn set_forwarding(&mut self, wish: &DesiredHost) -> anyhow::Result<()> {
        self.undo_log.undo_rules(&self.netlink);
        self.undo_log.undo_router(&self.netlink);
        let router = Router {
            offered: wish.offered.clone(),
            masquerade: wish.masquerade && !wish.offered.is_empty(),
            clamp_mss: None,
            ip_forward: !wish.offered.is_empty(),
        };
        let filter = PacketFilter {
            interface: &self.name,
            addresses: &self.possible(&wish.addresses),
            router: &router,
            mark: wish.exit.then_some(self.table.mark),
        };
        filter.set(&mut self.undo_log)?;
        router::forward(&self.name, &router, &mut self.undo_log)?;
        let policy = Policy { connected_first: true, ..Policy::default() };
        let nets = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("it is a network"));
        let routes = Routes {
            netlink: &self.netlink,
            wanted: WantedRoutes {
                nets: self.possible(&nets),
                table: Table::Auto,
                policy: &policy,
            },
            log: &mut self.undo_log,
            interface: &self.name,
            device: self.index,
            own: Some(self.table),
        };
        if wish.exit { routes.add().map(drop) } else { routes.delete() }
    }

    fn set_names(&mut self, wish: &DesiredHost) -> anyhow::Result<()> {
        self.undo_log.undo_names(&self.netlink);
        let Some(names) = &wish.names else { return dns::revert_resolved(&self.name) };
        let servers = names.servers.iter().copied().map(Into::into).collect();
        let dns = Dns { servers, search_domains: names.search.clone() };
        dns::set(&self.name, &dns, &names.domains, &mut self.undo_log)
    }
}

/// Adds and then deletes what differs, and goes on whatever fails: a route to all peers that takes
/// the place of those to each is there before these are gone. Returns the first failure.
fn change(
    there: &mut BTreeSet<IpNet>,
    wanted: &[IpNet],
    delete: impl Fn(&IpNet) -> anyhow::Result<()>,
    add: impl Fn(&IpNet) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wanted: BTreeSet<IpNet> = wanted.iter().copied().collect();
    let (gone, new): (Vec<IpNet>, Vec<IpNet>) =
        (there.difference(&wanted).copied().collect(), wanted.difference(there).copied().collect());
    let mut all = Ok(());
    for net in new {
        match add(&net) {
            Ok(()) => drop(there.insert(net)),
            failed => all = all.and(failed),
        }
    }
    for net in gone {
        match delete(&net) {
            Ok(()) => drop(there.remove(&net)),
            failed => all = all.and(failed),
        }
    }
    all
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A refusal that means that it was so already is none.
fn unless(done: Result<(), NetlinkError>, errno: Errno) -> Result<(), NetlinkError> {
    match done {
        Err(error) if error.errno() == Some(errno) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    #[test]
    fn a_step_that_failed_is_tried_again_for_the_former_wish_too() {
        let mut done = Applied::<u8>::default();
        assert!(done.is(&0) && !done.is(&1));
        assert!(done.set(&1, Err(anyhow::anyhow!("half of it"))).is_err());
        assert!(!done.is(&0) && !done.is(&1));
        done.set(&0, Ok(())).unwrap();
        assert!(done.is(&0));
    }

    #[test]
    fn a_route_for_many_is_there_before_those_that_it_replaces_are_gone() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let (one, all) = (net("100.64.0.2/32"), net("100.64.0.0/10"));
        let (mut there, steps) = (BTreeSet::from([one]), RefCell::new(Vec::new()));
        let step = |net: &IpNet| {
            steps.borrow_mut().push(*net);
            Ok(())
        };
        change(&mut there, &[all], step, step).unwrap();
        change(&mut there, &[one], step, step).unwrap();
        assert_eq!(steps.take(), [all, one, one, all]);
    }

    #[test]
    fn a_route_that_cannot_be_stops_no_other_one_and_those_that_are_there_go_later() {
        let host = RefCell::new(BTreeSet::new());
        let delete = |net: &IpNet| match host.borrow_mut().remove(net) {
            true => Ok(()),
            false => bail!("it is not there"),
        };
        let add = |net: &IpNet| match net.addr() {
            IpAddr::V6(_) => bail!("the kernel lacks IPv6"),
            IpAddr::V4(_) => {
                host.borrow_mut().insert(*net);
                Ok(())
            }
        };
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let mut there = BTreeSet::new();
        let wanted = nets(&["fd7a::2/128", "100.64.0.2/32", "100.64.0.3/32"]);
        let failed = change(&mut there, &wanted, delete, add).unwrap_err();
        assert_eq!(failed.to_string(), "the kernel lacks IPv6");
        assert_eq!((there.len(), &there), (2, &*host.borrow()));
        change(&mut there, &nets(&["100.64.0.3/32"]), delete, add).unwrap();
        assert_eq!((there.len(), &there), (1, &*host.borrow()));
    }
}
