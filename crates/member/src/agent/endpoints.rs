//! Addresses and default routes of this machine.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use sys::netlink::{DefaultRoute, Netlink};

use super::core::Agent;

/// The most endpoints that are announced.
const MAX_ENDPOINTS: usize = 20;

/// The shortest interval between two checks of the machine's network. A check reads all routes, and
/// each route of thousands of peers triggers one.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl Agent {
    /// Checks the machine's network, if due.
    pub fn check_network(&mut self) {
        if self.network_check.is_due(self.clock.now) {
            self.network_check.begin(self.clock.now);
            self.network_changed();
        }
    }

    /// Compares addresses and default routes, because the routes of this node change as well.
    pub fn network_changed(&mut self) {
        self.mesh.network().port_mapping().check();
        let (found, routes) = (self.local_endpoints(), (self.effects.default_routes)());
        let moved = std::mem::replace(&mut self.default_routes, routes) != routes;
        if !self.mesh.set_local(found, self.clock.now) && !moved {
            return;
        }
        self.relays.network_changed();
        self.reconnect();
        self.mesh.handle_network_change(self.clock.now);
        self.apply_settings();
    }

    fn local_endpoints(&self) -> Vec<SocketAddr> {
        reachable_at(&(self.effects.addresses)(self.own.index), self.own.port)
    }

    /// Reads this machine's addresses again.
    pub fn find_endpoints(&mut self) {
        let found = self.local_endpoints();
        self.mesh.set_local(found, self.clock.now);
    }
}

/// The endpoints at these addresses and `port` that other machines may reach.
pub(super) fn reachable_at(addresses: &[IpNet], port: u16) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = addresses
        .iter()
        .map(IpNet::addr)
        .filter(|address| is_reachable(*address))
        .map(|address| (address, port).into())
        .collect();
    // IPv6 first, because it works without NAT.
    found.sort_by_key(|at| (at.is_ipv4(), *at));
    found.truncate(MAX_ENDPOINTS);
    found
}

/// The networks to which this machine is connected.
pub(super) fn connected_networks(mut addresses: Vec<IpNet>) -> Vec<IpNet> {
    addresses.retain(|net| !net.addr().is_loopback());
    addresses
}

/// This machine's addresses with their prefix lengths, except those of the interface `own`.
pub(super) fn addresses(own: u32) -> Vec<IpNet> {
    let read = || {
        let netlink = Netlink::open()?;
        let mut all = Vec::new();
        for link in netlink.links()? {
            if link.up && link.index != own {
                all.extend(netlink.addresses(link.index)?);
            }
        }
        Ok::<_, sys::netlink::NetlinkError>(all)
    };
    read().unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the machine's addresses");
        Vec::new()
    })
}

/// The default routes of this machine.
pub(super) fn default_routes() -> [DefaultRoute; 2] {
    let read = || Netlink::open()?.default_routes();
    read().unwrap_or_else(|error: sys::netlink::NetlinkError| {
        tracing::error!(%error, "cannot read default routes");
        <[DefaultRoute; 2]>::default()
    })
}

fn is_reachable(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !is_tailnet_address(address)
}

/// Addresses of a tailnet are reachable only through it.
fn is_tailnet_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64,
        IpAddr::V6(ip) => ip.segments()[..3] == [0xfd7a, 0x115c, 0xa1e0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_addresses_are_not_announced() {
        for (address, is_reachable_address) in [
            ("192.168.1.2", true),
            ("203.0.113.1", true),
            ("2001:db8::1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("::1", false),
            ("100.64.0.1", false),
            ("100.127.255.255", false),
            ("100.128.0.1", true),
            ("fd7a:115c:a1e0::1", false),
        ] {
            assert_eq!(is_reachable(address.parse().unwrap()), is_reachable_address, "{address}");
        }
    }
}
