//! The MTU of a tunnel.

use std::net::SocketAddr;

use sys::netlink::Netlink;

/// The MTU of an interface without a configured one: 1500 of Ethernet, less 80 for the
/// outer IPv6 and UDP headers and our own.
pub const DEFAULT_MTU: u32 = ETHERNET_MTU - OVERHEAD;

/// What the outer headers and our own take of the path's MTU: IPv6 40, UDP 8,
/// data header 16, tag 16.
const OVERHEAD: u32 = 80;
/// The path's MTU if it is unknown.
const ETHERNET_MTU: u32 = 1500;

/// The largest of the paths' MTUs, less our overhead, as wg-quick has it.
///
/// # Errors
/// The kernel cannot be asked.
pub fn tunnel_mtu(netlink: &Netlink, endpoints: &[SocketAddr], fwmark: u32) -> anyhow::Result<u32> {
    let mut path = None;
    for endpoint in endpoints {
        path = path.max(netlink.mtu_to(endpoint.ip(), fwmark)?);
    }
    let path = match path {
        Some(mtu) => Some(mtu),
        None => netlink.default_route_mtu()?,
    };
    // Loopback's 65536 would make a tunnel that no IP packet fits.
    let path = path.unwrap_or(ETHERNET_MTU).min(u16::MAX.into());
    Ok(path.saturating_sub(OVERHEAD).max(1280))
}
