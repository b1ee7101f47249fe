//! The MTU of a tunnel.

use std::net::SocketAddr;

use sys::netlink::Netlink;

/// The default MTU of an interface: 1500 of Ethernet, less 80 for the outer IPv6 and UDP headers
/// and WireGuard's overhead.
pub const DEFAULT_MTU: u32 = ETHERNET_MTU - OVERHEAD;

/// The overhead in the path's MTU, in bytes: IPv6 40, UDP 8, data header 16, tag 16.
const OVERHEAD: u32 = 80;
/// The path's MTU if it is unknown.
const ETHERNET_MTU: u32 = 1500;

/// The largest of the paths' MTUs, less the overhead, as in wg-quick.
///
/// # Errors
/// The kernel does not answer.
pub fn tunnel_mtu(netlink: &Netlink, endpoints: &[SocketAddr], fwmark: u32) -> anyhow::Result<u32> {
    let mut path = None;
    for endpoint in endpoints {
        path = path.max(netlink.mtu_to(endpoint.ip(), fwmark)?);
    }
    let path = match path {
        Some(mtu) => Some(mtu),
        None => netlink.default_route_mtu()?,
    };
    // With loopback's 65536, the tunnel's MTU would exceed the length of an IP packet.
    let path = path.unwrap_or(ETHERNET_MTU).min(u16::MAX.into());
    Ok(path.saturating_sub(OVERHEAD).max(1280))
}
