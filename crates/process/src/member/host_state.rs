//! What the steward did to the host, and the way from there to what the agent wishes.
//!
//! Each part is compared with the last wish, and only what differs is done. What fails is told, and
//! tried again with the next wish.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Context;
use config::conf::{Dns, Policy, Router, Table};
use host::{
    PacketFilter, UndoLog, dns, router,
    routes::{OwnTable, Routes, Wanted},
};
use ipnet::IpNet;
use sys::{
    Errno,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route},
};
use tailnet::line::{FromSteward, HostWish};

use crate::log_error::log_error;

/// The metric of routes to peers' networks: the host's own, which have smaller ones, win.
const METRIC: u32 = 5_270;
/// The most addresses, and the most routes, that a wish may have.
const MOST: usize = 1 << 16;

pub(super) struct HostState {
    name: String,
    index: u32,
    table: OwnTable,
    netlink: Netlink,
    undo_log: UndoLog,
    done: HostWish,
    /// Those that were there before names were changed.
    servers: Vec<IpAddr>,
}

impl HostState {
    /// What a killed process left behind is undone.
    ///
    /// # Errors
    /// The undo log cannot be read.
    pub fn open(name: &str, index: u32, mark: u32) -> anyhow::Result<Self> {
        let (mut undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
        undo_log.undo(&netlink);
        let (table, done) = (OwnTable::of(mark), HostWish::default());
        let (name, servers) = (name.to_owned(), dns::servers());
        Ok(Self { name, index, table, netlink, undo_log, done, servers })
    }

    /// Does what differs from the last wish.
    pub fn apply(&mut self, wish: &HostWish) -> FromSteward {
        let mut problems = Vec::new();
        let mut told = |what: &str, done: anyhow::Result<()>| {
            if let Err(error) = &done {
                problems.push(format!("{what}: {error:#}"));
            }
            done.is_ok()
        };
        if wish.addresses.len().max(wish.routes.len()) > MOST {
            told("wish", Err(anyhow::anyhow!("it has more than {MOST} addresses or routes")));
            return FromSteward::Done { problems, servers: self.servers.clone() };
        }
        if wish.addresses != self.done.addresses && told("addresses", self.set_addresses(wish)) {
            self.done.addresses.clone_from(&wish.addresses);
        }
        // A device that went down has lost its routes.
        if told("routes", self.set_routes(wish)) {
            self.done.routes.clone_from(&wish.routes);
        }
        let exits = |wish: &HostWish| (wish.exit, wish.local_networks);
        let forwards = |wish: &HostWish| (wish.offered.clone(), wish.masquerade);
        let differs = exits(wish) != exits(&self.done) || forwards(wish) != forwards(&self.done);
        if differs && told("exit node and offered routes", self.set_forwarding(wish)) {
            (self.done.exit, self.done.local_networks) = exits(wish);
            (self.done.offered, self.done.masquerade) = forwards(wish);
        }
        if wish.names != self.done.names && told("names", self.set_names(wish)) {
            self.done.names.clone_from(&wish.names);
        }
        FromSteward::Done { problems, servers: self.servers.clone() }
    }

    /// Undoes everything that does not go with the interface.
    pub fn undo(&mut self) {
        self.undo_log.undo(&self.netlink);
        log_error(self.undo_log.keep());
    }

    fn set_addresses(&mut self, wish: &HostWish) -> anyhow::Result<()> {
        let there = self.netlink.addresses(self.index)?;
        for address in there.iter().filter(|one| !wish.addresses.contains(one)) {
            if !is_link_local(address.addr()) {
                self.netlink.delete_address(self.index, *address)?;
            }
        }
        for address in wish.addresses.iter().filter(|one| !there.contains(one)) {
            let added = self.netlink.add_address(self.index, *address);
            added.with_context(|| address.to_string())?;
        }
        Ok(())
    }

    fn set_routes(&mut self, wish: &HostWish) -> anyhow::Result<()> {
        let (wanted, there): (BTreeSet<IpNet>, BTreeSet<IpNet>) =
            (wish.routes.iter().copied().collect(), self.done.routes.iter().copied().collect());
        let route = |net: &IpNet| Route {
            destination: *net,
            device: self.index,
            table: MAIN_TABLE,
            metric: Some(METRIC),
        };
        for net in there.difference(&wanted) {
            let deleted = self.netlink.delete_route(&route(net));
            unless(deleted, Errno::ESRCH).with_context(|| net.to_string())?;
        }
        for net in wanted.difference(&there) {
            let added = self.netlink.add_route(&route(net));
            unless(added, Errno::EEXIST).with_context(|| net.to_string())?;
        }
        Ok(())
    }

    /// Begins anew: it changes seldom.
    fn set_forwarding(&mut self, wish: &HostWish) -> anyhow::Result<()> {
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
            addresses: &wish.addresses,
            router: &router,
            mark: wish.exit.then_some(self.table.mark),
        };
        filter.set(&mut self.undo_log)?;
        router::forward(&router, &mut self.undo_log)?;
        let policy = Policy { connected_first: true, ..Policy::default() };
        let nets = ["0.0.0.0/0", "::/0"].map(|net| net.parse().expect("it is a network"));
        let routes = Routes {
            netlink: &self.netlink,
            wanted: Wanted { nets: nets.to_vec(), table: Table::Auto, policy: &policy },
            log: &mut self.undo_log,
            device: self.index,
            own: Some(self.table),
        };
        if wish.exit { routes.add().map(drop) } else { routes.delete() }
    }

    fn set_names(&mut self, wish: &HostWish) -> anyhow::Result<()> {
        self.undo_log.undo_names(&self.netlink);
        let Some(names) = &wish.names else { return dns::unset_resolved(&self.name) };
        let dns = Dns { servers: names.servers.clone(), search_domains: names.search.clone() };
        dns::set(&self.name, &dns, &names.domains, &mut self.undo_log)
    }
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
