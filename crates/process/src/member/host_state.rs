//! The changes that the steward made to the host, and the steps to the desired state of the agent.
//!
//! Each part is compared with the applied state, and only differences are applied. A failed part
//! is reported, and applied again with the next desired state. `mesh::desired_host_checks` limits the
//! states that an agent may request.

mod name_files;

use std::{cell::LazyCell, collections::BTreeSet, net::IpAddr};

use anyhow::Context;
use config::conf::{Dns, Policy, Router, Table};
use host::{
    NoIpv6, PacketFilter, UndoLog, dns, router,
    routes::{Routes, TunnelTable, WantedRoutes},
};
use ipc::{DesiredDns, DesiredHost, FromSteward};
use ipnet::IpNet;
use mesh::desired_host_checks;
use sys::{
    Errno,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route},
    process::release_heap,
};

pub(super) use self::name_files::NameFiles;
use super::steward::Job;
use crate::log_error::log_error;

/// The metric of routes to peers' networks. Routes of the host have smaller metrics and take
/// precedence.
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
    /// Name servers of the host without ours.
    servers: Vec<IpAddr>,
    /// The last desired state.
    desired: Option<DesiredHost>,
}

/// The values that determine rules, packet filter and kernel settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Forwarding {
    exit: bool,
    local_networks: bool,
    offered: Vec<IpNet>,
    masquerade: bool,
    /// Set only if an exit node is used.
    addresses: Vec<IpNet>,
}

/// The applied value; `None` (unknown) after a failed step.
#[derive(Debug)]
struct Applied<T>(Option<T>);

impl<T: Default> Default for Applied<T> {
    fn default() -> Self {
        Self(Some(T::default()))
    }
}

impl<T: Clone + PartialEq> Applied<T> {
    fn is(&self, desired: &T) -> bool {
        self.0.as_ref() == Some(desired)
    }

    /// Records the result of the step that applied `desired`.
    fn set(&mut self, desired: &T, done: anyhow::Result<()>) -> anyhow::Result<()> {
        self.0 = done.is_ok().then(|| desired.clone());
        done
    }
}

impl HostState {
    /// Opens the state, and undoes the changes of a killed process.
    ///
    /// # Errors
    /// The undo log cannot be read.
    pub(super) fn open(job: &Job) -> anyhow::Result<Self> {
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
            desired: None,
        })
    }

    /// Applies the differences from the last state, as far as they are allowed.
    pub(super) fn apply(&mut self, desired: &DesiredHost) -> FromSteward {
        self.desired = Some(desired.clone());
        let in_use = LazyCell::new(|| self.netlink.networks_in_use(self.index));
        let is_in_use = |address: &IpNet| match &*in_use {
            Ok(networks) => networks.iter().any(|network| network.contains(address)),
            // The networks are unknown, so private addresses are not accepted.
            Err(_) => true,
        };
        let (desired, mut problems) = desired_host_checks::accept(desired, &self.ranges, is_in_use);
        let mut report = |what: &str, done: anyhow::Result<()>| {
            if let Err(error) = done {
                problems.push(format!("{what}: {error:#}"));
            }
        };
        if !self.addresses.is(&desired.addresses) {
            let done = self.set_addresses(&desired);
            report("addresses", self.addresses.set(&desired.addresses, done));
        }
        report("routes", self.set_routes(&desired));
        let forwarding = Forwarding {
            exit: desired.exit,
            local_networks: desired.local_networks,
            offered: desired.offered.clone(),
            masquerade: desired.masquerade,
            addresses: if desired.exit { desired.addresses.clone() } else { Vec::new() },
        };
        if !self.forwarding.is(&forwarding) {
            let done = self.set_forwarding(&desired);
            report("exit node and offered routes", self.forwarding.set(&forwarding, done));
        }
        if !self.names.is(&desired.names) {
            let done = self.set_names(&desired);
            report("names", self.names.set(&desired.names, done));
        }
        release_heap();
        FromSteward::Done { problems, servers: self.servers.clone() }
    }

    /// Restores the routes and IPv6 addresses that the kernel removed when the interface went
    /// down. Returns `None` without a desired state.
    pub(super) fn restore(&mut self) -> Option<FromSteward> {
        let desired = self.desired.clone()?;
        (self.addresses, self.forwarding) = (Applied(None), Applied(None));
        self.routes.clear();
        Some(self.apply(&desired))
    }

    /// Checks the name servers, which other programs may have changed, and restores ours. Returns
    /// whether they were overwritten, and the message to the agent; `None` if nothing changed.
    pub(super) fn follow_names(&mut self) -> Option<(bool, FromSteward)> {
        let desired = self.desired.clone()?;
        let own = desired.names.as_ref().map_or(&[][..], |names| &names.servers);
        let servers = dns::other_servers(&self.name, own);
        let overwritten = self.undo_log.names_are_overwritten();
        if overwritten {
            self.names = Applied(None);
        }
        // resolvconf(8) shows only our servers.
        let others = !servers.is_empty() && servers != self.servers;
        if others {
            self.servers = servers;
        }
        (overwritten || others).then(|| (overwritten, self.apply(&desired)))
    }

    /// Undoes all changes that outlive the interface.
    pub(super) fn undo(&mut self) {
        self.undo_log.undo(&self.netlink);
        log_error(self.undo_log.rewrite_if_removed());
    }

    /// The addresses or networks that the interface can have: without IPv6 if that is off.
    fn possible(&self, nets: &[IpNet]) -> Vec<IpNet> {
        let without_ipv6 = matches!(NoIpv6::of(&self.netlink, self.index), Ok(Some(_)));
        nets.iter().copied().filter(|net| net.addr().is_ipv4() || !without_ipv6).collect()
    }

    fn set_addresses(&mut self, desired: &DesiredHost) -> anyhow::Result<()> {
        let there = self.netlink.addresses(self.index)?;
        for address in there.iter().filter(|one| !desired.addresses.contains(one)) {
            if !is_link_local(address.addr()) {
                self.netlink.delete_address(self.index, *address)?;
            }
        }
        let mut all = Ok(());
        let wanted = self.possible(&desired.addresses);
        for address in wanted.iter().filter(|one| !there.contains(one)) {
            let added = self.netlink.add_address(self.index, *address);
            all = all.and(added.with_context(|| address.to_string()));
        }
        all
    }

    fn set_routes(&mut self, desired: &DesiredHost) -> anyhow::Result<()> {
        let route = |net: &IpNet| Route {
            destination: *net,
            device: self.index,
            table: MAIN_TABLE,
            metric: Some(METRIC),
        };
        let netlink = &self.netlink;
        let delete = |net: &IpNet| {
            let deleted = ignore_errno(netlink.delete_route(&route(net)), Errno::ESRCH);
            deleted.with_context(|| net.to_string())
        };
        let add = |net: &IpNet| {
            let added = ignore_errno(netlink.add_route(&route(net)), Errno::EEXIST);
            added.with_context(|| net.to_string())
        };
        let wanted = self.possible(&desired.routes);
        change(&mut self.routes, &wanted, delete, add)
    }

    /// Undoes and applies all parts again, because changes are rare.
    fn set_forwarding(&mut self, desired: &DesiredHost) -> anyhow::Result<()> {
        self.undo_log.undo_rules(&self.netlink);
        self.undo_log.undo_router(&self.netlink);
        let router = Router {
            offered: desired.offered.clone(),
            masquerade: desired.masquerade && !desired.offered.is_empty(),
            clamp_mss: None,
            ip_forward: !desired.offered.is_empty(),
        };
        let filter = PacketFilter {
            interface: &self.name,
            addresses: &self.possible(&desired.addresses),
            router: &router,
            mark: desired.exit.then_some(self.table.mark),
        };
        filter.set(&mut self.undo_log)?;
        router::forward(&self.name, &router, &mut self.undo_log)?;
        let policy = Policy { connected_first: true, ..Policy::default() };
        let nets = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("the literal is a network"));
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
        if desired.exit { routes.add().map(drop) } else { routes.delete() }
    }

    fn set_names(&mut self, desired: &DesiredHost) -> anyhow::Result<()> {
        self.undo_log.undo_names(&self.netlink);
        let Some(names) = &desired.names else { return dns::revert_resolved(&self.name) };
        let servers = names.servers.iter().copied().map(Into::into).collect();
        let dns = Dns { servers, search_domains: names.search.clone() };
        dns::set(&self.name, &dns, &names.domains, &mut self.undo_log)
    }
}

/// Adds missing networks, then deletes obsolete ones, and continues after failures. This order
/// avoids a gap when a route to all peers replaces routes to single peers. Returns the first failure.
fn change(
    present: &mut BTreeSet<IpNet>,
    wanted: &[IpNet],
    delete: impl Fn(&IpNet) -> anyhow::Result<()>,
    add: impl Fn(&IpNet) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wanted: BTreeSet<IpNet> = wanted.iter().copied().collect();
    let (gone, new): (Vec<IpNet>, Vec<IpNet>) = (
        present.difference(&wanted).copied().collect(),
        wanted.difference(present).copied().collect(),
    );
    let mut all = Ok(());
    for net in new {
        match add(&net) {
            Ok(()) => drop(present.insert(net)),
            failed => all = all.and(failed),
        }
    }
    for net in gone {
        match delete(&net) {
            Ok(()) => drop(present.remove(&net)),
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

/// Ignores an error with this errno, which means that the change is already made.
fn ignore_errno(done: Result<(), NetlinkError>, errno: Errno) -> Result<(), NetlinkError> {
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
    fn failed_step_is_repeated_also_for_the_previous_state() {
        let mut done = Applied::<u8>::default();
        assert!(done.is(&0) && !done.is(&1));
        assert!(done.set(&1, Err(anyhow::anyhow!("half of it"))).is_err());
        assert!(!done.is(&0) && !done.is(&1));
        done.set(&0, Ok(())).unwrap();
        assert!(done.is(&0));
    }

    #[test]
    fn covering_route_is_added_before_the_replaced_ones_are_deleted() {
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
    fn failed_route_does_not_stop_the_others_and_is_not_deleted_later() {
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
