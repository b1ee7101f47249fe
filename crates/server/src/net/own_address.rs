//! This machine's address for other machines.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use sys::netlink::{Netlink, NetlinkError};

/// The source address of the default route, or else any address that others may reach.
pub(crate) fn find() -> IpAddr {
    let known = towards_others().or_else(|| {
        let all = of_links().unwrap_or_default();
        let is_good = |address: &&IpAddr| match address {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        all.iter().filter(is_good).min_by_key(|address| address.is_ipv6()).copied()
    });
    known.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The source address of the default route, to documentation addresses (RFC 5737 and 3849). Nothing
/// is sent.
fn towards_others() -> Option<IpAddr> {
    let towards = |from: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let v4 = towards(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let to = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    v4.or_else(|| towards(Ipv6Addr::UNSPECIFIED.into(), to.into()))
}

fn of_links() -> Result<Vec<IpAddr>, NetlinkError> {
    let netlink = Netlink::open()?;
    let mut all = Vec::new();
    for link in netlink.links()?.into_iter().filter(|link| link.up) {
        all.extend(netlink.addresses(link.index)?.iter().map(ipnet::IpNet::addr));
    }
    Ok(all)
}
