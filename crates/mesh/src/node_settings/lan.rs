//! Networks of this machine with tailnet addresses: carriers use 100.64.0.0/10 for customers (RFC
//! 6598). Such a network has precedence, because an address in it may be the gateway's.

use ipnet::IpNet;
use tailnet::map_messages::Node;

use super::{Environment, MAX_REPORTED};
use crate::desired_host_checks;

/// The networks of this machine with tailnet addresses.
pub(super) struct Lans<'a> {
    networks: Vec<&'a IpNet>,
    /// Networks from which the user accepts all addresses.
    ranges: &'a [IpNet],
}

impl<'a> Lans<'a> {
    /// Without an interface the machine does not get the tailnet's addresses, so it has no
    /// conflicts.
    pub(super) fn of(environment: &Environment<'a>) -> Self {
        let is_lan = |net: &&IpNet| {
            net.prefix_len() < net.max_prefix_len()
                && desired_host_checks::TAILNETS.iter().any(|all| all.contains(&net.addr()))
        };
        let connected = environment.connected.iter().filter(|_| environment.has_interface);
        Self { networks: connected.filter(is_lan).collect(), ranges: environment.ranges }
    }

    /// Returns whether an address is in one of the networks.
    pub(super) fn has(&self, address: &IpNet) -> bool {
        self.network_of(address).is_some()
    }

    /// Returns the addresses outside of the networks.
    pub(super) fn others(&self, addresses: &[IpNet]) -> impl Iterator<Item = IpNet> {
        addresses.iter().filter(|address| !self.has(address)).copied()
    }

    /// Reports the ignored addresses of nodes.
    pub(super) fn problem(&self, own: &Node, peers: &[&Node]) -> Option<String> {
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
                "addresses of the tailnet are also in networks of this machine, which have \
                 precedence: {named}{more}"
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
