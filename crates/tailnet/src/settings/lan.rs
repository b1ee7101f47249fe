//! Networks of this machine that have addresses of tailnets: carriers give customers addresses of
//! 100.64.0.0/10 (RFC 6598). Such a network wins: an address in it may be the gateway's.

use ipnet::IpNet;

use super::{Environment, MAX_REPORTED};
use crate::{desired_host, messages::Node};

/// See the module.
pub(super) struct Lans<'a> {
    networks: Vec<&'a IpNet>,
    /// The user accepts all addresses in these.
    ranges: &'a [IpNet],
}

impl<'a> Lans<'a> {
    /// Without an interface the machine does not have the tailnet's addresses, and nothing clashes.
    pub fn of(environment: &Environment<'a>) -> Self {
        let is_lan = |net: &&IpNet| {
            net.prefix_len() < net.max_prefix_len()
                && desired_host::TAILNETS.iter().any(|all| all.contains(&net.addr()))
        };
        let connected = environment.connected.iter().filter(|_| environment.has_interface);
        Self { networks: connected.filter(is_lan).collect(), ranges: environment.ranges }
    }

    /// Whether an address is in one of the networks.
    pub fn has(&self, address: &IpNet) -> bool {
        self.network_of(address).is_some()
    }

    /// The addresses that are in none of the networks.
    pub fn others(&self, addresses: &[IpNet]) -> impl Iterator<Item = IpNet> {
        addresses.iter().filter(|address| !self.has(address)).copied()
    }

    /// The addresses of nodes that are not used, in a line.
    pub fn problem(&self, own: &Node, peers: &[&Node]) -> Option<String> {
        if self.networks.is_empty() {
            return None;
        }
        let nodes = std::iter::once(own).chain(peers.iter().copied());
        let addresses = nodes.flat_map(|node| node.addresses.iter().map(move |at| (node, at)));
        let mut clashes = addresses.filter_map(|(node, at)| {
            let name = node.name.trim_end_matches('.');
            Some(format!("{} of {name} in {}", at.addr(), self.network_of(at)?.trunc()))
        });
        let named: Vec<String> = clashes.by_ref().take(MAX_REPORTED).collect();
        let more = match clashes.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = named.join(", ");
        (!named.is_empty()).then(|| {
            format!(
                "addresses of the tailnet are in networks of this machine, which are reached \
                 instead: {named}{more}"
            )
        })
    }

    fn network_of(&self, address: &IpNet) -> Option<&'a IpNet> {
        let is_accepted = || self.ranges.iter().any(|range| range.contains(address));
        let is_host = address.prefix_len() == address.max_prefix_len();
        let network = self.networks.iter().find(|network| network.contains(address));
        network.copied().filter(|_| is_host && !is_accepted())
    }
}
