//! Routes to the allowed IPs. A default route has a separate table, to which a rule directs all
//! packets without our mark. The outer datagrams carry the mark (wg-quick(8), "improved rule-based
//! routing").
//!
//! ```text
//!   rule N    table main, but no default route in it     connected networks first
//!   rule N+1  not marked -> table T: default dev wg0     all others into the tunnel
//!             marked     -> table main                   the outer datagrams
//! ```
//!
//! With `ConnectedFirst = false`, all routes of peers are in table T, and the first rule is
//! absent.

use std::{collections::HashSet, fmt, iter};

use anyhow::Context;
use ipnet::IpNet;
use sys::{
    errno::{Errno, errno},
    netlink::{Family, FwMark, MAIN_TABLE, Netlink, Route, Rule},
    process::Helper,
};

use crate::{
    settings,
    undo_log::{Undo, UndoLog},
};
use config::conf::{Policy, Table};

/// The lowest table number for a default route, as in wg-quick.
const FIRST_TABLE: u32 = 51_820;
/// The priority of the rule of the main table (ip-rule(8)).
const MAIN_PRIORITY: u32 = 32_766;

/// The networks that an interface should reach, and how.
#[derive(Debug)]
pub struct WantedRoutes<'a> {
    pub nets: Vec<IpNet>,
    pub table: Table,
    pub policy: &'a Policy,
}

/// The tunnel's routing table, and the mark of the outer datagrams, which do not use it.
#[derive(Clone, Copy, Debug)]
pub struct TunnelTable {
    table: u32,
    pub mark: FwMark,
}

impl TunnelTable {
    /// A table and mark with this number.
    pub fn with_number(number: u32) -> Self {
        Self { table: number, mark: FwMark::exact(number) }
    }

    /// Chooses a table and mark if these networks need them. Configured values are used; without
    /// them, both have the same number. `fwmark` is the current mark of the outer datagrams, or 0.
    /// The caller must set the returned mark.
    pub fn choose(
        netlink: &Netlink,
        wanted: &WantedRoutes<'_>,
        fwmark: u32,
    ) -> anyhow::Result<Option<Self>> {
        let policy = wanted.policy;
        let is_needed = wanted.nets.iter().any(|net| policy.is_for_own_table(*net));
        if !is_needed || wanted.table != Table::Auto {
            return Ok(None);
        }
        let table = match (policy.table, fwmark) {
            (Some(table), _) => table,
            (None, 0) => unused_table(netlink)?,
            (None, mark) => mark,
        };
        let value = if fwmark == 0 { table } else { fwmark };
        let mask = policy.mask.unwrap_or(u32::MAX);
        Ok(Some(Self { table, mark: FwMark { value, mask } }))
    }
}

/// Adds routes and rules. The kernel removes the routes together with the interface; the rules are
/// recorded in the undo log.
pub struct Routes<'a> {
    pub netlink: &'a Netlink,
    pub wanted: WantedRoutes<'a>,
    pub log: &'a mut UndoLog,
    /// The interface's name.
    pub interface: &'a str,
    /// The index of the interface.
    pub device: u32,
    pub own: Option<TunnelTable>,
}

/// Networks of peers in the main table, each with whether its route exists. A network has a route
/// unless another link is connected to the same network. A more specific network within a
/// connected one has its route: otherwise a neighbour could divert its traffic by advertising a
/// wide prefix.
#[derive(Debug, Default)]
pub struct MainRoutes(Vec<(IpNet, bool)>);

impl MainRoutes {
    /// The networks, in the order of the positions that [`MainRoutes::sync`] passes to a helper.
    pub fn networks(&self) -> Vec<IpNet> {
        self.0.iter().map(|(net, _)| *net).collect()
    }

    /// Adds and deletes routes to match the currently connected networks, directly or through a
    /// helper.
    pub fn sync(
        &mut self,
        netlink: &Netlink,
        helper: Option<&Helper>,
        device: u32,
    ) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let connected = netlink.connected_networks(device)?;
        for (position, (destination, is_there)) in self.0.iter_mut().enumerate() {
            let destination = *destination;
            let is_connected = connected.contains(&destination);
            let route = Route { destination, device, table: MAIN_TABLE, metric: None };
            if is_connected && *is_there {
                warn_connected(destination);
            }
            let changed = match (is_connected != *is_there, helper) {
                (true, _) => Ok(()),
                (false, Some(helper)) => helper.route(position, !is_connected),
                (false, None) if is_connected => netlink.delete_route(&route).map_err(Into::into),
                (false, None) => netlink.add_route(&route).map_err(Into::into),
            };
            *is_there = !is_connected;
            match changed {
                // Another program has made the same change.
                Err(error) if matches!(errno(&error), Some(Errno::EEXIST | Errno::ESRCH)) => {}
                changed => changed.with_context(|| format!("route to {destination}"))?,
            }
        }
        Ok(())
    }
}

fn warn_connected(net: IpNet) {
    tracing::warn!(
        "AllowedIPs: this host is connected to {net}, so no route is added; ConnectedFirst = \
        false routes it to the peer"
    );
}

impl Routes<'_> {
    /// Adds a route for each network, the most specific first. Returns those in the main table.
    ///
    /// # Errors
    /// A route or rule cannot be added. The error has a [`RouteTarget`] with the network.
    pub fn add(mut self) -> anyhow::Result<MainRoutes> {
        let mut nets = std::mem::take(&mut self.wanted.nets);
        nets.sort_by_key(|net| (std::cmp::Reverse(net.prefix_len()), *net));
        nets.dedup();
        let existing = self.read_existing(&nets)?;
        let mut main = MainRoutes::default();
        for net in &nets {
            self.add_one(*net, (&mut main, &existing)).context(RouteTarget::route(*net))?;
        }
        if let Some(own) = self.own {
            let policy = self.wanted.policy;
            for family in [Family::V4, Family::V6] {
                let is_one = |net: &&IpNet| is_of(net, family) && policy.is_for_own_table(**net);
                if let Some(net) = nets.iter().rfind(is_one) {
                    self.add_rules(family, own).context(RouteTarget::rules(*net))?;
                }
            }
        }
        Ok(main)
    }

    /// Deletes the routes in the tunnel's table. The caller has deleted the rules already.
    pub fn delete(self) -> anyhow::Result<()> {
        let Some(own) = self.own else { return Ok(()) };
        for &destination in &self.wanted.nets {
            let (device, table) = (self.device, own.table);
            match self.netlink.delete_route(&Route { destination, device, table, metric: None }) {
                Err(error) if error.errno() == Some(Errno::ESRCH) => {}
                deleted => deleted.with_context(|| format!("route to {destination}"))?,
            }
        }
        Ok(())
    }

    /// The table of a network; `Auto` is the main table, with its exceptions.
    fn table_of(&self, net: IpNet) -> Table {
        match (self.wanted.table, self.own) {
            (Table::Auto, Some(own)) if self.wanted.policy.is_for_own_table(net) => {
                Table::Id(own.table)
            }
            (table, _) => table,
        }
    }

    /// Reads the existing routes and connected networks, if any network belongs in the main table.
    fn read_existing(&self, nets: &[IpNet]) -> anyhow::Result<ExistingRoutes> {
        let mut existing = ExistingRoutes::default();
        for family in [Family::V4, Family::V6] {
            if nets.iter().any(|net| is_of(net, family) && self.table_of(*net) == Table::Auto) {
                let routes = self.netlink.routes(family, MAIN_TABLE)?.into_iter();
                let ours = routes.filter(|route| route.device == self.device);
                existing.routed.extend(ours.map(|route| route.destination));
            }
        }
        if nets.iter().any(|net| self.table_of(*net) == Table::Auto) {
            existing.connected = self.netlink.connected_networks(self.device)?;
        }
        Ok(existing)
    }

    fn add_one(
        &self,
        net: IpNet,
        (main, existing): (&mut MainRoutes, &ExistingRoutes),
    ) -> anyhow::Result<()> {
        match self.table_of(net) {
            Table::Off => Ok(()),
            Table::Id(table) => self.add_route(net, table),
            Table::Auto if existing.is_routed(net) => Ok(()),
            Table::Auto => {
                let is_connected = existing.connected.contains(&net);
                match is_connected {
                    true => warn_connected(net),
                    false => self.add_route(net, MAIN_TABLE)?,
                }
                main.0.push((net, !is_connected));
                Ok(())
            }
        }
    }

    fn add_route(&self, destination: IpNet, table: u32) -> anyhow::Result<()> {
        let device = self.device;
        Ok(self.netlink.add_route(&Route { destination, device, table, metric: None })?)
    }

    fn add_rules(&mut self, family: Family, own: TunnelTable) -> anyhow::Result<()> {
        let policy = self.wanted.policy;
        let [first, second] = match policy.priority {
            Some(priority) => [priority, priority + 1],
            // Like wg-quick(8): the kernel adds a rule without a priority before the second rule,
            // at 0 if no other number is free. Rules with equal priority stay in the order in
            // which they were added.
            None => {
                let next = self.netlink.first_rule_priority(family)?.unwrap_or(MAIN_PRIORITY);
                [next.saturating_sub(2), next.saturating_sub(1)]
            }
        };
        // This precedes the rules. Otherwise an answer could be lost.
        if family == Family::V4 {
            settings::set_src_valid_mark(self.interface);
        }
        let rule = |fwmark, table, priority| Rule {
            family,
            fwmark,
            invert: fwmark.is_some(),
            table,
            priority: Some(priority),
            suppress_prefix_length: fwmark.is_none().then_some(0),
        };
        if policy.connected_first {
            self.add_rule(rule(None, MAIN_TABLE, first))?;
        }
        self.add_rule(rule(Some(own.mark), own.table, second))
    }

    /// Adds a rule. A rule that exists already belongs to another program and is not recorded.
    fn add_rule(&mut self, rule: Rule) -> anyhow::Result<()> {
        self.log.record(Undo::Rule(rule))?;
        match self.netlink.add_rule(&rule) {
            Err(error) if error.errno() == Some(Errno::EEXIST) => self.log.remove_last(),
            added => Ok(added?),
        }
    }
}

/// The state before the first route is added. It is read once for all networks: an added route
/// does not cover the networks that follow, because these are not more specific.
#[derive(Default)]
struct ExistingRoutes {
    connected: HashSet<IpNet>,
    /// Destinations that the main table routes through the device.
    routed: HashSet<IpNet>,
}

impl ExistingRoutes {
    /// Whether a route to this network or to a shorter prefix uses the device, like `ip route show
    /// dev DEVICE match NETWORK`.
    fn is_routed(&self, net: IpNet) -> bool {
        let mut prefixes = iter::successors(Some(net.trunc()), IpNet::supernet);
        prefixes.any(|prefix| self.routed.contains(&prefix))
    }
}

fn is_of(net: &IpNet, family: Family) -> bool {
    Family::of(net.addr()) == family
}

/// A route or rule that could not be added, by its network. It is the context of an error;
/// `anyhow::Error::downcast_ref` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    pub net: IpNet,
    is_rule: bool,
}

impl RouteTarget {
    fn route(net: IpNet) -> Self {
        Self { net, is_rule: false }
    }

    fn rules(net: IpNet) -> Self {
        Self { net, is_rule: true }
    }
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_rule { "rules for" } else { "route to" };
        write!(f, "{what} {}", self.net)
    }
}

fn unused_table(netlink: &Netlink) -> anyhow::Result<u32> {
    let used = netlink.tables()?;
    let mut tables = FIRST_TABLE..;
    tables.find(|table| !used.contains(table)).context("every routing table is in use")
}

#[cfg(test)]
mod tests;
