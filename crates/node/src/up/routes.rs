//! Routes to the allowed IPs. A default route gets a table of its own, which
//! everything but our own datagrams is sent to; those carry a mark (wg-quick(8),
//! "improved rule-based routing").
//!
//! ```text
//!   rule N    table main, but no default route in it     connected networks first
//!   rule N+1  not marked -> table T: default dev wg0     all else into the tunnel
//!             marked     -> table main                   what comes out of it
//! ```
//!
//! With `ConnectedFirst = false` all the peers' routes are in table T, and the first
//! rule is not there.

use std::fs;

use anyhow::{Context, ensure};
use ipnet::IpNet;
use sys::netlink::{Family, FwMark, MAIN_TABLE, Netlink, Route, Rule};

use super::ledger::{Deed, Ledger};
use crate::{
    Node,
    conf::{Conf, Policy, Table},
    uapi::Change,
};

/// Where a table for a default route is looked for first; wg-quick's choice.
const FIRST_TABLE: u32 = 51_820;
/// The priority of the rule of the main table (ip-rule(8)).
const MAIN_PRIORITY: u32 = 32_766;
/// Whether marks count when the kernel checks where a packet came from.
const SRC_VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
/// `EEXIST` of Linux.
const EEXIST: i32 = 17;
/// `ESRCH` of Linux.
const ESRCH: i32 = 3;

/// Adds routes and rules. The routes go with the interface; the rules are written
/// down.
pub(super) struct Routes<'a> {
    netlink: &'a Netlink,
    node: &'a Node,
    conf: &'a Conf,
    ledger: &'a mut Ledger,
    /// The networks that other links are connected to.
    connected: Vec<IpNet>,
    /// The table of our own, once there is one, and the mark of our own datagrams.
    own: Option<(u32, FwMark)>,
    /// The families that are sent to it.
    ruled: Vec<Family>,
    main: MainRoutes,
}

/// Peers' networks in the main table. A route to one is there unless a network that
/// another link is connected to holds it.
#[derive(Debug, Default)]
pub(super) struct MainRoutes(Vec<(IpNet, bool)>);

impl MainRoutes {
    /// Adds and deletes routes as the connected networks are now.
    pub fn settle(&mut self, netlink: &Netlink, device: u32) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let connected = netlink.connected_networks(device)?;
        for (destination, is_there) in &mut self.0 {
            let destination = *destination;
            let around = connected.iter().find(|network| network.contains(&destination));
            let route = Route { destination, device, table: MAIN_TABLE, metric: None };
            let changed = match (around, *is_there) {
                (Some(network), true) => {
                    tell_connected(destination, *network);
                    netlink.delete_route(&route)
                }
                (None, false) => netlink.add_route(&route),
                (Some(_), false) | (None, true) => Ok(()),
            };
            *is_there = around.is_none();
            match changed {
                // Somebody else was first.
                Err(error) if matches!(error.errno(), Some(EEXIST | ESRCH)) => {}
                changed => changed.with_context(|| format!("route to {destination}"))?,
            }
        }
        Ok(())
    }
}

fn tell_connected(net: IpNet, network: IpNet) {
    tracing::warn!(
        "AllowedIPs: {net} lies in {network}, to which this host is connected: no route; \
         ConnectedFirst = false gives it to the peer"
    );
}

impl<'a> Routes<'a> {
    pub fn new(
        netlink: &'a Netlink,
        node: &'a Node,
        conf: &'a Conf,
        ledger: &'a mut Ledger,
    ) -> anyhow::Result<Self> {
        let connected = match conf.interface.policy.connected_first {
            true => netlink.connected_networks(node.info().index)?,
            false => Vec::new(),
        };
        Ok(Self {
            netlink,
            node,
            conf,
            ledger,
            connected,
            own: None,
            ruled: Vec::new(),
            main: MainRoutes::default(),
        })
    }

    /// Adds a route for each network, the most specific first. Returns the mark of our
    /// own datagrams, where there is a table of our own, and what is in the main one.
    pub fn add(mut self) -> anyhow::Result<(Option<FwMark>, MainRoutes)> {
        let mut nets: Vec<IpNet> =
            self.conf.peers.iter().flat_map(|peer| &peer.allowed_ips).copied().collect();
        nets.sort_by_key(|net| (std::cmp::Reverse(net.prefix_len()), *net));
        nets.dedup();
        for net in nets {
            self.add_one(net).with_context(|| format!("route to {net}"))?;
        }
        Ok((self.own.map(|(_, mark)| mark), self.main))
    }

    fn add_one(&mut self, net: IpNet) -> anyhow::Result<()> {
        let index = self.node.info().index;
        match self.conf.interface.table {
            Table::Off => Ok(()),
            Table::Id(table) => self.add_route(net, table),
            Table::Auto if net.prefix_len() == 0 || !self.policy().connected_first => {
                let table = self.own_table(Family::of(net.addr()))?;
                self.add_route(net, table)
            }
            Table::Auto if self.netlink.has_route(net, index, MAIN_TABLE)? => Ok(()),
            Table::Auto => {
                let around = self.connected.iter().find(|network| network.contains(&net));
                match around {
                    Some(network) => tell_connected(net, *network),
                    None => self.add_route(net, MAIN_TABLE)?,
                }
                self.main.0.push((net, around.is_none()));
                Ok(())
            }
        }
    }

    fn add_route(&self, destination: IpNet, table: u32) -> anyhow::Result<()> {
        let device = self.node.info().index;
        Ok(self.netlink.add_route(&Route { destination, device, table, metric: None })?)
    }

    fn policy(&self) -> &'a Policy {
        &self.conf.interface.policy
    }

    /// The table of our own, which a family is sent to from now on.
    fn own_table(&mut self, family: Family) -> anyhow::Result<u32> {
        let (table, mark) = match self.own {
            Some(own) => own,
            None => *self.own.insert(self.choose()?),
        };
        if !self.ruled.contains(&family) {
            self.ruled.push(family);
            self.add_rules(family, table, mark)?;
        }
        Ok(table)
    }

    /// A table and a mark, each where the file names it, and of one number where not.
    fn choose(&self) -> anyhow::Result<(u32, FwMark)> {
        let table = match (self.policy().table, self.node.fwmark()) {
            (Some(table), _) => table,
            (None, 0) => unused_table(self.netlink)?,
            (None, mark) => mark,
        };
        let value = match self.node.fwmark() {
            0 => {
                self.node.apply(Change { fwmark: Some(table), ..Change::default() })?;
                table
            }
            mark => mark,
        };
        Ok((table, FwMark { value, mask: self.policy().mask.unwrap_or(u32::MAX) }))
    }

    fn add_rules(&mut self, family: Family, table: u32, mark: FwMark) -> anyhow::Result<()> {
        let first = match self.policy().priority {
            Some(priority) => priority,
            None => {
                let next = self.netlink.first_rule_priority(family)?.unwrap_or(MAIN_PRIORITY);
                ensure!(next > 2, "there is no room before the first rule: see RulePriority");
                next - 2
            }
        };
        let rule = |fwmark, table, priority| Rule {
            family,
            fwmark,
            invert: fwmark.is_some(),
            table,
            priority: Some(priority),
            suppress_prefix_length: fwmark.is_none().then_some(0),
        };
        if self.policy().connected_first {
            self.add_rule(rule(None, MAIN_TABLE, first))?;
        }
        self.add_rule(rule(Some(mark), table, first + 1))?;
        // In a container it may be set and not be ours to write.
        if family == Family::V4
            && fs::read_to_string(SRC_VALID_MARK).is_ok_and(|value| value.trim() != "1")
        {
            fs::write(SRC_VALID_MARK, "1").with_context(|| SRC_VALID_MARK.to_owned())?;
        }
        Ok(())
    }

    /// A rule that is there already is somebody else's to remove.
    fn add_rule(&mut self, rule: Rule) -> anyhow::Result<()> {
        self.ledger.note(Deed::Rule(rule))?;
        match self.netlink.add_rule(&rule) {
            Err(error) if error.errno() == Some(EEXIST) => self.ledger.strike(),
            added => Ok(added?),
        }
    }
}

fn unused_table(netlink: &Netlink) -> anyhow::Result<u32> {
    for table in FIRST_TABLE.. {
        if netlink.routes(Family::V4, table)?.is_empty()
            && netlink.routes(Family::V6, table)?.is_empty()
        {
            return Ok(table);
        }
    }
    anyhow::bail!("every routing table is in use")
}
