//! Addresses and default routes of this machine.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use sys::netlink::{DefaultRoute, Netlink};

use super::throttle::Throttle;

/// The most endpoints that are announced.
const MAX_ENDPOINTS: usize = 20;

/// The shortest interval between two checks of the machine's network. A check reads all routes, and
/// each route of thousands of peers triggers one.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the addresses of this machine with their prefix lengths, except those of one interface.
pub(super) type ReadAddresses = Box<dyn Fn(u32) -> Vec<IpNet>>;
/// Reads the default routes of this machine.
pub(super) type ReadRoutes = Box<dyn Fn() -> [DefaultRoute; 2]>;

/// This machine's addresses and default routes, and when they are read again.
pub(super) struct Machine {
    read_addresses: ReadAddresses,
    read_routes: ReadRoutes,
    /// The default routes at the last check.
    routes: [DefaultRoute; 2],
    checks: Throttle,
}

impl Machine {
    pub(super) fn new(read_addresses: ReadAddresses, read_routes: ReadRoutes) -> Self {
        let (routes, checks) = (<[DefaultRoute; 2]>::default(), Throttle::new(CHECK_INTERVAL));
        Self { read_addresses, read_routes, routes, checks }
    }

    /// The endpoints at `port`, except those of one interface.
    pub(super) fn endpoints(&self, interface: u32, port: u16) -> Vec<SocketAddr> {
        reachable_at(&(self.read_addresses)(interface), port)
    }

    /// The networks to which this machine is connected, except those of one interface.
    pub(super) fn connected_networks(&self, interface: u32) -> Vec<IpNet> {
        let mut addresses = (self.read_addresses)(interface);
        addresses.retain(|net| !net.addr().is_loopback());
        addresses
    }

    /// Reads the default routes. Returns whether they changed.
    pub(super) fn update_routes(&mut self) -> bool {
        let routes = (self.read_routes)();
        std::mem::replace(&mut self.routes, routes) != routes
    }

    /// Requests a check of the machine's network.
    pub(super) fn request_check(&mut self, now: Duration) {
        self.checks.request(now);
    }

    /// The time of the next check.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.checks.due()
    }

    /// Whether a check starts now.
    pub(super) fn handle_timeout(&mut self, now: Duration) -> bool {
        let is_due = self.checks.is_due(now);
        if is_due {
            self.checks.begin(now);
        }
        is_due
    }

    /// Takes the time at which the event of `began` was handled.
    pub(super) fn handle_done(&mut self, began: Duration, now: Duration) {
        self.checks.handle_done(began, now);
    }
}

/// The endpoints at these addresses and `port` that other machines may reach.
fn reachable_at(addresses: &[IpNet], port: u16) -> Vec<SocketAddr> {
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
