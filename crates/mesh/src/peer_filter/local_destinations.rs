//! The possible destinations of packets from peers.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use packet::filter::AddressRange;
use tailnet::map_messages::Node;

use super::{Input, Problem, address_set::AddressSet, range};

/// The capability that contains the addresses of services (`tailcfg.NodeAttrServiceHost`).
const SERVICE_HOST: &str = "service-host";

/// Networks that an exit node does not give access to (`ipnlocal`, `removeFromDefaultRoute`):
/// private, link-local and multicast networks, and those of the tailnet. Of the private IPv6
/// networks, Tailscale excludes only its own prefix; here all are excluded, as in IPv4.
const NO_EXIT: [IpNet; 9] = [
    v4([192, 168, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([10, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 4),
    CGNAT,
    v6([0xfe80, 0, 0], 10),
    v6([0xff00, 0, 0], 8),
    v6([0xfc00, 0, 0], 7),
];
/// The addresses of nodes (`net/tsaddr`).
const CGNAT: IpNet = v4([100, 64, 0, 0], 10);
const ULA: IpNet = v6([0xfd7a, 0x115c, 0xa1e0], 48);
/// The part of it that ChromeOS uses for local virtual machines.
const CHROME_OS: IpNet = v4([100, 115, 92, 0], 23);

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

const fn v6([a, b, c]: [u16; 3], len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), len))
}

/// Returns the addresses and services of this node, and the networks that it offers. A default
/// route does not include private networks and networks of this machine: users of an exit node
/// reach the Internet, and the LAN only if it is offered as well.
pub(super) fn local(input: &Input<'_>) -> AddressSet {
    let interfaces = input.interfaces.iter().filter(|net| {
        let own = net.prefix_len() == net.max_prefix_len();
        !own && !is_of_tailnet(net.addr())
    });
    let hosts: Vec<AddressRange> = interfaces.clone().map(|net| net.addr().into()).collect();
    let lans: AddressSet = interfaces.filter_map(range).collect();
    let no_exit: AddressSet = NO_EXIT.iter().filter_map(range).collect();
    let (exits, subnets): (Vec<&IpNet>, Vec<&IpNet>) =
        input.advertised.iter().partition(|net| net.prefix_len() == 0);
    let shrunk = exits.into_iter().filter_map(range).flat_map(|exit| {
        let outside = AddressSet::from_iter([exit]).less(&lans);
        let of_it = |host: &&AddressRange| host.first().is_ipv4() == exit.first().is_ipv4();
        let hosts = hosts.iter().filter(of_it).copied();
        let with_hosts: AddressSet = outside.ranges().chain(hosts).collect();
        with_hosts.less(&no_exit).ranges().collect::<Vec<_>>()
    });
    let services = input.services.iter().map(|address| (*address).into());
    input.own.iter().chain(subnets).filter_map(range).chain(services).chain(shrunk).collect()
}

fn is_of_tailnet(address: IpAddr) -> bool {
    (CGNAT.contains(&address) && !CHROME_OS.contains(&address)) || ULA.contains(&address)
}

/// Returns the addresses of services of this node, from its capabilities.
///
/// # Errors
/// The capability is unreadable.
pub fn service_addresses(own: &Node) -> Result<Vec<IpAddr>, Problem> {
    let mappings = own.cap_map.get(SERVICE_HOST).filter(|list| list.text().starts_with('['));
    let Some(mappings) = mappings else { return Ok(Vec::new()) };
    let mappings: Vec<BTreeMap<String, Option<Vec<IpAddr>>>> =
        mappings.read().map_err(|_| Problem::Services)?;
    let of_services = mappings.into_iter().flat_map(BTreeMap::into_values).flatten();
    Ok(of_services.flatten().collect())
}
