//! Collects the facts. This is the only module that queries the system, except for `remedy`.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::Context;
use sys::{
    BufferSizes, Offloads, UdpSocket, clock, ethtool,
    netlink::{Link, Netlink},
    probe,
};

use super::{
    facts::{Clock, DroppingChain, Facts, Interface, Kernel, Sysctls, Tunnel, TunnelPeer},
    legacy_filter,
    setting::sysctl,
};
use host::{dropping_chains, lost_changes};

/// Addresses that only a default route leads to (RFC 5737, RFC 3849).
const ANYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Kernel settings of the whole host. Settings that this kernel lacks are skipped.
const HOST_SYSCTLS: [&str; 8] = [
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/all/src_valid_mark",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];
/// Kernel settings of an interface.
const DEVICE_SYSCTLS: [&str; 3] = ["rp_filter", "forwarding", "src_valid_mark"];

/// Collects the facts about this host and these tunnels, and adds the MTU and the paths to peers to
/// the tunnels. Call it before any thread is started.
///
/// # Errors
/// The interfaces of the host cannot be listed.
pub fn gather(mut tunnels: Vec<Tunnel>) -> anyhow::Result<Facts> {
    let mut unknown = Vec::new();
    let offloads = probe_offloads(&mut unknown);
    let netlink = Netlink::open().context("netlink")?;
    let all = netlink.links().context("the host's interfaces")?;
    for tunnel in &mut tunnels {
        let interface = all.iter().find(|interface| interface.name == tunnel.name);
        tunnel.mtu = interface.map(|interface| interface.mtu);
        let own = interface.map(|interface| interface.index);
        if own.is_some() {
            let (lost, errors) = lost_changes(&tunnel.name, &netlink);
            let what = |error| format!("the changes by `up` for {}: {error:#}", tunnel.name);
            unknown.extend(errors.into_iter().map(what));
            tunnel.lost = lost;
        }
        for index in 0..tunnel.peers.len() {
            let Some(endpoint) = tunnel.peers[index].endpoint else { continue };
            let device = device_to(&netlink, endpoint, tunnel.fwmark)?;
            // For a route through the tunnel, the kernel would return the MTU of the tunnel.
            if own.is_some() && device == own {
                // An endpoint inside the networks of another peer is not a loop.
                let is_looped = peer_for(&tunnel.peers, endpoint.ip()) == Some(index);
                tunnel.peers[index].is_looped = is_looped;
            } else {
                let mtu = mtu_to(&netlink, &all, endpoint, tunnel.fwmark)?;
                tunnel.peers[index].path_mtu = mtu;
            }
        }
    }
    let sysctls = sysctls(all.iter().map(|interface| interface.name.as_str()), &mut unknown);
    let outer = outer_devices(&netlink, &tunnels)?;
    let interfaces = interfaces(&all, &outer, sysctls.forwards(), &mut unknown);
    let forward_drops = forward_drops(&tunnels, sysctls.forwards(), &mut unknown);
    Ok(Facts {
        kernel: Kernel::parse(&sysctl("kernel/osrelease").context("the kernel's release")?),
        offloads,
        buffers: note(&mut unknown, "a UDP socket's buffers", buffers()).flatten(),
        sysctls,
        forward_drops,
        interfaces,
        clock: Clock {
            wall: clock::wall(),
            installed: installed(),
            synchronised: clock::is_synchronised(),
        },
        tunnels,
        unknown,
    })
}

/// Returns the value, or adds the error to `unknown`.
fn note<T, E: std::fmt::Display>(
    unknown: &mut Vec<String>,
    what: &str,
    result: Result<T, E>,
) -> Option<T> {
    result.map_err(|error| unknown.push(format!("{what}: {error}"))).ok()
}

/// Probes all offloads.
fn probe_offloads(unknown: &mut Vec<String>) -> Vec<(&'static str, Result<(), String>)> {
    let tun = note(unknown, "the TUN's offloads", probe::tun());
    let udp = note(unknown, "the UDP socket's offloads", probe::udp());
    let all = tun.into_iter().flatten().chain(udp.into_iter().flatten());
    all.map(|(name, result)| (name, result.map_err(|error| error.to_string()))).collect()
}

/// The buffer sizes of a socket like those of the daemons.
fn buffers() -> anyhow::Result<Option<BufferSizes>> {
    let (socket, _receiver) = UdpSocket::unbound(&Arc::new(Offloads::default()))?;
    socket.bind(0, 0)?;
    Ok(socket.buffers())
}

fn sysctls<'a>(interfaces: impl Iterator<Item = &'a str>, unknown: &mut Vec<String>) -> Sysctls {
    let of_interfaces = interfaces.flat_map(|interface| {
        DEVICE_SYSCTLS.iter().map(move |name| format!("net/ipv4/conf/{interface}/{name}"))
    });
    let mut sysctls = Sysctls::default();
    for key in HOST_SYSCTLS.iter().map(|key| (*key).to_owned()).chain(of_interfaces) {
        match sysctl(&key) {
            Ok(value) => drop(sysctls.0.insert(key, value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => unknown.push(format!("/proc/sys/{key}: {error}")),
        }
    }
    sysctls
}

/// The peer that receives packets to this address: the one with the most specific network.
fn peer_for(peers: &[TunnelPeer], to: IpAddr) -> Option<usize> {
    let nets = peers.iter().enumerate().flat_map(|(index, peer)| {
        let nets = peer.allowed_ips.iter().filter(move |net| net.contains(&to));
        nets.map(move |net| (net.prefix_len(), index))
    });
    nets.max().map(|(_, index)| index)
}

/// The interface that sends datagrams to an endpoint.
fn device_to(netlink: &Netlink, to: SocketAddr, fwmark: u32) -> anyhow::Result<Option<u32>> {
    match scope(to) {
        Some(interface) => Ok(Some(interface)),
        None => Ok(netlink.device_to(to.ip(), None, fwmark)?),
    }
}

fn mtu_to(
    netlink: &Netlink,
    all: &[Link],
    to: SocketAddr,
    fwmark: u32,
) -> anyhow::Result<Option<u32>> {
    match scope(to) {
        Some(interface) => Ok(all.iter().find(|link| link.index == interface).map(|link| link.mtu)),
        None => Ok(netlink.mtu_to(to.ip(), fwmark)?),
    }
}

/// The interface that a link-local endpoint names. Routes cannot determine it, because each
/// interface has a route to link-local addresses.
fn scope(endpoint: SocketAddr) -> Option<u32> {
    match endpoint {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
        _ => None,
    }
}

/// The interfaces that carry the datagrams of tunnels, or, without peers, those of the default
/// routes.
fn outer_devices(netlink: &Netlink, tunnels: &[Tunnel]) -> anyhow::Result<BTreeSet<u32>> {
    let endpoints = tunnels.iter().flat_map(|tunnel| {
        let peers = tunnel.peers.iter().filter(|peer| !peer.is_looped);
        peers.filter_map(|peer| Some((peer.endpoint?, tunnel.fwmark)))
    });
    let mut destinations: Vec<(SocketAddr, u32)> = endpoints.collect();
    if destinations.is_empty() {
        destinations.extend(ANYWHERE.map(|address| ((address, 0).into(), 0)));
    }
    let mut interfaces = BTreeSet::new();
    for (to, fwmark) in destinations {
        interfaces.extend(device_to(netlink, to, fwmark)?);
    }
    Ok(interfaces)
}

fn interfaces(
    all: &[Link],
    outer: &BTreeSet<u32>,
    forwards: bool,
    unknown: &mut Vec<String>,
) -> Vec<Interface> {
    let mut interfaces = Vec::new();
    for interface in all {
        let name = &interface.name;
        let outer = outer.contains(&interface.index);
        if outer && interface.bridged {
            unknown.push(format!(
                "{name} belongs to a bridge; the ports of the bridge were not checked"
            ));
        }
        let forwards = forwards && interface.ethernet && interface.up && !interface.bridged;
        // The features of loopback are irrelevant.
        if interface.bridged || name == "lo" || !(outer || forwards) {
            continue;
        }
        let features = note(unknown, &format!("the features of {name}"), ethtool::features(name));
        let Some(features) = features else { continue };
        let driver = ethtool::driver(name).unwrap_or_default().name;
        interfaces.push(Interface { name: name.clone(), driver, features, outer, forwards });
    }
    interfaces
}

/// The packet filter chains that may block forwarded packets. Checked only on routers.
fn forward_drops(
    tunnels: &[Tunnel],
    forwards: bool,
    unknown: &mut Vec<String>,
) -> Vec<DroppingChain> {
    let offers = tunnels.iter().any(|tunnel| !tunnel.offers.is_empty());
    if !offers && !forwards {
        return Vec::new();
    }
    let mut drops: Vec<_> =
        legacy_filter::dropping().into_iter().map(DroppingChain::Legacy).collect();
    match dropping_chains() {
        Ok(chains) => drops.extend(chains.into_iter().map(DroppingChain::Nft)),
        // A host without nft may lack a packet filter.
        Err(error) if offers => unknown.push(format!("the packet filter: {error:#}")),
        Err(_) => {}
    }
    drops
}

/// The modification time of this program's file; `None` if it is unknown.
fn installed() -> Option<Duration> {
    let changed = fs::metadata("/proc/self/exe").and_then(|file| file.modified()).ok()?;
    changed.duration_since(UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_with_the_most_specific_network_is_selected() {
        let peer = |nets: &[&str]| TunnelPeer {
            allowed_ips: nets.iter().map(|net| net.parse().unwrap()).collect(),
            ..TunnelPeer::default()
        };
        let peers = [peer(&["0.0.0.0/1", "128.0.0.0/1"]), peer(&["192.0.2.0/24", "fd00::/8"])];
        for (to, index) in
            [("10.0.0.1", Some(0)), ("192.0.2.7", Some(1)), ("fd00::1", Some(1)), ("::1", None)]
        {
            assert_eq!(peer_for(&peers, to.parse().unwrap()), index, "{to}");
        }
    }

    #[test]
    fn only_an_endpoint_with_a_scope_determines_its_device() {
        for (endpoint, interface) in
            [("[fe80::1%7]:1", Some(7)), ("[2001:db8::1]:1", None), ("192.0.2.1:1", None)]
        {
            assert_eq!(scope(endpoint.parse().unwrap()), interface, "{endpoint}");
        }
    }
}
