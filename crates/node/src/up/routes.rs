//! Routes to the allowed IPs. A default route gets a table of its own, which
//! everything but our own datagrams is sent to; those carry a mark (wg-quick(8),
//! "improved rule-based routing").
//!
//! ```text
//!   rule  table main, but no default route in it     connected networks first
//!   rule  not marked -> table T: default dev wg0     all else into the tunnel
//!         marked     -> table main                   what comes out of it
//! ```

use std::fs;

use anyhow::Context;
use ipnet::IpNet;
use sys::netlink::{Family, MAIN_TABLE, Netlink, Route, Rule};

use crate::{
    Node,
    conf::{Conf, Table},
    uapi::Change,
};

/// Where a table for a default route is looked for first; wg-quick's choice.
const FIRST_TABLE: u32 = 51_820;
/// Whether marks count when the kernel checks where a packet came from.
const SRC_VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
/// `EEXIST` of Linux.
const EEXIST: i32 = 17;

/// The routes of an interface. They go with it; the rules do not.
#[derive(Default)]
pub(super) struct Routes {
    rules: Vec<Rule>,
    /// The mark of our own datagrams, where there is a default route.
    mark: Option<u32>,
}

impl Routes {
    /// Adds a route for each network, the most specific first.
    pub fn add(&mut self, netlink: &Netlink, conf: &Conf, node: &Node) -> anyhow::Result<()> {
        let mut nets: Vec<IpNet> =
            conf.peers.iter().flat_map(|peer| &peer.allowed_ips).copied().collect();
        nets.sort_by_key(|net| (std::cmp::Reverse(net.prefix_len()), *net));
        nets.dedup();
        for net in nets {
            self.add_one(netlink, conf.interface.table, net, node)
                .with_context(|| format!("route to {net}"))?;
        }
        Ok(())
    }

    fn add_one(
        &mut self,
        netlink: &Netlink,
        table: Table,
        net: IpNet,
        node: &Node,
    ) -> anyhow::Result<()> {
        let route =
            |table| Route { destination: net, device: node.info().index, table, metric: None };
        match table {
            Table::Off => Ok(()),
            Table::Id(table) => Ok(netlink.add_route(&route(table))?),
            Table::Auto if net.prefix_len() == 0 => self.add_default(netlink, net, node),
            Table::Auto if netlink.has_route(net, node.info().index, MAIN_TABLE)? => Ok(()),
            Table::Auto => Ok(netlink.add_route(&route(MAIN_TABLE))?),
        }
    }

    fn add_default(&mut self, netlink: &Netlink, net: IpNet, node: &Node) -> anyhow::Result<()> {
        let table = match node.fwmark() {
            0 => {
                let table = unused_table(netlink)?;
                node.apply(Change { fwmark: Some(table), ..Change::default() })?;
                table
            }
            mark => mark,
        };
        let family = Family::of(net.addr());
        netlink.add_route(&Route {
            destination: net,
            device: node.info().index,
            table,
            metric: None,
        })?;
        let rule = |fwmark, invert, table, suppress_prefix_length| Rule {
            family,
            fwmark,
            invert,
            table,
            priority: None,
            suppress_prefix_length,
        };
        self.add_rule(netlink, rule(Some(table), true, table, None))?;
        self.add_rule(netlink, rule(None, false, MAIN_TABLE, Some(0)))?;
        self.mark = Some(table);
        // In a container it may be set and not be ours to write.
        if family == Family::V4
            && fs::read_to_string(SRC_VALID_MARK).is_ok_and(|value| value.trim() != "1")
        {
            fs::write(SRC_VALID_MARK, "1").with_context(|| SRC_VALID_MARK.to_owned())?;
        }
        Ok(())
    }

    /// The mark of our own datagrams, where a default route goes into the tunnel.
    pub fn mark(&self) -> Option<u32> {
        self.mark
    }

    /// A rule that is there already is somebody else's to remove.
    fn add_rule(&mut self, netlink: &Netlink, rule: Rule) -> anyhow::Result<()> {
        match netlink.add_rule(&rule) {
            Ok(()) => self.rules.push(rule),
            Err(error) if error.errno() == Some(EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes the rules away.
    pub fn remove_rules(&mut self, netlink: &Netlink) {
        for rule in self.rules.drain(..) {
            if let Err(error) = netlink.delete_rule(&rule) {
                tracing::error!(%error, ?rule, "a rule stays behind");
            }
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
