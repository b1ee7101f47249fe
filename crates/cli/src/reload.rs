//! Updates a running interface to the keys and peers in its file. Unchanged peers keep their sessions,
//! and an unchanged network belongs to a peer at all times.

use std::{
    collections::{HashMap, HashSet},
    thread,
};

use anyhow::Context;
use config::uapi::{Change, Stats, write_change, write_endpoint_names};
use host::resolve;
use ipnet::IpNet;
use sys::process::harden;
use wg::{
    PresharedKey, PublicKey,
    config::{AllowedIpChange, PeerChange, PeerState},
};

use crate::{ConfFile, client::Client, interface::Interface, log::Log};

/// # Errors
/// The file is invalid, a name cannot be resolved, or the interface is not running. Then nothing is
/// changed.
pub(crate) fn reload(file: &ConfFile) -> anyhow::Result<()> {
    // The file and the state of the interface contain private keys.
    harden().context("core dumps")?;
    let (name, _, conf) = file.read_any()?;
    let stats = Stats::parse(&Client::connect(&name)?.request("linerate-stats")?);
    match stats.proxy {
        Some(_) => conf.without_up()?,
        None => conf.without_proxy()?,
    }
    Log::default().start();
    for warning in &conf.warnings {
        eprintln!("linerate: {warning}");
    }
    let wanted = conf.change(|name| {
        resolve(name, |pause| {
            thread::sleep(pause);
            Ok(())
        })
    })?;
    // Connects again, because resolving names may take longer than a client may be silent.
    let mut client = Client::connect(&name)?;
    let running = Interface::parse(name, &client.request("get")?);
    client.send("set", &write_change(&difference(wanted, &running)))?;
    let is_wanted = conf.interface.features.reresolve.unwrap_or(true);
    let names: Vec<_> = conf.names().filter(|_| is_wanted).collect();
    let lines = write_endpoint_names(names.iter().map(|(peer, name)| (peer, name)));
    let reply = client.send("linerate-endpoint-names", &lines)?;
    if !names.is_empty() && reply.lines().any(|line| line == "followed=false") {
        eprintln!(
            "linerate: the endpoint names were resolved only once: to resolve them again later, the \
             file must contain names at the start"
        );
    }
    Ok(())
}

/// The difference between a file and a running interface. The mark does not change, because rules and
/// routes depend on it.
fn difference(wanted: Change, running: &Interface) -> Change {
    let Change { listen_port, mut device, .. } = wanted;
    // Port 0 means any port, and the interface already has one.
    let listen_port = listen_port.filter(|port| *port != 0 && Some(*port) != running.listen_port);
    device.private_key = device
        .private_key
        .filter(|key| key.as_ref().map(wg::PrivateKey::public_key) != running.public_key);
    device.replace_peers = false;
    let mut others: HashMap<PublicKey, &PeerState> =
        running.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let owners = owners(&device.peers);
    for peer in &mut device.peers {
        let running = others.remove(&peer.public_key);
        reduce_to_difference(peer, running, &owners);
    }
    // Removed last: the other peers have taken over their networks.
    device
        .peers
        .extend(others.into_keys().map(|key| PeerChange { remove: true, ..PeerChange::new(key) }));
    Change { listen_port, fwmark: None, device }
}

/// The peer of each network: the last one that has it.
fn owners(peers: &[PeerChange]) -> HashMap<IpNet, PublicKey> {
    let nets = peers
        .iter()
        .flat_map(|peer| peer.allowed_ips.iter().map(|allowed| (allowed.net, peer.public_key)));
    nets.collect()
}

/// Reduces a peer's change to what differs from the running one.
fn reduce_to_difference(
    peer: &mut PeerChange,
    running: Option<&PeerState>,
    owners: &HashMap<IpNet, PublicKey>,
) {
    let current = running.map_or(&[][..], |running| &running.allowed_ips);
    let current: HashSet<IpNet> = current.iter().copied().collect();
    // Replacing them would leave networks without a peer for a short time.
    peer.replace_allowed_ips = false;
    peer.allowed_ips.retain(|AllowedIpChange { net, .. }| {
        owners[net] == peer.public_key && !current.contains(net)
    });
    // A network moves to another peer by adding it there.
    let lost = current.iter().filter(|net| !owners.contains_key(*net));
    peer.allowed_ips.extend(lost.map(|net| AllowedIpChange { net: *net, remove: true }));
    let Some(running) = running else { return };
    peer.endpoint = peer.endpoint.filter(|endpoint| Some(*endpoint) != running.endpoint);
    if peer.preshared_key.is_none() && running.preshared_key != PresharedKey::default() {
        peer.preshared_key = Some(Default::default());
    }
    let keepalive = peer.persistent_keepalive.unwrap_or(0);
    peer.persistent_keepalive = (keepalive != running.persistent_keepalive).then_some(keepalive);
}

#[cfg(test)]
mod tests;
